"""A cluster that `brokerset adopt` has taken over leaves Java's controllers and name servers, under Java's clients: a part of the suite `adopt`."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from brokerset_rig import wire
from brokerset_rig.adopt_parts import (
    CLIENT_PAUSE_SECONDS_MAX,
    CONSUMED_SECONDS_MAX,
    MESSAGES,
    TOPIC,
    YOURS,
    Case,
    Producers,
    current,
    lost,
)
from brokerset_rig.controller_parts import Add, step
from brokerset_rig.controllers import Panel, loads, until
from brokerset_rig.replicated_group import NAME, Member
from brokerset_rig.replication_checks import missing_metadata, note
from brokerset_rig.replication_clients import Flow

CLUSTER_INFO = 106
STATE_SECONDS_MAX = 30.0


def run(
    add: Add, case: Case, java: list[Member], producers: Producers, consumer: Flow, running: ExitStack
) -> None:
    """Adopt once more, and go all the way. Java's brokers run and lead, nobody sends."""
    producers.again()
    with step(
        add, "adopted again, with a command that stops Java's brokers: nobody is asked for anything"
    ) as problems:
        began = time.monotonic()
        answer = case.adopt("--stop-with", stop_command(case, java)).sure()
        producers.now.wait_acked_since(time.monotonic(), MESSAGES)  # it may wait for its next look at routes
        note(
            f"nobody took messages for {pauses(answer)} s; the Java producer's longest pause: "
            f"{producers.now.pause_around(began):.1f} s"
        )
        if current(answer):
            problems.append(f"next {current(answer)!r}")
        problems += [f"{member} still runs" for member in java if not member.server.ended(STATE_SECONDS_MAX)]
    if problems:
        return
    ids = {member.port: member.broker_id for member in case.ours()}
    beside(add, case, producers)
    consumers = [consumer, with_our_name_servers(add, case, producers, running)]
    own(add, case, producers.now)
    ordinary(add, case, ids, producers)
    nothing_lost(add, case, producers, consumers)


def stop_command(case: Case, java: list[Member]) -> str:
    """A shell command that stops the Java broker `{id}`."""
    for member in java:
        (case.found.folder / f"java-{member.broker_id}.pid").write_text(str(member.server.pid))
    return f"kill $(cat {case.found.folder}/java-{{id}}.pid)"


def beside(add: Add, case: Case, producers: Producers) -> None:
    with step(
        add,
        "`--finish` starts controllers and name servers next to Java's; brokers are known to both at once",
    ) as problems:
        began = time.monotonic()
        answer = case.finish().sure(YOURS)
        if current(answer) != "clients yours":
            problems.append(f"next {current(answer)!r}")
        hint = next(each["hint"] for each in answer["steps"] if each["name"] == "clients")
        if our_name_servers(case) not in hint:
            problems.append(f"{hint!r} does not name {our_name_servers(case)}")
        ours = {member.port for member in case.ours()}
        for address in (*our_name_servers(case).split(";"), case.found.servers.name_servers):
            if known_at(address) != ours:
                problems.append(f"{address} knows {known_at(address)}, and {ours} run")
        producers.now.wait_acked_since(began, MESSAGES)
        pause = producers.now.pause_around(began)
        note(f"the Java producer's longest pause: {pause:.2f} s")
        if pause > 1.0:
            problems.append(f"nobody should wait, and the producer did for {pause:.1f} s")


def with_our_name_servers(add: Add, case: Case, producers: Producers, running: ExitStack) -> Flow:
    """Clients move: the producer ends, another one begins; so does a consumer of the same group."""
    with step(add, "Java's clients work with our name servers, while our brokers are Java's controllers'"):
        producers.now.end()
        case.found.env["NAMESRV_ADDR"] = our_name_servers(case)
        consumer = running.enter_context(Flow(case.found, mode="consume", topic=TOPIC, group="adopt-group"))
        producers.again()
    return consumer


