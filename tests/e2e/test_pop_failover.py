"""Popped messages when the master is killed: real processes, under controllers and as a DLedger."""

from __future__ import annotations

import threading
import time

import pytest

from brokerset_protocol.codes import ResponseCode
from brokerset_rig import pop_load
from brokerset_rig.controllers import until
from brokerset_rig.pop_client import Given, PopClient

KINDS = pytest.mark.parametrize(
    "groups", [pop_load.controlled, pytest.param(pop_load.dledger, marks=pytest.mark.long)]
)
INVISIBLE_S = 20.0
"""All pops, a kill, an election and the acks of the old mastership fit in, also on a machine that does much else."""
COUNT = 24


def pop_all(client: PopClient, count: int, invisible_s: float = INVISIBLE_S) -> list[Given]:
    """Pop until there are so many."""
    found: list[Given] = []

    def take() -> bool:
        found.extend(client.pop(invisible_s, poll_s=1))
        return len(found) >= count

    until("all are given", take, 60)
    return found


@KINDS
def test_what_is_acked_is_gone_and_what_is_not_comes_back_once_after_the_master_is_killed(
    groups: pop_load.Groups,
) -> None:
    """Acks with handles of the old mastership count; when a message is out with somebody else they are refused; a
    waiting pop of the new master gets what is revived.
    """
    with groups() as group:
        with pop_load.client(group) as client:
            for number in range(COUNT):
                client.send(f"{number}", number % pop_load.QUEUES)
            given = sorted(pop_all(client, COUNT), key=lambda each: int(each.body))
            assert [each.body for each in given] == [str(number) for number in range(COUNT)]
            assert {client.ack(each) for each in given[:8]} == {0}
            group.kill()

        with pop_load.client(group) as client:
            old = [client.ack(each) for each in given[8:12]]
            assert time.time() < min(each.visible_at for each in given), "this machine was too slow"
            assert old == [0] * 4, "of the old mastership"
            assert {client.ack(each) for each in given[:4]} == {0}, "repeated"
            again = pop_all(client, COUNT - 12)
            assert sorted(int(each.body) for each in again) == list(range(12, COUNT))
            for each in again:
                first = given[int(each.body)]
                assert each.at >= first.visible_at, f"{each.body} came early"
                assert client.ack(first) == ResponseCode.MESSAGE_ILLEGAL
                assert client.ack(each) == 0
            assert client.pop(INVISIBLE_S, poll_s=1) == []


@pytest.mark.long
@KINDS
def test_a_waiting_pop_finds_the_new_master(groups: pop_load.Groups) -> None:
    """It waits at a master that is killed, asks the next one, and gets what is sent there."""
    with groups() as group:
        got: list[Given] = []
        waits = threading.Event()

        def wait() -> None:
            while not got:
                with pop_load.client(group) as client:
                    waits.set()
                    try:
                        got.extend(client.pop(INVISIBLE_S, poll_s=10))
                    except (OSError, ValueError):
                        continue

        thread = threading.Thread(target=wait)
        thread.start()
        assert waits.wait(20)
        group.kill()
        with pop_load.client(group) as client:
            client.send("after")
        thread.join(30)
        assert [each.body for each in got] == ["after"]


@pytest.mark.long
@KINDS
def test_ordered_pops_keep_their_order_when_the_master_is_killed(groups: pop_load.Groups) -> None:
    """The queue stays locked, the same attempt gets its messages again, and what was acked does not come again."""
    with groups() as group:
        with pop_load.client(group) as client:
            for number in range(10):
                client.send(f"{number}")
            given = client.pop(INVISIBLE_S, queue_id=0, count=4, attempt="one")
            assert [each.body for each in given] == ["0", "1", "2", "3"]
            assert [client.ack(each) for each in given[:2]] == [0, 0]
            group.kill()

        with pop_load.client(group) as client:
            assert client.pop(INVISIBLE_S, queue_id=0, attempt="other") == []
            assert time.time() < given[-1].visible_at, "this machine was too slow"
            assert client.ack(given[2]) == 0
            handled: list[str] = []

            def take() -> bool:
                for each in client.pop(INVISIBLE_S, queue_id=0, count=3, poll_s=1, attempt="next"):
                    handled.append(each.body)
                    assert each.at >= given[-1].visible_at, f"{each.body} came while the queue was locked"
                    assert client.ack(each) == 0
                return len(handled) >= 7

            until("the rest is handled", take, 60)
            assert handled == ["3", "4", "5", "6", "7", "8", "9"]


@pytest.mark.long
@KINDS
def test_nothing_is_lost_and_nothing_acked_comes_again_while_masters_are_killed(
    groups: pop_load.Groups,
) -> None:
    """Three times, with poppers at work that forget each tenth message once."""
    with groups() as group, pop_load.PopLoad(group) as load:
        with pop_load.client(group):
            pass
        for _ in range(3):
            load.wait_more(150)
            group.kill()
            load.wait_more(50)
            group.revive()
        load.drain()

    assert load.after_ack == []
    assert load.lost() == set()
    assert len(load.sent - load.acked.keys()) < 50, "answers that a kill took along"
    assert load.codes.keys() <= {0, ResponseCode.MESSAGE_ILLEGAL, ResponseCode.SYSTEM_BUSY}, load.codes
