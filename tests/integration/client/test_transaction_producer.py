"""The transaction producer against brokers that answer ends, refuse them, lose them, die, and ask back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace

import pytest

from brokerset_client import (
    ClientInstance,
    EndStatus,
    HalfMessage,
    Message,
    MessageInvalid,
    MessageView,
    Producer,
    RequestRefused,
    SendStatus,
    Transaction,
    TransactionNotCommitted,
    TransactionNotPrepared,
    TransactionProducer,
    TransactionSettings,
    TransactionState,
)
from brokerset_client.transaction_producer import ENDS_AT_ONCE
from brokerset_client.transactions import position_of
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.send import EndTransaction
from brokerset_rig.waiting import until

from .fake_broker import Answer, FakeBroker, FakeCluster, hang_up, properties_of, refuse, say_nothing

SEND = RequestCode.SEND_MESSAGE_V2
END = RequestCode.END_TRANSACTION
COMMIT, ROLLBACK, UNKNOWN = TransactionState.COMMIT, TransactionState.ROLLBACK, TransactionState.UNKNOWN


@dataclass
class Decisions:
    """A check handler that answers what the test says, and remembers what it was asked."""

    answer: Callable[[MessageView], Awaitable[TransactionState]] | None = None
    asked: list[MessageView] = field(default_factory=list)

    async def __call__(self, message: MessageView) -> TransactionState:
        self.asked.append(message)
        return ROLLBACK if self.answer is None else await self.answer(message)


async def one_broker(cluster: FakeCluster) -> FakeBroker:
    broker = await cluster.add_broker("a")
    cluster.topics["t"] = {"a": 2}
    return broker


def producer(cluster: FakeCluster, check: Decisions | None = None, **settings: object) -> TransactionProducer:
    return TransactionProducer(
        "pg",
        check=check or Decisions(),
        namesrv=cluster.namesrv,
        topics=("t",),
        transactions=TransactionSettings(**settings),  # type: ignore[arg-type]  # test options
    )


def always(state: TransactionState) -> Callable[[HalfMessage], Awaitable[TransactionState]]:
    async def local(_: HalfMessage) -> TransactionState:
        return state

    return local


def ends(broker: FakeBroker) -> list[EndTransaction]:
    return [EndTransaction.from_ext(command.ext) for command in broker.seen(END)]


def kinds(broker: FakeBroker) -> list[TransactionState]:
    return [TransactionState(end.commit_or_rollback) for end in ends(broker)]


MESSAGE = Message(topic="t", body=b"x", tags="A", keys=("k",))

LEFT = replace(MESSAGE, system_properties={"TRAN_MSG": "true", "PGROUP": "pg"})
"""A half message of the group that nobody ends: sent as it is, no producer knows of it."""


async def test_a_commit_is_confirmed(cluster: FakeCluster) -> None:
    """The half message carries the marks of one, and the end names it by id, offset and queue offset."""
    broker = await one_broker(cluster)
    broker.put("t", 0, b"before")
    broker.put("t", 1, b"before")
    async with producer(cluster, check_after_seconds=30) as sender:
        seen: list[HalfMessage] = []

        async def local(half: HalfMessage) -> TransactionState:
            seen.append(half)
            assert not broker.seen(END)
            return COMMIT

        result = await sender.send_in_transaction(MESSAGE, local)

    assert (result.state, result.end, result.problem) == (COMMIT, EndStatus.CONFIRMED, None)
    assert seen[0].transaction_id == result.transaction_id
    half = broker.seen(SEND)[0]
    properties = properties_of(half)
    assert properties["TRAN_MSG"] == "true"
    assert properties["PGROUP"] == "pg"
    assert properties["CHECK_IMMUNITY_TIME_IN_SECONDS"] == "30"
    assert int(half.ext["f"]) == 4
    (end,) = ends(broker)
    assert end.producer_group == "pg"
    assert end.topic == "t"
    assert end.commit_or_rollback == 8
    assert end.msg_id == end.transaction_id == properties["UNIQ_KEY"] == result.transaction_id
    assert end.tran_state_table_offset == result.sent.queue_offset == 1
    assert f"{end.commit_log_offset:016X}" == result.sent.offset_message_id[-16:]
    assert not end.from_transaction_check
    assert end.broker_name == "a"
    assert not broker.seen(END)[0].is_oneway


async def test_ends_can_be_one_way(cluster: FakeCluster) -> None:
    """With `confirm_ends=False` nothing waits for the broker, as in Java."""
    broker = await one_broker(cluster)
    broker.script(END, say_nothing)
    async with producer(cluster, confirm_ends=False) as sender:
        result = await sender.send_in_transaction(MESSAGE, always(ROLLBACK))
        await until(lambda: len(broker.seen(END)) == 1)

    assert (result.state, result.end) == (ROLLBACK, EndStatus.SENT)
    assert broker.seen(END)[0].is_oneway
    assert kinds(broker) == [ROLLBACK]


async def test_an_unknown_state_is_left_to_the_check(cluster: FakeCluster) -> None:
    """No broker answers type 0, so it is always one-way."""
    broker = await one_broker(cluster)
    async with producer(cluster) as sender:
        result = await sender.send_in_transaction(MESSAGE, always(UNKNOWN))
        await until(lambda: len(broker.seen(END)) == 1)

    assert (result.state, result.end) == (UNKNOWN, EndStatus.LEFT_TO_CHECK)
    assert broker.seen(END)[0].is_oneway
    assert kinds(broker) == [UNKNOWN]


async def test_failing_local_work_leaves_the_state_unknown(cluster: FakeCluster) -> None:
    """What it raises goes to the caller, and as text to the broker."""
    broker = await one_broker(cluster)

    async def local(_: HalfMessage) -> TransactionState:
        raise RuntimeError("database gone")

    async with producer(cluster) as sender:
        with pytest.raises(RuntimeError, match="database gone"):
            await sender.send_in_transaction(MESSAGE, local)
        await until(lambda: len(broker.seen(END)) == 1)

    assert kinds(broker) == [UNKNOWN]
    assert "database gone" in (broker.seen(END)[0].remark or "")


def weakly(status: int) -> Answer:
    """Store nothing, but answer with a status other than SEND_OK."""

    def answer(_: object, command: Command) -> Command:
        ext = {"msgId": "7F00000100002A9F0000000000000007", "queueId": "0", "queueOffset": "7"}
        return command.reply(status, ext=ext)

    return answer


async def test_a_weakly_stored_half_message_is_rolled_back(cluster: FakeCluster) -> None:
    """The local work does not run, as in Java."""
    broker = await one_broker(cluster)
    broker.script(SEND, weakly(ResponseCode.FLUSH_SLAVE_TIMEOUT))

    async def local(_: HalfMessage) -> TransactionState:
        raise AssertionError("it must not run")

    async with producer(cluster) as sender:
        result = await sender.send_in_transaction(MESSAGE, local)

    assert result.sent.status is SendStatus.FLUSH_SLAVE_TIMEOUT
    assert (result.state, result.end) == (ROLLBACK, EndStatus.CONFIRMED)
    assert kinds(broker) == [ROLLBACK]
    assert ends(broker)[0].commit_log_offset == 7


async def test_delays_are_refused(cluster: FakeCluster) -> None:
    """A half message with a delay would never reach its topic: nothing is sent."""
    broker = await one_broker(cluster)
    async with producer(cluster) as sender:
        for message in (
            Message(topic="t", body=b"x", delay_level=3),
            Message(topic="t", body=b"x", delay_ms=1000),
            Message(topic="t", body=b"x", deliver_at_ms=1),
        ):
            with pytest.raises(MessageInvalid, match="cannot be delayed"):
                await sender.send_in_transaction(message, always(COMMIT))

    assert not broker.seen(SEND)


async def test_an_end_goes_to_the_new_master(cluster: FakeCluster) -> None:
    """A demoted broker refuses it; the route is read again, and the new master is asked."""
    old = await one_broker(cluster)
    new = await cluster.add_broker("a", 1)

    async def local(_: HalfMessage) -> TransactionState:
        cluster.brokers = {("a", 0): new, ("a", 1): old}
        old.script(END, refuse(ResponseCode.SLAVE_NOT_AVAILABLE))
        return COMMIT

    async with producer(cluster) as sender:
        result = await sender.send_in_transaction(MESSAGE, local)

    assert result.end is EndStatus.CONFIRMED
    assert kinds(old) == kinds(new) == [COMMIT]


@pytest.mark.parametrize("lost", [hang_up, say_nothing], ids=["connection", "answer"])
async def test_an_end_without_answer_is_repeated(cluster: FakeCluster, lost: Answer) -> None:
    """The same end again, until its time is over or an answer comes; unless Java's brokers may be there."""
    broker = await one_broker(cluster)
    async with producer(cluster, end_timeout=0.5) as sender:
        if lost is hang_up:
            broker.script(END, lost)
            result = await sender.send_in_transaction(MESSAGE, always(COMMIT))
            assert result.end is EndStatus.CONFIRMED
            assert kinds(broker) == [COMMIT, COMMIT]
        else:
            broker.script(END, *[lost] * 10)
            result = await sender.send_in_transaction(MESSAGE, always(COMMIT))
            assert result.end is EndStatus.LEFT_TO_CHECK
            assert "did not answer" in (result.problem or "")
    broker.requests.clear()
    broker.scripts.clear()
    async with producer(cluster, repeat_ends=False, end_timeout=0.3) as sender:
        broker.script(END, lost)
        result = await sender.send_in_transaction(MESSAGE, always(COMMIT))
        assert result.end is EndStatus.LEFT_TO_CHECK
        assert kinds(broker) == [COMMIT]


