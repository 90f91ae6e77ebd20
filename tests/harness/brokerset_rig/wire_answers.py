"""Answers of pulls without a broker, for tests of what readers make of them."""

from __future__ import annotations

from collections.abc import Coroutine, Sequence
from concurrent.futures import Future
from typing import Any, Final, cast

from brokerset_client.calls import PulledRecords, PullStatus
from brokerset_client.instance import ClientInstance
from brokerset_formats.hosts import Host
from brokerset_formats.records import Record, encode_record
from brokerset_spark.topics.offsets import QueueKey
from brokerset_spark.topics.reading import Answers

GIVEN_KEY: Final = QueueKey("t", "a", 0)
HOST: Final = Host.from_text("127.0.0.1", 1)


class Given:
    """Stands for a client whose pulls give these answers."""

    instance = cast(ClientInstance, None)

    def __init__(self, answers: Sequence[Answers]) -> None:
        self._left = list(answers)

    def begin(self, work: Coroutine[Any, Any, Any]) -> Future[Answers]:
        """The next one."""
        work.close()
        found: Future[Answers] = Future()
        found.set_result(self._left.pop(0))
        return found


def given_record(offset: int, body: bytes | None = None, sys_flag: int = 0) -> bytes:
    """A record of that queue, stored at 1000 ms and its offset."""
    return encode_record(
        Record(
            queue_id=0,
            queue_offset=offset,
            offset=offset * 1000,
            born_timestamp=1,
            born_host=HOST,
            store_timestamp=1000 + offset,
            store_host=HOST,
            body=str(offset).encode() if body is None else body,
            sys_flag=sys_flag,
            topic="t",
        )
    )


def given_answers(*offsets: int, next_offset: int | None = None) -> Answers:
    """Records with these offsets."""
    return Answers(
        [given_record(each) for each in offsets], offsets[-1] + 1 if next_offset is None else next_offset
    )


def nothing_from(place: int, first: int, last: int) -> Answers:
    """An answer that has nothing, and names another place."""
    return Answers([], place, PulledRecords(PullStatus.OFFSET_ILLEGAL, b"", first, first, last, 0))
