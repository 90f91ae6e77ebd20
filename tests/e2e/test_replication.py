"""Groups of three brokers as an administrator treats them: masters that die, hand over, are fenced; groups that grow and shrink."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerset_bench.log_comparison import digest
from brokerset_client import ConsumeFromWhere, Message, MessageView, Producer, Replier
from brokerset_client.messages import SendStatus
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_rig.local_set import FREE_PORTS, LocalSet, Sending, identities, local_set
from brokerset_runtime.remoting import connect

MANIFEST = """
apiVersion: brokerset.io/v1alpha1
kind: BrokerSet
metadata: {name: trio}
spec:
  replicas: 3
  config: {mappedFileSizeCommitLog: 16777216, maxHashSlotNum: 1000, maxIndexNum: 4000}
"""
GROUP = "trio-0"


@pytest.fixture(scope="module")
def trio(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSet]:
    """Three controllers and a group of three brokers; every test leaves it whole."""
    with local_set(tmp_path_factory.mktemp("trio"), MANIFEST) as found:
        found.until_whole()
        yield found


def group_of(view: dict[str, Any]) -> dict[str, Any]:
    (group,) = view["groups"]
    assert isinstance(group, dict)
    return group


def master_of(view: dict[str, Any]) -> dict[str, Any]:
    """The master's entry among the replicas."""
    group = group_of(view)
    return next(r for r in group["replicas"] if r["brokerId"] == group["masterId"])


def slaves_of(view: dict[str, Any]) -> list[dict[str, Any]]:
    group = group_of(view)
    return [r for r in group["replicas"] if r["brokerId"] != group["masterId"]]


def pid_of(trio: LocalSet, name: str) -> int:
    return int(trio.processes("broker")[name]["pid"])


def same_logs(trio: LocalSet) -> Callable[[dict[str, Any]], bool]:
    """Whether the files of all brokers are equal below what all of them know to be confirmed."""
    folders = {
        name: Path(p["folder"]) / "store" / "commitlog" for name, p in trio.processes("broker").items()
    }

    def same(view: dict[str, Any]) -> bool:
        confirmed = [r["confirmedOffset"] for r in group_of(view)["replicas"] if r["process"] in folders]
        if len(confirmed) != len(folders) or not all(confirmed):
            return False
        begin = max(min(int(path.name) for path in log.iterdir()) for log in folders.values())
        return len({digest(log, begin, min(confirmed)) for log in folders.values()}) == 1

    return same


def test_status_shows_roles_offsets_lags_and_leases(trio: LocalSet) -> None:
    trio("send", "seen", "--count", "20")
    view = trio.until(
        lambda view: all(r["lagBytes"] == 0 for r in view["groups"][0]["replicas"]), "nobody is behind"
    )
    group, master, slaves = group_of(view), master_of(view), slaves_of(view)

    assert group["minInSyncReplicas"] == 2
    assert sorted(group["syncStateSet"]) == [1, 2, 3]
    assert master["role"] == "master"
    assert master["leaseMs"] > 0
    assert master["leaseUsed"]
    assert sorted(slave["id"] for slave in master["slaves"]) == sorted(r["brokerId"] for r in slaves)
    assert {r["role"] for r in slaves} == {"slave"}
    assert {r["following"] for r in slaves} == {"transfer"}
    assert all(r["maxOffset"] > 0 and not r["fenced"] for r in group["replicas"])
    shown = trio("status").stdout
    assert f"{GROUP}: master {group['masterId']}, epoch {group['masterEpoch']}; in sync: 1, 2, 3" in shown
    assert "at least 2" in shown


def test_a_killed_master_is_replaced_and_nothing_acknowledged_is_lost(trio: LocalSet) -> None:
    """The old one comes back as a slave with its id, and all logs become equal."""
    before = trio.until_whole()
    with Sending(trio, "failover") as writing:
        trio.kill(master_of(before)["process"])
        after = trio.until_whole()

    assert group_of(after)["masterEpoch"] > group_of(before)["masterEpoch"]
    assert group_of(after)["masterId"] != group_of(before)["masterId"]
    assert identities(after) == identities(before)
    assert trio.bodies("failover", "failover", set(writing.acknowledged)) >= set(writing.acknowledged)
    trio.until(same_logs(trio), "the logs are equal")


