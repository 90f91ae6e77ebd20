"""`kill -9` after every step of a broker's registration, lost messages, and copied folders: `registration_crash.py [--workers N]`.

Real brokers register with a real controller through a proxy that loses and doubles messages. After every fault the broker is started
again without it, and what may never happen is looked for from outside: another broker's id, two ids, an id with another check code,
an identity file that is not whole, an older copy of a folder that is let in.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from brokerset_formats.identity import BrokerIdentity, StartRecord
from brokerset_rig import stack, wire

WAIT_SECONDS = 30.0
FIRST_START = (
    "ReadFiles", "AskNextId", "WriteTemp", "ApplyId", "WriteIdentity", "WriteStart", "DeleteTemp", "Register", "FinishStart",
)  # fmt: skip
LATER_START = ("ReadFiles", "WriteStart", "Register", "FinishStart")
NEXT_ID, APPLY, REGISTER = 1012, 1013, 1003
WHO = 1007
GROUPS = 21005


class Wrong(AssertionError):
    """Something that may never happen has happened."""


def until(condition: Callable[[], Any], what: str) -> Any:
    """The first true value of `condition`; fails after `WAIT_SECONDS`."""
    deadline = time.monotonic() + WAIT_SECONDS
    while True:
        found = condition()
        if found:
            return found
        if time.monotonic() > deadline:
            raise Wrong(f"not within {WAIT_SECONDS:g} s: {what}")
        time.sleep(0.02)


@dataclass
class Fault:
    """What the proxy does to the next request with this code of one group."""

    group: str
    code: int
    what: str
    """`request` and `reply`: lost; `twice`: sent twice; `underway`: sent, and `done` called at once."""

    done: Callable[[], None] = lambda: None


class Proxy:
    """Stands between brokers and the controller. Faults are taken once each, in order."""

    def __init__(self, port: int, target: int) -> None:
        self.port = port
        self._target = target
        self._faults: list[Fault] = []
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", port))
        threading.Thread(target=self._accept, daemon=True).start()

    def expect(self, *faults: Fault) -> None:
        with self._lock:
            self._faults += faults

    def waiting(self, group: str) -> bool:
        """Whether a fault of this group has not come yet."""
        with self._lock:
            return any(fault.group == group for fault in self._faults)

    def close(self) -> None:
        self._listener.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self._target), 5)
        except OSError:
            client.close()
            return
        client.settimeout(None)
        server.settimeout(None)
        lost_replies: dict[int, Fault] = {}
        threading.Thread(target=self._back, args=(server, client, lost_replies), daemon=True).start()
        with contextlib.suppress(OSError):
            for frame, header in frames(client):
                fault = self._take(header)
                if fault is not None and fault.what == "request":
                    fault.done()
                    break
                if fault is not None and fault.what == "reply":
                    lost_replies[header["opaque"]] = fault
                server.sendall(frame)
                if fault is not None and fault.what == "twice":
                    server.sendall(frame)
                if fault is not None and fault.what == "underway":
                    fault.done()
        shut(client, server)

    def _back(self, server: socket.socket, client: socket.socket, lost: dict[int, Fault]) -> None:
        with contextlib.suppress(OSError):
            for frame, header in frames(server):
                fault = lost.get(header["opaque"])
                if fault is not None:
                    fault.done()
                    break
                client.sendall(frame)
        shut(client, server)

    def _take(self, header: dict[str, Any]) -> Fault | None:
        group = (header.get("extFields") or {}).get("brokerName")
        with self._lock:
            for fault in self._faults:
                if fault.group == group and fault.code == header["code"]:
                    self._faults.remove(fault)
                    return fault
        return None


def frames(source: socket.socket) -> Iterator[tuple[bytes, dict[str, Any]]]:
    """Whole frames with their headers, until the end."""
    buffer = b""
    while True:
        while len(buffer) >= 4 and len(buffer) >= 4 + (size := struct.unpack_from(">I", buffer)[0]):
            frame, buffer = buffer[: 4 + size], buffer[4 + size :]
            header_size = int.from_bytes(frame[4:8], "big") & 0xFFFFFF
            yield frame, json.loads(frame[8 : 8 + header_size])
        chunk = source.recv(1 << 16)
        if not chunk:
            return
        buffer += chunk


def shut(*sockets: socket.socket) -> None:
    for one in sockets:
        with contextlib.suppress(OSError):
            one.shutdown(socket.SHUT_RDWR)
        one.close()


@dataclass
class Broker:
    """One process on a folder."""

    folder: Path
    group: str
    port: int
    process: subprocess.Popen[bytes]
    log: Path

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(WAIT_SECONDS)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        if self.process.wait(WAIT_SECONDS) != 0:
            raise Wrong(f"{self.group} ended with {self.process.returncode}: {self.log.read_text()[-2000:]}")

    def ends(self) -> int:
        """The exit status of a process that ends by itself."""
        return self.process.wait(WAIT_SECONDS)

    def who(self) -> dict[str, str]:
        """What 1007 says; empty while nobody answers."""
        try:
            with wire.Client(self.port, 5) as client:
                return client.call(WHO, {}).ext
        except OSError:
            return {}

    def says(self, text: str) -> str:
        """Wait until the diagnosis has this text."""
        return str(until(lambda: (found := self.who().get("registration", "")) and text in found and found,
                         f"{self.group} says {text!r}, but it says {self.who().get('registration')!r}"))  # fmt: skip

    def master(self) -> dict[str, str]:
        """Wait until it serves."""
        self.says("registered, master")
        return self.who()


@dataclass
class Place:
    """A controller behind a proxy, folders, and what has ever been seen."""

    root: Path
    proxy: Proxy
    controller: stack.Server
    given: set[int] = field(default_factory=set)
    """Ports that some broker had: each start gets another one."""
    codes: dict[tuple[str, int], str] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)
    brokers: list[Broker] = field(default_factory=list)

    @staticmethod
    def _free_port() -> int:
        return stack.free_ports(1, below=2)[0]

    def start(self, folder: Path, group: str, crash_after: str = "") -> Broker:
        with self.lock:
            port = next(port for port in iter(self._free_port, None) if port not in self.given)
            self.given.add(port)
        folder.mkdir(parents=True, exist_ok=True)
        settings = {
            "brokerName": group, "listenPort": port, "httpPort": 0, "bindAddress": "127.0.0.1", "brokerIP1": "127.0.0.1",
            "storePathRootDir": folder / "store", "mappedFileSizeCommitLog": 8 * 1024 * 1024, "maxHashSlotNum": 1000,
            "maxIndexNum": 4000, "enableControllerMode": "true", "controllerAddr": f"127.0.0.1:{self.proxy.port}",
            "brokerHeartbeatInterval": 100, "syncBrokerMetadataPeriod": 200,
        }  # fmt: skip
        config = folder / f"broker-{port}.conf"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        log = folder / f"broker-{port}.log"
        environment = {**os.environ, "BROKERSET_CRASH_AFTER": crash_after}
        command = [sys.executable, "-m", "brokerset_broker", "-c", str(config), "--logFormat", "json"]
        with log.open("ab") as output:
            process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        broker = Broker(folder, group, port, process, log)
        with self.lock:
            self.brokers.append(broker)
        return broker

    def replicas(self, group: str) -> dict[int, dict[str, Any]]:
        """The group's replicas as agreed, by id."""
        with wire.Client(self.controller.port, 5) as client:
            answer = client.call(GROUPS, {}, json.dumps([group]).encode())
        groups = json.loads(answer.body)["groups"]
        return {replica["brokerId"]: replica for one in groups for replica in one["replicas"]}

    def check(self, broker: Broker, ids: set[int], incarnation: int | None = None) -> int:
        """Whoever serves is who its files say, the controllers agree, and nobody else got in. Returns the id."""
        who = broker.master()
        store = broker.folder / "store"
        identity = BrokerIdentity.decode((store / "brokerIdentity").read_bytes())
        start = StartRecord.decode((store / "brokerIdentity-start").read_bytes())
        known = self.replicas(broker.group)
        problems = []
        if (identity.cluster_name, identity.broker_name, str(identity.broker_id)) != (
            "DefaultCluster",
            broker.group,
            who["replicaId"],
        ):
            problems.append(f"the file says {identity}, the broker {who}")
        if (store / "brokerIdentity-temp").exists():
            problems.append("the temporary file is still there")
        if set(known) != ids:
            problems.append(f"the controllers know the ids {sorted(known)} instead of {sorted(ids)}")
        mine = known.get(identity.broker_id, {})
        if (
            not start.last_nonce == who["nonce"] == mine.get("nonce")
            or start.next_nonce
            or start.tried_nonces
        ):
            problems.append(
                f"nonces differ: file {start}, broker {who['nonce']}, controllers {mine.get('nonce')}"
            )
        if start.check_code != mine.get("checkCode"):
            problems.append(
                f"check codes differ: file {start.check_code}, controllers {mine.get('checkCode')}"
            )
        if incarnation is not None and mine.get("incarnation") != incarnation:
            problems.append(f"incarnation {mine.get('incarnation')} instead of {incarnation}")
        for broker_id, replica in known.items():
            code = self.codes.setdefault((broker.group, broker_id), replica["checkCode"])
            if code != replica["checkCode"]:
                problems.append(f"id {broker_id} went from {code} to {replica['checkCode']}")
        if problems:
            raise Wrong(f"{broker.group}: {'; '.join(problems)}\n{broker.log.read_text()[-3000:]}")
        return identity.broker_id


