"""`OrderedProducer` over models of brokers and controllers, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from brokerset_client.errors import AnswerTimeout, ClientClosed, MessageInvalid
from brokerset_client.messages import Message
from brokerset_client.ordered.producing.errors import (
    MessageRefused,
    OutcomeLost,
    ProducerFenced,
    ProducerFull,
    StillQueued,
    SubjectRefused,
    TriesExhausted,
)
from brokerset_client.ordered.producing.producer import OrderedProducer
from brokerset_client.ordered.producing.settings import ProducerSettings
from brokerset_formats.order_keys import logical_partition
from brokerset_formats.order_stamps import PRODUCER_ID
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.subject_words import OrderStrategy
from brokerset_rig.waiting import until
from brokerset_sim.loop import VirtualLoop
from brokerset_sim.ordered_send_model import ModelSubject
from brokerset_sim.ordered_send_transport import LoopClock, Lose, ModelTransport

GROUPS = ("broker-a", "broker-b")

Scene = Callable[[ModelTransport, OrderedProducer, ModelSubject], Awaitable[None]]


def subject(order: OrderStrategy = OrderStrategy.STRICT, partitions: int = 2) -> ModelSubject:
    made = ModelSubject("orders", order, GROUPS)
    made.scale(partitions)
    return made


def producer(
    transport: ModelTransport, settings: ProducerSettings | None = None, seed: int = 7
) -> OrderedProducer:
    return OrderedProducer(
        transport, clock=LoopClock(), producer_id="p-1", settings=settings, random=Random(seed)
    )


def play(
    scene: Scene,
    model: ModelSubject | None = None,
    settings: ProducerSettings | None = None,
    transport_type: type[ModelTransport] = ModelTransport,
) -> None:
    """Run a scene, close the producer, and see that nothing of it is left."""
    loop = VirtualLoop()

    async def run() -> None:
        chosen = model or subject()
        transport = transport_type(chosen)
        sender = producer(transport, settings)
        await sender.start()
        try:
            await scene(transport, sender, chosen)
        finally:
            await sender.close(0)
        assert [task for task in asyncio.all_tasks() if task is not asyncio.current_task()] == []

    try:
        loop.run_until_complete(run())
    finally:
        loop.close()


def message(text: str, key: str | None = "k") -> Message:
    return Message(topic="orders", body=text.encode(), sharding_key=key)


def bodies(model: ModelSubject, key: str = "k") -> list[str]:
    """The stored messages of a key, in the order in which consumers get them."""
    return [
        each.body.decode()
        for each in model.logged()
        if each.stamp.logical_partition == logical_partition(key)
    ]


def test_messages_of_a_key_are_stored_in_the_order_of_the_calls() -> None:
    """One batch in flight for each partition, and the log has the order of the calls (statement 23)."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        sent = [await sender.send_async(message(str(number), f"key-{number % 7}")) for number in range(500)]
        results = await asyncio.gather(*sent)

        assert transport.in_flight_max == 1
        assert len(transport.sends) < 20
        for key in range(7):
            own = [str(number) for number in range(500) if number % 7 == key]
            assert [body for body in bodies(model, f"key-{key}") if int(body) % 7 == key] == own
        for result, number in zip(results, range(500), strict=True):
            queue = model.queues[result.partition_id]
            assert result.queue_offset is not None
            assert queue.log[result.queue_offset].body == str(number).encode()
            assert queue.log[result.queue_offset].stamp.sequence == result.sequence

    play(scene)


