"""Which half messages are resolved, as the records of the log say it, in the order of the log. Pure.

The master feeds every record that it appends, a replica every one that it dispatches: halves, final records
of commits, op records. Both then know the same, and a replica that is promoted goes on where the log ends:

1. A commit appends the final record. From then on the transaction is committed: the final record names the
   half by its commit log offset (preparedTransactionOffset).
2. A commit or rollback is named in an op record, which covers all of the same turn of the loop
   (`ops_to_write`). It is for restarts and for Java, which knows no other proof.
3. If the log ends between the two, the next master finds the transaction committed and without an op. It
   writes the op, and no second final record. If the log ends before the final record, the half is open again.

Java writes op records seconds later, and forgets those that it did not write: it then asks the producer once
more, and stores a second final record if that answers with a commit.

A check appends an open half again. Its copies are one transaction: they have one origin and one key. An
answer may name any of them, so a commit that comes late, while a check is under way, is no second one. It
ends the newest copy, too, which Java goes on to check (issue 8158).
Java's copies do not name their origin. They are known by the producer's key and time of sending, as long as
the progress has not passed the half that they were made of: after a failover it is seconds behind.
Java does not see either that ours are one transaction, and a slave of Java's asks for the progress every ten
seconds only. So a check names the copies that it has superseded in op records of their own, which Java takes
for the end of these copies, and which mean nothing here.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from hashlib import sha256
from typing import Final, NamedTuple

from brokerset_formats.records import Record
from brokerset_formats.transactions import check_times_of, origin_of, unique_key_of

KEY_BYTES_MAX: Final = 64
"""Bytes of a producer's key; of a longer one a hash is kept."""

RECENT_MAX: Final = 65_536
"""Ended transactions that are remembered after the progress has passed them, for answers that come twice."""

OPEN_MAX: Final = 300_000
"""Halves that are not resolved, of about 700 bytes each; at this number new ones are to be refused."""

RESOLVED_MAX: Final = 1_000_000
"""Resolved halves behind an open one; a pass lets the progress get past them. About 300 bytes each, if each
has an op record of its own, and 100 in larger turns."""


class Ending(Enum):
    """What became of a transaction."""

    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    ENDED = "ended"
    """An op record says so, and nothing whether by a commit or a rollback."""
    GIVEN_UP = "given up"
    """After too many checks, or because its record is unusable."""
    OVER = "over"
    """The progress has passed all of its copies, so it has ended or was given up."""


class State(Enum):
    """What a pass of checks finds at a queue offset."""

    OPEN = "open"
    RESOLVED = "resolved"
    """Ended, whether its op record is in the log yet or not: `advance` sees to that."""
    SUPERSEDED = "superseded"
    """A newer copy stands for it."""
    UNKNOWN = "unknown"
    """No half is known there."""


PlainEnd = tuple[int, int, bool]
"""Commit log offset and queue offset of a half, and whether its transaction is committed."""


class TransactionKey(NamedTuple):
    """What all copies of a half have in common."""

    origin: int
    """Queue offset of the first copy."""
    unique_key: bytes
    """UNIQ_KEY: a number that a client wrote into a property is no origin of somebody else's half."""


def key_of(half: Record) -> TransactionKey:
    """The transaction of a record of the half topic."""
    return TransactionKey(origin_of(half), _kept(unique_key_of(half)))


def _kept(unique_key: bytes) -> bytes:
    """A key as it is kept: clients may make one of 32 KB."""
    return unique_key if len(unique_key) <= KEY_BYTES_MAX else sha256(unique_key).digest()


@dataclass(slots=True)
class _Transaction:
    sent: tuple[bytes, int]
    """UNIQ_KEY and bornTimestamp, which all copies keep."""
    keys: list[TransactionKey]
    """More than one where Java made copies."""
    copies: dict[int, int] = field(default_factory=dict)
    """Queue offset -> commit log offset of those at or above the progress, oldest first."""
    ending: Ending | None = None
    in_log: bool = False
    """A record of the log says how it ended, so that every replica knows it."""


