"""Where a slave cuts its log, compared with the logs themselves; and chunks, compared with the history."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.member.ha.following import (
    Follow,
    FullResync,
    OwnLog,
    Refuse,
    Truncate,
    decide_following,
)
from brokerset_broker.member.ha.transfer import next_chunk
from brokerset_formats.epochs import EpochHistory, history_of


class Replica:
    """A log as a list of (epoch, number), one for each record, with the epochs as a master writes them."""

    def __init__(self) -> None:
        self.records: list[tuple[int, int]] = []
        self.history = EpochHistory()

    def lead(self, epoch: int) -> None:
        longer = self.history.append(epoch, len(self.records))
        assert longer is not None
        self.history = longer

    def write(self, count: int) -> None:
        for _ in range(count):
            self.records.append((self.history.last_epoch, len(self.records)))

    def follow(self, master: Replica, limit: int) -> bool:
        """Do what `decide_following` says, then receive up to `limit` records; False if it refuses."""
        before = common_prefix(self, master)
        decision = decide_following(
            OwnLog(0, len(self.records), 0, self.history), master.history, len(master.records)
        )
        match decision:
            case Refuse():
                assert before == 0
                return False
            case FullResync():
                assert before == 0
                self.records, self.history = [], EpochHistory()
            case Truncate(offset, history):
                assert offset == before < len(self.records)
                self.records, self.history = self.records[:offset], history
            case Follow(offset, history):
                assert offset == before == len(self.records)
                self.history = history
        for record in master.records[len(self.records) :][:limit]:
            for entry in master.history.entries:
                if self.history.last_epoch < entry.epoch and entry.start_offset <= len(self.records):
                    longer = self.history.append(entry.epoch, entry.start_offset)
                    assert longer is not None
                    self.history = longer
            self.records.append(record)
        return True


def common_prefix(one: Replica, other: Replica) -> int:
    pairs = zip(one.records, other.records, strict=False)
    shorter = min(len(one.records), len(other.records))
    return next((n for n, pair in enumerate(pairs) if pair[0] != pair[1]), shorter)


deeds = st.lists(
    st.one_of(
        st.tuples(st.just("lead"), st.integers(0, 2), st.integers(0, 4)),
        st.tuples(st.just("follow"), st.integers(0, 2), st.integers(0, 9)),
    ),
    max_size=25,
)


@given(deeds)
def test_following_keeps_exactly_what_is_common(history: list[tuple[str, int, int]]) -> None:
    """Whoever was master, elected unclean or not, and wrote alone: a slave cuts where its log leaves the
    master's, not before and not behind; and its epochs are true."""
    replicas = [Replica() for _ in range(3)]
    epoch, master = 0, 0
    for deed, who, count in history:
        if deed == "lead":
            epoch, master = epoch + 1, who
            replicas[who].lead(epoch)
            replicas[who].write(count)
        elif who != master and epoch:
            replicas[who].follow(replicas[master], count)
        for replica in replicas:
            for number, (record_epoch, _) in enumerate(replica.records):
                found = replica.history.find(number)
                assert found is not None
                assert found.epoch == record_epoch


@given(
    st.lists(st.integers(1, 300), min_size=1, max_size=6),
    st.integers(0, 1_000),
    st.integers(1, 400),
    st.integers(1, 400),
    st.data(),
)
def test_chunks_cover_the_log(
    lengths: list[int], first: int, segment: int, batch: int, data: st.DataObject
) -> None:
    """Chunk after chunk gives the whole log, none across a file or an epoch, each with its own epoch."""
    starts = [first + sum(lengths[:n]) for n in range(len(lengths))]
    end = first + sum(lengths)
    history = history_of(enumerate(starts, start=1))
    offset = data.draw(st.integers(first, end))

    while offset < end:
        chunk = next_chunk(history, offset, end, segment, batch)
        assert chunk is not None
        assert chunk.offset == offset
        assert 0 < chunk.size <= batch
        assert chunk.offset // segment == (chunk.end - 1) // segment
        first_byte, last_byte = history.find(chunk.offset), history.find(chunk.end - 1)
        assert first_byte == last_byte
        assert first_byte is not None
        assert (chunk.epoch, chunk.epoch_start) == (first_byte.epoch, first_byte.start_offset)
        offset = chunk.end

    assert offset == end


histories = st.tuples(
    st.integers(0, 200), st.lists(st.tuples(st.integers(1, 3), st.integers(1, 200)), max_size=5)
).map(
    lambda made: history_of(
        (sum(step for step, _ in made[1][: n + 1]), made[0] + sum(size for _, size in made[1][:n]))
        for n in range(len(made[1]))
    )
)


@given(
    histories, histories, st.integers(0, 300), st.integers(0, 600), st.integers(0, 600), st.integers(0, 600)
)
def test_nothing_confirmed_goes_without_proof(
    own: EpochHistory, master: EpochHistory, begin: int, size: int, confirmed: int, master_size: int
) -> None:
    """Whatever both logs say of their epochs: who throws away what was confirmed needs proof."""
    end = max(begin + size, own.last_start)
    log = OwnLog(begin, end, min(end, begin + confirmed), own)

    match decide_following(log, master, max(master.last_start, master_size)):
        case Truncate(offset, _, needs_proof):
            assert needs_proof or offset >= log.confirmed
        case FullResync(needs_proof):
            assert needs_proof or log.confirmed <= log.min_offset or log.empty
        case Follow(offset, _):
            assert offset == log.end