async def test_a_refusal_after_a_lost_answer_decides_nothing(cluster: FakeCluster) -> None:
    """The lost attempt may have been carried out, so a refusal of the second one is not the last word."""
    broker = await one_broker(cluster)
    broker.script(END, hang_up, refuse(ResponseCode.SYSTEM_ERROR, "the transaction is over"))
    async with producer(cluster) as sender:
        result = await sender.send_in_transaction(MESSAGE, always(COMMIT))

    assert result.end is EndStatus.LEFT_TO_CHECK
    assert "the transaction is over" in (result.problem or "")


@pytest.mark.parametrize(
    ("code", "end"),
    [
        (ResponseCode.SYSTEM_ERROR, EndStatus.REFUSED),
        (ResponseCode.ILLEGAL_OPERATION, EndStatus.LEFT_TO_CHECK),
    ],
)
async def test_a_refused_end_says_so(cluster: FakeCluster, code: int, end: EndStatus) -> None:
    """604 comes after the time for which checks were put off: then the check decides."""
    broker = await one_broker(cluster)
    broker.script(END, refuse(code, "because"))
    async with producer(cluster) as sender:
        result = await sender.send_in_transaction(MESSAGE, always(COMMIT))

    assert result.end is end
    assert "because" in (result.problem or "")


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.FLUSH_DISK_TIMEOUT,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.SERVICE_NOT_AVAILABLE,
    ],
)
async def test_an_end_that_is_stored_and_not_safe_yet_is_not_refused(cluster: FakeCluster, code: int) -> None:
    """The same end is asked for again; without a better answer the check decides, and not an exception."""
    broker = await one_broker(cluster)
    broker.script(END, refuse(code), refuse(ResponseCode.SYSTEM_ERROR, "is over"), refuse(code))
    async with producer(cluster) as sender:
        async with sender.transaction(MESSAGE) as transaction:
            pass
        confirmed = await sender.send_in_transaction(MESSAGE, always(COMMIT))

    assert transaction.results[0].end is EndStatus.LEFT_TO_CHECK
    assert "is over" in (transaction.results[0].problem or "")
    assert confirmed.end is EndStatus.CONFIRMED


