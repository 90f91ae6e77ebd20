"""Properties of the client's pure parts, against naive models."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerset_client.compression import compress, decompress
from brokerset_client.messages import split_records
from brokerset_client.offset_window import OffsetWindow
from brokerset_client.retry import Backoff
from brokerset_formats.hosts import Host
from brokerset_formats.records import Record, encode_record
from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_protocol.queue_allocation import Allocation, allocate, allocate_averagely, allocate_by_circle

STRATEGIES = st.sampled_from([allocate_averagely, allocate_by_circle])
MEMBERS = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=9, unique=True)


def java_averagely(client_id: str, queues: list[int], members: list[str]) -> list[int]:
    """`AllocateMessageQueueAveragely.allocate`, line by line."""
    index = members.index(client_id)
    mod = len(queues) % len(members)
    if len(queues) <= len(members):
        average = 1
    elif mod > 0 and index < mod:
        average = len(queues) // len(members) + 1
    else:
        average = len(queues) // len(members)
    start = index * average if mod > 0 and index < mod else index * average + mod
    result = []
    for i in range(min(average, len(queues) - start)):
        result.append(queues[(start + i) % len(queues)])
    return result


@given(st.integers(0, 40), MEMBERS, STRATEGIES)
def test_members_share_all_queues_and_none_twice(
    count: int, members: list[str], strategy: Allocation
) -> None:
    queues = [MessageQueue("t", f"b{number % 3}", number) for number in range(count)]

    shares = [allocate(member, queues, members, strategy) for member in members]

    assert sorted(queue for share in shares for queue in share) == sorted(queues)
    sizes = [len(share) for share in shares]
    assert max(sizes) - min(sizes) <= 1


@given(st.integers(0, 40), st.integers(1, 12))
def test_sharing_is_javas(count: int, size: int) -> None:
    members = [f"m{number:02d}" for number in range(size)]
    queues = [MessageQueue("t", "b", number) for number in range(count)]

    for member in members:
        mine = [queue.queue_id for queue in allocate(member, queues, members)]
        assert mine == java_averagely(member, list(range(count)), members)


@given(st.data())
def test_the_window_never_passes_an_unfinished_message(data: st.DataObject) -> None:
    """Against a plain set: what may be stored is the lowest unfinished, or the end of what was scanned."""
    start = data.draw(st.integers(0, 1000))
    window = OffsetWindow(start)
    unfinished: set[int] = set()
    top = start
    for _ in range(data.draw(st.integers(0, 30))):
        finishes = data.draw(st.booleans())
        if unfinished and finishes:
            done = data.draw(st.sampled_from(sorted(unfinished)))
            unfinished.discard(done)
            window.finish(done)
        else:
            scanned = data.draw(st.lists(st.booleans(), max_size=8))
            found = [top + index for index, matched in enumerate(scanned) if matched]
            top += len(scanned)
            unfinished.update(found)
            window.add([(queue_offset, 10) for queue_offset in found], top)
        assert window.commit_offset == (min(unfinished) if unfinished else top)
        assert (window.count, window.bytes) == (len(unfinished), 10 * len(unfinished))


@given(st.binary(max_size=20_000))
def test_compression_keeps_bodies(body: bytes) -> None:
    packed, flag = compress(body)

    assert decompress(packed, flag) == body


@given(st.lists(st.binary(max_size=50), max_size=10))
def test_records_of_an_answer_come_apart_as_they_were_put_together(bodies: list[bytes]) -> None:
    host = Host(bytes(4), 1)
    raw = b"".join(
        encode_record(
            Record(
                queue_id=0,
                queue_offset=number,
                offset=number,
                born_timestamp=0,
                born_host=host,
                store_timestamp=0,
                store_host=host,
                body=body,
                topic="t",
            )
        )
        for number, body in enumerate(bodies)
    )

    views = split_records(raw)

    assert [view.body for view in views] == bodies
    assert [view.queue_offset for view in views] == list(range(len(bodies)))


@given(st.integers(1, 1000), st.floats(1.0, 10.0), st.integers(1, 10_000), st.integers(0, 10_000))
def test_waits_grow_up_to_their_bound(first: int, factor: float, top: int, failures: int) -> None:
    backoff = Backoff(first_ms=first, factor=factor, max_ms=top)

    assert 0 <= backoff.delay_ms(failures) <= backoff.delay_ms(failures + 1) <= top