# -- cases ------------------------------------------------------------------------------------------------------


def crash_in_first_start(place: Place, step: str) -> None:
    """A new broker dies after a step; the next start goes on with the same id, or asks afresh."""
    group = f"first-{step}"
    folder = place.root / group
    if place.start(folder, group, step).ends() != -signal.SIGKILL:
        raise Wrong(f"{group}: no crash")
    broker = place.start(folder, group)
    committed = step in ("Register", "FinishStart")
    place.check(broker, {1}, 2 if committed else 1)
    broker.kill()


def crash_in_later_start(place: Place, step: str) -> None:
    """A broker with an identity dies after a step, twice in a row; its id stays, and its nonces are sorted out."""
    group = f"later-{step}"
    folder = place.root / group
    broker = place.start(folder, group)
    place.check(broker, {1}, 1)
    epoch = int(broker.who()["groupEpoch"])
    broker.kill()
    for _ in range(2):
        if place.start(folder, group, step).ends() != -signal.SIGKILL:
            raise Wrong(f"{group}: no crash")
    broker = place.start(folder, group)
    committed = step in ("Register", "FinishStart")
    place.check(broker, {1}, 4 if committed else 2)
    if int(broker.who()["groupEpoch"]) <= epoch:
        raise Wrong(f"{group}: serves in epoch {broker.who()['groupEpoch']} again, as before its restart")
    broker.kill()


