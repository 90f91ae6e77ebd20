"""Producers of transactions and of timer messages: truthful, but late, repetitive, forgetful and mortal."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from brokerset_protocol import headers
from brokerset_protocol.bodies.heartbeat import HeartbeatData, ProducerData
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_rig import wire
from brokerset_runtime.remoting.connection import ConnectionClosed, RequestTimeout
from brokerset_sim.ledger_clients import ASK_SECONDS, QUEUES, TOPIC, LedgerClient
from brokerset_sim.ledger_node import WALL_BEGIN_MS
from brokerset_sim.process import Process
from brokerset_sim.timer_oracle import TimedMessage
from brokerset_sim.transaction_oracle import End, Transaction

if TYPE_CHECKING:
    from brokerset_sim.deferred_world import DeferredWorld
    from brokerset_sim.ledger_node import LedgerNode

GROUPS: Final = 2
"""Producer groups; producers of one answer for each other."""

HEARTBEAT_SECONDS: Final = 0.15
LATE_SECONDS_MAX: Final = 1.2
UNKNOWN: Final = 0
"""What a producer answers that has not decided yet."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the database of a producer group says of a transaction: the same to every producer of it."""

    ends: tuple[End, ...]
    """What it is asked to end as. More than one: producers contradict each other, and one of them counts."""

    since: float = 0.0
    """Before, nobody knows."""

    told: bool = True
    """Whether its producer says so by itself, or waits until it is asked."""


@dataclass(frozen=True, slots=True)
class Half:
    """Where a half message is."""

    address: str
    queue_offset: int
    offset: int


class TransactionProducer(LedgerClient):
    """Sends half messages and ends them; answers checks about those of its whole group.

    One that takes another's place is of the same group: of transactions without a producer nobody is asked.
    """

    mortal = True
    world: DeferredWorld

    def __init__(self, world: DeferredWorld, name: str) -> None:
        super().__init__(world, name)
        self.group = f"pg-{int(name.rstrip('+').rpartition('-')[2]) % GROUPS}"
        world.network.listen_to_servers(self.process, self)

    async def _run(self) -> None:
        for node in self.world.nodes:
            self.process.spawn(self._beat(node))
        await super()._run()

    async def _beat(self, node: LedgerNode) -> None:
        body = HeartbeatData(self.name, (ProducerData(self.group),)).to_json()
        while True:
            with contextlib.suppress(ConnectionClosed, RequestTimeout):
                await self._asker.ask(
                    node.address, Command(RequestCode.HEART_BEAT, {}, body), HEARTBEAT_SECONDS * 2
                )
            await asyncio.sleep(HEARTBEAT_SECONDS)

    async def _act(self) -> None:
        self._count += 1
        world, dice = self.world, self.dice
        key = f"{self.name}-{self._count}"
        body = f"{key} ".encode().ljust(dice.choice((40, 200, 800)), b"x")
        immune = dice.random() < 0.1
        now_ms = WALL_BEGIN_MS + int(world.loop.time() * 1_000)
        transaction = Transaction(
            key,
            self.group,
            TOPIC,
            self._count % QUEUES,
            body,
            immune_ms=1_000 if immune else 0,
            begun_ms=now_ms,
        )
        decision = world.decisions[key] = self._decide()
        world.checker.transactions.begin(transaction)
        properties = f"TRAN_MSG\x01true\x02PGROUP\x01{self.group}\x02UNIQ_KEY\x01{key}\x02WAIT\x01true\x02"
        if immune:
            properties += "CHECK_IMMUNITY_TIME_IN_SECONDS\x011\x02"
        ext = wire.send_ext(TOPIC, transaction.queue_id, properties) | {"f": "4", "g": str(now_ms)}
        node = self._where()
        reply = await self._ask(Command(RequestCode.SEND_MESSAGE_V2, ext, body), node)
        if reply is None or reply.code != ResponseCode.SUCCESS:
            return
        self.last_acknowledged = world.loop.time()
        world.counts["half"] += 1
        half = Half(node.address, int(reply.ext["queueOffset"]), int(reply.ext["msgId"][-16:], 16))
        if decision.told:
            self.process.spawn(self.process.call(self._end_of_its_own, key, decision, half))

    def _decide(self) -> Decision:
        dice, now = self.dice, self.world.loop.time()
        chance = dice.random()
        end = End.COMMIT if dice.random() < 0.7 else End.ROLLBACK
        if chance < 0.6:
            return Decision((end,))
        if chance < 0.75:
            return Decision((end,), since=now + dice.random() * LATE_SECONDS_MAX)
        if chance < 0.87:
            return Decision((end,), told=False)
        if chance < 0.93:
            return Decision((End.COMMIT, End.ROLLBACK))
        return Decision((), told=False)

    async def _end_of_its_own(self, key: str, decision: Decision, half: Half) -> None:
        dice = self.dice
        if decision.since:
            if dice.random() < 0.5:
                await self._tell_end(key, half, UNKNOWN, check=False)
            await asyncio.sleep(max(0.0, decision.since - self.world.loop.time()))
        elif dice.random() < 0.3:
            await asyncio.sleep(dice.random() * LATE_SECONDS_MAX)
        if dice.random() < 0.05:
            await self._forge(key, half)
        for end in decision.ends:
            await self._tell_end(key, half, end, check=False)
            if dice.random() < 0.15:
                await asyncio.sleep(dice.random() * LATE_SECONDS_MAX)
                await self._tell_end(key, half, end, check=False)

    async def _tell_end(self, key: str, half: Half, end: int, *, check: bool) -> None:
        """END_TRANSACTION, to the broker that the producer knows the half from."""
        world = self.world
        if end != UNKNOWN:
            world.checker.transactions.asked(key, End(end))
        command = self._end_command(key, self.group, half, end, check=check)
        if end == UNKNOWN or self.dice.random() < 0.2:
            await self._one_way(half.address, command)
            return
        reply = await self._ask_at(half.address, command)
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            self.last_acknowledged = world.loop.time()
            world.counts[f"end acknowledged: {End(end).name}"] += 1

    async def _forge(self, key: str, half: Half) -> None:
        """An end with another key, which names nothing."""
        command = self._end_command(f"forged-{key}", self.group, half, End.COMMIT, check=False)
        await self._ask_at(half.address, command)

    @staticmethod
    def _end_command(key: str, group: str, half: Half, end: int, *, check: bool) -> Command:
        header = headers.EndTransaction(
            topic=TOPIC,
            producer_group=group,
            tran_state_table_offset=half.queue_offset,
            commit_log_offset=half.offset,
            commit_or_rollback=end,
            from_transaction_check=check,
            msg_id=key,
            transaction_id=key,
        )
        return Command(RequestCode.END_TRANSACTION, header.to_ext())

    async def _ask_at(self, address: str, command: Command) -> Command | None:
        node = next(node for node in self.world.nodes if node.address == address)
        return await self._ask(command, node)

    async def _one_way(self, address: str, command: Command) -> None:
        with contextlib.suppress(ConnectionClosed):
            await self._asker.tell(address, command, ASK_SECONDS)

    # -- checks (`Listener`) ------------------------------------------------------------------------------

    def notified_by(self, server: Process, command: Command) -> None:
        """A broker sends this producer something."""
        if command.code == RequestCode.CHECK_TRANSACTION_STATE:
            self.world.checker.check_left(server, command)

    def notified(self, address: str, command: Command) -> None:
        """It is there."""
        if command.code != RequestCode.CHECK_TRANSACTION_STATE:
            return
        self.world.counts["check"] += 1
        key = self.world.checker.check_arrived(command, self.group)
        header = headers.CheckTransactionState.from_ext(command.ext)
        half = Half(address, header.tran_state_table_offset, header.commit_log_offset)
        self.process.spawn(self._answer(key, half))

    async def _answer(self, key: str, half: Half) -> None:
        world, dice = self.world, self.dice
        decision = world.decisions[key]
        if dice.random() < 0.2:
            await asyncio.sleep(dice.random() * LATE_SECONDS_MAX)
        if not decision.ends or (not world.healing and dice.random() < 0.1):
            return
        end = UNKNOWN if world.loop.time() < decision.since else dice.choice(decision.ends)
        await self._tell_end(key, half, end, check=True)


