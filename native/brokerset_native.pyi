"""The byte work of a broker, in Rust. `brokerset_formats.native` imports it, nothing else does."""

from collections.abc import Mapping
from mmap import mmap
from typing import Any, Final

INTERFACE: Final[int]
"""Number of the interface between the Python code and this module; both sides must have the same."""

__version__: Final[str]

# The cursors are described where their Python twins are: `brokerset_formats.cursors`.
class LogCursor: ...
class QueueCursor: ...
class IndexCursor: ...

class PullReader:
    """Reads pulls and makes the answers to those that find messages. See `native/DESIGN.md`."""

    def __init__(self, pieces: list[bytes], frame_size_max: int, checks_signatures: bool) -> None:
        """`pieces` are the fixed texts of an answer (`replies.pull_pieces`). With `checks_signatures` it
        reads only what is signed by somebody of whom `allow` was called."""

    def allow(self, name: bytes, password: bytes, group: bytes, topic: bytes, source: bytes) -> None:
        """A user with this password, who is enabled, may read a topic as a group from an address."""

    def forget_signers(self) -> None:
        """Nobody may pull until `allow` is called again."""

    def read(
        self, data: bytes, at: int, source: str
    ) -> tuple[int, int, str, str, int, int, int, int, int, int, int, str | None, int] | None:
        """The pull whose frame begins at `at`: end of the frame, opaque, group, topic, queue id, queue
        offset, most messages, flags, offset to commit, milliseconds to wait, most bytes (0: not said),
        subscription and its version. None if it is declined, or not one that somebody may send from the
        address `source`."""

    def answer(
        self,
        units: memoryview,
        begin: int,
        count: int,
        log: memoryview,
        start: int,
        end: int,
        bytes_max: int,
        numbers: tuple[int, int, int, int, int, int],
    ) -> tuple[bytes, int] | None:
        """The whole frame with the records of `count` units from position `begin` of `units`, and their
        bytes.

        `log`: the file of the log that has the offsets from `start` on, readable up to `end`; `numbers`: what
        stands between the pieces. None if not all records are there, or they have more than `bytes_max`.
        """

class AckReader:
    """Reads acks of POP at the beginning of a chunk. See `native/DESIGN.md`."""

    def __init__(self, pieces: list[bytes], frame_size_max: int, checks_signatures: bool) -> None:
        """`pieces`: what an answer that all is well has before and behind its opaque. With
        `checks_signatures` it reads only what is signed by somebody of whom `allow` was called."""

    def allow(self, name: bytes, password: bytes, group: bytes, topic: bytes, source: bytes) -> None:
        """A user with this password, who is enabled, may ack as a group what is popped from a topic, from an
        address."""

    def forget_signers(self) -> None:
        """Nobody may ack until `allow` is called again."""

    def read(
        self, data: bytes, count_max: int, source: str
    ) -> list[tuple[tuple[str, str, str, str], int, int, int, bytes]]:
        """The acks at the beginning of `data`, at most `count_max`, which came from the address `source`.

        Neighbours of one check point together: topic, group, queue id and handle without its last field;
        bits of the messages from the start of the check point on; bytes up to there, how many, and answers
        that say that all is well.
        """

class FilterProgram:
    """An SQL92 expression that messages are examined by."""

    def __init__(self, code: bytes) -> None:
        """`code` is what `filters.native_programs` has written. Raises `ValueError`."""

def select_units(
    units: memoryview,
    begin: int,
    count: int,
    log: memoryview,
    start: int,
    end: int,
    codes: tuple[int, ...] | None,
    program: FilterProgram | None,
    messages_max: int,
    bytes_max: int,
    properties_max: int,
) -> tuple[int, int, int, bool, list[tuple[int, int]]] | None:
    """Examine `count` units from position `begin` of `units`, by low 32 bits of their codes and by `program`.

    `log`: the file of the log that has the offsets from `start` on, readable up to `end`. Returns how many
    were examined, the messages found and their bytes, whether a limit ended it (else the units did, or one
    that is for Python to examine), and begin and end of each run of adjacent records. None if the units are
    not there.
    """