def lose_messages(place: Place, what: str) -> None:
    """Every request of a registration is lost, loses its answer, or comes twice, while the broker lives."""
    group = f"lose-{what}"
    place.proxy.expect(*(Fault(group, code, what) for code in (NEXT_ID, APPLY, REGISTER)))
    broker = place.start(place.root / group, group)
    place.check(broker, {1}, 1)
    if place.proxy.waiting(group):
        raise Wrong(f"{group}: not all requests came")
    broker.kill()


def crash_around_commit(place: Place, code: int, what: str) -> None:
    """The broker dies when its request has been sent: before the controllers get it, or after they committed it."""
    group = f"commit-{code}-{what}"
    holder: list[Broker] = []
    started = threading.Event()

    def end() -> None:
        started.wait(WAIT_SECONDS)
        holder[0].process.kill()

    place.proxy.expect(Fault(group, code, what, end))
    holder.append(place.start(place.root / group, group))
    started.set()
    if holder[0].ends() != -signal.SIGKILL:
        raise Wrong(f"{group}: no crash")
    broker = place.start(place.root / group, group)
    place.check(broker, {1}, 2 if (code, what) == (REGISTER, "reply") else 1)
    broker.kill()


def copy_alive(source: Path, target: Path) -> None:
    """Copy the folder of a running broker as `cp -r` does, which goes on when a file has gone meanwhile."""
    try:
        shutil.copytree(source, target)
    except shutil.Error as error:  # it is raised at the end, when all others are copied
        gone = [path for path, _, _ in error.args[0] if not Path(path).exists()]
        if len(gone) != len(error.args[0]):
            raise


