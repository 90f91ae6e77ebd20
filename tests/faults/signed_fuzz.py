"""Signed requests that were changed, against a live broker with access control: `signed_fuzz.py [--frames N] [--seed N] [--slave]`.

With `--slave` they go to a slave of a group, which passes on what only its master can do; what the master has is compared.

Three kinds of connections are mixed. *Spoilt*: requests of an administrator and of others, changed after they were signed. *Gone*: rightly
signed by users that are disabled or deleted. *Stranger*: rightly signed by a user without any rights, of whatever content. None may be carried
out, whatever it asks: the log keeps its bytes, and topics, groups, offsets, settings, users and policies stay as they are. To each of the first
two kinds the answer is a refusal. What RocketMQ does not sign (code, names of fields) may be changed; a frame that still has the right signature
is left out.

A client that signs pulls meanwhile. Afterwards the broker still runs, serves who may, has not grown, and has logged no unexpected exception.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import random
import select
import socket
import struct
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from brokerset_rig import controllers, mutations, replicated_group, stack, wire
from brokerset_rig.mutations import GROUP, TOPIC, Request
from brokerset_rig.process_memory import anonymous_mib
from brokerset_rig.replicated_group import NAME
from brokerset_rig.signed_mutations import Mutator, Signer, access_requests, is_readable, is_signed

ADMIN = Signer("admin", "of the administrator")
OWNER = Signer("owner", "of the owner")
STRANGER = Signer("stranger", "of the stranger")
DISABLED = Signer("disabled", "of the disabled one")
DELETED = Signer("deleted", "of the deleted one")

ENABLED = {signer.name: signer.password for signer in (ADMIN, OWNER, STRANGER)}

NO_PERMISSION, UNKNOWN_REQUEST = 16, 3
SEND_REPLY = (324, 325)
"""Needs no right at the reply topic of the cluster, where brokers store it."""

SPOILT, GONE, OF_STRANGER = "spoilt", "gone", "stranger"
READABLE_MAX = 60
"""Frames of one burst; after one that cannot be read no other comes."""

UNREADABLE_SHARE = 0.05
"""Of frames that cannot be read so many are sent: each ends its connection, and the check is not reached."""

BURSTS = 3
REFUSED_SHARE_MIN = 0.4
"""Of all frames: bytes that end a connection and requests without an answer are the others."""

GROWTH_MIB_MAX = 48
HEALTHY_SECONDS_MAX = 5.0
PROBLEMS_MAX = 10

TRIES = 3
"""How often a group is made whose master may be replaced: on a busy machine one can lose its lease."""

SECONDS_MAX = 60.0
"""Until a slave has what its master has."""

ADMINISTRATION = {
    "authenticationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": ADMIN.name, "password": ADMIN.password}),
    "innerClientAuthenticationCredentials": json.dumps({"accessKey": "of brokers", "secretKey": "of brokers alone"}),
}  # fmt: skip
SETTINGS = {
    "mappedFileSizeCommitLog": str(16 * 1024 * 1024), "mappedFileSizeConsumeQueue": "6000", "enableLmq": "true",
    "enableMultiDispatch": "true", "maxHashSlotNum": "10000", "maxIndexNum": "40000", "recallMessageEnable": "true",
    "authorizationEnabled": "true", **ADMINISTRATION,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Target:
    """Who is sent the requests, and who would carry them out."""

    folder: Path
    """With everybody's logs below it."""

    attacked: stack.Server
    master: stack.Server
    leads: Callable[[], bool]
    """Whether the master is still one."""


STATE = {
    "topics": Request(21, {}),
    "consumer groups": Request(201, {}),
    "offsets": Request(43, {}),
    "request modes": Request(402, {}),
    "settings": Request(26, {}),
    "users": Request(3005, {"filter": ""}),
    "policies": Request(3010, {"subjectFilter": "", "resourceFilter": ""}),
}
"""What administrators ask to see a broker's state."""


def call(client: wire.Client, signer: Signer, request: Request) -> wire.Answer:
    """Send a request as this user. Raises `StackError` unless it is carried out."""
    signed = signer.sign(request)
    answer = client.call(signed.code, signed.ext, signed.body)
    if answer.code != 0:
        raise stack.StackError(f"{signer.name}: {request.code} is answered {answer.code} {answer.remark}")
    return answer