async def test_a_block_commits_what_it_sent(cluster: FakeCluster) -> None:
    """Messages given at entry and sent inside are half messages until the block ends, then all committed."""
    broker = await one_broker(cluster)
    async with producer(cluster) as sender, sender.transaction(MESSAGE, MESSAGE) as transaction:
        await transaction.send(MESSAGE, key="k")
        assert len(transaction.halves) == len(broker.seen(SEND)) == 3
        assert not broker.seen(END)

    assert kinds(broker) == [COMMIT] * 3
    assert [result.end for result in transaction.results] == [EndStatus.CONFIRMED] * 3
    assert {end.msg_id for end in ends(broker)} == {half.transaction_id for half in transaction.halves}


async def fail_in(transaction: Transaction, work: Callable[[], Awaitable[object]]) -> None:
    """Enter the block, do `work`, and raise."""
    async with transaction:
        await work()
        raise RuntimeError("no")


async def test_a_block_that_raises_takes_back(cluster: FakeCluster) -> None:
    """Every message is rolled back, and the exception goes on."""
    broker = await one_broker(cluster)
    async with producer(cluster) as sender:
        transaction = sender.transaction(MESSAGE)
        with pytest.raises(RuntimeError, match="no"):
            await fail_in(transaction, lambda: transaction.send(MESSAGE))

    assert kinds(broker) == [ROLLBACK] * 2


