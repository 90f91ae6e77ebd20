"""How a transaction ended of which op records say only that it did: by its final record in the store.

A producer that waits for the answer to its end, and gets none because the master dies, ends the transaction
again at the next one. That has read op records, which do not tell commits from rollbacks.
"""

from __future__ import annotations

from typing import Final

from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.transactions.resolved import Ending
from brokerset_formats.errors import FormatError
from brokerset_formats.records import Record, decode_record
from brokerset_formats.transactions import is_final, target_of, unique_key_of

SAME_KEY_MAX: Final = 64
"""Messages with the producer's key, or its hash, that are compared."""

TIME_SLACK_MS: Final = 1_000
"""The index knows times by the second."""


def ending_in_store(store: MessageStore, half: Record, ending: Ending) -> Ending:
    """How the transaction of a half ended that is known as `ENDED` or `OVER`; else what is known.

    A final record lies behind its half, so while the half is in the log, it is, too. Where none is, and an op
    record says that the transaction ended, it was rolled back; if the index has all messages, that is.
    """
    index = store.index
    if ending not in (Ending.ENDED, Ending.OVER) or index is None:
        return ending
    try:
        topic, _ = target_of(half)
    except FormatError:
        return ending
    key = unique_key_of(half)
    begin_ms, end_ms = half.store_timestamp - TIME_SLACK_MS, store.log.store_timestamp + TIME_SLACK_MS
    answer = index.query(topic, key.decode("utf-8", "replace"), SAME_KEY_MAX, begin_ms, end_ms)
    for offset in answer.offsets:
        if _is_final_of(half, topic, key, store.read(offset)):
            return Ending.COMMITTED
    complete = store.dispatcher.index_missing_from is None and len(answer.offsets) < SAME_KEY_MAX
    return Ending.ROLLED_BACK if ending is Ending.ENDED and complete and key else ending


def _is_final_of(half: Record, topic: str, key: bytes, data: memoryview | None) -> bool:
    """Whether a record is what a commit of the half's transaction stored."""
    if data is None:
        return False
    try:
        record = decode_record(data)
    except FormatError:
        return False
    return (
        is_final(record.sys_flag)
        and record.topic == topic
        and unique_key_of(record) == key
        and record.born_timestamp == half.born_timestamp
        and record.offset > half.offset
    )
