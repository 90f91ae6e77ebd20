"""RocketMQ 5.0 and 5.1.0 at our controllers: refused with words, logged now and then, never a replica."""

from __future__ import annotations

import pytest

from brokerset_controller import processors
from brokerset_controller.old_releases import (
    BROKERS_KNOWN_MAX,
    LINE_SECONDS,
    OldPeer,
    OldPeerLines,
    old_peer,
)
from brokerset_protocol.codes import Language, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_rig.controller_bench import CLUSTER, GROUP, Bench, make_bench
from brokerset_rig.log_lines import lines_of

ADDRESS = "10.0.0.7:10911"
NAMES = {"clusterName": CLUSTER, "brokerName": GROUP}
OLD_REQUESTS = {
    1001: {"brokerName": GROUP, "masterAddress": ADDRESS, "masterEpoch": "3"},
    1002: {**NAMES, "brokerAddress": ADDRESS},
    1003: {
        **NAMES,
        "brokerAddress": ADDRESS,
        "epoch": "1",
        "maxOffset": "9",
        "heartbeatTimeoutMillis": "10000",
    },
    1004: {"brokerName": GROUP, "brokerAddress": ADDRESS},
    1011: {**NAMES, "brokerAddress": ADDRESS, "isCleanLivingBroker": "false"},
}
"""What the header classes of 5.1.0 have."""

TODAY = {
    904: {**NAMES, "brokerAddr": ADDRESS, "brokerId": "1"},
    1001: {"brokerName": GROUP, "masterBrokerId": "1", "masterEpoch": "3"},
    1002: {**NAMES, "brokerId": "1", "designateElect": "true"},
    1003: {**NAMES, "brokerId": "1", "brokerAddress": ADDRESS},
    1004: {"brokerName": GROUP},
    1011: {**NAMES, "brokerControllerIdsToClean": "1", "isCleanLivingBroker": "false"},
}
HEARTBEAT = {**NAMES, "brokerAddr": ADDRESS, "brokerId": "1", "epoch": "1", "maxOffset": "9"}


def command(code: int, ext: dict[str, str], *, version: int = 433, flag: int = 0) -> Command:
    return Command(
        code,
        ext,
        b'{"syncStateSet":["%s"]}' % ADDRESS.encode(),
        language=Language.JAVA,
        version=version,
        flag=flag,
    )


def handle(bench: Bench, request: Command) -> int:
    """The code of the refusal, which comes before anything is awaited."""
    with pytest.raises(Rejected) as rejected:
        bench.processors.handlers()[request.code](bench.connection, request)  # type: ignore[arg-type]
    return rejected.value.code


@pytest.mark.parametrize("code", OLD_REQUESTS)
@pytest.mark.parametrize(("version", "release"), [(413, "5.0.0"), (433, "5.1.0"), (0, "5.0 or 5.1.0")])
def test_requests_that_name_an_address_are_told_by_their_fields(
    code: int, version: int, release: str
) -> None:
    """Whether or not the sender says which release it is: its mqadmin and its brokers send the same."""
    assert old_peer(command(code, OLD_REQUESTS[code], version=version)) == OldPeer(
        code, GROUP, ADDRESS, release
    )


@pytest.mark.parametrize("code", TODAY)
@pytest.mark.parametrize("version", [435, 513])
def test_requests_of_today_are_not_taken_for_old_ones(code: int, version: int) -> None:
    """Of RocketMQ 5.1.1 and later, and of our own brokers."""
    assert old_peer(command(code, TODAY[code], version=version)) is None


def test_a_heartbeat_is_told_by_the_release_alone() -> None:
    """Its fields are the same in all releases; only what its id means is not."""
    found = old_peer(command(904, HEARTBEAT))

    assert found == OldPeer(904, GROUP, ADDRESS, "5.1.0")
    assert old_peer(command(904, HEARTBEAT, version=435)) is None


@pytest.mark.parametrize("code", [*OLD_REQUESTS, 904])
def test_the_refusal_names_the_broker_the_release_and_the_way_out(code: int) -> None:
    """Java's broker writes code and remark to its log."""
    found = old_peer(command(code, {**HEARTBEAT} if code == 904 else OLD_REQUESTS[code]))
    assert found is not None

    rejected = found.rejection()

    assert rejected.code == ResponseCode.VERSION_NOT_SUPPORTED
    for word in (GROUP, ADDRESS, "5.1.0", "5.1.1 or later", "`brokerset upgrade identity`"):
        assert word in rejected.remark


async def test_an_old_broker_leaves_no_trace_in_the_controllers() -> None:
    """No group, no id, no sign of life, whichever of its requests comes."""

    bench = make_bench()
    for code, ext in OLD_REQUESTS.items():
        assert handle(bench, command(code, ext)) == ResponseCode.VERSION_NOT_SUPPORTED
    assert handle(bench, command(904, HEARTBEAT)) == ResponseCode.VERSION_NOT_SUPPORTED

    assert not bench.machine.groups
    assert len(bench.liveness) == 0


async def test_an_old_heartbeat_does_not_keep_another_replica_alive() -> None:
    """The role that it names would be that replica's id."""

    bench = make_bench()
    await bench.join(1)

    assert handle(bench, command(904, HEARTBEAT, flag=2)) == ResponseCode.VERSION_NOT_SUPPORTED

    assert len(bench.liveness) == 0
    answer = bench.processors.handlers()[904](bench.connection, command(904, HEARTBEAT, version=435))  # type: ignore[arg-type]
    assert isinstance(answer, Command)
    assert len(bench.liveness) == 1, "the same one of a later release counts"


async def test_an_old_cleaning_of_one_address_does_not_clean_the_group() -> None:
    """Without the ids, which it does not send, it would be an order to forget all of it."""

    bench = make_bench()
    await bench.join(1)

    assert handle(bench, command(1011, OLD_REQUESTS[1011])) == ResponseCode.VERSION_NOT_SUPPORTED

    assert set(bench.machine.groups[GROUP].replicas) == {1}


async def test_one_line_a_minute_about_one_broker() -> None:
    """It asks every 5 s; the next line says how many were left out."""

    bench = make_bench()
    with lines_of(processors) as lines:
        for _ in range(12):
            handle(bench, command(1003, OLD_REQUESTS[1003]))
            bench.clock.advance(5_000)
        handle(bench, command(1003, OLD_REQUESTS[1003]))
        handle(bench, command(1003, {**OLD_REQUESTS[1003], "brokerAddress": "10.0.0.8:10911"}))

    found = [line for line in lines if line["event"] == "a broker of an old release is refused"]
    assert [(line["address"], line["left_out"]) for line in found] == [
        (ADDRESS, 0),
        (ADDRESS, 11),
        ("10.0.0.8:10911", 0),
    ]
    assert all(line["release"] == "5.1.0" and "upgrade" in line["way_out"] for line in found)


def test_what_is_remembered_for_that_is_bounded() -> None:
    """Addresses are the peer's to choose."""
    lines = OldPeerLines()
    first = OldPeer(1003, GROUP, "0", "5.1.0")
    assert lines.admit(first, 0.0) == 0
    assert lines.admit(first, LINE_SECONDS / 2) is None

    for number in range(BROKERS_KNOWN_MAX):
        assert lines.admit(OldPeer(1003, GROUP, str(number + 1), "5.1.0"), 1.0) == 0

    assert lines.admit(first, 1.0) == 0, "it was forgotten"
