"""What stands against taking a cluster over, from what its brokers answer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brokerset_cli.takeover.broker_queries import clock_ms
from brokerset_cli.takeover.joined_set import host_findings, make_manifest, set_name
from brokerset_cli.takeover.obstacles import (
    FEATURES,
    BrokerAnswers,
    differences,
    disk_finding,
    features_in_use,
    findings_of,
    name_server_findings,
)
from brokerset_spec.plan import PlanRefused, plan_local
from brokerset_spec.set_memory import ControllerMemory, JoinedCluster, SetMemory

JAVA = BrokerAnswers(
    "broker-a",
    "10.0.0.1:10911",
    {
        "enableControllerMode": "true",
        "mappedFileSizeCommitLog": "1073741824",
        "allAckInSyncStateSet": "true",
        "brokerClusterName": "c",
        "aclEnable": "false",
        "storeType": "default",
        "messageStorePlugIn": "",
        "storePathCommitLog": "/store/commitlog",
    },
    {"brokerVersionDesc": "V5_5_0", "commitLogMaxOffset": "100"},
)


def with_settings(**changes: str) -> BrokerAnswers:
    return replace(JAVA, settings={**JAVA.settings, **changes})


def test_an_ordinary_broker_has_nothing_against_it() -> None:
    """A broker in controller mode that uses what is served can be joined."""
    assert findings_of(JAVA) == []


@pytest.mark.parametrize(
    ("broker", "name", "way_out"),
    [
        (
            with_settings(enableControllerMode="false", brokerRole="ASYNC_MASTER"),
            "classic",
            "upgrade classic",
        ),
        (with_settings(enableDLegerCommitLog="true"), "dledger", "upgrade dledger"),
        (replace(JAVA, measurements={"brokerVersionDesc": "V5_1_0"}), "too-old", "upgrade identity"),
        (replace(JAVA, problem="connection refused"), "unreachable", "start it"),
        (with_settings(aclEnable="true"), "acl", "--accept acl"),
        (with_settings(storeType="defaultRocksDB"), "rocksdb", "--accept rocksdb"),
        (with_settings(transRocksDBEnable="true"), "rocksdb", "--accept rocksdb"),
        (with_settings(messageStorePlugIn="org.x.TieredMessageStore"), "tiered-storage", "--accept"),
        (with_settings(storePathCommitLog="/a,/b"), "several-paths", "--accept"),
        (replace(JAVA, written=("rmq_sys_REVIVE_LOG_c",)), "pop", "--accept pop"),
        (replace(JAVA, static_topics=("t",)), "static-topics", "--accept"),
        (
            replace(JAVA, topics={"t": {"attributes": {"cleanup.policy": "COMPACTION"}}}),
            "compaction",
            "--accept",
        ),
        (replace(JAVA, topics={"t": {"attributes": {"queue.type": "BatchCQ"}}}), "batch-queues", "--accept"),
    ],
)
def test_an_obstacle_names_the_broker_and_a_way_out(broker: BrokerAnswers, name: str, way_out: str) -> None:
    """Each obstacle says at which broker, and what to do."""
    found = findings_of(broker)

    assert [(each.name, each.blocks) for each in found] == [(name, True)]
    assert JAVA.address in found[0].text
    assert way_out in found[0].text


@pytest.mark.parametrize("name", list(FEATURES))
def test_a_feature_that_is_accepted_is_a_warning(name: str) -> None:
    """`--accept` takes every feature that can be an obstacle."""
    every = replace(
        with_settings(
            aclEnable="true",
            storeType="defaultRocksDB",
            messageStorePlugIn="x",
            storePathCommitLog="/a,/b",
        ),
        written=("rmq_sys_REVIVE_LOG_c",),
        static_topics=("t",),
        topics={"a": {"attributes": {"cleanup.policy": "COMPACTION", "queue.type": "BatchCQ"}}},
    )

    found = {each.name: each.blocks for each in findings_of(every, [name])}

    assert found == {feature: feature != name for feature in FEATURES}
    assert features_in_use(every) == list(FEATURES)


def test_what_only_matters_sometimes_is_a_warning() -> None:
    """Acknowledging alone, and a clock that is wrong, do not stand against it."""
    found = findings_of(replace(with_settings(allAckInSyncStateSet="false"), skew_ms=-60_000))

    assert [(each.name, each.blocks) for each in found] == [("all-ack", False), ("clock", False)]


def test_brokers_must_not_differ_in_the_size_of_log_files() -> None:
    """Files of unlike sizes are an obstacle that lists who has which."""
    other = replace(with_settings(mappedFileSizeCommitLog="268435456"), address="10.0.0.2:10911")

    found = differences([JAVA, other])

    assert [each.blocks for each in found] == [True]
    assert all(text in found[0].text for text in ("268435456", "1073741824", "10.0.0.2:10911"))
    assert differences([JAVA, JAVA]) == []


def test_name_servers_that_were_forgotten_are_a_warning() -> None:
    """Clients of a name server that only Java's brokers know would not find ours."""
    broker = with_settings(namesrvAddr="n:1;n:2")

    assert [(f.name, f.blocks) for f in name_server_findings([broker], "n:1")] == [("name-servers", False)]
    assert name_server_findings([broker, JAVA], "n:2;n:1") == []


