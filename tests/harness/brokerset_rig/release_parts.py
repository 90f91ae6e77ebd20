"""Older releases of Java RocketMQ next to ours: each cell of "Releases" in `docs/compatibility.md`, with real processes.

Brokers are of 4.9.7 (no controllers), 5.1.0 (known by address), 5.1.1 (the first with persistent ids), 5.5.0 and ours; controllers of
5.1.0, 5.1.1, 5.5.0 and ours.
"""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial

from brokerset_cli.takeover.obstacles import FIRST_WITH_IDS, release_of
from brokerset_rig import (
    controller_parts,
    controllers,
    java_release,
    release_ha,
    replicated_group,
    stack,
    wire,
)
from brokerset_rig.controller_parts import BROKER_SETTINGS, NAME, TOPIC, Add, step
from brokerset_rig.controllers import Panel, until
from brokerset_rig.replicated_group import Group, Member

CLASSIC, BY_ADDRESS, BY_ID, TODAY = "4.9.7", "5.1.0", "5.1.1", "5.5.0"
REFUSED_CODE = 15
NOT_SUPPORTED = "CODE: 3 "
CLUSTER_INFO = 106
OLD_NAME = "broker-old"
SECONDS_MAX = 90.0
QUIET_SECONDS = 12.0
"""Long enough for two tries of a Java broker, which come every 5 s, and for ours to have tried at its slowest pace."""


def run(add: Add, size: str) -> None:
    for release in (CLASSIC, BY_ADDRESS, BY_ID):
        with step(add, f"the jars of RocketMQ {release} are there"):
            java_release.fetch(release)
    refused_by_ours(add)
    our_broker_under_old(add)
    java_among_itself(add)
    together(add, "our controllers", stack.our_controllers)
    together(add, f"controllers of {BY_ID}", partial(java_release.controllers, BY_ID))
    release_ha.run(add)
    classic(add)


def settings_for(servers: stack.Controllers, name: str = NAME) -> dict[str, str]:
    return {
        **BROKER_SETTINGS,
        "controllerAddr": servers.addresses,
        "brokerName": name,
        "allAckInSyncStateSet": "true",
    }


@contextmanager
def kept_running(server: stack.Server) -> Iterator[stack.Server]:
    """The server runs; afterwards it is killed if it still does."""
    with ExitStack() as ending:
        ending.callback(controller_parts.kill_running, server)
        yield server.start()


def expect(problems: list[str], served: bool, broker: str, under: str) -> None:
    """What is seen here is as documented: a broker is served by controllers of its age, and one of 4.x by none."""
    ages = [release_of(each) >= FIRST_WITH_IDS for each in (broker, under)]
    if served is not (ages[0] is ages[1] and release_of(broker) >= (5, 0, 0)):
        problems.append(f"{broker} under {under} is {'' if served else 'not '}served")


# -- a broker of 5.1.0 under our controllers -----------------------------------------------------------------


def refused_by_ours(add: Add) -> None:
    with stack.Workspace("releases") as folder:
        ports = stack.free_ports(7, below=2)
        with stack.our_controllers(folder, ports[:3], ports[3:6]) as servers:
            panel = Panel(servers.ports)
            panel.serving()
            settings = settings_for(servers, OLD_NAME)
            old = java_release.broker(BY_ADDRESS, folder / "old", ports[6], servers.name_servers, settings)
            begun = time.monotonic()
            with kept_running(old):
                refusal(add, panel, servers, old, begun)