async def test_a_cancelled_block_decides_nothing(cluster: FakeCluster) -> None:
    """Nobody knows how far its local work came; without an end the broker asks the check handler."""
    broker = await one_broker(cluster)
    async with producer(cluster) as sender:
        entered = asyncio.Event()

        async def work() -> None:
            async with sender.transaction(MESSAGE):
                entered.set()
                await asyncio.Event().wait()

        task = asyncio.create_task(work())
        await entered.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: len(broker.seen(END)) == 1)

    assert kinds(broker) == [UNKNOWN]


async def test_checks_of_a_block_that_is_cancelled_while_it_ends_are_answered(cluster: FakeCluster) -> None:
    """Also of messages whose end had no turn yet: nobody would ever end them otherwise."""
    broker = await one_broker(cluster)
    broker.script(END, *[say_nothing] * ENDS_AT_ONCE)
    decisions = Decisions()
    async with producer(cluster, decisions, end_timeout=60.0) as sender:
        await until(lambda: "pg" in broker.producers)

        async def work() -> None:
            async with sender.transaction(*[MESSAGE] * (ENDS_AT_ONCE + 1)):
                pass

        task = asyncio.create_task(work())
        await until(lambda: len(broker.seen(END)) == ENDS_AT_ONCE)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        for half in broker.seen(SEND):
            broker.ask_for(half)
        await until(lambda: len(decisions.asked) == ENDS_AT_ONCE + 1)


async def test_a_block_can_decide_itself(cluster: FakeCluster) -> None:
    """`leave_to_check` before a step whose failure says nothing, `commit` after it; `rollback` at will."""
    broker = await one_broker(cluster)
    async with producer(cluster) as sender:
        undecided, done = sender.transaction(MESSAGE), sender.transaction(MESSAGE)

        async def leave() -> None:
            undecided.leave_to_check()

        async def finish() -> None:
            done.leave_to_check()
            done.commit()

        with pytest.raises(RuntimeError):
            await fail_in(undecided, leave)
        with pytest.raises(RuntimeError):
            await fail_in(done, finish)
        async with sender.transaction(MESSAGE) as transaction:
            transaction.rollback()
        await until(lambda: len(broker.seen(END)) == 3)

    assert kinds(broker) == [UNKNOWN, COMMIT, ROLLBACK]