def copied_folders(place: Place) -> None:
    """Of two copies of a folder the one that started last goes on; the other is told so, and changes nothing."""
    group = "copies"
    original, copy, yesterday = (place.root / group / name for name in ("original", "copy", "yesterday"))
    first = place.start(original, group)
    place.check(first, {1}, 1)

    copy_alive(original / "store", copy / "store")
    intruder = place.start(copy, group)
    intruder.says("another process with this identity is alive")
    place.check(first, {1}, 1)
    intruder.kill()

    first.stop()
    shutil.copytree(original / "store", yesterday / "store")
    second = place.start(copy, group)
    place.check(second, {1}, 2)
    second.stop()
    late = place.start(original, group)
    late.says("another copy of this store was started later")
    late.says("`brokerset replica replace --empty`")
    late.kill()

    old = place.start(yesterday, group)
    old.says("another copy of this store was started later")
    old.kill()
    again = place.start(copy, group)
    place.check(again, {1}, 3)
    again.kill()


def two_processes(place: Place) -> None:
    """A second process on the folder ends at once and says who has it; the first is not disturbed."""
    group = "twice"
    folder = place.root / group
    first = place.start(folder, group)
    place.check(first, {1}, 1)
    second = place.start(folder, group)
    status = second.ends()
    if (
        status != 1
        or f"process {first.process.pid} has this store open; stop it first" not in second.log.read_text()
    ):
        raise Wrong(f"{group}: {status}, {second.log.read_text()}")
    place.check(first, {1}, 1)
    first.kill()


def emptied_folder(place: Place) -> None:
    """It joins as a new replica with a fresh id; the old id stays whose it was."""
    group = "emptied"
    folder = place.root / group
    first = place.start(folder, group)
    place.check(first, {1}, 1)
    first.stop()
    shutil.rmtree(folder / "store")
    second = place.start(folder, group)
    until(lambda: second.who().get("replicaId") == "2", f"{group}: has the id 2")
    until(lambda: sorted(place.replicas(group)) == [1, 2], f"{group}: both ids are known")
    if place.codes["emptied", 1] != place.replicas(group)[1]["checkCode"]:
        raise Wrong(f"{group}: the id 1 has another check code")
    second.says("registered, slave")  # the only one in sync is gone, and nobody may be elected in its place
    second.kill()


def garbled_files(place: Place) -> None:
    """Each file is named with what to do; a garbled claim is dropped; repaired files are taken without a restart."""
    group = "garbled"
    folder = place.root / group
    store = folder / "store"
    store.mkdir(parents=True)
    (store / "brokerIdentity-temp").write_bytes(b"DefaultCluster#garb")
    broker = place.start(folder, group)
    place.check(broker, {1}, 1)
    if "unreadable temporary identity is dropped" not in broker.log.read_text():
        raise Wrong(f"{group}: no word of the dropped claim")
    broker.stop()
    for name, advice in (
        ("brokerIdentity", "write cluster#brokerName#id into it"),
        ("brokerIdentity-start", "restore it from the newest copy"),
    ):
        whole = (store / name).read_bytes()
        for damage in (b"", whole[:-3], b"\0" * len(whole)):
            if name == "brokerIdentity" and damage == whole[:-3]:
                damage = b"DefaultCluster#garbled"
            (store / name).write_bytes(damage)
            broker = place.start(folder, group) if broker.process.poll() is not None else broker
            broker.says(f"{name} cannot be read")
            log = broker.log.read_text()
            if advice not in log:
                raise Wrong(f"{group}: {advice!r} is not in\n{log}")
        (store / name).write_bytes(whole)
        place.check(broker, {1})
        broker.stop()
    (store / "brokerIdentity").rename(store / "aside")
    broker = place.start(folder, group)
    broker.says("is missing, though brokerIdentity-start shows that this folder has had an identity")
    broker.kill()