class TimerProducer(LedgerClient):
    """Sends messages that wait for a time, by each of the three properties; recalls some."""

    mortal = True
    world: DeferredWorld

    async def _act(self) -> None:
        self._count += 1
        world, dice = self.world, self.dice
        key = f"{self.name}-{self._count}"
        body = f"{key} ".encode().ljust(dice.choice((40, 200, 800)), b"x")
        node = self._where()
        now_ms = min(each.clock.now_ms() for each in world.nodes)  # a member may pass it on to any other
        delay_ms = dice.randint(1, dice.choice((50, 400, world.deferred.delay_ms_max)))
        asked: int | None = delay_ms
        match dice.choice(("TIMER_DELAY_MS", "TIMER_DELIVER_MS", "TIMER_DELAY_SEC")):
            case "TIMER_DELAY_SEC":
                asked = 1_000 * max(1, delay_ms // 1_000)
                wish, earliest_ms = f"TIMER_DELAY_SEC\x01{asked // 1_000}", now_ms + asked
            case "TIMER_DELIVER_MS":
                asked, earliest_ms = None, now_ms + delay_ms
                wish = f"TIMER_DELIVER_MS\x01{earliest_ms}"
            case _:
                wish, earliest_ms = f"TIMER_DELAY_MS\x01{delay_ms}", now_ms + delay_ms
        queue_id = self._count % QUEUES
        message = TimedMessage(key, TOPIC, queue_id, body, earliest_ms, asked)
        world.checker.timers.sent(message)
        ext = wire.send_ext(TOPIC, queue_id, f"UNIQ_KEY\x01{key}\x02WAIT\x01true\x02{wish}\x02")
        reply = await self._ask(Command(RequestCode.SEND_MESSAGE_V2, ext, body), node)
        if reply is None or reply.code != ResponseCode.SUCCESS:
            return
        self.last_acknowledged = world.loop.time()
        world.counts["timer"] += 1
        handle = reply.ext.get("recallHandle")
        if handle is not None and dice.random() < 0.25:
            self.process.spawn(self._recall(key, handle, dice.random() * delay_ms / 1_000))

    async def _recall(self, key: str, handle: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        self.world.checker.timers.recall_asked(key)
        header = headers.RecallMessage(producer_group="timers", topic=TOPIC, recall_handle=handle)
        reply = await self._ask(Command(RequestCode.RECALL_MESSAGE, header.to_ext()))
        if reply is not None and reply.code == ResponseCode.SUCCESS:
            self.world.counts["recalled"] += 1
