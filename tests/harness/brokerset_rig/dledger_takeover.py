"""A classic store goes on as a DLedger group in place, and the group comes into controller mode, with `kill -9` at every step.

Between them the group works: a leader is killed, delay messages are under way, consumers are in the middle. At the end every
acknowledged message, topic, group and offset is compared, and the commit logs of all replicas.
"""

from __future__ import annotations

import json
import queue
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from brokerset_rig import replication_checks, stack
from brokerset_rig.controller_parts import BROKER_SETTINGS, Add, kill_running, step
from brokerset_rig.controllers import until
from brokerset_rig.dledger_group import NAME, OURS, Group, Member
from brokerset_rig.replicated_group import first_difference
from brokerset_rig.replication_checks import note
from brokerset_rig.takeover_records import CONSUMERS, PULLED, Records

MEMBERS = 3
LEADER_KILLS = 2
LOAD_BATCHES = 20
"""Small batches that are acknowledged before and after a kill of the leader."""

LARGE = 100_000
"""From so many records on, files have sizes as in production, and delays are minutes."""

MOMENT_SECONDS_MAX = 120.0
CAUGHT_UP_SECONDS_MAX = 300.0
COMMAND_SECONDS_MAX = 900.0
ROUNDS_MAX = 200
NOT_DONE_EXIT = 3
LATER_SECONDS_MORE = 60.0

EXCHANGE_DELAYS = (0.0, 1.0, 3.0, 6.0)
EXCHANGE_DELAYS_LARGE = (0.0, 0.3, 1.0, 3.0, 10.0, 30.0)
"""So many seconds after the step `exchange` of the command began it is killed, each time that it comes to the step."""

KILLS_AGAIN = 2
"""After `--back` the last ones of these delays are used again."""

OTHER_DELAYS = (0.0, 0.05, 0.5)
BACK_DELAYS = (0.3, 0.6, 1.0)


@dataclass
class Takeover:
    """The folders and ports, what was written, and how often what was killed."""

    folder: Path
    size: int
    name_server: stack.Server
    controllers: stack.Controllers
    ports: list[int]
    ledger_ports: list[int]
    records: Records = field(default_factory=Records)
    kills: Counter[str] = field(default_factory=Counter[str])

    @property
    def is_large(self) -> bool:
        return self.size >= LARGE

    @property
    def levels(self) -> tuple[int, ...]:
        """Of delay messages: some are due soon, some only in the next mode, or in the one behind it."""
        return (3, 6, 7, 8, 9) if self.is_large else (2, 3, 4)

    @property
    def sizes(self) -> dict[str, str]:
        common = {"maxTransferCountOnMessageInMemory": str(PULLED), "maxMessageSize": "262144"}
        if self.is_large:
            return {**common, "mappedFileSizeCommitLog": str(64 << 20)}
        small = {"mappedFileSizeConsumeQueue": "60000", "maxHashSlotNum": "10000", "maxIndexNum": "40000"}
        return {**common, **small, "mappedFileSizeCommitLog": str(1 << 20)}

    def home(self, number: int) -> Path:
        return self.folder / f"n{number}"

    def store(self, number: int) -> Path:
        return self.home(number) / "broker-0" / "store"

    def broker(self, number: int, more: dict[str, str]) -> stack.Server:
        """The broker of a member with these settings; the file with its settings is replaced."""
        return stack.our_broker(
            self.home(number), self.ports[number], self.name_server.address, {**self.sizes, **more}
        )

    def ledger_group(self) -> Group:
        """The members, in DLedger mode, not started."""
        peers = ";".join(f"n{n}-127.0.0.1:{port}" for n, port in enumerate(self.ledger_ports))
        members = []
        for number in range(MEMBERS):
            settings = {
                "enableDLegerCommitLog": "true",
                "dLegerGroup": NAME,
                "dLegerPeers": peers,
                "dLegerSelfId": f"n{number}",
                "dLegerBrokersetOnly": "true",
            }
            server = self.broker(number, settings)
            members.append(Member(f"n{number}", OURS, server, self.ledger_ports[number]))
        return Group(self.folder, self.name_server, members, peers)


