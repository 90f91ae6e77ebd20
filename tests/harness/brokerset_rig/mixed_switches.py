"""What is done to the master of a group of both makes while Java clients work, and how a mix runs from its start to its end."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager

from brokerset_rig import controller_parts, controllers, mixed_checks, stack, wire
from brokerset_rig.controller_parts import Add, step
from brokerset_rig.controllers import until
from brokerset_rig.mixed_work import (
    CLIENT_MESSAGES,
    CLIENT_SECONDS_MAX,
    FLOW_TOPIC,
    KEPT,
    LOAD_MESSAGES,
    Work,
    start_clients,
)
from brokerset_rig.replicated_group import SETTLE_SECONDS_MAX, Group, Member, ready_topic
from brokerset_rig.replication_checks import make_metadata, note

SWITCHES = 6
"""In each mix; the last ones while a name server is gone, where there are two."""

QUIET_SAMPLES = 10
"""A master that refuses sends is done with what it had taken when its log and the heir's were equal so many looks in a row."""

READ_ONLY, READ_WRITE = 4, 6
REFUSING_MS_MAX = 120_000
UPDATE_CONFIG = 25
NAME_SERVER_SECONDS_MAX = 40.0


def run(add: Add, found: Group, name: str, proves: str, ways: Mapping[str, Sequence[str]]) -> None:
    """Start the brokers of a mix, change its master many times under load, and look at everything afterwards."""
    began = time.monotonic()
    apart = found.servers.others if len(found.servers.others) > 1 else []
    with ExitStack() as clients:
        work: Work | None = None
        with step(add, f"{name}: all brokers get in sync, Java clients send and read") as problems:
            start(found)
            work = start_clients(found, clients, ways)
        while work is not None and not problems and work.switches < SWITCHES - len(apart):
            problems = next_switch(add, found, name, work)
        for server in apart:
            if work is None or problems:
                break
            problems = without(add, found, name, work, server)
        if work is not None and not problems:
            mixed_checks.run(add, found, name, proves, work)
    note(f"{name} took {time.monotonic() - began:.0f} s")


def start(found: Group) -> None:
    """All at once, until the controllers have an in-sync set of all."""
    found.panel.serving(60)
    for member in found.members:
        member.server.launch()
    for member in found.members:
        member.server.ready()
    for member in found.members:
        found.registered(member)
    ready_topic(found)
    ready_topic(found, FLOW_TOPIC)
    make_metadata(found.master()[0], KEPT)
    found.wait_in_sync()


def next_switch(add: Add, found: Group, name: str, work: Work, where: str = "") -> list[str]:
    """The next way of the master's make; to a broker of the other make where somebody chooses."""
    master, epoch = found.master()
    way = next(work.turns[master.make])
    work.switches += 1
    sentence = f"{name}: switch {work.switches}{where}: {way} of {'the Java' if master.make == 'Java' else 'our'} master"
    with step(add, sentence) as problems:
        waited = found.wait_in_sync()
        began = time.monotonic()
        others = [member for member in found.members if member is not master]
        heir = next((member for member in others if member.make != master.make), others[0])
        change(found, way, master, heir, epoch)
        now, later = found.wait_master_after(epoch)
        if way in ("kill", "stop"):
            master.server.launch()
        elif now is not heir:
            problems.append(f"{now} leads in epoch {later} instead of {heir}")
        work.crossings += now.make != master.make
        work.load.wait_more(LOAD_MESSAGES)
        work.producer.wait_lines("ack", CLIENT_MESSAGES, CLIENT_SECONDS_MAX)
        work.consumer.wait_lines("got", CLIENT_MESSAGES, CLIENT_SECONDS_MAX)
        back = time.monotonic()
        if way in ("kill", "stop"):
            master.server.ready()
            found.registered(master)
        paused = work.producer.pause_around(began)
        work.pauses.setdefault(f"{way} of {master.make}", []).append(round(paused, 2))
        note(
            f"{master} -> {now}, epoch {later}; all were in sync after {waited:.1f} s; no acknowledgement for"
            f" {work.load.pause_since(began):.2f} s, to the Java producer for {paused:.2f} s,"
            f" nothing for the consumer for {work.consumer.pause_around(began, 'got'):.2f} s;"
            f" the old master was registered {time.monotonic() - back:.1f} s after that"
        )
    return problems


def change(found: Group, way: str, master: Member, heir: Member, epoch: int) -> None:
    """Take the role from the master in one of the ways."""
    if way == "switchover":
        found.switch_over(heir)
    elif way == "elect":
        found.elect(heir)
    elif way == "relieve":
        with taking_nothing(master):
            quiet(master, heir)
            found.elect(heir)
            found.wait_master_after(epoch)
            until(
                f"{master} has heard of it", lambda: not leads(master)
            )  # until then it would take sends alone
    elif way == "stop":
        master.server.stop()
    else:
        with controller_parts.held(member.server for member in found.members if member is not master):
            time.sleep(controller_parts.HELD_SECONDS)  # what is acknowledged now is on the master alone
            master.server.kill()


@contextmanager
def taking_nothing(master: Member) -> Iterator[None]:
    """A Java master refuses sends in the block (code 1, or 16), and takes them again afterwards, whatever its role is then.

    `brokerPermission=4` alone would not do: with it Java's broker refuses ordered topics and what consumers give back
    (`AbstractSendMessageProcessor.msgCheck`); other sends go on until their clients read routes again.
    """
    later = time.time_ns() // 1_000_000 + REFUSING_MS_MAX
    configure(master, startAcceptSendRequestTimeStamp=later, brokerPermission=READ_ONLY)
    try:
        if controller_parts.send(master.port, b"refused").code == 0:
            raise stack.StackError(f"{master} took a send though it was told to take none")
        yield
    finally:
        configure(master, startAcceptSendRequestTimeStamp=0, brokerPermission=READ_WRITE)


def leads(member: Member) -> bool:
    """Whether a broker says that it is master (1007)."""
    with wire.Client(member.port, 5.0) as client:
        body = client.call(controllers.EPOCHS, {}).body
    return bool(controllers.loads(body)["brokerId"] == 0)


def configure(member: Member, **settings: int) -> None:
    """Change settings as mqadmin updateBrokerConfig does."""
    body = "".join(f"{key}={value}\n" for key, value in settings.items()).encode()
    with wire.Client(member.port, 5.0) as client:
        answer = client.call(UPDATE_CONFIG, {}, body)
    if answer.code:
        raise controllers.Refused(UPDATE_CONFIG, answer)


def quiet(master: Member, heir: Member) -> None:
    """Until the heir has the whole log of a master that takes nothing more."""
    ends: list[int] = []

    def look() -> bool:
        own = master.log_end()
        if heir.log_end() == own and (not ends or ends[-1] == own):
            ends.append(own)
        else:
            ends.clear()
        return len(ends) >= QUIET_SAMPLES

    until(f"{heir} has the log of {master}, which grows no more", look, SETTLE_SECONDS_MAX)


def without(add: Add, found: Group, name: str, work: Work, server: stack.Server) -> list[str]:
    """One name server is killed, the master changes, clients go on; then it is back and knows the same brokers as the other."""
    server.kill()
    problems = next_switch(add, found, name, work, f" while {server.name} is gone")
    server.start()
    if problems:
        return problems
    with step(
        add, f"{name}: {server.name} is back and knows the same brokers as the other one"
    ) as found_problems:
        until(
            "both name servers give the same brokers",
            lambda: not mixed_checks.name_server_problems(found),
            NAME_SERVER_SECONDS_MAX,
        )
    return found_problems