def send_of_owner() -> Request:
    """A message that the owner of the topic may send."""
    return Request(wire.SEND_V2, wire.send_ext(TOPIC, 0, "WAIT\x01true\x02"), b"of the owner")


def pull_of_owner() -> Request:
    """Reads that message."""
    ext = {**wire.pull_ext(TOPIC, 0, 0, count=1), "consumerGroup": GROUP}
    return Request(wire.PULL, ext)


def prepare(client: wire.Client) -> None:
    """Users, what the owner may, a topic, a consumer group and a message."""
    for signer, status in (
        (OWNER, "enable"),
        (STRANGER, "enable"),
        (DISABLED, "disable"),
        (DELETED, "enable"),
    ):
        user = {
            "username": signer.name,
            "password": signer.password,
            "userType": "Normal",
            "userStatus": status,
        }
        call(client, ADMIN, Request(3001, {"username": signer.name}, json.dumps(user).encode()))
        if signer is not STRANGER:
            entries = [{"resource": resource, "actions": ["All"], "sourceIps": [], "decision": "Allow"}
                       for resource in (f"Topic:{TOPIC}", f"Group:{GROUP}")]  # fmt: skip
            acl = {
                "subject": f"User:{signer.name}",
                "policies": [{"policyType": "Custom", "entries": entries}],
            }
            call(client, ADMIN, Request(3006, {"subject": f"User:{signer.name}"}, json.dumps(acl).encode()))
    call(client, ADMIN, Request(3003, {"username": DELETED.name}))
    by_code = {request.code: request for request in mutations.requests()}
    for code in (17, 200):
        call(client, ADMIN, by_code[code])
    for _ in range(3):
        call(client, OWNER, send_of_owner())
    call(client, OWNER, pull_of_owner())


def until_served(client: wire.Client) -> None:
    """Wait until the owner can read the message: a slave learns of it, of users and of policies from its master."""
    deadline = time.monotonic() + SECONDS_MAX
    while True:
        try:
            call(client, OWNER, pull_of_owner())
        except stack.StackError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            return


def state(client: wire.Client, store: Path) -> dict[str, bytes]:
    """What no refused request may change: the bytes of the log, and what administrators see."""
    found = {name: call(client, ADMIN, request).body for name, request in STATE.items()}
    digest = hashlib.sha256()
    for file in sorted((store / "commitlog").iterdir()):
        digest.update(file.name.encode() + file.read_bytes())
    return {**found, "log": digest.digest()}


def answers(buffer: bytearray) -> Iterator[tuple[int, int]]:
    """Opaque and code of each whole answer at the beginning of a buffer, which loses them."""
    while len(buffer) >= 8:
        size = int.from_bytes(buffer[:4], "big")
        if len(buffer) < 4 + size:
            return
        header = bytes(buffer[8 : 8 + int.from_bytes(buffer[5:8], "big")])
        if buffer[4]:
            code, opaque, flag = struct.unpack_from(">hxxxii", header)
        else:
            fields = json.loads(header)
            code, opaque, flag = fields["code"], fields["opaque"], fields["flag"]
        del buffer[: 4 + size]
        if flag & 1:
            yield opaque, code


