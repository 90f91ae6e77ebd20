"""After a clean stop: do the queues end where the log says? What they lack is put again."""

from __future__ import annotations

import structlog

from brokerset_broker.store.commit_log import CommitLog
from brokerset_broker.store.consume_queue import ConsumeQueue
from brokerset_broker.store.consume_queues import ConsumeQueues
from brokerset_broker.store.dispatch import Dispatcher, has_unit
from brokerset_formats.light_queues import QUEUE_ID, dispatched_queues
from brokerset_formats.records import RecordHead

log = structlog.get_logger(__name__)

TAIL_BYTES = 4 * 1024 * 1024
"""So much of the end of the log is compared with the queues; takes up to 0.1 s."""


def put_missing_units(
    log_files: CommitLog, queues: ConsumeQueues, dispatcher: Dispatcher, begin: int
) -> None:
    """Put the units that queues lack of records from `begin` on, and those before them.

    A queue that lost its last pages would otherwise give offsets a second time. Queues that are not there
    stay away: their topic was deleted. So does what lies before the last unit of a queue: the topic was
    deleted, and made again.
    """
    behind = {
        queue
        for head in log_files.records(begin)
        for queue, queue_offset in _queues_of(head, queues)
        if head.offset >= queue.last_end and queue_offset >= queue.next_offset
    }
    if not behind:
        return
    for queue in behind:
        log.error(
            "a queue of a store that was closed in order lacks messages of the log; they are put again",
            topic=queue.topic,
            queue_id=queue.queue_id,
            first=queue.next_offset,
        )
    first = max(min(queue.last_end for queue in behind), log_files.min_offset)
    for head in log_files.records(first):
        if any(queue in behind for queue, _ in _queues_of(head, queues)):
            dispatcher.put(head, only=behind)


def _queues_of(head: RecordHead, queues: ConsumeQueues) -> list[tuple[ConsumeQueue, int]]:
    """Those queues of a record that are there, and its number in each."""
    if not has_unit(head.sys_flag):
        return []
    places = [(head.topic.decode("utf-8", "replace"), head.queue_id, head.queue_offset)]
    places += [(name, QUEUE_ID, number) for name, number in dispatched_queues(head.topic, head.properties)]
    return [
        (queue, number)
        for name, queue_id, number in places
        if (queue := queues.table.get((name, queue_id))) is not None
    ]