async def test_a_block_is_not_entered_without_its_messages(cluster: FakeCluster) -> None:
    """A half message that is refused or stored weakly ends it before the local work; those before go back."""
    broker = await one_broker(cluster)
    ran = False
    async with producer(cluster) as sender:
        for answer, error in (
            (refuse(ResponseCode.MESSAGE_ILLEGAL, "bad"), RequestRefused),
            (weakly(ResponseCode.FLUSH_DISK_TIMEOUT), TransactionNotPrepared),
        ):
            await sender.send(MESSAGE)
            broker.requests.clear()
            first = True

            def once(connection: object, command: Command, answer: Answer = answer) -> Command | None:
                nonlocal first
                if first:
                    first = False
                    broker.script(SEND, once)
                    return broker.send(connection, command)  # type: ignore[arg-type]  # not used there
                return answer(connection, command)  # type: ignore[arg-type]  # not used there

            broker.script(SEND, once)
            with pytest.raises(error):
                async with sender.transaction(MESSAGE, MESSAGE):
                    ran = True
            assert set(kinds(broker)) == {ROLLBACK}

    assert not ran


async def test_a_refused_commit_of_a_block_raises(cluster: FakeCluster) -> None:
    """The local work is done and the message will not come: the application must hear of it."""
    broker = await one_broker(cluster)
    broker.script(END, refuse(ResponseCode.SYSTEM_ERROR, "Find prepared transaction message failed"))
    async with producer(cluster) as sender:
        with pytest.raises(TransactionNotCommitted, match="Find prepared"):
            async with sender.transaction(MESSAGE):
                pass


async def test_checks_are_answered_over_their_connection(cluster: FakeCluster) -> None:
    """The handler gets the message; its verdict goes back with the offsets of the check."""
    broker = await one_broker(cluster)
    decisions = Decisions()
    async with producer(cluster, decisions) as sender:
        await sender.send_in_transaction(MESSAGE, always(UNKNOWN))
        await until(lambda: len(broker.seen(END)) == 1 and "pg" in broker.producers)
        broker.ask_for(broker.seen(SEND)[0], queue_offset=5, offset=500)
        await until(lambda: len(broker.seen(END)) == 2)

    (asked,) = decisions.asked
    assert (asked.body, asked.topic, asked.tags, asked.keys) == (b"x", "t", "A", ("k",))
    end = ends(broker)[1]
    assert broker.seen(END)[1].is_oneway
    assert asked.message_id == end.msg_id == end.transaction_id
    assert (end.tran_state_table_offset, end.commit_log_offset) == (5, 500)
    assert end.from_transaction_check
    assert end.commit_or_rollback == 12
    assert end.producer_group == "pg"


async def test_a_producer_that_sent_nothing_hears_checks(cluster: FakeCluster) -> None:
    """After a restart `topics` says where to announce the group; an earlier process may have left halves."""
    broker = await one_broker(cluster)
    decisions = Decisions()
    async with Producer("pg", namesrv=cluster.namesrv) as other:
        await other.send(LEFT)
        await until(lambda: "pg" in broker.producers)
    broker.producers.clear()
    async with producer(cluster, decisions):
        await until(lambda: "pg" in broker.producers)
        broker.ask_for(broker.seen(SEND)[0])
        await until(lambda: len(decisions.asked) == 1 and len(broker.seen(END)) == 1)


async def test_a_failing_handler_answers_unknown(cluster: FakeCluster) -> None:
    """Its failure is an expected outcome, named in the remark: a wrong return value and a time-out, too."""
    broker = await one_broker(cluster)
    decisions = Decisions()

    async def fail(_: MessageView) -> TransactionState:
        if len(decisions.asked) == 1:
            raise KeyError("order")
        if len(decisions.asked) == 2:
            return True  # type: ignore[return-value]  # what an application may get wrong
        await asyncio.Event().wait()
        raise AssertionError

    decisions.answer = fail
    async with producer(cluster, decisions, check_timeout=0.05) as sender:
        await sender.send(LEFT)
        await until(lambda: "pg" in broker.producers)
        for count in (1, 2, 3):
            broker.ask_for(broker.seen(SEND)[0])
            await until(lambda: len(broker.seen(END)) == count)  # noqa: B023  # awaited in this turn

        assert sender.checks.failed == 3
    assert kinds(broker) == [UNKNOWN] * 3
    remarks = [command.remark or "" for command in broker.seen(END)]
    assert "KeyError('order')" in remarks[0]
    assert "instead of a TransactionState" in remarks[1]
    assert "no answer in 0.05 s" in remarks[2]