def refusal(add: Add, panel: Panel, servers: stack.Controllers, old: stack.Server, begun: float) -> None:
    """`begun` is when the broker was started, on the monotonic clock."""
    sentence = (
        f"a broker of {BY_ADDRESS} under our controllers reads in its log why it is refused, and the way out"
    )
    with step(add, sentence) as problems:
        expect(problems, False, BY_ADDRESS, TODAY)
        words = (
            f"CODE: {REFUSED_CODE} ",
            old.address,
            f"is of RocketMQ {BY_ADDRESS}",
            "brokerset upgrade identity",
        )
        until(f"a line with {words}", lambda: _line(java_release.log_text(old), words), SECONDS_MAX)
    with step(add, "our controllers name its address and release once a minute, and the way out") as problems:
        time.sleep(QUIET_SECONDS)  # it asks every 5 s
        lines = [
            line
            for server in servers.servers
            for line in server.log.read_text().splitlines()
            if "a broker of an old release is refused" in line
        ]
        asked = java_release.log_text(old).count(f"CODE: {REFUSED_CODE} ")
        if not all(
            old.address in line and BY_ADDRESS in line and "upgrade identity" in line for line in lines
        ):
            problems.append(f"the lines are {lines}")
        if not 1 <= len(lines) <= 1 + (time.monotonic() - begun) // 60 or asked < 2:
            problems.append(f"{len(lines)} lines for {asked} refusals")
    with step(add, "nothing of it is registered, and the controllers go on") as problems:
        if panel.group(OLD_NAME):
            problems.append(f"1006 says {panel.group(OLD_NAME)}")
        if any(server.ended(0.0) for server in servers.servers):
            problems.append("a controller has ended")
        if (
            panel.sure(
                controllers.NEXT_ID, {"clusterName": controllers.CLUSTER, "brokerName": OLD_NAME}
            ).ext.get("nextBrokerId")
            != "1"
        ):
            problems.append("an id was given")
    unfenced(add, old, OLD_NAME, servers.name_servers)


def unfenced(add: Add, old: stack.Server, name: str, name_servers: str) -> None:
    """What the document warns of: such a broker is in no route, and takes what is sent to its port."""
    sentence = f"a broker of {BY_ADDRESS} without role is in no route, but takes a message from who knows its address"
    with step(add, sentence) as problems:
        if listed(name, name_servers):
            problems.append("it is among the brokers of the name server")
        if controller_parts.send(old.port, b"to its address").code:
            problems.append("it refused the message: the document says otherwise")


def listed(name: str, name_servers: str) -> bool:
    """Whether the first name server knows a broker of this name."""
    with wire.Client(int(name_servers.partition(";")[0].rpartition(":")[2]), 5.0) as client:
        return name in client.call(CLUSTER_INFO, {}).body.decode()


def _line(text: str, words: tuple[str, ...]) -> str | None:
    return next((line for line in text.splitlines() if all(word in line for word in words)), None)


# -- our broker under controllers of 5.1.0 -------------------------------------------------------------------


def our_broker_under_old(add: Add) -> None:
    """It says what is wrong, waits, and registers when the controllers at those addresses are replaced; and the other way."""
    with stack.Workspace("releases") as folder:
        ports = stack.free_ports(8, below=2)
        place, name_server, http = ports[:3], ports[3:6], ports[7]
        with stack.our_namesrv(folder / "ns", ports[6] + 2) as beside:
            old = java_release.controllers(BY_ADDRESS, folder / "old", place, name_server)
            settings = {**settings_for(old), "httpPort": str(http)}
            ours = stack.our_broker(folder / "ours", ports[6], beside.address, settings)
            with kept_running(ours):
                with old:
                    Panel(place).leader(SECONDS_MAX)
                    too_old(add, Panel(place), ours, http, "our new broker", 0, lines_max=3)
                with stack.our_controllers(folder / "new", place, name_server):
                    registers(add, Panel(place), ours, http)
                again = java_release.controllers(BY_ADDRESS, folder / "again", place, name_server)
                who = "our broker, which was registered with our controllers,"
                earlier = len(_problem_lines(ours))
                with again:
                    Panel(place).leader(SECONDS_MAX)
                    too_old(add, Panel(place), ours, http, who, earlier, lines_max=9)