def test_replies_come_when_the_master_that_has_the_requests_is_killed(trio: LocalSet) -> None:
    """Requests that wait, and those that are sent during the failover, get their replies from the new one."""
    before = trio.until_whole()
    pid = pid_of(trio, master_of(before)["process"])

    async def ask() -> list[bytes | BaseException]:
        namesrv = trio.state()["namesrv"]
        killed = asyncio.Event()

        async def answer(request: MessageView) -> bytes:
            if request.body == b"0":
                await killed.wait()
            return b"re:" + request.body

        replier = Replier(
            "asked",
            answer,
            namesrv=namesrv,
            timeout=20,
            consume_from=ConsumeFromWhere.CONSUME_FROM_FIRST_OFFSET,
        )
        replier.subscribe("asked")
        async with Producer("asking", namesrv=namesrv) as producer, replier:
            await producer.request(Message(topic="asked", body=b"first"), 30)
            asked = []
            for number in range(50):
                if number == 10:
                    os.kill(pid, signal.SIGKILL)
                    killed.set()
                asked.append(
                    asyncio.create_task(producer.request(Message(topic="asked", body=b"%d" % number), 30))
                )
                await asyncio.sleep(0.02)
            replies = await asyncio.gather(*asked, return_exceptions=True)
        return [reply if isinstance(reply, BaseException) else reply.body for reply in replies]

    assert asyncio.run(ask()) == [b"re:%d" % number for number in range(50)]
    trio.until_whole()


def test_a_killed_master_fails_no_send_of_a_producer_with_default_settings(trio: LocalSet) -> None:
    """50 messages a second: those of the failover wait for the new master, and all are acknowledged."""
    before = trio.until_whole()
    pid = pid_of(trio, master_of(before)["process"])

    async def send() -> list[SendStatus | BaseException]:
        async with Producer("steady", namesrv=trio.state()["namesrv"]) as producer:
            await producer.send(Message(topic="steady", body=b"first"))
            futures = []
            for number in range(100):
                if number == 25:
                    os.kill(pid, signal.SIGKILL)
                futures.append(await producer.send_async(Message(topic="steady", body=str(number).encode())))
                await asyncio.sleep(0.02)
            results = await asyncio.gather(*futures, return_exceptions=True)
            return [result if isinstance(result, BaseException) else result.status for result in results]

    outcomes = asyncio.run(send())
    after = trio.until_whole()

    assert [outcome for outcome in outcomes if outcome is not SendStatus.SEND_OK] == []
    assert group_of(after)["masterId"] != group_of(before)["masterId"]
    wanted = {str(number) for number in range(100)}
    assert trio.bodies("steady", "steady", wanted) >= wanted


def test_killed_slaves_are_not_noticed_by_those_who_send(trio: LocalSet) -> None:
    """One after the other, so that two are in sync at any time."""
    with Sending(trio, "slaves") as writing:
        for slave in slaves_of(trio.until_whole()):
            trio.kill(slave["process"])
            trio.until_whole()

    assert writing.failures == []
    assert trio.bodies("slaves", "slaves", set(writing.acknowledged)) >= set(writing.acknowledged)


def test_a_switch_over_fails_no_send(trio: LocalSet) -> None:
    before = trio.until_whole()
    target = slaves_of(before)[-1]["brokerId"]
    with Sending(trio, "planned") as writing:
        done = json.loads(trio("switchover", GROUP, "--to", str(target), "--json").stdout)
        middle = trio.until_whole()
        shown = trio("switchover", GROUP).stdout
        after = trio.until_whole()
        again = trio("switchover", GROUP, "--to", str(group_of(after)["masterId"])).stdout

    assert (done["oldMasterId"], done["masterId"]) == (group_of(before)["masterId"], target)
    assert done["changed"]
    assert done["pauseMs"] >= 0
    assert group_of(middle)["masterId"] == target
    assert done["masterEpoch"] == group_of(middle)["masterEpoch"] > group_of(before)["masterEpoch"]
    assert f"{GROUP}/{target} at " in shown
    assert "is master now, epoch " in shown
    assert "is master already" in again
    assert writing.failures == []
    assert trio.bodies("planned", "planned", set(writing.acknowledged)) >= set(writing.acknowledged)


