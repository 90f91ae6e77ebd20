"""The demo's writer repeats what is not acknowledged, and measures the gap."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokerset_bench.demo_failover import Reader, Writer
from brokerset_client.errors import SendFailed
from brokerset_client.messages import Message, MessageView, SendStatus
from brokerset_client.producer import Producer

MESSAGES = [Message(topic="t", body=b"x", keys=(f"k{n}",)) for n in range(20)]


class Flaky:
    """Refuses the first try of every fifth message, and stores that of every seventh less safely."""

    def __init__(self) -> None:
        self.tries: Counter[str] = Counter()

    async def send(self, message: Message, timeout: float) -> Any:
        """One try."""
        number = int(message.keys[0][1:])
        self.tries[message.keys[0]] += 1
        first = self.tries[message.keys[0]] == 1
        if first and number % 5 == 4:
            raise SendFailed("no", [])
        weak = first and number % 7 == 6
        return SimpleNamespace(status=SendStatus.FLUSH_SLAVE_TIMEOUT if weak else SendStatus.SEND_OK)


def test_each_message_is_sent_until_it_is_safe() -> None:
    producer = Flaky()
    done: list[int] = []
    writer = Writer(cast(Producer, producer), MESSAGES, 10_000.0, done.append)

    asyncio.run(writer.run())

    assert len(writer.acknowledged_at) == len(done) == 20
    assert writer.repeated == len([n for n in range(20) if n % 5 == 4 or n % 7 == 6])
    assert set(producer.tries.values()) == {1, 2}


@pytest.mark.parametrize(("after", "gap"), [(0.0, 3.0), (2.5, 3.0), (5.5, 0.5), (9.0, 0.0)])
def test_the_gap_is_the_longest_pause_that_ends_after_the_kill(after: float, gap: float) -> None:
    writer = Writer(cast(Producer, None), [], 1.0, lambda _: None, [1.0, 1.5, 2.0, 5.0, 5.25, 5.75])

    assert writer.gap(after) == pytest.approx(gap)


def test_the_reader_counts_what_comes_twice() -> None:
    reader = Reader()
    for key in ("a", "b", "a"):
        asyncio.run(reader.listen(cast(MessageView, SimpleNamespace(keys=(key,)))))

    assert reader.seen == {"a": 2, "b": 1}
    assert reader.doubled == 1