def too_old(
    add: Add, panel: Panel, ours: stack.Server, http: int, who: str, earlier: int, *, lines_max: int
) -> None:
    """`earlier` lines in its log tell of problems before these controllers came."""
    with step(
        add, f"{who} says under controllers of {BY_ADDRESS} that they are too old, and the way out"
    ) as problems:
        expect(problems, False, TODAY, BY_ADDRESS)
        words = ("the controllers are too old", "5.0 or 5.1.0", "brokerset upgrade identity")
        until("words at /readyz", lambda: _line(readiness(http)[1].replace("\n", " "), words), SECONDS_MAX)
        if readiness(http)[0] != 503:
            problems.append(f"/readyz answers {readiness(http)}")
        until("words in the log", lambda: _line(" ".join(_problem_lines(ours)[earlier:]), words), SECONDS_MAX)
    with step(add, f"{who} waits calmly, and registers nothing there") as problems:
        time.sleep(QUIET_SECONDS)
        lines = _problem_lines(ours)[earlier:]
        if len(lines) > lines_max:
            problems.append(f"{len(lines)} lines: {lines}")
        answer = panel.ask(controllers.SYNC_STATES, {}, b'["%s"]' % NAME.encode())
        if NAME in answer.body.decode():
            problems.append(f"1006 says {answer.body!r}")


def registers(add: Add, panel: Panel, ours: stack.Server, http: int) -> None:
    with step(add, "our broker registers by itself when the controllers at their addresses are ours"):
        until("a master", lambda: panel.master(NAME), SECONDS_MAX)
        until("/readyz is well", lambda: readiness(http)[0] == 200, SECONDS_MAX)
        until("a topic", partial(_made, ours.port, TOPIC), SECONDS_MAX)
        until("a stored message", lambda: controller_parts.sent(ours.port, b"after the upgrade"), SECONDS_MAX)