def controller_dies(place: Place, code: int, what: str) -> None:
    """The controller dies before it has a request, while it works on it, or after it committed it, and comes back."""
    group = f"controller-{code}-{what}"
    back = threading.Event()

    def restart() -> None:
        place.controller.start()
        back.set()

    def end() -> None:
        place.controller.stop(signal.SIGKILL)
        threading.Thread(target=restart).start()

    place.proxy.expect(Fault(group, code, what, end))
    broker = place.start(place.root / group, group)
    if not back.wait(WAIT_SECONDS):
        raise Wrong(f"{group}: the controller was not killed and started again")
    place.check(broker, {1}, 1)
    broker.kill()


WHEN = {"request": "before it gets", "underway": "while it works on", "reply": "after it committed"}


def controller_cases(place: Place) -> list[tuple[str, Callable[[], None]]]:
    """These end the controller that all cases share, so nothing else may run next to them."""
    return [
        (f"the controller dies {WHEN[what]} {code}", partial(controller_dies, place, code, what))
        for code in (NEXT_ID, APPLY, REGISTER)
        for what in WHEN
    ]


def cases(place: Place) -> list[tuple[str, Callable[[], None]]]:
    found: list[tuple[str, Callable[[], None]]] = [
        ("copied folders", lambda: copied_folders(place)),
        ("garbled files", lambda: garbled_files(place)),
        ("two processes", lambda: two_processes(place)),
        ("emptied folder", lambda: emptied_folder(place)),
    ]
    for step in LATER_START:
        found.append((f"later start dies after {step}", lambda step=step: crash_in_later_start(place, step)))  # type: ignore[misc]  # a bound default
    for step in FIRST_START:
        found.append((f"first start dies after {step}", lambda step=step: crash_in_first_start(place, step)))  # type: ignore[misc]  # a bound default
    for what in ("request", "reply", "twice"):
        found.append((f"messages: {what}", lambda what=what: lose_messages(place, what)))  # type: ignore[misc]  # a bound default
    for code in (APPLY, REGISTER):
        for what in ("request", "reply"):
            found.append((f"dies with the {what} of {code} on its way",
                          lambda code=code, what=what: crash_around_commit(place, code, what)))  # type: ignore[misc]  # bound defaults  # fmt: skip
    return found


def run(root: Path, workers: int) -> list[str]:
    """All cases; returns what went wrong."""
    controller_port, namesrv_port, proxy_port = stack.free_ports(3, below=2)
    config = root / "controller.conf"
    config.write_text(
        # Brokers also learn the address that the controllers know each other by: it must be the proxy's as well.
        f"controllerDLegerPeers=n0-127.0.0.1:{proxy_port}\nraftPeers=n0-127.0.0.1:{controller_port - 1}\n"
        f"listenPort={controller_port}\nraftListenPort={controller_port - 1}\nbindAddress=127.0.0.1\nnamesrvListenPort={namesrv_port}\n"
        f"controllerStorePath={root}/controller\nkvConfigPath={root}/kv.json\nhttpPort=0\n"
    )
    command = [sys.executable, "-m", "brokerset_controller", "-c", str(config)]
    with stack.Server("controller", command, controller_port, root) as controller:
        proxy = Proxy(proxy_port, controller_port)
        place = Place(root, proxy, controller)
        wrong: list[str] = []

        def one(name: str, case: Callable[[], None]) -> None:
            begun = time.monotonic()
            try:
                case()
            except (Wrong, OSError, KeyError, subprocess.TimeoutExpired) as error:
                wrong.append(f"{name}: {type(error).__name__}: {error}")
            print(f"{time.monotonic() - begun:6.1f} s  {name}", flush=True)

        try:
            with ThreadPoolExecutor(workers) as pool:
                for future in [pool.submit(one, name, case) for name, case in cases(place)]:
                    future.result()
            for name, case in controller_cases(place):
                one(name, case)
        finally:
            for broker in place.brokers:
                if broker.process.poll() is None:
                    broker.kill()
            proxy.close()
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser(
        description="kill -9 of brokers and the controller around every step of a registration"
    )
    parser.add_argument("--workers", type=int, default=2, help="cases at the same time")
    arguments = parser.parse_args()
    with stack.Workspace("registration-crash") as root:
        wrong = run(root, arguments.workers)
        for text in wrong:
            print(f"WRONG  {text}")
    return 1 if wrong else 0


if __name__ == "__main__":
    raise SystemExit(main())