def test_copies_need_room() -> None:
    """Too little room is an obstacle with both measurements."""
    assert disk_finding(10, 10, "d") == []
    assert "2.0 GiB free, and the copies need about 3.0 GiB" in disk_finding(3 << 30, 2 << 30, "d")[0].text


@pytest.mark.parametrize(
    ("text", "release"),
    [
        ("4.9.7", (4, 9, 7)),
        ("V4_9_8_SNAPSHOT", (4, 9, 8)),
        ("5.1.0-SNAPSHOT", (5, 1, 0)),
        ("5.10.0", (5, 10, 0)),
        (" v5.2.0 ", (5, 2, 0)),
        *((text, ()) for text in ("", "5", "5.1", "unknown", "5.1.x", "a5.1.1", "5.1.1.2")),
    ],
)
def test_releases_are_read(text: str, release: tuple[int, ...]) -> None:
    """In tables of mqadmin and in names of releases; what is no release is nothing."""
    assert BrokerAnswers("g", "h:1", measurements={"brokerVersionDesc": text}).version == release


@pytest.mark.parametrize(
    ("measurements", "expected"),
    [
        (
            {"bootTimestamp": "1000", "runtime": "[ 1 days, 2 hours, 3 minutes, 4 seconds ]"},
            1000 + (26 * 3600 + 184) * 1000,
        ),
        ({"bootTimestamp": "x", "runtime": "[ 0 days, 0 hours, 0 minutes, 1 seconds ]"}, None),
        ({"bootTimestamp": "1000"}, None),
    ],
)
def test_a_brokers_clock_is_its_start_and_how_long_it_runs(
    measurements: Mapping[str, str], expected: int | None
) -> None:
    """The time at a broker follows from two of its measurements."""
    assert clock_ms(measurements) == expected


def test_an_address_that_others_cannot_reach_is_an_obstacle() -> None:
    """Loopback is told to nobody when Java's brokers are on other hosts."""
    assert [each.name for each in host_findings("127.0.0.1", [JAVA])] == ["host"]
    assert host_findings("10.0.0.9", [JAVA]) == []
    assert host_findings("127.0.0.1", [replace(JAVA, address="127.0.0.1:10911")]) == []


def test_our_brokers_take_over_what_clients_see() -> None:
    """The set has Java's cluster, groups and the settings that matter; what cannot be is left out."""
    settings: dict[str, Any] = {
        "mappedFileSizeCommitLog": "1073741824",
        "deleteWhen": "04",
        "fileReservedTime": "48",
        "autoCreateTopicEnable": "false",
        "maxMessageSize": "no number",
        "brokerPermission": "6",
    }

    manifest = make_manifest("Default_Cluster", ["a", "b"], 2, settings)

    assert manifest.metadata.name == "adopted-default-cluster"
    assert manifest.spec.cluster_name == "Default_Cluster"
    assert manifest.broker_names == ("a", "b")
    assert dict(manifest.spec.config) == {
        "mappedFileSizeCommitLog": 1073741824,
        "deleteWhen": "04",
        "fileReservedTime": 48,
        "autoCreateTopicEnable": False,
    }
    assert set_name("___") == "adopted"


def test_a_guest_runs_brokers_alone_at_the_hosts_controllers() -> None:
    """The plan of a guest has no controllers; its brokers go to those of the other cluster, now and later."""
    memory = SetMemory("uid", joined_cluster_of=JoinedCluster("c:1;c:2", "n:1"))
    manifest = make_manifest("c", ["a"], 2, {})

    plan = plan_local(manifest, Path("d"), memory=memory, is_free=lambda port: True, host="10.0.0.9")
    again = plan_local(
        manifest,
        Path("d"),
        memory=SetMemory.from_json(plan.memory.to_json()),
        is_free=lambda port: True,
        host="10.0.0.9",
    )

    assert [process.kind for process in plan.processes] == ["broker", "broker"]
    assert {process.settings.controller_addr for process in plan.brokers} == {"c:1;c:2"}  # type: ignore[union-attr]  # a broker's
    assert (plan.namesrv_address, plan.controller_address) == ("n:1", "c:1;c:2")
    assert again == plan
    with pytest.raises(PlanRefused, match=r"10\.0\.0\.9"):
        plan_local(manifest, Path("d"), memory=plan.memory, is_free=lambda port: True, host="10.0.0.8")


def test_a_set_with_controllers_of_its_own_is_no_guest() -> None:
    """Memory of a set that was no guest is read as before."""
    memory = SetMemory("uid", host="h", controllers=(ControllerMemory(0),))
    value = memory.to_json()
    del value["guestOf"]  # as folders of earlier releases have it

    assert SetMemory.from_json(value) == memory
