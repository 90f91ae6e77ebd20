"""The services that follow the role: they start, drain and stop together, and leave nothing behind."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from brokerset_broker.app import Broker
from brokerset_broker.services import role_services
from brokerset_broker.services.role_services import RoleServices
from brokerset_formats.hosts import Host
from brokerset_formats.names import SCHEDULE_TOPIC
from brokerset_formats.properties import encode_properties
from brokerset_spec.broker_settings import BrokerSettings

pytestmark = pytest.mark.virtual

TIMES = 1_000
DELAYED_EACH = 5
LEVEL = 1
BORN_HOST = Host.from_text("10.0.0.1", 54321).encode()


class LoopClock:
    """The virtual loop's time on both clocks."""

    def now_ms(self) -> int:
        return int(self.monotonic() * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class Noting:
    """A service that notes what is asked of it."""

    def __init__(self, name: str, calls: list[str], drain_seconds: float = 0.0) -> None:
        self.name = name
        self._calls = calls
        self._drain_seconds = drain_seconds

    def start(self) -> None:
        self._calls.append(f"start {self.name}")

    async def drain(self) -> None:
        self._calls.append(f"drain {self.name}")
        await asyncio.sleep(self._drain_seconds)

    def stop(self) -> None:
        self._calls.append(f"stop {self.name}")


async def test_services_stop_the_other_way_round_and_each_is_drained_first() -> None:
    """Twice to start or to stop is once: a change of role may come in the middle of another."""

    calls: list[str] = []
    services = RoleServices([Noting("a", calls), Noting("b", calls)])

    services.start()
    services.start()
    await services.stop()
    await services.stop()

    assert calls == ["start a", "start b", "drain b", "stop b", "drain a", "stop a"]


async def test_a_service_that_does_not_drain_holds_nobody_up() -> None:
    """A change of role waits so long for it and no longer; the others are drained all the same."""

    calls: list[str] = []
    services = RoleServices([Noting("a", calls), Noting("b", calls, drain_seconds=60.0)])
    services.start()
    began = asyncio.get_running_loop().time()

    await services.stop()

    waited = asyncio.get_running_loop().time() - began
    assert waited == pytest.approx(role_services.DRAIN_SECONDS_MAX)
    assert calls[-2:] == ["drain a", "stop a"]


class Failing(Noting):
    """A service that cannot finish its work."""

    async def drain(self) -> None:
        raise OSError("no room")


async def test_a_service_that_fails_to_drain_is_stopped_and_so_are_the_others() -> None:
    """And none of them is started twice afterwards."""
    calls: list[str] = []
    services = RoleServices([Noting("a", calls), Failing("b", calls)])
    services.start()

    await services.stop()

    assert calls[2:] == ["stop b", "drain a", "stop a"]


async def test_nothing_starts_when_the_broker_ends() -> None:
    """A change of role that is still on its way comes to its step later."""
    calls: list[str] = []
    services = RoleServices([Noting("a", calls)])

    services.stop_now()
    services.start()

    assert calls == ["stop a"]


async def test_every_service_of_a_broker_starts_and_stops_a_thousand_times(tmp_path: Path) -> None:
    """With work at hand, at any moment of it: nothing is appended between a stop and the next start, no timer
    stays, and in the end every delayed message has come once."""

    dice = random.Random(7)
    settings = BrokerSettings(store_path_root_dir=tmp_path, listen_port=0)
    broker = Broker(settings, clock=LoopClock())
    broker._build()
    broker._load()
    broker.topics.create_retry("orders", 1)
    services, store = broker.services, broker.store
    sent = 0
    for number in range(TIMES):
        if number % DELAYED_EACH == 0:
            properties = encode_properties({"REAL_TOPIC": "T", "REAL_QID": "0", "DELAY": str(LEVEL)})
            store.append(
                SCHEDULE_TOPIC,
                LEVEL - 1,
                b"%d" % sent,
                properties,
                flag=0,
                sys_flag=0,
                born_timestamp=0,
                born_host=BORN_HOST,
            )
            sent += 1
        services.start()
        await asyncio.sleep(dice.choice((0.0, 0.0, 0.001, 0.3, 1.5)))
        await services.stop()
        end = store.max_offset
        await asyncio.sleep(dice.choice((0.0, 0.5)))
        assert store.max_offset == end, "a stopped service appends nothing"
        assert not any(level.timer for level in broker.delay._levels.values())
    services.start()
    await asyncio.sleep(5.0)
    await services.stop()

    assert broker.delay.delivered == sent == TIMES // DELAYED_EACH
    assert store.queue_max("T", 0) == sent
    store.abandon()