def run(add: Add, size: int) -> None:
    """All of it with so many records; `add` takes what was seen."""
    with stack.Workspace("dledger-takeover") as folder, ExitStack() as running:
        ports = stack.free_ports(1 + 2 * 3 + 2 * MEMBERS, below=2)
        name_server = running.enter_context(stack.our_namesrv(folder / "name-server", ports[0]))
        controllers = running.enter_context(
            stack.our_controllers(folder / "controllers", ports[1:4], ports[4:7])
        )
        brokers = ports[7:]
        place = Takeover(folder, size, name_server, controllers, brokers[:MEMBERS], brokers[MEMBERS:])
        began = time.monotonic()
        with step(
            add, "a broker without controllers takes messages, and is killed; all members get its store"
        ) as bad:
            _classic(place, running)
        if bad:
            raise stack.StackError(bad[0])
        group = place.ledger_group()
        for member in group.members:
            running.callback(kill_running, member.server)
        with step(add, "its store goes on as the log of a DLedger group, killed at every step") as bad:
            _into(place, group)
            leader = group.leader()
            bad += place.records.problems(leader.port)
        if bad:
            raise stack.StackError(bad[0])
        with step(add, "the group works on, and its leader is killed") as bad:
            _work(place, group)
            bad += place.records.problems(group.leader().port)
        if bad:
            raise stack.StackError(bad[0])
        person = Person(place, group, running)
        with step(
            add, "`brokerset upgrade dledger`, killed at every step, leads it into controller mode"
        ) as bad:
            bad += person.complete()
        if bad:
            raise stack.StackError(bad[0])
        with step(
            add, "every acknowledged message, topic, group and offset is there, and all logs are equal"
        ) as bad:
            bad += _ended(place, person)
        note(
            f"{place.records.count:,} messages and {len(place.records.later)} delay messages acknowledged,"
            f" {place.kills.total()} kills in {time.monotonic() - began:.0f} s: {dict(place.kills)}"
        )


