"""Messages that waited, stored again in the queue that they are for: delayed ones, timers, transactions.

`store_again` is the way of one record, and the reference. `Releases` gives the native core many at once; it
stops before the first that is not plain (`native/DESIGN.md`), which then goes the way of one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, Final, NamedTuple, Protocol

from brokerset_broker.store.consume_queue import ConsumeQueue
from brokerset_broker.store.message_store import MessageStore
from brokerset_broker.store.reading import PlainSource
from brokerset_broker.store.results import Appended
from brokerset_formats.records import Record
from brokerset_formats.timer_files import Buffer
from brokerset_protocol.commands import FRAME_SIZE_MAX, Command, encode

TOPICS_MAX: Final = 256
"""Topics that are known as targets; the table is cleared when it is full."""

ANY_QUEUE: Final = 1 << 31
"""As many queues as ids can name."""

OPAQUE_MARK: Final = b'"opaque":'


class Appends(Protocol):
    """What is needed of a `MessageStore`, or of a model of one."""

    def append(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes,
        *,
        flag: int,
        sys_flag: int,
        born_timestamp: int,
        born_host: bytes,
        reconsume_times: int = 0,
        prepared_transaction_offset: int = 0,
    ) -> Appended:
        """Store one message. Raises `StoreRefused`."""


def store_again(store: Appends, record: Record, topic: str, queue_id: int, properties: bytes) -> Appended:
    """Store what `record` has in another queue, with these properties. Raises `StoreRefused`.

    Host and time of birth stay; the new record has the store's own host, a time of its own, and a CRC of its
    own if it has one.
    """
    return store.append(
        topic,
        queue_id,
        record.body,
        properties,
        flag=record.flag,
        sys_flag=record.sys_flag,
        born_timestamp=record.born_timestamp,
        born_host=record.born_host.encode(),
        reconsume_times=record.reconsume_times,
        prepared_transaction_offset=record.prepared_transaction_offset,
    )


class Targets:
    """Topics that messages have gone to, and may go to still: what the core is allowed by itself."""

    def __init__(self, queues_of: Callable[[str], int | None]) -> None:
        """`queues_of` tells how many queues of a topic messages may go to; None: they need another look."""
        self._queues_of = queues_of
        self._topics: dict[str, None] = {}

    def learn(self, topic: str) -> None:
        """A message for this topic went the way of one."""
        if topic not in self._topics:
            if len(self._topics) >= TOPICS_MAX:
                self._topics.clear()
            self._topics[topic] = None

    def current(self) -> dict[str, int]:
        """Topic -> number of queues, as the tables have it now; good until something else runs."""
        found = {}
        for topic in self._topics:
            queues = self._queues_of(topic)
            if queues is not None:
                found[topic] = queues
        return found


class ReleasedTimers(NamedTuple):
    """What was done with the first units of some."""

    messages: int
    log_end: int
    newest: int
    """The largest of their numbers in the wheel's topic."""
    last_out_ms: int
    """`TIMER_OUT_MS` of the last one."""
    hashes: list[tuple[int, int]]
    """Hash of a topic, as units have it, and how many."""
    topics: list[tuple[str, int]]


class ServedEnds(NamedTuple):
    """What was done with the first ends of a chunk."""

    ends: int
    size: int
    """Bytes of their frames."""
    log_end: int
    halves: list[tuple[str, int]]
    """Topic and time of birth of each."""
    commits: tuple[bytes, int]
    """Answers to commits, and how many; none to one-way requests."""
    rollbacks: tuple[bytes, int]