def test_a_fenced_slave_follows_without_being_waited_for_and_comes_back(trio: LocalSet) -> None:
    before = trio.until_whole()
    fenced = slaves_of(before)[0]["brokerId"]
    with Sending(trio, "fenced") as writing:
        said = trio("fence", GROUP, str(fenced)).stdout
        view = trio.until(
            lambda view: fenced not in view["groups"][0]["syncStateSet"], "the fenced one is out of the set"
        )
        refused = trio("switchover", GROUP, "--to", str(fenced), code=1).stderr
        shown = trio("status").stdout
        trio("unfence", GROUP, str(fenced))
        after = trio.until_whole()

    assert f"brokerset unfence {GROUP} {fenced}" in said
    assert [r["brokerId"] for r in group_of(view)["replicas"] if r["fenced"]] == [fenced]
    assert f"{GROUP}/{fenced} is not in sync" in refused
    assert " fenced " in shown
    assert group_of(after)["masterId"] == group_of(before)["masterId"]
    assert writing.failures == []


def test_a_master_that_is_fenced_hands_over_first(trio: LocalSet) -> None:
    before = trio.until_whole()
    old = group_of(before)["masterId"]
    with Sending(trio, "fenced-master") as writing:
        said = trio("fence", GROUP, str(old)).stdout
        view = trio.until(
            lambda view: view["groups"][0]["masterId"] not in (None, old), "another one is master"
        )
        trio("unfence", GROUP, str(old))
        trio.until_whole()

    assert f"{GROUP}/{old} was master; {GROUP}/{group_of(view)['masterId']} is master now" in said
    assert writing.failures == []


def test_topics_groups_and_offsets_made_a_moment_before_a_kill_are_there_after_it(trio: LocalSet) -> None:
    master = master_of(trio.until_whole())["process"]
    trio("send", "moment", "--count", "30")
    first = trio("consume", "moment", "--group", "moment", "--count", "10", "--json").stdout
    trio("group", "create", "moment-made", "--retries", "2")
    trio("topic", "create", "moment-topic", "--queues", "3")

    trio.kill(master)
    after = trio.until_whole()
    rest = trio("consume", "moment", "--group", "moment", "--count", "20", "--json").stdout

    assert master_of(after)["process"] != master
    assert "moment-topic" in json.loads(trio("topic", "list", "--json").stdout)
    assert len(json.loads(trio("topic", "describe", "moment-topic", "--json").stdout)["queues"]) == 3
    assert "moment-made" in json.loads(trio("group", "list", "--json").stdout)
    read = [{json.loads(line)["body"] for line in shown.splitlines()} for shown in (first, rest)]
    assert (len(read[0]), len(read[1]), len(read[0] | read[1])) == (10, 20, 30)


def test_a_consumer_that_left_at_a_slave_finds_its_offsets_after_the_master_is_killed_at_once(
    trio: LocalSet,
) -> None:
    """Its route was old: it committed one-way to a slave, and was told that it is out."""
    before = trio.until_whole()
    master, slave = master_of(before), slaves_of(before)[0]
    trio("send", "leaving", "--count", "40")
    trio("consume", "leaving", "--group", "leaving", "--count", "40")
    where = {"consumerGroup": "leaving", "topic": "leaving", "queueId": "0"}

    async def leave() -> Command:
        connection = await connect(slave["address"])
        try:
            connection.notify(Command(RequestCode.UPDATE_CONSUMER_OFFSET, {**where, "commitOffset": "1"}))
            return await connection.call(
                Command(RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "leaving"}), 5
            )
        finally:
            connection.close()

    async def offset(address: str) -> str | None:
        connection = await connect(address)
        try:
            return (await connection.call(Command(RequestCode.QUERY_CONSUMER_OFFSET, where), 5)).ext["offset"]
        finally:
            connection.close()

    pid = pid_of(trio, master["process"])
    told = asyncio.run(leave())
    os.kill(pid, signal.SIGKILL)
    after = trio.until_whole()

    assert told.code == 0
    assert master_of(after)["process"] != master["process"]
    assert asyncio.run(offset(master_of(after)["address"])) == "1"


def test_with_too_few_in_sync_sends_are_refused_and_then_served_again(trio: LocalSet) -> None:
    """Both slaves hang: the master refuses, says why in `status`, and serves as soon as one is back."""
    before = trio.until_whole()
    trio("send", "few", "--count", "10")
    hung = [pid_of(trio, slave["process"]) for slave in slaves_of(before)]
    for pid in hung:
        os.kill(pid, signal.SIGSTOP)
    try:
        view = trio.until(
            lambda view: any("sends are refused below 2" in text for text in view["problems"]), "1 is in sync"
        )
        refused = trio("send", "few", "--count", "1", code=1).stderr
        read = trio.bodies("few", "few", {f"message {n} of 10" for n in range(1, 11)})
    finally:
        for pid in hung:
            os.kill(pid, signal.SIGCONT)
    after = trio.until_whole()
    trio("send", "few", "--count", "10")

    assert group_of(view)["syncStateSet"] == [group_of(before)["masterId"]]
    assert "What to do: " in refused
    assert len(read) == 10
    assert identities(after) == identities(before)