async def test_a_check_of_running_work_waits_for_its_end(cluster: FakeCluster) -> None:
    """The handler is not asked while the work runs here; the end then names the newest copy of the half."""
    broker = await one_broker(cluster)
    decisions = Decisions()
    async with producer(cluster, decisions) as sender:
        await until(lambda: "pg" in broker.producers)

        async def local(_: HalfMessage) -> TransactionState:
            broker.ask_for(broker.seen(SEND)[0], queue_offset=9, offset=900)
            await broker_round_trip(sender, broker)
            return COMMIT

        result = await sender.send_in_transaction(MESSAGE, local)

    assert result.end is EndStatus.CONFIRMED
    assert not decisions.asked
    (end,) = ends(broker)
    assert (end.tran_state_table_offset, end.commit_log_offset) == (9, 900)
    assert end.from_transaction_check


async def test_a_check_of_a_lost_end_gets_what_was_decided(cluster: FakeCluster) -> None:
    """Neither the one that comes while the end is on its way nor a later one is given to the handler."""
    broker = await one_broker(cluster)
    decisions = Decisions()
    async with producer(cluster, decisions, end_timeout=0.3) as sender:
        await until(lambda: "pg" in broker.producers)
        broker.script(END, *[say_nothing] * 10)

        async def local(_: HalfMessage) -> TransactionState:
            return COMMIT

        sending = asyncio.create_task(sender.send_in_transaction(MESSAGE, local))
        await until(lambda: len(broker.seen(END)) == 1)
        broker.ask_for(broker.seen(SEND)[0], queue_offset=1, offset=100)
        assert (await sending).end is EndStatus.LEFT_TO_CHECK
        broker.scripts.clear()
        broker.requests = [command for command in broker.requests if command.code == SEND]
        broker.ask_for(broker.seen(SEND)[0], queue_offset=2, offset=200)
        await until(lambda: len(broker.seen(END)) == 1)

    assert not decisions.asked
    (end,) = ends(broker)
    assert (end.commit_or_rollback, end.commit_log_offset, end.from_transaction_check) == (8, 200, True)


async def test_a_half_message_of_a_lost_answer_at_another_broker_is_taken_back(cluster: FakeCluster) -> None:
    """Its place is not taken for that of the one that counts, which is committed; so nobody gets two."""
    brokers = [await cluster.add_broker(name) for name in "ab"]
    cluster.topics["t"] = {"a": 1, "b": 1}
    decisions = Decisions()
    async with producer(cluster, decisions) as sender:
        await until(lambda: all("pg" in broker.producers for broker in brokers))

        async def local(_: HalfMessage) -> TransactionState:
            stored, other = sorted(brokers, key=lambda broker: not broker.seen(SEND))
            other.ask_for(stored.seen(SEND)[0], queue_offset=9, offset=900)
            await broker_round_trip(sender, other)
            return COMMIT

        result = await sender.send_in_transaction(MESSAGE, local)
        stored, other = sorted(brokers, key=lambda broker: not broker.seen(SEND))
        (end,) = ends(stored)
        assert (result.end, end.commit_log_offset) == (EndStatus.CONFIRMED, position_of(result.sent).offset)
        assert not ends(other)
        for broker in brokers:
            broker.ask_for(stored.seen(SEND)[0], queue_offset=10, offset=1000)
        await until(lambda: len(ends(stored)) == 2 and len(ends(other)) == 1)

    assert (kinds(stored)[-1], kinds(other)) == (COMMIT, [ROLLBACK])
    assert not decisions.asked


