"""Where two logs part, compared with the logs themselves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brokerset_formats.epochs import EpochHistory, decode_epoch_file, encode_epoch_file, truncation_point

Chapter = tuple[int, int]
"""A master's epoch, and how many bytes it wrote (at least one)."""


@st.composite
def replicas(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """Two logs as lists of epochs, one for each byte: a common beginning, then masters of their own.

    An epoch belongs to one master, so what both wrote in one epoch is the same: one is the other's beginning
    there.
    """
    epoch = 0
    common: list[int] = []
    for _ in range(draw(st.integers(0, 4))):
        epoch += draw(st.integers(1, 3))
        common += [epoch] * draw(st.integers(1, 5))
    first, second = list(common), list(common[: draw(st.integers(0, len(common)))])
    for log in draw(st.lists(st.sampled_from([0, 1]), max_size=5)):
        epoch += draw(st.integers(1, 3))
        (first, second)[log].extend([epoch] * draw(st.integers(1, 5)))
    return (first, second) if draw(st.booleans()) else (second, first)


def history_of_log(log: list[int]) -> EpochHistory:
    history = EpochHistory()
    for offset, epoch in enumerate(log):
        if epoch != history.last_epoch:
            longer = history.append(epoch, offset)
            assert longer is not None, "epochs grow along a log"
            history = longer
    return history


def common_prefix(one: list[int], other: list[int]) -> int:
    return next(
        (n for n, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )


@given(replicas())
def test_the_point_is_the_end_of_the_common_beginning(logs: tuple[list[int], list[int]]) -> None:
    """Cutting at the point leaves exactly what both logs have in common, whoever asks."""
    own, other = logs

    point = truncation_point(history_of_log(own), len(own), history_of_log(other), len(other))

    assert (point or 0) == common_prefix(own, other)
    assert point == truncation_point(history_of_log(other), len(other), history_of_log(own), len(own))


@given(replicas())
def test_a_history_describes_its_log(logs: tuple[list[int], list[int]]) -> None:
    """Each byte is found in its epoch, cuts agree with cuts of the log, and files keep all."""
    log, _ = logs
    history = history_of_log(log)

    for offset, epoch in enumerate(log):
        entry = history.find(offset)
        assert entry is not None
        assert entry.epoch == epoch
        assert history.truncate_from_offset(offset) == history_of_log(log[:offset])
        kept = history.truncate_before(offset)
        assert {entry.epoch for entry in kept.entries} == set(log[offset:]) | {log[-1]}
    assert decode_epoch_file(encode_epoch_file(history)) == history
