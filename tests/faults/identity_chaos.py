"""Three controllers and three brokers, killed, restarted and moved at random: `identity_chaos.py [--rounds 10] [--seed N]`.

Each round does a few things at once: kill -9 of brokers or controllers (also all of them), ends after a named step of a registration, orderly
stops, starts on new ports. Meanwhile every process is asked who it is. Judged from outside, from the identity files, 1007 and 21005: an id
belongs to one check code and one volume permanently; ids, epochs and incarnations never shrink; a volume has one identity, whole or
none; in an epoch at most one process says that it is master; after each round everybody is registered and messages are served again.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from brokerset_rig import controllers as codes
from brokerset_rig import stack, wire
from brokerset_rig.controllers import Panel, until

NAME = "broker-a"
TOPIC = "chaos"
MEMBERS = 3
SETTLE_SECONDS_MAX = 60.0
SAMPLE_SECONDS = 0.02
STEPS = (
    "ReadFiles",
    "AskNextId",
    "WriteTemp",
    "ApplyId",
    "WriteIdentity",
    "DeleteTemp",
    "WriteStart",
    "Register",
    "FinishStart",
)


@dataclass(slots=True)
class Checker:
    """What was ever seen, and what is wrong with it."""

    problems: list[str] = field(default_factory=list)
    codes: dict[int, str] = field(default_factory=dict)
    volumes: dict[int, str] = field(default_factory=dict)
    masters: dict[int, tuple[int, str]] = field(default_factory=dict)
    incarnations: dict[int, tuple[int, str]] = field(default_factory=dict)
    next_id: int = 0
    epoch: int = 0
    samples: int = 0
    masters_seen: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def volume(self, number: int, text: str) -> None:
        """An identity file as it is now; empty: none."""
        with self._lock:
            known = self.volumes.get(number)
            if text and (len(text.split("#")) != 3 or not text.split("#")[2].isdigit()):
                self._wrong(f"volume {number} has a torn identity {text!r}")
            elif known and text != known:
                self._wrong(f"the identity {known!r} of volume {number} became {text!r}")
            elif text:
                owner = next((n for n, other in self.volumes.items() if other == text and n != number), None)
                if owner is not None:
                    self._wrong(f"volumes {owner} and {number} are both {text!r}")
                self.volumes[number] = text

    def process(self, ext: dict[str, str], body: dict[str, Any]) -> None:
        """An answer to 1007."""
        with self._lock:
            self.samples += 1
            if "replicaId" not in ext or body["brokerId"] != 0 or not body["epochList"]:
                return
            self.masters_seen += 1
            who = (int(ext["replicaId"]), ext.get("nonce", ""))
            epoch = int(body["epochList"][-1]["epoch"])
            known = self.masters.setdefault(epoch, who)
            if known != who:
                self._wrong(f"in epoch {epoch} both {known} and {who} say that they are master")

    def group(self, state: dict[str, Any]) -> None:
        """What the controllers agreed on, from a linearizable read; called in the order of the reads."""
        with self._lock:
            if state["nextBrokerId"] < self.next_id or state["masterEpoch"] < self.epoch:
                self._wrong(
                    f"next id {self.next_id} and epoch {self.epoch} shrank to {state['nextBrokerId']} and {state['masterEpoch']}"
                )
            self.next_id, self.epoch = state["nextBrokerId"], state["masterEpoch"]
            for replica in state["replicas"]:
                broker_id, code = replica["brokerId"], replica["checkCode"]
                if self.codes.setdefault(broker_id, code) != code:
                    self._wrong(f"id {broker_id} was of {self.codes[broker_id]!r} and is of {code!r}")
                now = (replica["incarnation"], replica.get("nonce") or "")
                before = self.incarnations.get(broker_id, (0, ""))
                if now[0] < before[0] or (now[0] == before[0] and now[1] != before[1] and before[0]):
                    self._wrong(f"incarnation {before} of id {broker_id} became {now}")
                self.incarnations[broker_id] = now
                if broker_id >= self.next_id:
                    self._wrong(f"id {broker_id} is in use and the next one is {self.next_id}")
            if len(set(self.codes.values())) != len(self.codes):
                self._wrong(f"one check code has two ids: {self.codes}")

    def _wrong(self, text: str) -> None:
        if text not in self.problems:
            self.problems.append(text)
            print(f"WRONG: {text}", flush=True)


class Cluster:
    """The processes, and the threads that ask them."""

    def __init__(self, folder: Path, source: random.Random, checker: Checker) -> None:
        ports = stack.free_ports(2 * MEMBERS + 4 * MEMBERS, below=2)
        self.source = source
        self.checker = checker
        self.folder = folder
        self.controllers = stack.our_controllers(folder, ports[:MEMBERS], ports[MEMBERS : 2 * MEMBERS])
        self.ports = ports[2 * MEMBERS :]
        self.panel = Panel(self.controllers.ports)
        self.brokers = [self._broker(i, self.ports[i]) for i in range(MEMBERS)]
        self.acked: list[bytes] = []
        self.kills = 0
        self._ending = threading.Event()
        self._threads = [
            threading.Thread(target=self._watch_brokers),
            threading.Thread(target=self._watch_group),
        ]

    def _broker(self, number: int, port: int) -> stack.Server:
        settings = {"enableControllerMode": "true", "controllerAddr": self.controllers.addresses}
        return stack.our_broker(self.folder / f"b{number}", port, self.controllers.name_servers, settings)

    def start(self) -> None:
        for server in [*self.controllers.servers, *self.brokers]:
            if not server.running:
                server.launch()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._ending.set()
        for thread in self._threads:
            thread.join()
        for server in [*self.brokers, *self.controllers.servers]:
            if server.running:
                server.kill()

    def disturb(self) -> list[str]:
        """One to three things at once; returns them in words."""
        return [self._disturb_once() for _ in range(self.source.randint(1, 3))]

    def _disturb_once(self) -> str:
        number = self.source.randrange(MEMBERS)
        kind = self.source.choice(
            ("kill", "kill", "crash", "crash", "move", "stop", "controller", "controller", "controllers")
        )
        broker = self.brokers[number]
        if kind == "controllers":
            for server in self.controllers.servers:
                self._kill(server)
            for server in self.controllers.servers:
                server.launch()
            return "all controllers killed"
        if kind == "controller":
            self._kill(self.controllers.servers[number])
            time.sleep(self.source.random() * 0.5)
            self.controllers.servers[number].launch()
            return f"controller {number} killed"
        if kind == "stop" and broker.running:
            broker.stop(signal.SIGTERM)
        else:
            self._kill(broker)
        if kind == "move":
            free = [port for port in self.ports if port not in {other.port for other in self.brokers}]
            self.brokers[number] = broker = self._broker(number, self.source.choice(free))
        if kind == "crash":
            step = self.source.choice(STEPS)
            broker.environment["BROKERSET_CRASH_AFTER"] = step
            broker.launch()
            died = broker.ended(4.0)
            broker.environment.clear()
            self.kills += died
            if not died:
                self._kill(broker)
            self._look(number)
            broker.launch()
            return f"broker {number} {'ended' if died else 'killed, not'} after {step}"
        broker.launch()
        if self.source.random() < 0.4:
            time.sleep(self.source.random())
            self._kill(broker)
            broker.launch()
            return f"broker {number}: {kind}, then killed while it starts"
        return f"broker {number}: {kind}"

    def _kill(self, server: stack.Server) -> None:
        if server.running:
            server.kill()
            self.kills += 1

    def _look(self, number: int) -> None:
        path = self.folder / f"b{number}" / "broker-0" / "store" / "brokerIdentity"
        try:
            text = path.read_text()
        except FileNotFoundError:
            text = ""
        self.checker.volume(number, text)

    def settle(self) -> float:
        """Everybody is registered where it lives, there is a master, and it stores a message. Returns the seconds it took."""
        before = time.monotonic()
        until("all are registered", self._registered, SETTLE_SECONDS_MAX)
        until("a message is stored", self._stored, SETTLE_SECONDS_MAX)
        for number in range(MEMBERS):
            self._look(number)
        return time.monotonic() - before

    def _registered(self) -> bool:
        for server in [*self.controllers.servers, *self.brokers]:
            if server.ended(0):
                raise stack.StackError(f"{server.name} ended by itself; see {server.log}")
        answer = self.panel.sure(codes.GROUP_STATES, {}, json.dumps([NAME]).encode())
        groups = json.loads(answer.body)["groups"]
        if not groups or not groups[0].get("masterId"):
            return False
        found = {r["address"]: r for r in groups[0]["replicas"]}
        for broker in self.brokers:
            replica = found.get(broker.address)
            if replica is None or replica["standing"] != "alive":
                return False
            with wire.Client(broker.port, 2.0) as client:
                ext = client.call(codes.EPOCHS, {}).ext
            if ext.get("replicaId") != str(replica["brokerId"]) or ext.get("nonce") != replica.get("nonce"):
                return False
        if len(groups[0]["replicas"]) != MEMBERS or groups[0]["nextBrokerId"] != MEMBERS + 1:
            raise stack.StackError(f"{MEMBERS} volumes have made {groups[0]['nextBrokerId'] - 1} ids")
        return True

    def _stored(self) -> bool:
        master = self.panel.master(NAME)
        if master is None:
            return False
        body = b"chaos %d" % len(self.acked)
        with wire.Client(master[1], 5.0) as client:
            if client.call(wire.SEND_V2, wire.send_ext(TOPIC, 0, "WAIT\x01true\x02"), body).code:
                return False
        self.acked.append(body)
        return True

    def lost(self) -> list[bytes]:
        """Acknowledged messages that the master does not have."""
        master = until("a master", lambda: self.panel.master(NAME))
        found: set[bytes] = set()
        offset = 0
        with wire.Client(master[1]) as client:
            while not (answer := client.call(wire.PULL, wire.pull_ext(TOPIC, 0, offset))).code:
                for record in wire.records(answer.body):
                    found.add(record.body)
                    offset = record.queue_offset + 1
        return [body for body in self.acked if body not in found]

    def _watch_brokers(self) -> None:
        while not self._ending.wait(SAMPLE_SECONDS):
            for number, broker in enumerate(self.brokers):
                self._look(number)
                try:
                    with wire.Client(broker.port, 1.0) as client:
                        answer = client.call(codes.EPOCHS, {})
                except OSError:
                    continue
                if not answer.code:
                    self.checker.process(answer.ext, codes.loads(answer.body))

    def _watch_group(self) -> None:
        panel = Panel(self.controllers.ports)
        while not self._ending.wait(SAMPLE_SECONDS):
            try:
                answer = panel.ask(codes.GROUP_STATES, {}, json.dumps([NAME]).encode(), seconds=1.0)
            except (OSError, stack.StackError):
                continue
            if answer.code == 0:
                for state in json.loads(answer.body)["groups"]:
                    self.checker.group(state)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    source = random.Random(options.seed)
    checker = Checker()
    with stack.Workspace("identity-chaos") as folder:
        cluster = Cluster(folder, source, checker)
        cluster.start()
        try:
            for number in range(options.rounds):
                did = cluster.disturb()
                seconds = cluster.settle()
                print(f"round {number}: {'; '.join(did)}; settled in {seconds:.1f} s", flush=True)
            if lost := cluster.lost():
                checker.problems.append(f"{len(lost)} acknowledged messages are gone, first {lost[0]!r}")
        finally:
            cluster.close()
        if checker.problems:
            raise stack.StackError("; ".join(checker.problems))
    print(
        f"{options.rounds} rounds, {cluster.kills} kills, {checker.samples} answers of brokers, {checker.masters_seen} of masters in "
        f"{len(checker.masters)} epochs, {len(cluster.acked)} messages: nothing wrong"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