def test_a_lost_answer_stores_once() -> None:
    """The response is lost after storing: the log has each message once (statement 25)."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        transport.faults += [Lose(stored=True), Lose(stored=False), Lose(stored=True)]
        sent = [await sender.send_async(message(str(number))) for number in range(6)]
        await asyncio.gather(*sent)

        assert bodies(model) == ["0", "1", "2", "3", "4", "5"]

    play(scene)


def test_a_producer_measures_what_waits_and_what_was_tried() -> None:
    """Without controllers messages are parked; a lost answer is unknown, and its request repeated."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        transport.controllers_down = True
        sent = [await sender.send_async(message(str(number))) for number in range(6)]
        await asyncio.sleep(2)
        (without,) = sender.measurements()
        transport.controllers_down = False
        transport.faults += [Lose(stored=True), Lose(stored=False)]
        await until(lambda: not transport.faults)
        (during,) = sender.measurements()
        await asyncio.gather(*sent)
        (after,) = sender.measurements()

        assert (without.unconfirmed, without.parked, without.epoch) == (6, 6, -1)
        assert without.oldest_seconds == pytest.approx(2)
        assert (during.unconfirmed, during.parked, during.unknown, during.retried) == (6, 0, 1, 1)
        assert (after.unconfirmed, after.oldest_seconds, after.confirmed) == (0, 0, 6)
        assert (after.unknown, after.retried, after.failed) == (2, 2, 0)

    play(scene)


def test_a_part_that_outlived_a_failover_is_not_stored_again() -> None:
    """Of a batch that a failed master stored in part only the rest is stored."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        transport.faults += [Lose(stored=True, keep=2)]
        sent = [await sender.send_async(message(str(number))) for number in range(5)]
        await asyncio.gather(*sent)

        assert bodies(model) == ["0", "1", "2", "3", "4"]

    play(scene)


@pytest.mark.parametrize(
    "code",
    [
        ResponseCode.SYSTEM_BUSY,
        ResponseCode.NO_PERMISSION,
        ResponseCode.FLOW_CONTROL,
        ResponseCode.SERVICE_NOT_AVAILABLE,
        ResponseCode.FLUSH_SLAVE_TIMEOUT,
        ResponseCode.BROKERSET_QUEUE_NOT_OPEN,
    ],
)
def test_strict_keeps_what_a_broker_refuses_for_now(code: ResponseCode) -> None:
    """Busy or blocked answers neither remove a message nor let later ones pass (statements 24, 28)."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        transport.faults += [Command(code)] * 5
        sent = [await sender.send_async(message(str(number))) for number in range(3)]
        await asyncio.sleep(0.005)
        sent.append(await sender.send_async(message("3")))
        await asyncio.gather(*sent)

        assert bodies(model) == ["0", "1", "2", "3"]

    play(scene)


def test_strict_waits_for_its_broker() -> None:
    """Ten minutes without a broker: all in order, none on another group (statements 27, 32, 33)."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        transport.down = {"broker-a", "broker-b"}
        sent = [await sender.send_async(message(str(number))) for number in range(300)]
        await asyncio.sleep(600)
        tries = len(transport.sends)
        transport.down = set()
        results = await asyncio.gather(*sent)

        assert bodies(model) == [str(number) for number in range(300)]
        assert len({result.broker_group for result in results}) == 1
        assert len({result.partition_id for result in results}) == 1
        assert 300 < tries < 700
        assert len(transport.stale) >= tries

    play(scene)


def test_memory_is_bounded() -> None:
    """With a dead broker the API waits, or raises after its time-out; nothing was accepted (statement 30)."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        transport.down = {"broker-a", "broker-b"}
        sent = [await sender.send_async(message(str(number))) for number in range(10)]
        with pytest.raises(ProducerFull, match="10 messages"):
            await sender.send(message("too many"), timeout=2.0)
        waiting = asyncio.ensure_future(sender.send(message("10")))
        await asyncio.sleep(60)
        assert not waiting.done()
        transport.down = set()
        await asyncio.gather(*sent, waiting)

        assert bodies(model) == [str(number) for number in range(11)]

    play(scene, settings=ProducerSettings(messages_max=10))


def test_bytes_are_bounded() -> None:
    """The budget counts bytes as well as messages (statement 30)."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        transport.down = {"broker-a", "broker-b"}
        await sender.send_async(message("x" * 1000))
        with pytest.raises(ProducerFull):
            await sender.send_async(message("y" * 1000), timeout=1.0)

    play(scene, settings=ProducerSettings(bytes_max=2000))


def test_who_waits_for_room_keeps_the_order_of_the_calls() -> None:
    """Calls that wait for room are accepted in their order (statements 23, 30)."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        tasks = [asyncio.ensure_future(sender.send(message(str(number)))) for number in range(100)]
        await asyncio.gather(*tasks)

        assert bodies(model) == [str(number) for number in range(100)]

    play(scene, settings=ProducerSettings(messages_max=3))


