"""What controllers answer to odd requests, about themselves, and about their settings."""

from __future__ import annotations

import pytest

from brokerset_controller.request_limits import BODY_BYTES_MAX, NONCES_BYTES_MAX
from brokerset_protocol.bodies.controllers import ControllerStatus, GroupStates
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.headers.controller import BrokerHeartbeat, ChangeMembers, TransferLeader
from brokerset_raft.configuration import ConfigurationRefused, Member
from brokerset_rig.controller_bench import CLUSTER, GROUP, make_bench
from brokerset_runtime.settings import from_properties

SERVED = (
    904, *range(1001, 1007), *range(1009, 1014), *range(3001, 3011),
    *range(21_001, 21_010), *range(21_021, 21_030),
)  # fmt: skip


def test_all_codes_are_served() -> None:
    """RocketMQ's and our own, and no other: the transport answers 3 to those."""
    assert sorted(make_bench().processors.handlers()) == sorted(SERVED)


@pytest.mark.parametrize("code", SERVED)
@pytest.mark.parametrize(
    ("ext", "body"),
    [
        ({}, b""),
        ({"brokerName": "", "clusterName": ""}, b"{}"),
        ({"brokerName": "x" * 70_000, "clusterName": "c", "brokerId": "1", "brokerAddress": "h:1"}, b"[1]"),
        ({"brokerId": "one", "masterEpoch": "9" * 30, "nodeId": "?", "action": "x"}, b"[["),
        ({"brokerName": "\ud800", "clusterName": "c", "appliedBrokerId": "-4"}, b"\xff\xfe"),
        ({"brokerAddr": "nowhere", "brokerName": "a", "clusterName": "c", "brokerId": "1"}, b'{"a":1}'),
        ({"action": "dance", "nodeId": "-1"}, b'["a"]'),
        ({"brokerName": GROUP, "clusterName": CLUSTER}, b"x" * (BODY_BYTES_MAX + 1)),
    ],
)
async def test_no_request_is_a_crash(code: int, ext: dict[str, str], body: bytes) -> None:
    """Whatever is missing, malformed or too large gets a code, and a remark unless the answer is fine."""

    bench = make_bench()

    answer = await bench.ask(code, ext, body)

    assert answer.is_response
    assert answer.code == 0 or answer.remark
    assert len(answer.remark or "") < 70_500
    assert len(bench.liveness) == 0


async def test_a_missing_broker_name_is_named() -> None:
    """For each request that needs one."""

    bench = make_bench()
    for code in (904, 1011):
        answer = await bench.ask(code, {"clusterName": CLUSTER, "brokerAddr": "h:1"})

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "brokerName" in (answer.remark or "")
    for code in (1003, 1012, 1013):
        answer = await bench.ask(code, {"clusterName": CLUSTER, "brokerAddress": "h:1"})

        assert answer.code != 0
        assert "brokerName" in (answer.remark or "")


async def test_a_beat_without_id_is_2005() -> None:
    """As RocketMQ answers it."""

    bench = make_bench()
    header = BrokerHeartbeat(cluster_name=CLUSTER, broker_addr="h:1", broker_name=GROUP)

    assert (await bench.ask(904, header)).code == ResponseCode.CONTROLLER_INVALID_REQUEST


async def test_the_list_of_names_is_bounded_and_must_not_be_empty() -> None:
    """1006 with nothing, with too many, and with something that is no name."""

    bench = make_bench()
    many = b"[" + b",".join(b'"b%d"' % i for i in range(1001)) + b"]"
    for body, remark in (
        (b"[]", "empty"),
        (b"", "empty"),
        (many, "NAMES_ASKED_MAX"),
        (b"[7]", "no name"),
        (b'{"a":1}', "no JSON array"),
    ):
        answer = await bench.ask(1006, None, body)

        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert remark in (answer.remark or "")
    assert (await bench.ask(1006, None, b'["none"]')).body == b'{"replicasInfoTable":{}}'


async def test_nonces_are_bounded() -> None:
    """Before they are compared with anything."""

    bench = make_bench()
    ext = {
        "clusterName": CLUSTER,
        "brokerName": GROUP,
        "brokerId": "1",
        "brokerAddress": "h:1",
        "triedNonces": "x" * (NONCES_BYTES_MAX + 1),
    }

    answer = await bench.ask(1003, ext)

    assert "NONCES_BYTES_MAX" in (answer.remark or "")


async def test_metadata_names_a_leader_only_when_it_is_known() -> None:
    """Without one the keys are absent, so that a broker asks another controller."""

    bench = make_bench()
    leading = await bench.ask(1005)
    bench.engine.follow(2)
    following = await bench.ask(1005)
    bench.engine.follow(None)
    alone = await bench.ask(1005)

    peers = "n0:127.0.0.1:19876;n1:127.0.0.1:19886;n2:127.0.0.1:19896;"
    assert leading.ext == {
        "group": "DefaultControllerGroup",
        "controllerLeaderId": "n0",
        "controllerLeaderAddress": "127.0.0.1:19876",
        "isLeader": "true",
        "peers": peers,
    }
    assert (following.ext["controllerLeaderId"], following.ext["isLeader"]) == ("n2", "false")
    assert alone.ext == {"group": "DefaultControllerGroup", "isLeader": "false", "peers": peers}