def own(add: Add, case: Case, producer: Flow) -> None:
    with step(
        add,
        "the command is killed (kill -9) while our brokers change to our controllers; the same command finishes that",
    ) as problems:
        began = time.monotonic()
        case.finish("--clients-moved").kill_at("own:", 0.5)
        answer = case.finish().sure()
        if current(answer):
            problems.append(f"next {current(answer)!r}")
        producer.wait_acked_since(began, MESSAGES)
        pause = producer.pause_around(began)
        note(f"nobody took messages for {pauses(answer)} s; the Java producer's longest pause: {pause:.1f} s")
        if pause > CLIENT_PAUSE_SECONDS_MAX:
            problems.append(f"the Java producer's longest pause was {pause:.1f} s")


def ordinary(add: Add, case: Case, ids: dict[int, int], producers: Producers) -> None:
    with step(
        add,
        "Java's controllers and name server are ended; every broker has its id, and a killed master is replaced",
    ) as problems:
        left = known_at(case.found.servers.name_servers)
        if left:
            problems.append(f"Java's name server still knows {left}")
        for server in (*case.found.servers.servers, *case.found.servers.others):
            server.stop()
        case.found.panel = Panel(controller_ports(case))
        if (now := {member.port: member.broker_id for member in case.ours()}) != ids:
            problems.append(f"ids {now}, before {ids}")
        status = case.plain("status", "--json").sure()
        if not status["healthy"]:
            problems.append(str(status["problems"]))
        port = case.master_port()
        began = time.monotonic()
        os.kill(broker_pid(case, port), signal.SIGKILL)
        until("another master", lambda: case.master_port() != port, STATE_SECONDS_MAX)
        producers.now.wait_acked_since(began, MESSAGES)
        note(f"the Java producer's longest pause: {producers.now.pause_around(began):.1f} s")


def nothing_lost(add: Add, case: Case, producers: Producers, consumers: list[Flow]) -> None:
    with step(
        add,
        "nothing that was acknowledged since Java's first day is lost, consumers got it, and the logs are the same",
    ) as problems:
        producers.now.end()
        acked = producers.acked
        until(
            "all messages are consumed",
            lambda: acked <= set().union(*(each.got for each in consumers)),
            CONSUMED_SECONDS_MAX,
        )
        problems += lost(case, producers)
        case.found.wait_in_sync(*case.ours())
        differing, size = case.found.compare(case.ours())
        problems += differing
        note(f"{size:,} bytes are the same")
        master = next(m for m in case.ours() if m.port == case.master_port())
        problems += missing_metadata(master, "of-java")
    with step(add, "the folder is an ordinary one: `down --purge` deletes it") as problems:
        if case.plain("down", "--purge", "--yes").wait() or case.data.exists():
            problems.append(f"{case.data} is still there")


def pauses(answer: Mapping[str, Any]) -> str:
    """For how many seconds the group took no messages; the call that was killed may have measured it."""
    seconds = answer["pauseSeconds"].get(NAME)
    return "?" if seconds is None else f"{seconds:.2f}"


def our_name_servers(case: Case) -> str:
    """Addresses of the folder's own name servers, joined by semicolons."""
    return ";".join(each["namesrv"] for each in processes(case) if each["kind"] == "controller")


def controller_ports(case: Case) -> list[int]:
    return [
        int(each["address"].rpartition(":")[2]) for each in processes(case) if each["kind"] == "controller"
    ]


def broker_pid(case: Case, port: int) -> int:
    return next(int(each["pid"]) for each in processes(case) if each["address"].endswith(f":{port}"))


def processes(case: Case) -> list[dict[str, str]]:
    """What the state file of the folder says of its processes."""
    found = json.loads((case.data / "state.json").read_bytes())["processes"]
    assert isinstance(found, list)
    return found


def known_at(name_server: str) -> set[int]:
    """Ports of the brokers of the group that a name server knows."""
    with wire.Client(int(name_server.rpartition(":")[2]), 5.0) as client:
        table = loads(client.call(CLUSTER_INFO, {}).body).get("brokerAddrTable") or {}
    addresses = (table.get(NAME) or {}).get("brokerAddrs") or {}
    return {int(address.rpartition(":")[2]) for address in addresses.values()}
