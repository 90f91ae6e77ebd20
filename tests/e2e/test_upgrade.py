"""`brokerset upgrade classic` with real processes: a master's store and a slave's that is behind it, led under controllers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from brokerset_rig import controller_parts, controllers, stack, store_reading, wire
from brokerset_rig.old_groups import GROUP
from brokerset_rig.replicated_group import first_difference
from brokerset_rig.upgrade_parts import (
    OURS,
    Person,
    change_last_message,
    end_started,
    new_settings,
    tree_digest,
)

TOPIC = "upgraded"
COMMAND_SECONDS_MAX = 60


class Old:
    """Stores of a master and of a slave that lacks the last messages; no broker runs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.bodies = [b"message %d " % number * 20 for number in range(300)]
        ports = stack.free_ports(3, below=2)
        self.ports = ports[1:]
        with stack.our_namesrv(folder / "namesrv", ports[0]) as namesrv:
            broker = stack.our_broker(folder / "b0", ports[1], namesrv.address, OURS)
            with broker:
                controller_parts.create_topic(broker.port, TOPIC)
                self._send(broker.port, self.bodies[:200])
            shutil.copytree(folder / "b0" / "broker-0", folder / "b1" / "broker-0")
            with broker:
                self._send(broker.port, self.bodies[200:])

    def _send(self, port: int, bodies: list[bytes]) -> None:
        with wire.Client(port, 10.0) as client:
            for body in bodies:
                assert client.call(wire.SEND_V2, wire.send_ext(TOPIC, 0, "WAIT\x01true\x02"), body).code == 0

    def stores(self) -> list[Path]:
        return [self.folder / name / "broker-0" / "store" for name in ("b0", "b1")]


@pytest.fixture
def old(tmp_path: Path) -> Old:
    return Old(tmp_path)


@pytest.fixture
def group(tmp_path: Path) -> Iterator[stack.Controllers]:
    ports = stack.free_ports(2, below=2)
    with stack.our_controllers(tmp_path / "controllers", ports[:1], ports[1:]) as servers:
        controllers.Panel(servers.ports).serving()  # a flow that finds no leader asks for controllers first
        yield servers


def command(old: Old, group: stack.Controllers, *more: str) -> list[str]:
    """Its arguments: the brokers are started by it."""
    named = [each for store in old.stores() for each in ("--store", str(store))]
    for number, port in enumerate(old.ports):
        stack.our_broker(old.folder / f"b{number}", port, group.name_servers, new_settings(group, OURS))
    start = f"{sys.executable} -m brokerset_broker -c {old.folder}/b{{number}}/broker.conf"
    return [
        "classic",
        *named,
        "--group",
        GROUP,
        "--controllers",
        group.addresses,
        "--start-with",
        start,
        *more,
    ]


def run(arguments: list[str], *more: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "brokerset_cli.main", "upgrade", *arguments, *more],
        capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX,
    )  # fmt: skip


def test_a_slave_that_is_behind_copies_only_what_it_lacks(old: Old, group: stack.Controllers) -> None:
    """The command, killed as it begins its second act each time, ends with two equal replicas that have every message."""
    master, slave = old.stores()
    behind = store_reading.read_commit_log(slave)[-1]
    with ExitStack() as ending:
        ending.callback(lambda: end_started(old.stores()))
        person = Person(command(old, group), {})

        person.complete()

        assert person.kills >= 1
        panel = controllers.Panel(group.ports)
        found = panel.master(GROUP)
        assert found is not None
        assert found[1] == old.ports[0], "the old master leads"
        for port in old.ports:
            assert controller_parts.bodies(port, TOPIC) == old.bodies
    lines = (slave / "upgrade-backup" / "start.log").read_text().splitlines()
    starts = [json.loads(line) for line in lines if "following" in line and "offset" in line]
    end = store_reading.read_commit_log(master)[-1]
    assert first_difference(master / "commitlog", slave / "commitlog", 0, end.offset + end.size) is None
    assert any(each.get("offset") == behind.offset + behind.size for each in starts), starts


