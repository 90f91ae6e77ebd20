"""What queues and index need of a record's properties, found in two ways."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.store.dispatch import derived, derived_of_batch, index_keys, tags_code_of

PIECES = st.sampled_from(
    [
        b"UNIQ_KEY", b"KEYS", b"TAGS", b"WAIT", b"XKEYS", b"XTAGS", b"\x01", b"\x02", b"a", b"b c",
        b"UNIQ_KEY\x01id\x02", b"KEYS\x01k1 k2\x02", b"TAGS\x01t\x02", b"TAGS\x01\x02",
    ]
)  # fmt: skip


@given(st.lists(PIECES, max_size=9), st.booleans())
def test_both_ways_find_the_same(pieces: list[bytes], begins_with_id: bool) -> None:
    """Also for properties that are damaged, empty or there twice, and whatever was looked at before."""
    properties = (b"UNIQ_KEY\x01" if begins_with_id else b"") + b"".join(pieces)

    for _ in range(2):
        assert derived(properties) == (tags_code_of(properties), *index_keys(properties))


@given(
    st.lists(st.lists(PIECES, max_size=5), min_size=1, max_size=3),
    st.lists(
        st.tuples(
            st.integers(0, 2),
            st.sampled_from([b"", b"UNIQ_KEY\x01", b"UNIQ_KEY\x01id9", b"TAGS\x01T\x02UNIQ_KEY\x01id9"]),
        ),
        max_size=8,
    ),
)
def test_the_messages_of_a_batch_are_found_as_single_ones(
    rests: list[list[bytes]], messages: list[tuple[int, bytes]]
) -> None:
    """Most of a batch end in the same bytes, behind an id or something else."""
    batch = [head + b"".join(rests[number % len(rests)]) for number, head in messages]

    assert derived_of_batch(batch) == [(tags_code_of(each), *index_keys(each)) for each in batch]
