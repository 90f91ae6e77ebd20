"""Controllers and identities as an administrator treats them: real processes that are killed, added, removed and robbed of their data."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerset_rig import wire
from brokerset_rig.local_set import FREE_PORTS, LocalSet, Sending, identities, local_set

SMALL = "mappedFileSizeCommitLog: 16777216, maxHashSlotNum: 1000, maxIndexNum: 4000"
MANIFEST = f"""
apiVersion: brokerset.io/v1alpha1
kind: BrokerSet
metadata: {{name: crew}}
spec:
  replicas: 3
  config: {{{SMALL}}}
"""
ONE_BROKER = MANIFEST.replace("replicas: 3", "replicas: 1")
GROUP = "crew-0"

LEASE_ENDED_SECONDS = 10.0
"""Longest wait until a master without controllers has no lease any more."""


@pytest.fixture(scope="module")
def crew(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSet]:
    """Three controllers and a group of three brokers; every test leaves it whole."""
    with local_set(tmp_path_factory.mktemp("crew"), MANIFEST) as found:
        found.until_healthy()
        yield found


def numbered(count: int) -> set[str]:
    """What `send --count` sends."""
    return {f"message {number} of {count}" for number in range(1, count + 1)}


def leader_name(crew: LocalSet) -> str:
    view = crew.until(lambda view: view["leaderId"] is not None, "a controller leads")
    return f"controller-{view['leaderId']}"


def test_status_shows_controllers_identities_and_roles(crew: LocalSet) -> None:
    view = crew.until_healthy()

    (group,) = view["groups"]
    assert sorted(identities(view).values()) == [(GROUP, 1), (GROUP, 2), (GROUP, 3)]
    assert sorted(replica["role"] for replica in group["replicas"]) == ["master", "slave", "slave"]
    assert group["owner"] == json.loads((crew.data / "set.json").read_text())["uid"]
    assert [(m["nodeId"], m["voter"]) for m in view["members"]] == [(0, True), (1, True), (2, True)]
    assert [c["role"] for c in view["controllers"]].count("leader") == 1
    shown = crew("status").stdout
    assert "Controllers, term " in shown
    assert "crew-0: master " in shown


def test_a_killed_leader_is_followed_by_another_while_a_producer_sends(crew: LocalSet) -> None:
    before = leader_name(crew)
    with Sending(crew, "leaders") as sending:
        crew.kill(before)
        view = crew.until(lambda view: view["healthy"], "a new leader serves and the old one is back")

    assert sending.failures == []
    assert len(sending.acknowledged) > 10
    assert view["local"]["processes"][int(before[-1])]["restarts"] >= 1
    assert crew.bodies("leaders", "leaders", set(sending.acknowledged)) == set(sending.acknowledged)


def test_three_controllers_become_five_and_three_again_while_a_producer_sends(crew: LocalSet) -> None:
    """The new ones vote, lead and hear the brokers; the old ones take over again, and the next new one is number 5."""
    crew.until_healthy()
    with Sending(crew, "scale") as sending:
        crew("controller", "scale", "5")
        five = crew.until_healthy()
        crew("controller", "transfer", "4")
        led = crew.until(lambda view: view["leaderId"] == 4 and view["healthy"], "controller-4 leads")
        crew("controller", "scale", "3")
        three = crew.until_healthy()

    assert [m["nodeId"] for m in five["members"] if m["voter"]] == [0, 1, 2, 3, 4]
    assert len(five["controllers"]) == 5
    assert {r["standing"] for r in led["groups"][0]["replicas"]} == {"alive"}
    assert [m["nodeId"] for m in three["members"]] == [0, 1, 2]
    assert list(crew.processes("controller")) == ["controller-0", "controller-1", "controller-2"]
    assert sending.failures == []
    assert json.loads((crew.data / "set.json").read_text())["nextControllerId"] == 5


def test_killed_brokers_come_back_at_other_ports_with_the_ids_they_had(crew: LocalSet) -> None:
    before = crew.until_healthy()
    crew("send", "ports", "--count", "30")
    addresses = {name: p["address"] for name, p in crew.processes("broker").items()}

    crew.kill(*addresses)
    after = crew.until_healthy()

    assert identities(after) == identities(before)
    moved = {name: p["address"] for name, p in crew.processes("broker").items()}
    assert not set(moved.values()) & set(addresses.values())
    starts = {r["brokerId"]: r["incarnation"] for r in before["groups"][0]["replicas"]}
    assert {r["brokerId"]: r["incarnation"] - 1 for r in after["groups"][0]["replicas"]} == starts
    assert after["groups"][0]["masterEpoch"] > before["groups"][0]["masterEpoch"]
    assert crew.bodies("ports", "ports", numbered(30)) == numbered(30)


def test_requests_that_make_no_sense_are_refused_with_their_reason(crew: LocalSet) -> None:
    view = crew.until_healthy()
    master = str(view["groups"][0]["masterId"])
    for says, arguments in [
        ("the controllers know no group 'no-such', only: crew-0", ("elect", "no-such")),
        ("crew-0 has no replica 9, only: 1, 2, 3", ("elect", GROUP, "9")),
        ("crew-0 has no replica 9", ("clean", GROUP, "9", "--yes")),
        (f"alive: {GROUP}/{master} at ", ("clean", GROUP, master, "--yes")),
        ("no set has run in /no/such", ("clean", GROUP, master, "--yes", "--data", "/no/such")),
        ("is the master", ("replica", "retire", GROUP, master, "--yes")),
        ("node 7 is no voting member, only: 0, 1, 2", ("controller", "transfer", "7")),
        ("node 7 is no member", ("controller", "members", "promote", "7")),
        ("there is nothing to rebuild", ("controller", "rebuild", "--yes")),
        ("is locked by process", ("replica", "replace", str(crew.data / "brokers" / "crew-0-0"), "--yes")),
    ]:
        assert says in crew(*arguments, code=1).stderr, arguments

    assert crew.until_healthy()["groups"][0]["masterEpoch"] == view["groups"][0]["masterEpoch"]
    crew("controller", "snapshot")
    assert all(c["snapshotIndex"] > 0 for c in crew.until_healthy()["controllers"])


def test_a_learner_that_does_not_run_gets_no_vote_and_addresses_are_not_given_twice(crew: LocalSet) -> None:
    members = ("controller", "members")
    first = crew.until_healthy()["members"][0]
    taken = crew(*members, "add", "9", first["raftAddress"], "127.0.0.1:1", code=1).stderr
    crew(*members, "add", "9", "127.0.0.1:2", "127.0.0.1:1")
    try:
        refused = crew(*members, "promote", "9", code=1).stderr
        voters = [m["nodeId"] for m in crew.status()["members"] if m["voter"]]
    finally:
        crew(*members, "remove", "9")

    assert f"{first['raftAddress']} belongs to member 0" in taken
    assert "learner 9 gives no status" in refused
    assert "brokerset controller members remove 9" in refused
    assert voters == [0, 1, 2]


def test_a_hung_controller_is_named_and_hides_neither_the_leader_nor_the_groups(crew: LocalSet) -> None:
    """Also when it is the first one that is asked."""
    crew.until_healthy()
    pid = crew.processes("controller")["controller-0"]["pid"]
    os.kill(pid, signal.SIGSTOP)
    try:
        view = crew.until(lambda view: view["leaderId"] not in (None, 0), "another one leads")
        snapshot = crew("controller", "snapshot", code=1)
    finally:
        os.kill(pid, signal.SIGCONT)
    crew.until_healthy()

    assert [group["brokerName"] for group in view["groups"]] == [GROUP]
    assert not any("no controller leads" in text for text in view["problems"]), view["problems"]
    assert any("controller-0 at" in text for text in view["problems"]), view["problems"]
    assert "no snapshot of node 0" in snapshot.stderr
    assert "Node 1 has everything up to entry" in snapshot.stdout


def test_without_a_majority_nothing_changes_and_status_says_why(crew: LocalSet) -> None:
    """Two of three controllers hang: sends go on, reads and requests are refused, and afterwards all is as before.

    What all in-sync replicas have needs no lease; a read does, since another master might have more.
    """
    before = crew.until_healthy()
    (group,) = before["groups"]
    master = next(r["address"] for r in group["replicas"] if r["brokerId"] == group["masterId"])
    hung = [p["pid"] for name, p in crew.processes("controller").items() if name != "controller-0"]
    for pid in hung:
        os.kill(pid, signal.SIGSTOP)
    try:
        with Sending(crew, "minority") as sending:
            view = crew.until(lambda view: view["leaderId"] is None, "nobody leads")
            acknowledged = len(sending.acknowledged)
            with wire.Client(int(master.rpartition(":")[2])) as client:
                deadline = time.monotonic() + LEASE_ENDED_SECONDS
                unread = client.call(wire.PULL, wire.pull_ext("minority", 0, 0))
                while unread.code == 0 and time.monotonic() < deadline:  # a lease lasts 2 s
                    unread = client.call(wire.PULL, wire.pull_ext("minority", 0, 0))
            refused = crew("elect", GROUP, code=1)
            sent_on = len(sending.acknowledged) > acknowledged
    finally:
        for pid in hung:
            os.kill(pid, signal.SIGCONT)
    after = crew.until_healthy()

    assert any("no controller leads (1 of 3 answer)" in text for text in view["problems"]), view["problems"]
    assert "no leading controller was found" in refused.stderr
    assert "What to do: " in refused.stderr
    assert sending.failures == []
    assert sent_on
    assert (unread.code, "no lease" in (unread.remark or "")) == (14, True), unread
    assert crew.bodies("minority", "minority", set(sending.acknowledged)) == set(sending.acknowledged)
    assert identities(after) == identities(before)


def test_brokers_keep_their_ids_over_down_and_up_with_other_ports(tmp_path: Path) -> None:
    """Ports of controllers stay, those of brokers change; nobody gets another's id."""
    with local_set(tmp_path, MANIFEST) as crew:
        before = crew.until_healthy()
        controllers = crew.state()["controllers"]
        crew("send", "kept", "--count", "20")
        crew("down")

        crew("up", "--detach", "-f", str(tmp_path / "set.yaml"), *FREE_PORTS)
        after = crew.until_healthy()

        assert identities(after) == identities(before)
        assert crew.state()["controllers"] == controllers
        assert crew.bodies("kept", "kept", numbered(20)) == numbered(20)