def test_a_slave_with_other_messages_is_refused_and_cut_only_when_told(
    old: Old, group: stack.Controllers
) -> None:
    """Exact words first, nothing changed; with --accept-cut the group comes up without that message; no way back then."""
    master, slave = old.stores()
    last = change_last_message(slave)
    size = store_reading.read_commit_log(slave)[-1].size
    before = tree_digest(slave)

    refused = run(command(old, group), "--yes")

    assert refused.returncode == 1, refused.stdout + refused.stderr
    assert (
        f"logs: {slave} differs from {master}; would be cut from offset {last:,} on: 1 message, {size:,} bytes, which {master} does not have"
    ) in refused.stderr
    assert tree_digest(slave) == before
    with ExitStack() as ending:
        ending.callback(lambda: end_started(old.stores()))
        done = run(command(old, group, "--accept-cut", str(slave)), "--yes", "--wait", "50")
        assert done.returncode == 0, done.stdout + done.stderr
        for port in old.ports:
            assert controller_parts.bodies(port, TOPIC) == old.bodies
        late = run(command(old, group), "--back", "--yes")
        assert late.returncode == 1, late.stdout + late.stderr
        assert "there is no way back" in late.stderr


def test_a_broker_that_does_not_start_is_named_with_its_last_words(
    old: Old, group: stack.Controllers
) -> None:
    """It is not started again and again; --back brings everything as it was."""
    before = [tree_digest(store) for store in old.stores()]
    arguments = command(old, group)
    conf = old.folder / "b0" / "broker.conf"
    conf.write_text(conf.read_text() + "listenPrt=7\n")

    done = run(arguments, "--yes", "--wait", "30")
    back = run(arguments, "--back", "--yes")

    assert done.returncode == 1, done.stdout + done.stderr
    assert "the broker that was started on" in done.stderr
    assert "listenPrt" in done.stderr
    assert back.returncode == 0, back.stderr
    assert [tree_digest(store) for store in old.stores()] == before


@pytest.mark.slow
def test_two_hosts_lead_a_group_over_with_files_of_facts(old: Old, group: stack.Controllers) -> None:
    """Each host has one store. The master's compares; the slave's waits for that, and for the master to be elected."""
    master, slave = old.stores()
    every = command(old, group)
    start = every[every.index("--start-with") + 1].replace("{number}", "{{}}")

    def at(number: int, *more: str) -> subprocess.CompletedProcess[str]:
        named = [
            "classic",
            "--store",
            str(old.stores()[number]),
            "--host",
            f"h{number}",
            "--group",
            GROUP,
            "--yes",
        ]
        begin = start.replace("{{}}", str(number))
        return run([*named, "--controllers", group.addresses, "--start-with", begin, "--members", "2", *more])

    b, a = str(old.folder / "b.json"), str(old.folder / "a.json")
    with ExitStack() as ending:
        ending.callback(lambda: end_started(old.stores()))
        alone = at(1, "--wait", "0")
        wrote = at(1, "--write-facts", b).returncode, at(0, "--facts", b, "--write-facts", a).returncode
        early = at(1, "--facts", a, "--wait", "0")
        first = at(0, "--facts", b, "--wait", "20")
        second = at(1, "--facts", a, "--wait", "40")
        last = at(0, "--facts", b, "--wait", "20")

        assert alone.returncode == 1, alone.stdout + alone.stderr
        assert "has 2 brokers, and 1 of their stores can be seen" in alone.stderr
        assert wrote == (0, 0)
        assert early.returncode == 3, early.stdout + early.stderr
        assert f"h0:{master} is on another host" in early.stdout
        assert first.returncode == 3, first.stdout + first.stderr
        assert "1 of 2 in sync" in first.stdout
        assert second.returncode == 0, second.stdout + second.stderr
        assert last.returncode == 0, last.stdout + last.stderr
        for port in old.ports:
            assert controller_parts.bodies(port, TOPIC) == old.bodies
    assert not (slave / "epochFileCheckpoint").read_text().endswith("\n0-0\n"), (
        "the slave has its master's epochs"
    )