class SendLane:
    """Serves plain sends to topics and queues that it was told of. See `native/DESIGN.md`."""

    def __init__(self, log: Any, config: Mapping[str, Any], checks_signatures: bool) -> None:
        """`log` is a `LogCursor`; `config` has what records and answers depend on (`send_lane.py`). With
        `checks_signatures` only what is signed by somebody of whom `allow` was called is served."""

    def configure(self, config: Mapping[str, Any]) -> None:
        """Go by other settings."""

    def learn_topic(self, name: str, config: object, facts: object, queue_count: int) -> None:
        """Serve messages for this topic that are put aside, for as long as the table of topics has this
        `config`; for `queue_count` queues."""

    def learn_queue(self, name: str, queue_id: int, cursor: Any, topic_field: bytes, magic: int) -> None:
        """Serve sends to this queue of a topic that was learnt."""

    def learn_aside(
        self, kind: int, name: str, queue_id: int, cursor: Any, topic_field: bytes, magic: int
    ) -> None:
        """Put messages of a kind aside in this queue: 1 for halves, 2 for timers. ValueError for others."""

    def forget(self, name: str) -> None:
        """Serve no sends to a topic until it is learnt again."""

    def forget_all(self) -> None:
        """Serve no sends to any topic until it is learnt again."""

    def allow(self, name: bytes, password: bytes, topic: bytes, source: bytes) -> None:
        """A user with this password, who is enabled, may send to a topic from an address."""

    def forget_signers(self) -> None:
        """Nobody may send until `allow` is called again."""

    def take(self) -> list[tuple[Any, int, int, int, int, list[tuple[int, int]]]]:
        """What was stored since the last call, for each topic and kind: facts, kind (0 for plain ones),
        requests, messages, bytes, and records by class of size."""

    def serve(
        self,
        data: bytes,
        now: int,
        born_host: bytes,
        source: str,
        index: Any,
        topics: Mapping[str, Any],
        queues: Mapping[tuple[str, int], Any],
        waiting_max: int,
        replies_max: int,
        halves_max: int,
        timer_slot_ms: int,
        timer_max_delay_ms: int,
    ) -> (
        tuple[int, int, int, bytes, int, list[Any] | None, list[tuple[int, int, bytes, int, str]] | None]
        | None
    ):
        """Serve the plain sends at the beginning of `data`, which begins with a frame. OSError if the log
        does not take them; then nothing has been done.

        `now`: milliseconds; `born_host`: the client's; `index`: the file that is written, None without an
        index; `topics`, `queues`: the tables by name and by (name, queue id); `waiting_max`: requests that
        may wait for an answer; `replies_max`: bytes of answers at which it stops; `halves_max`: half messages
        that may be stored; `timer_slot_ms`, `timer_max_delay_ms`: how timers wait, 0 if none is taken. None
        if the first frame is not one; else bytes served, messages stored, answers, their frames, the end of
        the log, the queues that have arrivals since (None: no new ones), and the halves (None: there are
        none): number in their queue, offset, client-made id, born time, topic that they are for.
        """

def link_timers(
    units: memoryview,
    begin: int,
    count: int,
    queue_offset: int,
    records: memoryview,
    start: int,
    wheel: memoryview,
    log: mmap,
    log_start: int,
    reserved: int,
    position: int,
    times: tuple[int, int, int, int, int],
) -> tuple[int, int, list[tuple[str, int, int, int]]] | None:
    """Link messages of the wheel's topic: `count` units from position `begin` of `units`, the first of them
    number `queue_offset`, until one is not plain.

    `records`: the file of the commit log that has the offsets from `start` on; `wheel`: all of it; `log`:
    the file of the timer log that has the positions from `log_start` on and its end, `position`, with blocks
    for `reserved` bytes; `times`: width of a slot, wait of what rolls, first slot that may be used, first
    that may not, the wheel's clock. Returns messages taken, the timer log's new end, and of each topic that
    they are for name, hash, messages, store time of the last one. None if nothing was done.
    """

def take_records(
    view: memoryview,
    start: int,
    position: int,
    *,
    stop: int,
    limit: int,
    records_max: int,
    entry_head: int,
    verify_crc: bool,
    units: bool,
    index: bool,
) -> tuple[int, int, list[tuple[bytes, int, int, int, int, bytes, int | None]], bytes] | None:
    """Plain records of the file in `view` whose first byte has the offset `start`, from `position` on.

    They begin before `stop` and end before `limit`. None if the first is not plain, or: position behind the
    last, newest store time, runs (topic, queue id, first queue offset, first offset, end of the last record,
    packed units, their tags code or None for several), packed `index_file.ENTRY` of all keys.
    """