def readiness(port: int) -> tuple[int, str]:
    """Status and text of `/readyz`."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def _problem_lines(server: stack.Server) -> list[str]:
    return [
        line
        for line in server.log.read_text(errors="replace").splitlines()
        if "membership has a problem" in line
    ]


# -- Java's brokers under Java's controllers -----------------------------------------------------------------


def java_among_itself(add: Add) -> None:
    """What releases of Java do to each other, so that the document says nothing else of them."""
    with stack.Workspace("releases") as folder, ExitStack() as running:
        ports = stack.free_ports(7, below=2)
        today = running.enter_context(stack.java_controllers(folder / "today", ports[:1], ports[1:2]))
        old = running.enter_context(
            java_release.controllers(BY_ADDRESS, folder / "old", ports[2:3], ports[3:4])
        )
        under_today = java_release.broker(
            BY_ADDRESS, folder / "a", ports[4], today.name_servers, settings_for(today)
        )
        under_old = controller_parts.small_java_broker(
            folder / "b", ports[5], old.name_servers, settings_for(old)
        )
        of_old = java_release.broker(
            BY_ADDRESS, folder / "c", ports[6], old.name_servers, settings_for(old, OLD_NAME)
        )
        brokers = (under_today, under_old, of_old)
        for broker in brokers:
            running.callback(controller_parts.kill_running, broker)
            broker.launch()
        for broker in brokers:
            broker.ready()
        with step(
            add, f"a broker of {BY_ADDRESS} under controllers of {BY_ADDRESS} is master and serves"
        ) as problems:
            expect(problems, True, BY_ADDRESS, BY_ADDRESS)
            until("a topic", partial(_made, of_old.port, TOPIC), SECONDS_MAX)
            until("a stored message", lambda: controller_parts.sent(of_old.port, b"old"), SECONDS_MAX)
        with step(
            add, f"a broker of {BY_ADDRESS} under controllers of {TODAY} gets no role, and logs an error"
        ) as problems:
            until(
                "an error in its log",
                lambda: _line(
                    java_release.log_text(under_today), ("Failed to register broker to controller",)
                ),
                SECONDS_MAX,
            )
            if Panel(today.ports).group(NAME):
                problems.append(f"it is registered: {Panel(today.ports).group(NAME)}")
        unfenced(add, under_today, NAME, today.name_servers)
        with step(
            add, f"a broker of {TODAY} under controllers of {BY_ADDRESS} gets no id: {NOT_SUPPORTED}"
        ) as problems:
            until(
                "an error in its log",
                lambda: _line(java_release.log_text(under_old), (NOT_SUPPORTED,)),
                SECONDS_MAX,
            )
            if controller_parts.send(under_old.port, b"x").code == 0 or controller_parts.identity(under_old):
                problems.append("it serves, or has an id")


# -- brokers of 5.1.1 and ours in one group ------------------------------------------------------------------


def together(add: Add, what: str, make: controller_parts.MakeControllers) -> None:
    """Ours leads, then the one of 5.1.1, then ours again; messages of each time are in both logs."""
    name = f"ours and one of {BY_ID} under {what}"
    with replicated_group.group("releases", 2, make) as found:
        ours = found.add("ours")
        java = found.add("Java", start=False)
        java.server = java_release.broker(
            BY_ID, java.server.folder, java.port, found.servers.name_servers, settings_for(found.servers)
        )
        with step(add, f"{name}: ours is master, the other one follows and is in sync") as problems:
            expect(problems, True, BY_ID, TODAY)
            found.start(java)
            replicated_group.ready_topic(found)
            _store(found, b"ours leads", problems)
            found.wait_in_sync(ours, java)
        for master, sentence in (
            (java, f"{name}: that one is elected and ours follows it"),
            (ours, f"{name}: ours is elected again, every message is in both logs, byte for byte"),
        ):
            with step(add, sentence) as problems:
                _lead(found, master)
                _store(found, f"{master} leads".encode(), problems)
                found.wait_in_sync(ours, java)
                if master is ours:
                    problems += found.compare()[0]


def _lead(found: Group, member: Member) -> None:
    found.elect(member)
    until(f"{member} leads", lambda: found.master()[0] is member or None, replicated_group.SWITCH_SECONDS_MAX)


def _store(found: Group, body: bytes, problems: list[str]) -> None:
    master = found.master()[0]
    until("a stored message", lambda: controller_parts.sent(master.port, body), SECONDS_MAX)
    stored = until("the message is read", lambda: controller_parts.bodies(master.port, TOPIC))
    if body not in stored:
        problems.append(f"{body!r} is not among {stored}")


# -- brokers without controllers, and clients ----------------------------------------------------------------


def classic(add: Add) -> None:
    """Brokers of each release at our name server; clients of 4.9.7 with our broker."""
    with stack.Workspace("releases") as folder, ExitStack() as running:
        ports = stack.free_ports(6, below=2)
        name_server = running.enter_context(stack.our_namesrv(folder, ports[0]))
        for port, release in zip(ports[1:4], (CLASSIC, BY_ADDRESS, BY_ID), strict=True):
            own = {"brokerName": f"broker-{release}"}
            broker = java_release.broker(release, folder / release, port, name_server.address, own)
            with (
                step(add, f"a broker of {release} registers its topics with our name server"),
                kept_running(broker),
            ):
                topic = f"topic-of-{release.replace('.', '-')}"
                until("a topic", partial(_made, port, topic), SECONDS_MAX)
                until("its route", partial(_route, release, name_server, topic, broker.address), SECONDS_MAX)
        ours = running.enter_context(stack.our_broker(folder, ports[4], name_server.address))
        controller_parts.create_topic(ours.port)
        for release in (CLASSIC, BY_ADDRESS):
            with step(
                add, f"the client library of {release} sends to our broker and consumes from it"
            ) as problems:
                body = f"from-{release}"
                address = ("-n", name_server.address)
                said = java_release.mqadmin(release, "sendMessage", *address, "-t", TOPIC, "-p", body)
                if "SEND_OK" not in said:
                    problems.append(f"sendMessage printed:\n{said[-1000:]}")
                read = java_release.mqadmin(release, "consumeMessage", *address, "-t", TOPIC)
                if body not in read:
                    problems.append(f"consumeMessage printed:\n{read[-1000:]}")


def _made(port: int, topic: str) -> bool:
    controller_parts.create_topic(port, topic)
    return True


def _route(release: str, name_server: stack.Server, topic: str, address: str) -> bool:
    return address in java_release.mqadmin(release, "topicRoute", "-n", name_server.address, "-t", topic)
