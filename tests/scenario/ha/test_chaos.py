"""Random faults over links in memory: nothing that was acknowledged or confirmed is ever lost."""

from __future__ import annotations

import asyncio
import random

import pytest

from brokerset_broker.store.errors import PutStatus
from brokerset_rig.fake_group import Group
from brokerset_rig.fake_ha import FakeBroker
from brokerset_rig.waiting import until
from brokerset_spec.broker_settings import BrokerSettings

pytestmark = pytest.mark.virtual

SIZE = 3
STEPS = 120


class Chaos(Group):
    """Three brokers, elections from the in-sync set only, and a checker that sees answers and logs."""

    def __init__(self, seed: int) -> None:
        super().__init__(SIZE, BrokerSettings(slave_timeout=500, ha_housekeeping_interval=3_000))
        self.random = random.Random(seed)
        self.roles = dict.fromkeys(self.brokers, 0)
        """The epoch that each broker lives in."""
        self.sent = 0
        self.acknowledged: list[bytes] = []
        self.trace: list[str] = []

    @property
    def master(self) -> FakeBroker:
        return self.brokers[self.controllers.master_id or 1]

    async def run(self) -> None:
        for broker in self.brokers.values():
            broker.start()
        await self.change_master(1)
        for _ in range(STEPS):
            await self.step()
            self.check()
        await self.heal()
        for broker in self.brokers.values():
            await broker.stop()

    async def change_master(self, broker_id: int) -> None:
        """Elect a broker; the others hear of it later."""
        change = await self.elect(broker_id, followers=())
        self.trace.append(f"elect {broker_id} epoch {change.epoch}")
        self.roles[broker_id] = change.epoch

    async def tell(self, broker_id: int) -> None:
        """A broker hears of the group's master."""
        told = self.controllers
        if broker_id != told.master_id and self.roles[broker_id] != told.epoch:
            self.roles[broker_id] = told.epoch
            await self.brokers[broker_id].obey(told.change())

    def send(self, broker: FakeBroker) -> None:
        if not broker.log.leads or broker.replication._leader is None:
            return
        self.sent += 1
        text = f"message {self.sent} of {broker.name}"

        def answered(future: asyncio.Future[PutStatus]) -> None:
            if future.result() is PutStatus.PUT_OK:
                self.acknowledged.append(text.encode())

        _, future = broker.send(text)
        future.add_done_callback(answered)

    async def step(self) -> None:
        draw = self.random
        what = draw.random()
        someone = draw.choice(sorted(self.brokers))
        if what < 0.40:
            for _ in range(draw.randint(1, 20)):
                self.send(self.brokers[someone] if draw.random() < 0.2 else self.master)
        elif what < 0.55:
            await self.tell(someone)
        elif what < 0.62:
            pairs = [pair for pair in self.network.pairs if pair.reason is None]
            if pairs:
                draw.choice(pairs).close("chaos")
        elif what < 0.68:
            pairs = [pair for pair in self.network.pairs if pair.reason is None]
            if pairs:
                pair = draw.choice(pairs)
                pair.acks_held, pair.stalled = draw.random() < 0.5, draw.random() < 0.5
        elif what < 0.74:
            self.network.isolate(str(someone))
            self.trace.append(f"isolate {someone}")
        elif what < 0.84:
            self.network.unreachable.clear()
        elif what < 0.88:
            self.controllers.lose_replies = draw.randint(0, 2)
            self.controllers.lose_requests = draw.randint(0, 2)
        elif what < 0.94:
            await self.change_master(draw.choice(sorted(self.controllers.sync_state_set)))
        await asyncio.sleep(draw.choice([0.0, 0.0005, 0.002, 0.02, 0.3, 1.0]))

    def check(self) -> None:
        """The master has all that was acknowledged, and everybody in sync all that anybody confirmed."""
        have = set(self.master.log.texts())
        self.network.check()
        lost = [text for text in self.acknowledged if text not in have]
        assert not lost, (lost[:3], self.trace)
        master = self.master.log
        for broker_id in sorted(self.controllers.sync_state_set):
            broker = self.brokers[broker_id]
            for other in self.brokers.values():
                confirmed = other.log.confirmed_offset
                if other is not self.master and self.roles[other.broker_id] != self.controllers.epoch:
                    continue
                assert broker.log.data[:confirmed] == master.data[:confirmed], self.trace

    async def heal(self) -> None:
        self.network.unreachable.clear()
        self.controllers.lose_replies = self.controllers.lose_requests = 0
        for pair in self.network.pairs:
            pair.close("healed")
        for broker_id in self.brokers:
            await self.tell(broker_id)
        master = self.master
        everybody = frozenset(self.brokers)
        await until(lambda: master.replication.status().sync_state_set == everybody, 60)
        self.send(master)
        await until(
            lambda: all(
                broker.log.data == master.log.data and broker.log.confirmed_offset == master.log.max_offset
                for broker in self.brokers.values()
            ),
            20,
        )
        self.check()
        for broker in self.brokers.values():
            kept = [offset for offset, _, copied in broker.log.removed if copied]
            assert not any(kept), "nothing confirmed was cut"


@pytest.mark.parametrize("seed", [*range(60), 144, 553])
async def test_nothing_acknowledged_is_lost(seed: int) -> None:
    """Whatever breaks, what was answered with PUT_OK is in every later master's log; then all agree again."""
    await Chaos(seed).run()