class Resolved:
    """What the log says of the halves at or above the progress.

    After a restart or a truncation it is made from the store: all halves from `half_progress` on, then all
    op records from `op_progress` on, then all final records from `finals_scan_start` on; then `loaded`. A
    replica goes on by feeding what it dispatches, a master what it appends, before it does anything else.
    Records that are fed twice change nothing.
    """

    __slots__ = (
        "_at",
        "_by_offset",
        "_done",
        "_half_end",
        "_loading",
        "_op_end",
        "_ops",
        "_recent",
        "_sent",
        "_transactions",
        "_without_op",
        "half_progress",
    )

    def __init__(self, half_progress: int = 0, op_progress: int = 0) -> None:
        """The progress of CID_RMQ_SYS_TRANS on both topics, which has to lie inside of their queues.

        Halves below it are never checked, so one beyond the end (its file outlived the log) would lose the
        next ones: take the end of the queue then.
        """
        self.half_progress = half_progress
        """Queue offset in the half topic below which nothing is open."""
        self._half_end = half_progress
        self._op_end = op_progress
        self._loading = True
        self._transactions: dict[TransactionKey, _Transaction] = {}
        self._at: dict[int, _Transaction] = {}
        self._sent: dict[tuple[bytes, int], _Transaction] = {}
        self._by_offset: dict[int, int] = {}
        self._done: set[int] = set()
        self._ops: deque[tuple[int, int]] = deque()
        self._without_op: dict[int, None] = {}
        self._recent: OrderedDict[TransactionKey, Ending] = OrderedDict()

    # -- records of the log -------------------------------------------------------------------------------

    def half_stored(self, half: Record) -> None:
        """A record of the half topic; a copy of an ended transaction has ended with it."""
        queue_offset = half.queue_offset
        self._half_end = max(self._half_end, queue_offset + 1)
        if queue_offset < self.half_progress or queue_offset in self._at or queue_offset in self._done:
            return
        transaction = self._found_for(half)
        if transaction is None:
            key = key_of(half)
            transaction = self._begun(key, (key.unique_key, half.born_timestamp))
        elif transaction.ending is Ending.GIVEN_UP:
            transaction.ending, transaction.in_log = None, False  # resumed by an administrator
        transaction.copies[queue_offset] = half.offset
        self._at[queue_offset] = transaction
        self._by_offset[half.offset] = queue_offset
        if transaction.ending is not None:
            self._without_op[queue_offset] = None

    def settled_stored(self, queue_offset: int) -> None:
        """`half_stored` of a half that an op record names, without reading it, while the store is read.

        Not for a half that is a copy, or of which one was made: other copies are the same transaction.
        """
        self._half_end = max(self._half_end, queue_offset + 1)
        if queue_offset >= self.half_progress:
            self._done.add(queue_offset)

    def half_begun(self, queue_offset: int, offset: int, unique_key: bytes, born_timestamp: int) -> None:
        """`half_stored` of a half that a producer has just sent: so it is no copy of another one."""
        self._half_end = queue_offset + 1
        unique_key = _kept(unique_key)
        transaction = self._begun(TransactionKey(queue_offset, unique_key), (unique_key, born_timestamp))
        transaction.copies[queue_offset] = offset
        self._at[queue_offset] = transaction
        self._by_offset[offset] = queue_offset

    def _begun(self, key: TransactionKey, sent: tuple[bytes, int]) -> _Transaction:
        transaction = self._transactions[key] = self._sent[sent] = _Transaction(sent, [key])
        ending = self._recent.pop(key, None)
        if ending is not None and ending is not Ending.GIVEN_UP:
            transaction.ending, transaction.in_log = ending, True
        return transaction

    def _found_for(self, half: Record) -> _Transaction | None:
        """The transaction that a new half is a copy of, which Java's copies do not say."""
        key = key_of(half)
        transaction = self._transactions.get(key)
        if transaction is None and key.origin == half.queue_offset and check_times_of(half):
            transaction = self._sent.get((key.unique_key, half.born_timestamp))
            if transaction is not None:
                transaction.keys.append(key)
                self._transactions[key] = transaction
        return transaction

    def final_stored(self, prepared_transaction_offset: int, unique_key: bytes | None = None) -> None:
        """The final record of a commit; one whose half lies below the progress is old, and says nothing.

        `unique_key`, of the record: clients may set the bits of a commit, too, and what a consumer sends back
        keeps them; such a record names offset 0.
        """
        queue_offset = self._by_offset.get(prepared_transaction_offset)
        if queue_offset is None:
            return
        transaction = self._at[queue_offset]
        if unique_key is not None and _kept(unique_key) != transaction.sent[0]:
            return
        if transaction.ending is None:
            self._without_op.update(dict.fromkeys(transaction.copies))
        transaction.ending, transaction.in_log = Ending.COMMITTED, True

    def op_stored(self, op_queue_offset: int, halves: Iterable[int], *, superseded: bool = False) -> None:
        """An op record and what it names (nothing, if it is unreadable or has another tag).

        `superseded`: the halves have newer copies, which is known from these; it is only for Java.

        Halves that are not stored yet cannot be meant; Java would wait for them, and never get on.
        """
        if op_queue_offset < self._op_end:
            return
        self._op_end = op_queue_offset + 1
        named = [queue_offset for queue_offset in halves if queue_offset < self._half_end]
        self._ops.append((op_queue_offset, max(named, default=-1)))
        if superseded:
            return
        for queue_offset in named:
            self._named(queue_offset)
        for queue_offset in named:
            self._without_op.pop(queue_offset, None)
        for queue_offset in named:
            transaction = self._at.get(queue_offset)
            if transaction is not None and not self._without_op.keys() & transaction.copies.keys():
                self._settle(transaction)

    def _named(self, queue_offset: int) -> None:
        transaction = self._at.get(queue_offset)
        if transaction is None:
            return
        if transaction.ending is None:
            # In the log a final record comes before the op that covers it.
            transaction.ending = Ending.ENDED if self._loading else Ending.ROLLED_BACK
            self._without_op.update(dict.fromkeys(transaction.copies))
        transaction.in_log = True

    def _settle(self, transaction: _Transaction) -> None:
        """All is in the log: only that the halves are resolved needs to be known, and the end for a while."""
        for queue_offset, offset in transaction.copies.items():
            del self._at[queue_offset], self._by_offset[offset]
            self._done.add(queue_offset)
        self._forget(transaction)

    def finals_scan_start(self) -> int | None:
        """With all halves and ops fed: commit log offset from which final records are to be fed; None: none.

        A final record without an op belongs to a half that seems open, and comes after it in the log. The
        scan is as long as the oldest open half is old: a pass of checks leaves none behind for long.
        """
        return min(
            (offset for offset, number in self._by_offset.items() if self._at[number].ending is None),
            default=None,
        )

    def loaded(self) -> None:
        """All of the log was fed; from now on records come in its order."""
        self._loading = False

    # -- decisions of a master ----------------------------------------------------------------------------

    def rolled_back(self, half: Record) -> None:
        """A rollback was decided: the next op record says so. Only for a transaction that has not ended."""
        transaction = self._transactions[key_of(half)]
        assert transaction.ending is None, "only an open transaction can be rolled back"
        transaction.ending = Ending.ROLLED_BACK
        self._without_op.update(dict.fromkeys(transaction.copies))

    def plainly_open(self, ends: Sequence[PlainEnd]) -> int:
        """How many of these ends, from the first one on, are of transactions that are open until then, and
        have one copy, the named one."""
        seen: set[int] = set()
        for count, (offset, queue_offset, _) in enumerate(ends):
            transaction = self._at.get(queue_offset)
            if (
                transaction is None
                or transaction.ending is not None
                or len(transaction.copies) != 1
                or transaction.copies.get(queue_offset) != offset
                or queue_offset in seen
            ):
                return count
            seen.add(queue_offset)
        return len(ends)

    def ended(self, ends: Iterable[PlainEnd]) -> None:
        """`final_stored` or `rolled_back` of transactions that were `plainly_open`; the log has their final
        records."""
        without_op = self._without_op
        for _, queue_offset, commits in ends:
            transaction = self._at[queue_offset]
            without_op[queue_offset] = None
            if commits:
                transaction.ending, transaction.in_log = Ending.COMMITTED, True
            else:
                transaction.ending = Ending.ROLLED_BACK

    def given_up(self, queue_offset: int) -> None:
        """The half was put aside for an administrator, or is unusable; nothing is asked about it any more."""
        transaction = self._at.get(queue_offset)
        if transaction is not None and transaction.ending is None:
            transaction.ending, transaction.in_log = Ending.GIVEN_UP, True

    def ops_to_write(self) -> tuple[int, ...]:
        """Queue offsets that the next op records have to name, to be written at the end of each turn.

        Empty but for the ends of the same turn, and for those that an earlier master did not get to write.
        """
        return tuple(self._without_op)

    def advance(self, half_progress: int) -> None:
        """Nothing below is open any more; AssertionError if something is that no newer copy stands for.

        It ends before a half whose op record the store has refused: nobody would write that later, and a
        Java broker that goes on from an older progress would ask about the half again.
        """
        half_progress = min(half_progress, min(self._without_op, default=half_progress))
        for queue_offset in self.tracked_below(half_progress):
            assert self._is_passed(self._at[queue_offset], queue_offset), (
                f"half {queue_offset} is not resolved"
            )
        self.follow(half_progress)

    def follow(self, half_progress: int) -> None:
        """A master has saved this progress: a half below that seems open to a replica was given up."""
        for queue_offset in self.tracked_below(half_progress):
            transaction = self._at.pop(queue_offset)
            del self._by_offset[transaction.copies.pop(queue_offset)]
            self._without_op.pop(queue_offset, None)
            if not transaction.copies:
                self._forget(transaction)
        if self._done:
            self._drop_done(half_progress)
        self.half_progress = max(self.half_progress, half_progress)
        self._half_end = max(self._half_end, half_progress)
        while self._ops and self._ops[0][1] < self.half_progress:
            self._ops.popleft()

    def _drop_done(self, end: int) -> None:
        if end - self.half_progress > len(self._done):
            self._done = {queue_offset for queue_offset in self._done if queue_offset >= end}
        else:
            self._done.difference_update(range(self.half_progress, end))

    @staticmethod
    def _is_passed(transaction: _Transaction, queue_offset: int) -> bool:
        return transaction.in_log or max(transaction.copies) > queue_offset

    def _forget(self, transaction: _Transaction) -> None:
        if self._sent.get(transaction.sent) is transaction:
            del self._sent[transaction.sent]
        for key in transaction.keys:
            del self._transactions[key]
            if len(self._recent) >= RECENT_MAX:
                self._recent.popitem(last=False)  # of a plain dict that takes longer and longer
            self._recent[key] = transaction.ending or Ending.GIVEN_UP

    # -- what is known ------------------------------------------------------------------------------------

    def tracked_below(self, queue_offset: int) -> list[int]:
        """Queue offsets of the halves from the progress up to there that are not resolved for good."""
        if queue_offset - self.half_progress > len(self._at):
            return sorted(known for known in self._at if known < queue_offset)
        return [known for known in range(self.half_progress, queue_offset) if known in self._at]

    def passable_end(self, halves_max: int) -> int:
        """Queue offset up to which nothing has to be checked, at most so many halves from the progress.

        For a progress that keeps up between two passes; `advance` may be given it.
        """
        position = self.half_progress
        end = min(self._half_end, position + halves_max)
        while position < end and self.state_at(position) in (State.RESOLVED, State.SUPERSEDED):
            position += 1
        return position

    def place_of(self, queue_offset: int) -> int | None:
        """Commit log offset of a half that is not settled; None for one that is not known."""
        transaction = self._at.get(queue_offset)
        return None if transaction is None else transaction.copies[queue_offset]

    def open_halves(self) -> Iterator[int]:
        """Queue offset of the newest copy of each transaction that is open."""
        for queue_offset, transaction in self._at.items():
            if transaction.ending is None and max(transaction.copies) == queue_offset:
                yield queue_offset

    @property
    def op_progress(self) -> int:
        """Queue offset of the first op record that names a half at or above the progress, or of the next."""
        return self._ops[0][0] if self._ops else self._op_end

    @property
    def half_end(self) -> int:
        """Queue offset of the next half."""
        return self._half_end

    @property
    def is_full(self) -> bool:
        """Whether new halves are to be refused (code 2), because too many are tracked."""
        return len(self._at) >= OPEN_MAX or len(self._done) >= RESOLVED_MAX

    @property
    def room(self) -> int:
        """How many halves may come before `is_full`."""
        return 0 if self.is_full else OPEN_MAX - len(self._at)

    def facts_of(self, half: Record) -> tuple[Ending | None, int]:
        """`ending_of` a half, and `newest_copy` if it is open (else 0), at once."""
        key = key_of(half)
        transaction = self._transactions.get(key)
        if transaction is None:
            settled = half.queue_offset in self._done
            return self._recent.get(key, Ending.ENDED if settled else Ending.OVER), 0
        if transaction.ending is not None:
            return transaction.ending, 0
        return None, transaction.copies[max(transaction.copies)]

    def ending_of(self, half: Record) -> Ending | None:
        """How the transaction of a half ended; None while it is open."""
        key = key_of(half)
        transaction = self._transactions.get(key)
        return self._recent.get(key, Ending.OVER) if transaction is None else transaction.ending

    def newest_copy(self, half: Record) -> int:
        """Commit log offset of the newest copy of an open half: what its final record shall name.

        Older copies lie perhaps below the progress, where nobody knows them any more.
        """
        transaction = self._transactions[key_of(half)]
        return transaction.copies[max(transaction.copies)]

    def state_at(self, queue_offset: int) -> State:
        """What a pass of checks has to do with the half there."""
        transaction = self._at.get(queue_offset)
        if transaction is None:
            return State.RESOLVED if queue_offset in self._done else State.UNKNOWN
        if transaction.in_log:
            return State.RESOLVED
        if max(transaction.copies) > queue_offset:
            return State.SUPERSEDED
        return State.OPEN if transaction.ending is None else State.RESOLVED