def test_a_send_that_is_not_confirmed_in_time_keeps_its_place() -> None:
    """`send` raises after its time-out, and the message is stored in its place nevertheless."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        transport.down = {"broker-a", "broker-b"}
        with pytest.raises(StillQueued):
            await sender.send(message("0"), timeout=1.0)
        last = await sender.send_async(message("1"))
        transport.down = set()
        await last

        assert bodies(model) == ["0", "1"]

    play(scene)


def test_one_illegal_message_fails_alone() -> None:
    """The broker refuses one of a batch: it fails, and the others are stored in order (statements 24, 31)."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        model.illegal = {b"13", b"40"}
        sent = [await sender.send_async(message(str(number))) for number in range(50)]
        results = await asyncio.gather(*sent, return_exceptions=True)

        assert bodies(model) == [str(number) for number in range(50) if number not in (13, 40)]
        failed = [number for number, result in enumerate(results) if isinstance(result, Exception)]
        assert failed == [13, 40]
        assert isinstance(results[13], MessageRefused)
        assert not results[13].maybe_stored

    play(scene)


def test_a_bad_message_is_refused_before_it_is_accepted() -> None:
    """Too large, delayed, illegal properties: the call raises, nothing is sent (statements 9, 31)."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        for bad in (
            Message(topic="orders", body=bytes(5_000_000)),
            Message(topic="orders"),
            Message(topic="orders", body=b"x", delay_level=3),
            Message(topic="orders", body=b"x", wait_stored=False),
            Message(topic="orders", body=b"x", properties={"a": "x" * 33_000}),
            Message(topic="orders", body=b"x", properties={"a\x01": "b"}),
            Message(topic="orders", body=b"x", system_properties={"ORDER_STAMP": "1:2:p:3:4"}),
            Message(topic="or/ders", body=b"x"),
        ):
            with pytest.raises(MessageInvalid):
                await sender.send(bad)
        await sender.flush()

        assert transport.sends == []

    play(scene)


def test_scaling_keeps_the_order_of_keys() -> None:
    """A sealed partition's messages go to the new one, once and in order, while sends go on."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        sent = [await sender.send_async(message(f"a{number}", f"{number}-key")) for number in range(40)]
        await asyncio.gather(*sent)
        model.scale(5)
        model.seal(0)
        sent = [await sender.send_async(message(f"b{number}", f"{number}-key")) for number in range(40)]
        await asyncio.sleep(1)
        model.seal(1)
        model.report()
        transport.changed()
        sent += [await sender.send_async(message(f"c{number}", f"{number}-key")) for number in range(40)]
        await asyncio.sleep(1)
        model.inform_brokers()
        results = await asyncio.gather(*sent)

        for number in range(40):
            stored = [body for body in bodies(model, f"{number}-key") if body[1:] == str(number)]
            assert stored == [f"a{number}", f"b{number}", f"c{number}"]
        assert {result.partition_id for result in results[40:]} == {2, 3, 4, 5, 6}

    play(scene)