async def test_status_shows_progress_of_members_on_the_leader_only() -> None:
    """21001 is answered by every node for itself."""

    bench = make_bench()
    leader = ControllerStatus.from_json((await bench.ask(21_001)).body)
    bench.engine.follow(1)
    follower = ControllerStatus.from_json((await bench.ask(21_001)).body)

    assert [member.match_index for member in leader.members] == [7, 7, 5]
    assert [member.match_index for member in follower.members] == [None, None, None]
    assert (follower.role, follower.leading, follower.leader_id) == ("follower", False, 1)


async def test_members_are_changed_by_the_leader_only() -> None:
    """21002 and 21003."""

    bench = make_bench()
    add = ChangeMembers(action="add", node_id=7, raft_address="h:1", service_address="h:2")
    added = await bench.ask(21_002, add)
    incomplete = await bench.ask(21_002, ChangeMembers(action="add", node_id=8))
    promoted = await bench.ask(21_002, ChangeMembers(action="promote", node_id=7))
    removed = await bench.ask(21_002, ChangeMembers(action="remove", node_id=1))
    moved = await bench.ask(21_003, TransferLeader(node_id=2))
    to_itself = await bench.ask(21_003, TransferLeader(node_id=0))
    bench.engine.change_error = ConfigurationRefused("not now; wait")
    refused = await bench.ask(21_002, ChangeMembers(action="remove", node_id=1))
    bench.engine.follow(1)
    elsewhere = await bench.ask(21_002, add)

    assert [a.code for a in (added, promoted, removed, moved, to_itself)] == [0] * 5
    assert bench.engine.changes == [
        ("add", Member(7, "h:1", "h:2", False)),
        ("promote", 7),
        ("remove", 1),
        ("transfer", 2),
    ]
    assert "raftAddress" in (incomplete.remark or "")
    assert (refused.code, refused.remark) == (ResponseCode.SYSTEM_ERROR, "not now; wait")
    assert elsewhere.code == ResponseCode.CONTROLLER_NOT_LEADER


async def test_group_states_can_be_local() -> None:
    """With `local` a node tells what it has, also when nobody leads."""

    bench = make_bench()
    await bench.join(1)
    bench.engine.follow(None)

    agreed = await bench.ask(RequestCode.BROKERSET_GROUP_STATES)
    local = await bench.ask(RequestCode.BROKERSET_GROUP_STATES, {"local": "true"}, b'["broker-a","x"]')

    assert agreed.code == ResponseCode.CONTROLLER_NOT_LEADER
    states = GroupStates.from_json(local.body).groups
    assert [(state.broker_name, state.next_broker_id) for state in states] == [(GROUP, 2)]


async def test_a_rebuilt_group_must_not_list_an_id_twice() -> None:
    """Two brokers that claim an id are for people to sort out."""

    bench = make_bench()
    replica = '{"brokerId":1,"address":"h:1","checkCode":"c"}'
    body = f'{{"brokerName":"b","clusterName":"c","replicas":[{replica},{replica}]}}'.encode()

    answer = await bench.ask(RequestCode.BROKERSET_REBUILD_GROUP, None, body)

    assert "listed twice" in (answer.remark or "")
    assert bench.machine.groups == {}


async def test_settings_are_shown_sorted_and_changed_at_once() -> None:
    """1010 shows what 1009 did; unknown names are ignored, as in RocketMQ."""

    bench = make_bench()

    changed = await bench.ask(1009, None, b"probeTimeout=321\nmetricsInDelta=true\n")
    nothing = await bench.ask(1009)
    shown = (await bench.ask(1010)).body.decode()

    assert (changed.code, nothing.code) == (0, 0)
    assert from_properties(shown)["probeTimeout"] == "321"
    assert list(from_properties(shown)) == sorted(from_properties(shown))
    assert bench.service.settings.probe_timeout == 321


@pytest.mark.parametrize(
    ("body", "code", "remark"),
    [
        (b"configStorePath=/etc/passwd\nprobeTimeout=1000", 16, "Can not update config in black list."),
        (b"rocketmqHome=/", 16, "black list"),
        (b"listenPort=1", 16, "restart"),
        (b"probeTimeout=soon", 1, "probeTimeout"),
        (b"probeTimeout=1", 1, "must be from"),
        (b"no assignment", 1, "name=value"),
        (b"\xff\xff=1", 1, "UTF-8"),
        (b"x" * 70_000, 1, "TEXT_SIZE_MAX"),
    ],
)
async def test_refused_settings_change_nothing(body: bytes, code: int, remark: str) -> None:
    """All or none, with the reason."""

    bench = make_bench()

    answer = await bench.ask(1009, None, body)

    assert answer.code == code
    assert remark in (answer.remark or "")
    assert bench.processors.settings == bench.settings


async def test_requests_are_counted_under_rocketmqs_names() -> None:
    """An answer with an error code is a success; a refusal that had to be raised is not."""

    bench = make_bench()
    await bench.beat(1)
    await bench.ask(1004, {"brokerName": "none"})
    await bench.ask(1006, None, b"[]")

    counted = bench.service.measurements.requests
    assert counted == {
        ("CONTROLLER_BROKER_HEARTBEAT", "success"): 1,
        ("CONTROLLER_GET_REPLICA_INFO", "success"): 1,
        ("CONTROLLER_GET_SYNC_STATE_DATA", "failed"): 1,
    }
    assert bench.service.measurements.request_latency["CONTROLLER_GET_REPLICA_INFO"].cumulative()[-1][1] == 1