class Releases:
    """The native way of one store; nothing is known here that the store does not know."""

    def __init__(self, core: ModuleType, store: MessageStore, *, checks_signatures: bool = False) -> None:
        """`core` is the native module. With `checks_signatures` only ends are served that are signed by
        somebody of whom `allow` was called."""
        self._store = store
        store.log.use_calls()
        frame = encode(Command(0, {}).reply())
        before, _, after = frame[8:].partition(OPAQUE_MARK + b"0")
        self._pieces = before + OPAQUE_MARK, after
        self._host = store.store_host
        self._native: Any = core.Releases(store.log, self._config(), checks_signatures)
        self.allow: Callable[..., None] = self._native.allow
        self.forget_signers: Callable[[], None] = self._native.forget_signers

    def _config(self) -> dict[str, object]:
        store = self._store
        return {
            "store_host": store.store_host.encode(),
            "body_size_max": store.body_size_max,
            "properties_size_max": store.properties_size_max,
            "appends_crc": store.appends_crc,
            "frame_size_max": FRAME_SIZE_MAX,
            "reply": self._pieces,
        }

    def _tables(self, targets: dict[str, int]) -> tuple[object, ...] | None:
        """What a call needs of the store; None if it takes nothing, or has to see to its index first."""
        store = self._store
        index, dispatcher = store.index, store.dispatcher
        if store.refusal is not None or not targets:
            return None
        if index is not None and (index.table is None or dispatcher.index_missing_from is not None):
            return None
        if store.store_host is not self._host:  # its port has become known
            self._host = store.store_host
            self._native.configure(self._config())
        return index.table if index is not None else None, targets, store.queues_table.table

    def _stored(self, arrived: Sequence[ConsumeQueue] | None) -> None:
        if arrived is not None:
            self._store.arrivals.add(arrived)
        self._store.turn_soon()

    def _failed(self, error: OSError) -> None:
        """Of blocks that the disk has given: the way of one hears of it, too."""
        self._store.stop(f"the disk does not take the commit log: {error}")

    def _file_of(self, offset: int) -> tuple[Buffer, int, int] | None:
        """The file of the log with an offset: bytes, where they begin, where what is stored ends."""
        log = self._store.log
        file = log.files.find(offset)
        return None if file is None else (file.view, file.start, min(file.end, log.max_offset))

    # -- delay levels -------------------------------------------------------------------------------------

    def delayed(
        self, source: PlainSource, stored_max: int, bytes_max: int, targets: dict[str, int]
    ) -> tuple[int, int] | None:
        """Store the first messages of `source`, a queue of the delay topic, that were stored at `stored_max`
        or before: how many, and the end of the log; None if the first is not plain."""
        tables = self._tables(targets)
        if tables is None:
            return None
        units, begin, count, records, start, end, _, _ = source
        try:
            found = self._native.release_delayed(
                units,
                begin,
                count,
                (records, start, end),
                stored_max,
                self._store.now_ms(),
                bytes_max,
                tables,
            )
        except OSError as error:
            self._failed(error)
            return None
        if found is None:
            return None
        done, log_end, arrived = found
        self._stored(arrived)
        return done, log_end

    # -- timers -------------------------------------------------------------------------------------------

    def timers(
        self,
        positions: Sequence[int],
        first_offset: int,
        timer_file: tuple[Buffer, int],
        *,
        slot_ms: int,
        done_end: int,
        now_ms: int,
        bytes_max: int,
        targets: dict[str, int],
    ) -> ReleasedTimers | None:
        """Deliver the messages of these units of one slot, oldest first, as far as they are plain and not
        below `done_end` in the wheel's topic; None if the first one is not.

        `first_offset`: where the record of the first one is; `timer_file`: bytes of the file that has the
        units, and its position in the timer log.
        """
        tables, file = self._tables(targets), self._file_of(first_offset)
        if tables is None or file is None:
            return None
        try:
            found = self._native.release_timers(
                positions, *timer_file, slot_ms, done_end, now_ms, file, self._store.now_ms(), bytes_max,
                tables,
            )  # fmt: skip
        except OSError as error:
            self._failed(error)
            return None
        if found is None:
            return None
        count, end, arrived, newest, last_out_ms, hashes, topics = found
        self._stored(arrived)
        return ReleasedTimers(count, end, newest, last_out_ms, hashes, topics)

    # -- transactions -------------------------------------------------------------------------------------

    def read_ends(self, data: bytes, count_max: int, source: str) -> list[tuple[int, int, bool]]:
        """The ends of transactions at the beginning of a chunk from the address `source`: offset and number
        of the half that each names, and whether it commits. Empty if the first frame is no such, an unusual
        one, or not one that somebody may send."""
        found: list[tuple[int, int, bool]] = self._native.read_ends(data, count_max, source)
        return found

    def serve_ends(self, count: int, first_offset: int, targets: dict[str, int]) -> ServedEnds | None:
        """Store final records for the first `count` of the ends just read, all of open halves without copies.

        `first_offset`: of the first half. Only those are served whose half has the right ids, and is for a
        topic that who signed may send to; None if the first is not, or is unusual.
        """
        tables, file = self._tables(targets), self._file_of(first_offset)
        if tables is None or file is None:
            return None
        try:
            found = self._native.serve_ends(count, file, self._store.now_ms(), tables)
        except OSError as error:
            self._failed(error)
            return None
        if found is None:
            return None
        served, size, end, arrived, halves, commits, rollbacks = found
        self._stored(arrived)
        return ServedEnds(served, size, end, halves, commits, rollbacks)