def test_a_key_without_an_open_partition_waits_alone() -> None:
    """Keys of a range that is between two partitions wait; other keys continue (statement 31)."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        model.scale(2)
        model.seal(0)
        model.report()
        model.inform_brokers()
        model.seal(1)
        first, second = "a", "order-1"  # logical partitions 97 and 654
        waiting = await sender.send_async(message("waits", second))
        await sender.send(message("goes", first), timeout=1.0)
        assert not waiting.done()
        model.report()
        transport.changed()
        model.inform_brokers()
        await waiting

        assert bodies(model, second) == ["waits"]

    play(scene)


def test_each_start_of_a_producer_draws_an_id_of_its_own() -> None:
    """Also in processes with one client id, and whatever a client id is: none fences another by chance."""
    transport = ModelTransport(subject())
    client_ids = ["10.0.0.1@7", "10.0.0.1@7", "ü" * 300, ""]

    ids = [OrderedProducer(transport, client_id=client_id).producer_id for client_id in client_ids]

    assert len(set(ids)) == len(ids)
    assert all(PRODUCER_ID.fullmatch(each) for each in ids)
    assert ids[0].startswith("10.0.0.1-7-")


def test_a_restarted_producer_fences_the_one_before() -> None:
    """The same id again gets a higher epoch: the older process fails clearly (statement 26)."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        old = await sender.send(message("old"))
        async with producer(transport) as again:
            new = await again.send(message("new"))
            assert new.producer_epoch > old.producer_epoch
            with pytest.raises(ProducerFenced, match="p-1"):
                await sender.send(message("zombie"))
            with pytest.raises(ProducerFenced):
                await sender.send(message("zombie"))

        assert bodies(model) == ["old", "new"]
        stamps = [each.stamp for each in model.logged()]
        assert len({(stamp.producer_epoch, stamp.partition_id, stamp.sequence) for stamp in stamps}) == 2

    play(scene)


def test_the_same_object_twice_is_two_messages() -> None:
    """Each send is a message of its own, with its own id, also for the same object (statement 36)."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        one = message("twice")
        first = await sender.send(one)
        second = await sender.send(one)

        assert bodies(model) == ["twice", "twice"]
        assert first.message_id != second.message_id

    play(scene)


def test_keys_go_where_their_hash_says() -> None:
    """The empty key is a key; without one messages spread over logical partitions (statements 1, 3, 4)."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        for key, logical in (("", 0), ("order-10001", 115), ("订单1001", 301), ("polygenelubricants", 0)):
            for _ in range(3):
                result = await sender.send(message("x"), key=key)
                assert (result.logical_partition, result.partition_id) == (logical, 0)
        spread = [await sender.send_async(message("n"), key=None) for _ in range(200)]
        logicals = {result.logical_partition for result in await asyncio.gather(*spread)}

        assert len(logicals) > 100
        assert {each.key for each in model.logged()} == {
            None,
            "order-10001",
            "订单1001",
            "polygenelubricants",
        }

    play(scene)


def test_a_broker_that_lost_confirmed_messages_does_not_reorder() -> None:
    """The broker expects a lower sequence: what is not confirmed goes on in a new epoch, in order."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        for number in range(3):
            await sender.send(message(str(number)))
        queue = next(queue for queue in model.queues.values() if queue.log)
        queue.lose_end(2)
        transport.faults += [Lose(stored=False)]
        sent = [await sender.send_async(message(str(number))) for number in range(3, 6)]
        results = await asyncio.gather(*sent)

        assert bodies(model) == ["0", "3", "4", "5"]
        assert [result.sequence for result in results] == [0, 1, 2]
        assert {result.producer_epoch for result in results} == {2}

    play(scene)


def test_a_forgotten_producer_fails_only_what_may_be_stored() -> None:
    """The queue has forgotten the producer: unknown outcomes fail clearly, everything else goes on."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        await sender.send(message("0"))
        queue = next(queue for queue in model.queues.values() if queue.log)
        transport.faults += [Lose(stored=True)]
        lost = await sender.send_async(message("1"))
        await asyncio.sleep(0.1)
        queue.producers.clear()
        after = await sender.send_async(message("2"))
        with pytest.raises(OutcomeLost):
            await lost
        await after
        queue.producers.clear()
        result = await sender.send(message("3"))

        assert bodies(model) == ["0", "1", "2", "3"]
        assert (result.producer_epoch, result.sequence) == (3, 0)

    play(scene)