def find_magic(view: bytes | bytearray | memoryview, begin: int, end: int, /) -> int | None:
    """Where the first magic of a record begins, at `begin` or behind it, but before `end`."""

def put_index_entries(
    table: object, memory: mmap | bytearray, slots: int, room: int, entries: bytes, done: int, /
) -> int:
    """See `IndexTable.put_entries`; `table` has the header's fields as attributes, `memory` is the file."""

def index_hash(topic: bytes, key: bytes, /) -> int | None:
    """`hashing.index_hash` of a topic and a key in UTF-8; None for other bytes."""

def java_hash(text: bytes, /) -> int | None:
    """`hashing.java_hash` of UTF-8 bytes; None for other bytes."""

def derived(raw: bytes, /) -> tuple[int, bytes | None, bytes | None] | None:
    """Tags code, client-made id and keys of raw properties; None if the tags are not UTF-8."""

def find_property(raw: bytes, name: bytes, /) -> bytes | None:
    """`properties.find_property`."""

class Releases:
    """Stores messages again that waited; described where it is called, `brokerset_broker.store.releases`."""

    def __init__(self, log: LogCursor, config: Mapping[str, Any], checks_signatures: bool) -> None:
        """With `checks_signatures` only ends are served that are signed by somebody of whom `allow` was
        called."""

    def allow(self, name: bytes, password: bytes, topic: bytes, source: bytes) -> None:
        """A user with this password, who is enabled, may end transactions of a topic from an address."""

    def forget_signers(self) -> None:
        """Nobody may end transactions until `allow` is called again."""

    def configure(self, config: Mapping[str, Any]) -> None:
        """Go by other settings."""

    def release_delayed(
        self,
        units: memoryview,
        begin: int,
        count: int,
        log: tuple[memoryview, int, int],
        stored_max: int,
        now: int,
        bytes_max: int,
        tables: tuple[IndexCursor | None, dict[str, int], Mapping[tuple[str, int], QueueCursor]],
    ) -> tuple[int, int, list[QueueCursor] | None] | None:
        """How many were stored, the end of the log, queues with arrivals; None if the first is declined.

        Raises OSError if the log does not take them; then nothing has been done."""

    def release_timers(
        self,
        positions: list[int],
        units: memoryview,
        units_start: int,
        slot_ms: int,
        done_end: int,
        delivered_ms: int,
        log: tuple[memoryview, int, int],
        now: int,
        bytes_max: int,
        tables: tuple[IndexCursor | None, dict[str, int], Mapping[tuple[str, int], QueueCursor]],
    ) -> (
        tuple[int, int, list[QueueCursor] | None, int, int, list[tuple[int, int]], list[tuple[str, int]]]
        | None
    ):
        """The same, and the largest number in the wheel's topic, `TIMER_OUT_MS` of the last, how many for
        each hash of a topic, and for each topic."""

    def read_ends(self, data: bytes, count_max: int, source: str) -> list[tuple[int, int, bool]]:
        """The ends at the beginning of `data`, which came from the address `source`: offset and number of the
        half, and whether it commits."""

    def serve_ends(
        self,
        count: int,
        log: tuple[memoryview, int, int],
        now: int,
        tables: tuple[IndexCursor | None, dict[str, int], Mapping[tuple[str, int], QueueCursor]],
    ) -> (
        tuple[
            int,
            int,
            int,
            list[QueueCursor] | None,
            list[tuple[str, int]],
            tuple[bytes, int],
            tuple[bytes, int],
        ]
        | None
    ):
        """Ends served, bytes of their frames, the end of the log, queues with arrivals, topic and time of
        birth of each half, answers to commits and to rollbacks."""

def timer_chain(
    file: memoryview, start: int, position: int, stop: int, begin: int, slot_ms: int, count_max: int
) -> tuple[list[int], int, bool]:
    """A part of the chain of a slot: positions, the one before them, and whether one deletes a message."""

def timer_passed(file: memoryview, start: int, position: int, end: int, read_ms: int, count_max: int) -> int:
    """How many units in a row from `position` on are in slots before `read_ms`."""