class Attack:
    """Frames of all kinds, on one connection after the other."""

    def __init__(self, port: int, count: int, seed: int, *, passed_on: bool) -> None:
        """`passed_on`: the port is a slave's."""
        self.port = port
        self._passed_on = passed_on
        self.count = count
        self.sent: Counter[str] = Counter()
        self.left_out = 0
        """Changed frames that still have the right signature."""

        self.answers: Counter[tuple[str, int]] = Counter()
        self.connections = 0
        self.problems: list[str] = []
        self._source = random.Random(seed)
        served = list(self._served())
        signers = (ADMIN, OWNER, STRANGER, DISABLED, DELETED)
        self._mutator = Mutator(served, signers, self._source)
        of_stranger = [request for request in served if request.code not in SEND_REPLY]
        self._of_stranger = Mutator(of_stranger, signers, self._source)
        self._opaque = 0
        self._frames: dict[int, bytes] = {}

    def _served(self) -> Iterator[Request]:
        """What the broker knows; without a signature it is refused already."""
        with wire.Client(self.port) as client:
            for request in [*mutations.requests(), *access_requests(list(ENABLED))]:
                answer = client.call(request.code, request.ext, request.body)
                if answer.code == NO_PERMISSION:
                    yield request
                elif answer.code != UNKNOWN_REQUEST:
                    self._wrong(f"unsigned, {request.code} is answered {answer.code} {answer.remark}")

    def run(self) -> None:
        """Send everything."""
        while self.sent.total() < self.count and len(self.problems) < PROBLEMS_MAX:
            kind = self._source.choices((SPOILT, GONE, OF_STRANGER), (8, 1, 1))[0]
            self._frames.clear()
            with socket.create_connection(("127.0.0.1", self.port), 10) as connection:
                self.connections += 1
                with contextlib.suppress(
                    ConnectionError
                ):  # closed by the broker after bytes that it cannot read
                    self._use(connection, kind)

    def _use(self, connection: socket.socket, kind: str) -> None:
        buffer = bytearray()
        for _ in range(BURSTS):
            frames = self._burst(kind)
            self.sent[kind] += len(frames)
            connection.sendall(b"".join(frames))
            if not is_readable(frames[-1]):
                break
            while select.select([connection], [], [], 0.002)[0]:
                self._read(connection, buffer, kind)
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(20)
        while True:
            self._read(connection, buffer, kind)

    def _burst(self, kind: str) -> list[bytes]:
        frames: list[bytes] = []
        count = self._source.randrange(1, READABLE_MAX)
        while len(frames) < count:
            frame = self._frame(kind)
            if kind == SPOILT and is_signed(frame, ENABLED, passed_on=self._passed_on):
                self.left_out += 1
                continue
            readable = is_readable(frame)
            if not readable and self._source.random() > UNREADABLE_SHARE:
                continue
            self._frames[self._opaque] = frame
            frames.append(frame)
            if not readable:
                break
        return frames

    def _frame(self, kind: str) -> bytes:
        self._opaque += 1
        if kind == SPOILT:
            signer = self._source.choices((ADMIN, OWNER, STRANGER), (6, 3, 1))[0]
            return self._mutator.spoilt(signer, self._opaque)
        if kind == GONE:
            return self._mutator.signed_last(self._source.choice((DISABLED, DELETED)), self._opaque)
        return self._of_stranger.signed_last(STRANGER, self._opaque)

    def _read(self, connection: socket.socket, buffer: bytearray, kind: str) -> None:
        data = connection.recv(1 << 18)
        if not data:
            raise ConnectionError
        buffer += data
        for opaque, code in answers(buffer):
            self.answers[kind, code] += 1
            if kind != OF_STRANGER and code not in (NO_PERMISSION, UNKNOWN_REQUEST):
                self._wrong(
                    f"{kind}: answered {code}, not refused: {self._frames.get(opaque, b'of changed opaque')!r:.1500}"
                )

    def _wrong(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_MAX:
            self.problems.append(text)


class Healthy(threading.Thread):
    """The owner of the topic reads next to all that."""

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.port = port
        self.stop = threading.Event()
        self.pulls = 0
        self.slowest = 0.0
        self.problems: list[str] = []

    def run(self) -> None:
        try:
            with wire.Client(self.port) as client:
                while not self.stop.is_set():
                    before = time.monotonic()
                    call(client, OWNER, pull_of_owner())
                    self.slowest = max(self.slowest, time.monotonic() - before)
                    self.pulls += 1
                    self.stop.wait(0.005)
        except (OSError, ValueError, stack.StackError) as error:
            self.problems.append(f"the healthy client failed: {error!r}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--slave", action="store_true", help="attack a slave")
    options = parser.parse_args()
    whom = "a slave" if options.slave else "a broker"
    print(f"signed fuzz: {options.frames} frames to {whom}, seed {options.seed}", flush=True)
    for _ in range(TRIES):
        with running(options.slave) as target:
            problems = attack(target, options.frames, options.seed)
            if problems and not target.leads():
                print("another broker leads by now, so nothing can be compared: once more", flush=True)
                continue
            if problems:
                print(*problems, sep="\n")
                raise SystemExit(1)
            break
    else:
        raise SystemExit(f"the master was replaced {TRIES} times")
    print("no changed request was carried out, no crash, no growth, the healthy client undisturbed")
    return 0


@contextlib.contextmanager
def running(slave: bool) -> Iterator[Target]:
    """A broker, or a master and a slave, that check who asks for what."""
    if slave:
        access = wire.Access(ADMIN.name, ADMIN.password)
        checking = partial(stack.our_controllers, settings=ADMINISTRATION)
        with replicated_group.group("signed-fuzz", 2, checking, access) as group:
            members = [group.add("ours", SETTINGS) for _ in range(2)]
            group.wait_in_sync(*members)
            leads = controllers.until("a master leads", lambda: group.panel.master(NAME), SECONDS_MAX)[1]
            (master,) = (member.server for member in members if member.port == leads)
            (other,) = (member.server for member in members if member.port != leads)

            def leads_on() -> bool:
                found = group.panel.master(NAME)
                return found is not None and found[1] == leads

            yield Target(group.folder, other, master, leads_on)
        return
    with stack.Workspace("signed-fuzz") as folder:
        ports = stack.free_ports(2, below=2)
        with (
            stack.our_namesrv(folder, ports[0]) as namesrv,
            stack.our_broker(folder, ports[1], namesrv.address, SETTINGS) as broker,
        ):
            yield Target(folder, broker, broker, lambda: True)


def attack(target: Target, frames: int, seed: int) -> list[str]:
    """Send everything, and compare what the master has before and after; returns what is wrong."""
    broker, store = target.attacked, target.master.folder / "broker-0" / "store"
    with wire.Client(target.master.port) as client:
        prepare(client)
        before = state(client, store)
    with wire.Client(broker.port, SECONDS_MAX) as client:
        until_served(client)
    healthy = Healthy(broker.port)
    healthy.start()
    attacker = Attack(broker.port, frames, seed, passed_on=broker is not target.master)
    thread = threading.Thread(target=attacker.run)
    thread.start()
    memory = None
    while thread.is_alive():
        thread.join(0.2)
        if memory is None and attacker.sent.total() > frames // 4:
            memory = anonymous_mib(broker.pid)
    healthy.stop.set()
    healthy.join(20)
    problems = [*attacker.problems, *healthy.problems]
    now = anonymous_mib(broker.pid)
    grown = 0.0 if memory is None else now - memory
    sent, refused = (
        attacker.sent.total(),
        sum(count for (_, code), count in attacker.answers.items() if code == NO_PERMISSION),
    )
    by_code = ", ".join(f"{kind} {code}: {count}" for (kind, code), count in sorted(attacker.answers.items()))
    print(
        f"{sent} frames on {attacker.connections} connections ({attacker.left_out} more were left out, rightly signed); "
        f"answers {by_code}; {now:.0f} MiB anonymous memory, grown by {grown:.1f} MiB; "
        f"{healthy.pulls} pulls of the owner, slowest {healthy.slowest * 1000:.0f} ms"
    )
    if sent < frames and not attacker.problems:
        problems.append(f"only {sent} of {frames} frames could be sent")
    if refused < sent * REFUSED_SHARE_MIN:
        problems.append(f"only {refused} of {sent} frames were refused: too few arrive at the check")
    if grown > GROWTH_MIB_MAX:
        problems.append(f"the broker has grown by {grown:.1f} MiB")
    if healthy.pulls < 10 or healthy.slowest > HEALTHY_SECONDS_MAX:
        problems.append(
            f"the owner could pull {healthy.pulls} times, and once waited {healthy.slowest:.1f} s"
        )
    problems += changes(target.master.port, store, before)
    tracebacks = sum(
        path.read_text(errors="replace").count("Traceback") for path in target.folder.rglob("*.log")
    )
    if tracebacks:
        problems.append(f"{tracebacks} requests ended in an unexpected exception; see the logs")
    return problems


def changes(port: int, store: Path, before: dict[str, bytes]) -> list[str]:
    """What is not as it was before, or not as it should be after what the owner sends now."""
    try:
        with wire.Client(port) as client:
            after = state(client, store)
            found = [
                f"refused requests have changed: {name}" for name in before if after[name] != before[name]
            ]
            call(client, OWNER, send_of_owner())
            if state(client, store)["log"] == after["log"]:
                found.append("what the owner sent is not in the log: this check sees nothing")
            return found
    except (OSError, stack.StackError) as error:
        return [f"the broker does not serve as before: {error}"]


if __name__ == "__main__":
    sys.exit(main())