def test_another_order_strategy_is_refused() -> None:
    """A producer that expects another order strategy than the subject's gets an error, and no place."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        with pytest.raises(SubjectRefused, match="Strict"):
            await sender.send(message("0"), order=OrderStrategy.BEST_TRIED)
        await sender.send(message("1"), order=OrderStrategy.STRICT)
        with pytest.raises(SubjectRefused, match="Strict"):
            await sender.send(message("2"), order=OrderStrategy.BEST_TRIED)
        await sender.send(message("3"))

        assert bodies(model) == ["1", "3"]

    play(scene)


def test_a_deleted_subject_fails_what_waits_and_does_not_come_back_by_itself() -> None:
    """Only a first message creates a subject: long polls of a deleted one do not."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        await sender.send(message("0"))
        transport.down = {"broker-a", "broker-b"}
        waiting = await sender.send_async(message("1"))
        del transport.subjects["orders"]
        transport.changed()
        with pytest.raises(SubjectRefused, match="deleted"):
            await waiting
        await asyncio.sleep(60)
        assert transport.subjects == {}
        transport.down = set()
        await sender.send(message("2"))

        assert bodies(transport.subjects["orders"]) == ["2"]

    play(scene)


def test_everything_waits_while_no_controller_leads() -> None:
    """Without controllers first messages wait, known subjects go on, requests back off (statement 32)."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        await sender.send(message("0"))
        transport.controllers_down = True
        await sender.send(message("1"), timeout=1.0)
        first = await sender.send_async(Message(topic="other", body=b"0", sharding_key="k"))
        await asyncio.sleep(300)
        assert not first.done()
        assert len(transport.asked) < 120
        transport.controllers_down = False
        await first

        assert transport.asked.count(RequestCode.BROKERSET_START_PRODUCER) == 2

    play(scene)


def test_close_ends_everything() -> None:
    """After `close` no task runs, and what was not confirmed has failed (statement 52)."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        transport.down = {"broker-a", "broker-b"}
        sent = [await sender.send_async(message(str(number))) for number in range(5)]
        full = asyncio.ensure_future(sender.send(message("5")))
        await asyncio.sleep(1)
        await sender.close(3.0)

        for future in (*sent, full):
            with pytest.raises(ClientClosed):
                await future
        with pytest.raises(ClientClosed):
            await sender.send(message("6"))

    play(scene, settings=ProducerSettings(messages_max=5))


def test_close_waits_for_what_is_on_its_way() -> None:
    """`close` gives messages that can be stored the time to be."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        sent = [await sender.send_async(message(str(number))) for number in range(5)]
        await sender.close(5.0)
        await asyncio.gather(*sent)

        assert bodies(model) == ["0", "1", "2", "3", "4"]

    play(scene)


def test_large_bodies_are_compressed_and_in_order() -> None:
    """A large body travels compressed and alone; the order stays."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        texts = ["a", "b" * 10_000, "c", "d"]
        await asyncio.gather(*[await sender.send_async(message(text)) for text in texts])

        sizes = [len(each.body) for each in model.logged()]
        assert [sizes[0], *sizes[2:]] == [1, 1, 1]
        assert sizes[1] < 100

    play(scene)


def test_best_tried_goes_to_a_group_that_takes_it() -> None:
    """A group that is read-only: messages land on another one within few tries (statement 29)."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        transport.answers["broker-a"] = Command(ResponseCode.NO_PERMISSION)
        sent = [await sender.send_async(message(str(number), f"key-{number}")) for number in range(200)]
        results = await asyncio.gather(*sent)

        assert {result.broker_group for result in results} == {"broker-b"}
        assert sorted(int(each.body) for each in model.logged()) == list(range(200))

    play(scene, subject(OrderStrategy.BEST_TRIED))


def test_best_tried_fails_once_after_its_tries() -> None:
    """Nobody takes it: at most ten sends, then exactly one failure (statement 29)."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        transport.down = {"broker-a", "broker-b"}
        sent = await sender.send_async(message("0"))
        with pytest.raises(TriesExhausted, match="10 tries"):
            await sent
        tries = len(transport.sends)
        await asyncio.sleep(60)

        assert tries == len(transport.sends) == 10

    play(scene, subject(OrderStrategy.BEST_TRIED))