def test_requests_that_make_no_sense_are_refused_with_their_reason(trio: LocalSet) -> None:
    before = group_of(trio.until_whole())
    for says, arguments in [
        ("the controllers know no group 'no-such', only: trio-0", ("switchover", "no-such")),
        ("trio-0 has no replica 9, only: 1, 2, 3", ("switchover", GROUP, "--to", "9")),
        ("trio-0 has no replica 9", ("fence", GROUP, "9")),
        ("trio-0 has no replica 9", ("unfence", GROUP, "9")),
        ("the controllers know no group 'no-such'", ("scale", "no-such", "--replicas", "2")),
        ("no set has run in /no/such", ("fence", GROUP, "1", "--data", "/no/such")),
        ("no set runs in /no/such", ("scale", GROUP, "--replicas", "2", "--data", "/no/such")),
    ]:
        assert says in trio(*arguments, code=1).stderr, arguments

    assert group_of(trio.until_whole())["masterEpoch"] == before["masterEpoch"]


@pytest.mark.slow
def test_one_broker_becomes_three_five_and_two_while_a_producer_sends(tmp_path: Path) -> None:
    """Ids are never given twice, the least number in sync follows, and a restart keeps the number."""
    with local_set(tmp_path, MANIFEST.replace("replicas: 3", "replicas: 1")) as trio:
        trio.until_whole(1)
        with Sending(trio, "scaled") as writing:
            three_said = trio("scale", GROUP, "--replicas", "3").stdout
            three = trio.until_whole(3)
            trio("scale", GROUP, "--replicas", "5")
            five = trio.until_whole(5)
            trio("switchover", GROUP, "--to", "5")
            moved = trio.until_whole(5)
            two_said = trio("scale", GROUP, "--replicas", "2").stdout
            two = trio.until_whole(2)
        trio.until(same_logs(trio), "the logs are equal")
        read = trio.bodies("scaled", "scaled", set(writing.acknowledged))
        trio("down")
        started = trio("up", "--detach", "-f", str(tmp_path / "set.yaml"), *FREE_PORTS).stdout
        again = trio.until_whole(2)
        brokers = trio.data / "brokers"
        aside = [path for path in brokers.iterdir() if ".aside-" in path.name]

        trio("scale", GROUP, "--replicas", "3")
        refilled = trio.until_whole(3)
        trio("scale", GROUP, "--replicas", "2", "--purge")
        trio.until_whole(2)

        assert "is in sync" in three_said
        assert "is forgotten; its id is not given again" in two_said
        least = [group_of(view)["minInSyncReplicas"] for view in (three, five, two)]
        assert least == [2, 2, 1]
        assert sorted(r["brokerId"] for r in group_of(five)["replicas"]) == [1, 2, 3, 4, 5]
        assert group_of(moved)["masterId"] == group_of(two)["masterId"] == 5
        assert len(group_of(two)["replicas"]) == 2
        assert identities(again) == identities(two)
        assert "was scaled" in started
        assert len(aside) == 3
        assert max(r["brokerId"] for r in group_of(refilled)["replicas"]) == 6
        assert len([path for path in brokers.iterdir() if ".aside-" not in path.name]) == 2
        assert writing.failures == []
        assert read >= set(writing.acknowledged)


def test_fewer_brokers_than_the_manifest_wants_in_sync_need_a_flag(tmp_path: Path) -> None:
    manifest = MANIFEST + "  replication: {minInSyncReplicas: 2}\n"
    with local_set(tmp_path, manifest) as trio:
        trio.until_whole()

        refused = trio("scale", GROUP, "--replicas", "1", code=1).stderr
        untouched = trio.until_whole()
        trio("scale", GROUP, "--replicas", "1", "--below-minimum")
        alone = trio.until_whole(1)
        trio("send", "alone", "--count", "5")

        assert "minInSyncReplicas: 2" in refused
        assert "--below-minimum" in refused
        assert group_of(untouched)["minInSyncReplicas"] == 2
        assert group_of(alone)["minInSyncReplicas"] == 1