def test_a_controller_that_lost_its_data_is_replaced(tmp_path: Path) -> None:
    """It stays out, since it forgot its votes; another one takes its place with a number of its own."""
    with local_set(tmp_path, ONE_BROKER) as crew:
        crew("down")
        shutil.rmtree(crew.data / "controllers" / "controller-1")

        started = crew("up", "--detach", "-f", str(tmp_path / "set.yaml"), *FREE_PORTS)
        limping = crew.until(lambda view: bool(view["groups"]), "two controllers serve")
        crew("controller", "scale", "3")
        healthy = crew.until_healthy()

        assert "controller-1 has lost its data and does not start" in started.stdout
        assert any(
            "controller n1 is a member and has no process here" in text for text in limping["problems"]
        )
        assert [m["nodeId"] for m in healthy["members"] if m["voter"]] == [0, 2, 3]


def test_controllers_that_lost_everything_are_rebuilt_from_the_brokers(tmp_path: Path) -> None:
    """Brokers stay out until somebody decides; then ids, the next id and the epoch go on where they were."""
    with local_set(tmp_path, ONE_BROKER) as crew:
        crew("send", "rebuilt", "--count", "20")
        before = crew.until_healthy()
        crew("down")
        shutil.rmtree(crew.data / "controllers")

        command = [
            sys.executable,
            "-m",
            "brokerset_cli.main",
            "up",
            "-f",
            str(tmp_path / "set.yaml"),
            *FREE_PORTS,
        ]
        with subprocess.Popen([*command, "--data", str(crew.data)], stdout=subprocess.DEVNULL) as process:
            waiting = crew.until(
                lambda view: any("brokerset controller rebuild" in text for text in view["problems"]),
                "the broker says that the controllers do not know it",
            )
            shown = crew("controller", "rebuild", "--yes").stdout
            after = crew.until_healthy()
            read = crew.bodies("rebuilt", "rebuilt", numbered(20))
            process.terminate()

        assert waiting["groups"] == []
        assert "To be proposed:" in shown
        assert identities(after) == identities(before)
        assert after["groups"][0]["nextBrokerId"] == before["groups"][0]["nextBrokerId"]
        assert after["groups"][0]["masterEpoch"] > before["groups"][0]["masterEpoch"]
        assert read == numbered(20)


def test_a_replaced_folder_comes_back_as_a_new_replica_with_its_messages(tmp_path: Path) -> None:
    """The id it had is given up while its broker is stopped, and never given again.

    It is fenced first: else it may become master when everybody is stopped, and be the last one in sync.
    """
    with local_set(tmp_path, MANIFEST.replace("replicas: 3", "replicas: 2")) as crew:
        before = crew.until_healthy()
        slave = next(r for r in before["groups"][0]["replicas"] if r["role"] == "slave")
        crew("fence", GROUP, str(slave["brokerId"]), "--force")
        crew("down")

        crew("replica", "replace", str(crew.data / "brokers" / slave["process"]), "--yes")
        crew("up", "--detach", "-f", str(tmp_path / "set.yaml"), *FREE_PORTS)
        crew("replica", "retire", GROUP, str(slave["brokerId"]), "--yes")
        after = crew.until_healthy()

        assert identities(after)[slave["process"]] == (GROUP, 3)
        assert sorted(r["brokerId"] for r in after["groups"][0]["replicas"]) == sorted(
            {1, 2, 3} - {slave["brokerId"]}
        )
