"""The parts of the suite `adopt`: a real Java cluster is taken over and given back, while a Java producer and a Java consumer work."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from brokerset_rig import controller_parts, stack, wire
from brokerset_rig.controller_parts import Add, step
from brokerset_rig.controllers import until
from brokerset_rig.replicated_group import NAME, QUEUES, Group, Member
from brokerset_rig.replication_checks import missing_metadata, note
from brokerset_rig.replication_clients import Flow

TOPIC = "adopted"
BROKERS = 2
MESSAGES = 300
YOURS = 3
COMMAND_SECONDS_MAX = 180.0
CONSUMED_SECONDS_MAX = 60.0
CLIENT_PAUSE_SECONDS_MAX = 42.0
"""A Java client with default settings asks for routes every 30 s; after a call that was killed around the election, the next one waits 10 s."""

GET_CONFIG = 26
CHANGED = ("brokerPermission", "startAcceptSendRequestTimeStamp")


def java_cluster(folder: Path, ports: list[int], name_server_ports: list[int]) -> stack.Controllers:
    """Three Java controllers and a Java name server."""
    found = stack.java_controllers(folder, ports, name_server_ports)
    name_server = stack.java_namesrv(folder / "java-namesrv", name_server_ports[0])
    return stack.Controllers(found.servers, [name_server], name_server.address)


class Command:
    """One call of `brokerset`, with its lines as they come."""

    def __init__(self, *arguments: str) -> None:
        self.arguments = arguments
        self.process = subprocess.Popen(
            [sys.executable, "-m", "brokerset_cli.main", *arguments],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        self.said: list[str] = []
        self.out = b""
        self._readers = [
            threading.Thread(target=read, daemon=True) for read in (self._read_out, self._read_said)
        ]
        for reader in self._readers:
            reader.start()

    def _read_out(self) -> None:
        assert self.process.stdout is not None
        self.out = self.process.stdout.read()

    def _read_said(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.said.append(line.decode(errors="replace").rstrip())

    def kill_at(self, text: str, seconds: float = 0.0) -> None:
        """`kill -9` so long after it has said something."""
        until(
            f"`{' '.join(self.arguments[:1])}` says {text!r}", lambda: self._says(text), COMMAND_SECONDS_MAX
        )
        time.sleep(seconds)
        self.process.kill()
        self.process.wait()

    def _says(self, text: str) -> bool:
        if any(text in line for line in self.said):
            return True
        if self.process.poll() is not None:
            raise stack.StackError(f"it ended with {self.process.returncode}:\n" + "\n".join(self.said[-15:]))
        return False

    def wait(self) -> int:
        """Its exit code."""
        try:
            code = self.process.wait(COMMAND_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self.process.send_signal(signal.SIGINT)
            raise stack.StackError("it does not end:\n" + "\n".join(self.said[-15:])) from None
        for reader in self._readers:
            reader.join(5)
        return code

    def sure(self, code: int = 0) -> dict[str, Any]:
        """What it wrote as JSON, once it has ended as it should."""
        ended = self.wait()
        if ended != code:
            raise stack.StackError(
                f"{' '.join(self.arguments)} ended with {ended} instead of {code}:\n"
                + "\n".join(self.said[-25:])
            )
        found = json.loads(self.out)
        assert isinstance(found, dict)
        return found


class Adopted(Member):
    """A broker of ours that the command has started."""

    @property
    def commit_log(self) -> Path:
        return self.server.folder / "store" / "commitlog"


class Case:
    """A Java cluster, and the folder that takes it over."""

    def __init__(self, found: Group) -> None:
        self.found = found
        self.data = found.folder / "ours"

    def adopt(self, *more: str) -> Command:
        return Command(
            "adopt",
            "--namesrv",
            self.found.servers.name_servers,
            "--data",
            str(self.data),
            "--yes",
            "--json",
            *more,
        )

    def back(self, *more: str) -> Command:
        return Command("adopt", "--data", str(self.data), "--back", "--yes", "--json", *more)

    def finish(self, *more: str) -> Command:
        return Command("adopt", "--data", str(self.data), "--finish", "--yes", "--json", *more)

    def plain(self, *arguments: str) -> Command:
        return Command(*arguments, "--data", str(self.data))

    def ours(self) -> list[Member]:
        """Our brokers that run."""
        state = json.loads((self.data / "state.json").read_bytes())
        found: list[Member] = []
        for process in (each for each in state["processes"] if each["kind"] == "broker"):
            port = int(process["address"].rpartition(":")[2])
            server = stack.Server(process["name"], [], port, Path(process["folder"]))
            found.append(Adopted("ours", server, self.id_at(port)))
        return found

    def id_at(self, port: int) -> int:
        replicas = self.found.panel.replicas(NAME).items()
        return next(i for i, each in replicas if each["brokerAddress"].endswith(f":{port}"))

    def master_port(self) -> int:
        return until("a master", lambda: self.found.panel.master(NAME))[1]

    def end(self) -> None:
        """No process of the folder is left behind."""
        if (self.data / "brokerset-folder.json").exists():
            Command("down", "--data", str(self.data)).wait()


def current(answer: Mapping[str, Any]) -> str:
    """The step that is next, with its state; empty when all are done."""
    return next((f"{s['name']} {s['state']}" for s in answer["steps"] if s["state"] != "done"), "")


class Producers:
    """A Java producer after the other, so that the logs can be compared while nobody sends."""

    def __init__(self, found: Group, running: ExitStack) -> None:
        self._found = found
        self._running = running
        self._flows: list[Flow] = []
        self.again()

    @property
    def now(self) -> Flow:
        return self._flows[-1]

    def again(self) -> None:
        """The next one, which sends."""
        flow = Flow(self._found, mode="produce", topic=TOPIC, pause="10", prefix=f"p{len(self._flows)}")
        self._flows.append(self._running.enter_context(flow))
        flow.wait_lines("ack", MESSAGES)

    @property
    def acked(self) -> set[str]:
        return {body for flow in self._flows for body in flow.acked}

    @property
    def failed(self) -> int:
        return sum(len(flow.of("fail")) for flow in self._flows)


def settings_of(member: Member) -> dict[str, str]:
    """The settings of a broker that a switchover changes."""
    with wire.Client(member.port, 5.0) as client:
        lines = client.call(GET_CONFIG, {}).body.decode().splitlines()
    found = dict(line.split("=", 1) for line in lines if "=" in line)
    return {name: found[name] for name in CHANGED}


def look(add: Add, case: Case) -> None:
    with step(add, "`--look` finds nothing against it, and changes nothing") as problems:
        answer = case.adopt("--look").sure()
        if answer["obstacles"] or current(answer) != "join ready":
            problems.append(f"{answer['obstacles']}, next {current(answer)!r}")
        if case.data.exists():
            problems.append("the folder was made")


def join(add: Add, case: Case) -> None:
    with step(
        add, "the command is killed (kill -9) while our brokers start; the same command goes on to `catch-up`"
    ) as problems:
        case.adopt("--to", "catch-up").kill_at("join:", 1.0)
        answer = case.adopt("--to", "catch-up").sure()
        if current(answer):
            problems.append(f"next {current(answer)!r}")
        case.found.wait_in_sync(*case.ours())
        if case.master_port() in {member.port for member in case.ours()}:
            problems.append("one of ours is master already")


def switch(add: Add, case: Case, producer: Flow, before: Mapping[int, Mapping[str, str]]) -> None:
    with step(
        add,
        "the command is killed while Java's master turns sends away; the same command finishes the switch",
    ) as problems:
        began = time.monotonic()
        case.adopt("--to", "switch").kill_at("it is elected")
        answer = case.adopt("--to", "switch").sure()
        if current(answer):
            problems.append(f"next {current(answer)!r}")
        if case.master_port() not in {member.port for member in case.ours()}:
            problems.append("none of ours is master")
        problems += restored(case, before)
        producer.wait_acked_since(began, MESSAGES)
        note(f"the Java producer's longest pause: {producer.pause_around(began):.1f} s")
        problems += pause_problems(producer, began)


def restored(case: Case, before: Mapping[int, Mapping[str, str]]) -> list[str]:
    now = {m.port: settings_of(m) for m in case.found.members if m.server.running}
    return [f"{now[port]} at {port}, before {before[port]}" for port in now if now[port] != before[port]]


def pause_problems(producer: Flow, began: float) -> list[str]:
    pause = producer.pause_around(began)
    return (
        [f"the Java producer's longest pause was {pause:.1f} s"] if pause > CLIENT_PAUSE_SECONDS_MAX else []
    )


def retire(add: Add, case: Case, java: list[Member]) -> None:
    for turn in range(len(java)):
        with step(
            add, f"Java broker {turn + 1} of {len(java)} is asked for, stopped by the person, and not missed"
        ) as problems:
            answer = case.adopt().sure(YOURS)
            wanted = [s for s in answer["steps"] if s["state"] == "yours"]
            member = next(m for m in java if wanted[0]["name"] == f"retire:{NAME}:{m.broker_id}")
            member.server.stop()
            if not wanted[0]["hint"]:
                problems.append("it does not say what to do")
    with step(add, "then all of it is done, and every replica that lives is ours") as problems:
        answer = case.adopt().sure()
        if current(answer):
            problems.append(f"next {current(answer)!r}")
        living = {i for i, each in case.found.panel.replicas(NAME).items() if each["alive"]}
        if living != {member.broker_id for member in case.ours()}:
            problems.append(f"alive: {living}")


def at_home(add: Add, case: Case, producers: Producers) -> None:
    with step(
        add, "topics, groups and offsets made on Java's master are there, and the logs of ours are the same"
    ) as problems:
        producers.now.end()
        ours = case.ours()
        master = next(m for m in ours if m.port == case.master_port())
        problems += missing_metadata(master, "of-java")
        differing, size = case.found.compare(ours)
        problems += differing
        note(f"{size:,} bytes are the same")
        producers.again()
    with step(add, "`status`, `scale`, `down` and `up` work with such a folder") as problems:
        status = case.plain("status", "--json").sure()
        if not status["healthy"]:
            problems.append(str(status["problems"]))
        for count in (3, 2):
            case.plain("scale", NAME, "--replicas", str(count), "--json").sure()
            if len(case.ours()) != count:
                problems.append(f"{len(case.ours())} of ours run instead of {count}")
        for arguments in (("down",), ("up", "--detach")):
            command = case.plain(*arguments)
            if command.wait():
                problems.append(f"{arguments[0]}: {command.said[-5:]}")
        producers.now.wait_lines("ack", MESSAGES)


def back_from_retire(add: Add, case: Case, java: list[Member], producer: Flow) -> None:
    with step(
        add,
        "`--back` after `retire` asks for Java's brokers; with them it leads back until nothing of ours is left",
    ) as problems:
        answer = case.back().sure(YOURS)
        if not current(answer).startswith(f"return:{NAME}:"):
            problems.append(f"next {current(answer)!r}")
        ids = {member.broker_id for member in java}
        for member in java:
            member.server.start()
        began = time.monotonic()
        case.back().sure()
        problems += given_back(case, ids)
        producer.wait_acked_since(began, MESSAGES)
        note(f"the Java producer's longest pause: {producer.pause_around(began):.1f} s")
        problems += pause_problems(producer, began)


def given_back(case: Case, ids: set[int]) -> list[str]:
    problems = []
    found = case.found.panel.replicas(NAME)
    if set(found) != ids or case.found.panel.master(NAME) is None:
        problems.append(f"the controllers know {set(found)} instead of {ids}")
    if case.data.exists():
        problems.append(f"{case.data} is still there")
    return problems


def back_from_switch(
    add: Add, case: Case, java: list[Member], producer: Flow, before: Mapping[int, Mapping[str, str]]
) -> None:
    with step(add, "adopted again up to `switch`, and given back from there") as problems:
        case.adopt("--to", "switch").sure()
        if case.master_port() not in {member.port for member in case.ours()}:
            problems.append("none of ours is master")
        producer.wait_acked_since(time.monotonic(), MESSAGES)
        case.back().sure()
        problems += given_back(case, {member.broker_id for member in java})
        problems += restored(case, before)


def lost(case: Case, producers: Producers) -> list[str]:
    """What the producers were told is stored, and the master does not have."""
    acked = producers.acked
    stored = {
        body.decode()
        for queue in range(QUEUES)
        for body in controller_parts.bodies(case.master_port(), TOPIC, queue)
    }
    gone = sorted(acked - stored)
    note(f"{len(acked)} messages; failed sends {producers.failed}")
    return [f"{len(gone)} of {len(acked)} are gone: {gone[:3]}"] if gone else []


def at_the_end(add: Add, case: Case, java: list[Member], producers: Producers, consumer: Flow) -> None:
    with step(
        add,
        "nothing that the Java producer was told is stored is lost, its consumer got it, and Java's logs are the same",
    ) as problems:
        producers.now.wait_acked_since(time.monotonic(), MESSAGES)
        producers.now.end()
        acked = producers.acked
        until("all messages are consumed", lambda: acked <= consumer.got, CONSUMED_SECONDS_MAX)
        problems += lost(case, producers)
        case.found.wait_in_sync()
        differing, size = case.found.compare(java)
        problems += differing
        note(f"{size:,} bytes are the same")
        master = next((m for m in java if m.port == case.master_port()), None)
        problems += ["the master is not Java's"] if master is None else missing_metadata(master, "of-java")