def _classic(place: Takeover, running: ExitStack) -> None:
    began = time.monotonic()
    broker = place.broker(0, {})
    running.callback(kill_running, broker)
    broker.start()
    place.records.prepare(broker.port)
    place.records.fill(lambda: broker.port, place.size * 6 // 10)
    place.records.send_later(broker.port, place.levels, 5)
    place.records.consume_to(broker.port, 0.3)
    place.records.make_names(broker.port, "made-in-classic-mode")
    note(f"{place.records.count:,} messages in {time.monotonic() - began:.0f} s")
    # A broker without controllers writes consumers' offsets down every 5 s only, as Java's.
    offsets = place.store(0) / "config" / "consumerOffset.json"
    until("offsets are in the file", lambda: CONSUMERS in offsets.read_text(), MOMENT_SECONDS_MAX)
    broker.kill()
    place.kills["classic broker"] += 1
    for number in range(1, MEMBERS):
        shutil.copytree(place.store(0), place.store(number))


# -- into DLedger mode ----------------------------------------------------------------------------------------


def _into(place: Takeover, group: Group) -> None:
    """Start all members and kill all of them, at one moment after the other; then start them for good."""
    began = time.monotonic()
    ledger = group.members[0].ledger
    moments: tuple[tuple[str, Callable[[], object]], ...] = (
        ("a process runs", lambda: group.members[0].server.log.stat().st_size > 0),
        ("the old log is recovered", lambda: ledger.exists()),
        ("the old log is closed and digested", lambda: (ledger / "divided").exists()),
        ("a member listens", lambda: group.find_leader() or _listens(group.members[0])),
        ("a member has voted", lambda: (ledger / "currterm").exists()),
        ("a member leads", group.find_leader),
        ("a message is acknowledged", partial(_acknowledged, place, group)),
    )
    for what, reached in moments:
        for member in group.members:
            member.server.launch()
        until(what, partial(_reached, group, reached), MOMENT_SECONDS_MAX)
        for member in group.members:
            member.server.kill()
        place.kills[f"members, when {what}"] += MEMBERS
    killed = time.monotonic()
    group.start()
    note(
        f"into DLedger mode after {time.monotonic() - began:.0f} s, the last start took {time.monotonic() - killed:.1f} s"
    )


def _reached(group: Group, reached: Callable[[], object]) -> object:
    """See whether it is so; AssertionError when a member has ended by itself."""
    for member in group.members:
        assert not member.server.ended(0), f"{member} has ended; see {member.server.log}"
    return reached()


def _listens(member: Member) -> bool:
    return bool(member.facts())


def _acknowledged(place: Takeover, group: Group) -> bool:
    leader = group.find_leader()
    return leader is not None and place.records.send_one(leader.port)


def _work(place: Takeover, group: Group) -> None:
    """The rest of the messages, with kills of the leader, and more of everything else."""
    records = place.records
    records.fill(lambda: group.leader().port, place.size * 3 // 10)
    ended = threading.Event()

    def leader_port() -> int | None:
        leader = group.find_leader()
        return leader.port if leader else None

    writer = threading.Thread(target=records.load, args=(leader_port, ended), daemon=True)
    writer.start()
    try:
        for _ in range(LEADER_KILLS):
            _more(records)
            leader = group.leader()
            leader.server.kill()
            place.kills["leader under load"] += 1
            group.leader(other_than=leader)
            _more(records)
            leader.server.start()
            group.wait_registered()
    finally:
        ended.set()
        writer.join()
    leader = group.wait_registered()
    records.fill(lambda: group.leader().port, max(1, place.size - records.count))
    leader = group.wait_registered()
    records.send_later(leader.port, place.levels, 5)
    records.consume_to(leader.port, 0.6)
    records.make_names(leader.port, "made-in-dledger-mode")
    note(f"delay messages that were delivered more than once: {records.delivered_twice(leader.port)}")
    differ, size, entries = group.compare()
    assert not differ, differ
    note(f"data and index of all members are equal: {size:,} bytes, {entries:,} entries")


def _more(records: Records) -> None:
    wanted = records.count + LOAD_BATCHES * 10
    until("more is acknowledged", lambda: records.count >= wanted, MOMENT_SECONDS_MAX)


# -- out of it ------------------------------------------------------------------------------------------------


class Person:
    """Runs the command again and again, kills it at each of its steps, goes back once, and does what it asks for."""

    def __init__(self, place: Takeover, group: Group, running: ExitStack) -> None:
        self.place = place
        self.group = group
        self.replicas = [
            place.broker(
                number,
                {
                    **BROKER_SETTINGS,
                    "controllerAddr": place.controllers.addresses,
                    "registerNameServerPeriod": "1000",
                },
            )
            for number in range(MEMBERS)
        ]
        for replica in self.replicas:
            running.callback(kill_running, replica)
        self.went_back = False
        self._exchange_delays = EXCHANGE_DELAYS_LARGE if place.is_large else EXCHANGE_DELAYS
        self._used: Counter[str] = Counter()
        """How many of the delays of each step were used."""
        self.master: int | None = None
        self.seen: list[str] = []

    def complete(self) -> list[str]:
        """Until the command says that all is done; what was not as it should be."""
        began = time.monotonic()
        for _ in range(ROUNDS_MAX):
            self._run_and_kill()
            seen = self._observe()
            if seen["done"]:
                note(f"into controller mode after {time.monotonic() - began:.0f} s")
                lacking = {"exchange", "logs", "notes"} - {
                    name for name, kills in self.place.kills.items() if kills
                }
                return [f"never killed at {sorted(lacking)}"] if lacking else []
            now = next(each for each in seen["steps"] if each["state"] != "done")
            if now["state"] == "blocked":
                raise stack.StackError(f"{now['name']}: {now['detail']}; {now['hint']}")
            if not self.seen or self.seen[-1] != now["name"]:
                self.seen.append(now["name"])
                note(f"{time.monotonic() - began:.0f} s: {now['name']}")
            if now["state"] == "yours":
                self._do(now["name"], now["detail"])
            else:
                time.sleep(0.2)
        raise stack.StackError(f"not done after {ROUNDS_MAX} runs of the command; last {self.seen[-5:]}")

    def _command(self, *more: str) -> list[str]:
        stores = [each for n in range(MEMBERS) for each in ("--store", str(self.place.store(n)))]
        servers = [
            "--namesrv",
            self.place.name_server.address,
            "--controllers",
            self.place.controllers.addresses,
        ]
        known = ["--group", NAME, "--members", str(MEMBERS)]
        return [
            sys.executable,
            "-m",
            "brokerset_cli.main",
            "upgrade",
            "dledger",
            *stores,
            *servers,
            *known,
            *more,
        ]

    def _observe(self) -> dict[str, Any]:
        done = subprocess.run(
            self._command("--look", "--json"), capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX
        )
        if done.returncode:
            raise stack.StackError(f"--look ended with {done.returncode}: {done.stderr[-1000:]}")
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    def _run_and_kill(self) -> None:
        """Run it, and kill it at the first step at which it was not killed often enough."""
        process = subprocess.Popen(
            self._command("--yes", "--wait", "0"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        lines: queue.Queue[str | None] = queue.Queue()
        reader = threading.Thread(target=_pass_on, args=(process.stdout, lines), daemon=True)
        reader.start()
        text: list[str] = []
        killed, delay, name = False, None, ""
        while True:
            try:
                line = lines.get(timeout=COMMAND_SECONDS_MAX if delay is None else delay)
            except queue.Empty:
                process.send_signal(signal.SIGKILL)
                assert delay is not None, f"the command hangs: {text[-5:]}"
                self.place.kills[name] += 1
                self._used[name] += 1
                killed, delay = True, None
                continue
            if line is None:
                break
            text.append(line)
            word = line.partition(":")[0]
            if not killed and word.isascii() and word.replace("-", "").isalpha() and word.islower():
                name, delay = word, self._delay(word)
        status = process.wait(COMMAND_SECONDS_MAX)
        reader.join()
        process.stdout.close()
        if status not in (0, NOT_DONE_EXIT, -signal.SIGKILL):
            raise stack.StackError(f"the command ended with {status}: {''.join(text)[-1500:]}")

    def _delay(self, name: str) -> float | None:
        """After how many seconds of this step the command is killed; None when it was killed there often enough."""
        delays = self._exchange_delays if name == "exchange" else OTHER_DELAYS
        return delays[self._used[name]] if self._used[name] < len(delays) else None

    def _do(self, name: str, detail: str) -> None:
        match name:
            case "slaves-stopped" | "master-stopped":
                for number, member in enumerate(self.group.members):
                    if str(self.place.store(number)) in detail and member.server.running:
                        member.server.stop()
            case "start-master" if not self.went_back:
                self._go_back()
            case "start-master":
                (self.master,) = self._named(detail)
                self._start_master(self.master)
            case "start-slaves":
                self._start_slaves()
            case _:
                raise stack.StackError(f"nobody knows what to do for {name}: {detail}")

    def _named(self, detail: str) -> list[int]:
        return [number for number in range(MEMBERS) if f"{self.place.store(number)} " in f"{detail} "]

    def _go_back(self) -> None:
        """`--back`, killed on its way, too; then the way into controller mode begins again."""
        for delay in (*BACK_DELAYS, None):
            process = subprocess.Popen(
                self._command("--back", "--yes"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            try:
                text, _ = process.communicate(timeout=delay)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                self.place.kills["--back"] += 1
                continue
            if process.returncode:
                raise stack.StackError(f"--back ended with {process.returncode}: {text[-1000:]}")
        for number in range(MEMBERS):
            assert any(self.place.store(number).glob("dledger-*")), (
                f"{self.place.store(number)} has no DLedger again"
            )
        self.went_back = True
        self._used["exchange"] = min(self._used["exchange"], len(self._exchange_delays) - KILLS_AGAIN)

    def _start_master(self, number: int) -> None:
        server, store = self.replicas[number], self.place.store(number)
        size = server.log.stat().st_size
        for what, reached in (
            ("it runs", lambda: server.log.stat().st_size > size),
            ("it has an identity", lambda: any(store.glob("brokerIdentity*"))),
            ("it listens", lambda: server.ready()),
        ):
            server.launch()
            until(what, reached, MOMENT_SECONDS_MAX)
            server.kill()
            self.place.kills[f"new master, when {what}"] += 1
        server.start()

    def _start_slaves(self) -> None:
        """The others copy the master's log, and are killed before, in the middle, and once with the master."""
        assert self.master is not None
        others = [number for number in range(MEMBERS) if number != self.master]
        files = len(list((self.place.store(self.master) / "commitlog").iterdir()))
        for what, wanted in (
            ("they have an identity", 0),
            ("they copy", 1),
            ("they have half", max(1, files // 2)),
        ):
            for number in others:
                self.replicas[number].launch()
            until(what, partial(self._have, others, wanted), CAUGHT_UP_SECONDS_MAX)
            for number in others:
                self.replicas[number].kill()
            self.place.kills[f"new slaves, when {what}"] += len(others)
        self.replicas[self.master].kill()
        self.place.kills["new master, in the middle of copying"] += 1
        for replica in self.replicas:
            replica.launch()
        for replica in self.replicas:
            replica.ready()

    def _have(self, others: Sequence[int], files: int) -> bool:
        for number in others:
            store = self.place.store(number)
            if not any(store.glob("brokerIdentity*")) or len(list(store.glob("commitlog/*"))) < files:
                return False
        return True


def _pass_on(stream: Any, lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def _ended(place: Takeover, person: Person) -> list[str]:
    assert person.master is not None
    port = person.replicas[person.master].port
    place.records.make_names(port, "made-in-controller-mode")
    assert place.records.send_one(port), "the new master takes no messages"
    problems = place.records.problems(port)
    problems += place.records.wait_later(port, LATER_SECONDS_MORE)
    note(f"delay messages that were delivered more than once: {place.records.delivered_twice(port)}")
    brokers = [Member(f"n{number}", OURS, server, 0) for number, server in enumerate(person.replicas)]
    end = brokers[person.master].log_end()
    until("all have it", lambda: all(each.log_end() >= end for each in brokers), CAUGHT_UP_SECONDS_MAX)
    first = place.store(person.master) / "commitlog"
    for number in range(MEMBERS):
        place_of = first_difference(first, place.store(number) / "commitlog", 0, end)
        if place_of is not None:
            problems.append(f"the logs of {person.master} and {number} differ at {place_of} of {end}")
        problems += [
            f"broker {number}: {each}" for each in place.records.metadata_problems(brokers[number].port)
        ]
    note(f"the commit logs of {MEMBERS} replicas are equal: {end:,} bytes")
    return problems + replication_checks.unexpected(brokers)