def test_best_tried_does_not_wait_long_for_its_partition() -> None:
    """A partition that does not open: another open one takes the message before its time is over."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        model.scale(2)
        model.seal(0)
        model.report()
        model.inform_brokers()
        model.seal(1)
        result = await sender.send(message("0", "order-1"), timeout=10.0)

        assert result.partition_id == 2

    play(scene, subject(OrderStrategy.BEST_TRIED))


def test_who_waits_for_room_outlives_the_deletion_of_the_subject() -> None:
    """Room that appears because others failed is used: no send waits permanently."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        await sender.send(message("0"))
        transport.down = {"broker-a", "broker-b"}
        sends = [asyncio.ensure_future(sender.send(message(str(number)))) for number in range(1, 6)]
        await asyncio.sleep(1)
        del transport.subjects["orders"]
        transport.changed()
        transport.down = set()
        async with asyncio.timeout(60):
            ends = await asyncio.gather(*sends, return_exceptions=True)

        assert [type(end) for end in ends[:2]] == [SubjectRefused] * 2
        assert bodies(transport.subjects["orders"]) == ["3", "4", "5"]

    play(scene, settings=ProducerSettings(messages_max=2))


@pytest.mark.parametrize("routed", [False, True])
def test_one_wrong_expectation_fails_alone(routed: bool) -> None:
    """A message that expects another order strategy fails; those before and behind it are stored."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        if routed:
            await sender.send(message("first"))
        before = await sender.send_async(message("before"), order=OrderStrategy.STRICT)
        wrong = await sender.send_async(message("wrong", "alone"), order=OrderStrategy.BEST_TRIED)
        behind = await sender.send_async(message("behind", "b"))
        with pytest.raises(SubjectRefused, match="Strict"):
            await wrong
        await asyncio.gather(before, behind)
        model.version += 1
        transport.changed()
        await asyncio.sleep(1)
        await sender.send(message("later"))

        assert bodies(model)[-2:] == ["before", "later"]
        assert bodies(model, "b") == ["behind"]

    play(scene)


def test_a_wrong_expectation_is_not_asked_for() -> None:
    """What one send expects wrongly of a known subject does not end the subject at its next route."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        await sender.send(message("0"))
        with pytest.raises(SubjectRefused):
            await sender.send(message("1"), order=OrderStrategy.BEST_TRIED)
        transport.down = {"broker-a", "broker-b"}
        waiting = await sender.send_async(message("2"))
        model.version += 1
        transport.changed()
        await asyncio.sleep(60)
        transport.down = set()
        await waiting

        assert bodies(model) == ["0", "2"]

    play(scene)


class SilentPolls(ModelTransport):
    """The controller where questions wait has gone: they get no answer. Others are answered."""

    async def ask_controllers(self, command: Command, timeout: float) -> Command:
        waits = command.code == RequestCode.BROKERSET_SUBJECT_ROUTE and command.ext.get("waitMs", "0") != "0"
        if waits:
            await asyncio.sleep(timeout)
            raise AnswerTimeout("the leader is silent")
        return await super().ask_controllers(command, timeout)


def test_a_wanted_route_is_asked_for_at_once() -> None:
    """Keys of a sealed partition do not wait for a question at a silent controller."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        await sender.send(message("0"))
        model.scale(2)
        model.seal(0)
        waiting = await sender.send_async(message("1"))
        await asyncio.sleep(0.5)
        assert not waiting.done()
        assert transport.asked.count(RequestCode.BROKERSET_SUBJECT_ROUTE) < 12
        model.report()
        model.inform_brokers()
        async with asyncio.timeout(1.5):
            await waiting

        assert bodies(model) == ["0", "1"]

    play(scene, transport_type=SilentPolls)


def test_a_route_that_cannot_be_waited_for_is_not_asked_for_all_the_time() -> None:
    """Without waiting at the controllers the route is asked for each second, and followed nevertheless."""

    async def scene(transport: ModelTransport, sender: OrderedProducer, model: ModelSubject) -> None:
        await sender.send(message("0"))
        await asyncio.sleep(60)
        assert 50 < transport.asked.count(RequestCode.BROKERSET_SUBJECT_ROUTE) < 70
        del transport.subjects["orders"]
        await asyncio.sleep(2)
        await sender.send(message("1"))

        assert bodies(transport.subjects["orders"]) == ["1"]

    play(scene, settings=ProducerSettings(route_wait_ms=0))