async def broker_round_trip(sender: TransactionProducer, broker: FakeBroker) -> None:
    """What the broker has sent before is here when this returns: one connection keeps the order."""
    await sender.instance.call(broker.address, Command(RequestCode.GET_MIN_OFFSET))


async def test_repeated_checks_get_one_answer(cluster: FakeCluster) -> None:
    """A broker that asks again while the handler runs is answered once, for the newest copy."""
    broker = await one_broker(cluster)
    decisions = Decisions()
    release = asyncio.Event()

    async def wait(_: MessageView) -> TransactionState:
        await release.wait()
        return COMMIT

    decisions.answer = wait
    async with producer(cluster, decisions) as sender:
        await sender.send(LEFT)
        await until(lambda: "pg" in broker.producers)
        for number in (1, 2, 3):
            broker.ask_for(broker.seen(SEND)[0], queue_offset=number, offset=100 * number)
        await broker_round_trip(sender, broker)
        release.set()
        await until(lambda: sender.checks.answered == 1)
        await broker_round_trip(sender, broker)

    assert len(decisions.asked) == 1
    (end,) = ends(broker)
    assert (end.tran_state_table_offset, end.commit_log_offset) == (3, 300)


async def test_handlers_run_side_by_side_up_to_their_bound(cluster: FakeCluster) -> None:
    """`checks_at_once` bounds them; what waits is handled afterwards."""
    broker = await one_broker(cluster)
    decisions = Decisions()
    running = 0
    peak = 0
    release = asyncio.Event()

    async def wait(_: MessageView) -> TransactionState:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        await release.wait()
        running -= 1
        return ROLLBACK

    decisions.answer = wait
    async with producer(cluster, decisions, checks_at_once=2) as sender:
        for _ in range(5):
            await sender.send(LEFT)
        await until(lambda: "pg" in broker.producers)
        for half in broker.seen(SEND):
            broker.ask_for(half)
        await until(lambda: running == 2)
        await broker_round_trip(sender, broker)
        release.set()
        await until(lambda: len(broker.seen(END)) == 5)

    assert peak == 2


async def test_checks_of_other_groups_and_of_nonsense_are_ignored(cluster: FakeCluster) -> None:
    """They neither reach the handler nor end the connection."""
    broker = await one_broker(cluster)
    decisions = Decisions()
    async with producer(cluster, decisions) as sender, Producer("x", instance=sender.instance) as other:
        await other.send(Message(topic="t", body=b"x", system_properties={"PGROUP": "other"}))
        await sender.send(Message(topic="t", body=b"x"))
        await until(lambda: {"pg", "x"} <= broker.producers.keys())
        connection = broker.producers["pg"]
        broker.ask_for(broker.seen(SEND)[0])
        broken = Command(
            RequestCode.CHECK_TRANSACTION_STATE,
            {"tranStateTableOffset": "0", "commitLogOffset": "0"},
            b"\0\0\0\x09nonsense",
        )
        connection.notify(broken)
        connection.notify(Command(RequestCode.CHECK_TRANSACTION_STATE, {"commitLogOffset": "x"}))
        await broker_round_trip(sender, broker)

        assert connection.is_open

    assert not decisions.asked
    assert not broker.seen(END)


async def test_one_checker_for_a_group_and_instance(cluster: FakeCluster) -> None:
    """A second one of the same client is an error at its start, and the first goes on."""
    broker = await one_broker(cluster)
    decisions = Decisions()
    async with (
        ClientInstance(cluster.namesrv) as instance,
        TransactionProducer("pg", check=decisions, instance=instance, topics=("t",)) as first,
    ):
        with pytest.raises(ValueError, match="answers checks for group 'pg' already"):
            await TransactionProducer("pg", check=decisions, instance=instance).start()
        await first.send(LEFT)
        await until(lambda: "pg" in broker.producers)
        broker.ask_for(broker.seen(SEND)[0])
        await until(lambda: len(broker.seen(END)) == 1)
