"""What the sequences of one producer in one queue show."""

from __future__ import annotations

from brokerset_spark.jobs.order.streams import EPOCHS_KEPT, MISSING_KEPT, Anomaly, Kind, Run, Stream


def run(first: int, last: int | None = None, *, epoch: int = 1, place: int = 0) -> Run:
    end = first if last is None else last
    return Run(0, epoch, first, end, place, place + end - first, 1_000 + place, 0, None)


def judge(
    *parts: tuple[int, int] | tuple[int, int, int], complete: bool = True
) -> list[tuple[Kind, int, int]]:
    """Feed (first, last) or (first, last, epoch), one behind the other; kind, first sequence and count."""
    stream, place = Stream(complete), 0
    found: list[Anomaly] = []
    for first, last, *rest in parts:
        found += stream.take(run(first, last, epoch=rest[0] if rest else 1, place=place))
        place += last - first + 1
    return [(each.kind, each.first, each.count) for each in (*found, *stream.finish())]


def test_sequences_without_a_hole_show_nothing() -> None:
    """From 0, over ranges, and again from 0 with a newer epoch."""
    assert judge((0, 4), (5, 5), (6, 9), (0, 3, 2), (4, 4, 2)) == []


def test_messages_that_are_missing_are_a_gap() -> None:
    """Between others, before the first of an epoch, and in each epoch for itself."""
    assert judge((0, 4), (7, 9)) == [(Kind.GAP, 5, 2)]
    assert judge((3, 4)) == [(Kind.GAP, 0, 3)]
    assert judge((0, 4), (1, 2, 2), (4, 4, 2)) == [(Kind.GAP, 0, 1), (Kind.GAP, 3, 1)]


def test_what_expired_is_not_missing() -> None:
    """In a queue whose beginning is gone a producer may begin anywhere, but its next epoch begins at 0."""
    assert judge((7, 9), (10, 10), complete=False) == []
    assert judge((7, 9), (1, 3, 2), complete=False) == [(Kind.GAP, 0, 1)]


def test_messages_that_are_stored_twice_are_repeats() -> None:
    """A whole batch, a part of one, and one that goes on behind what is there."""
    assert judge((0, 4), (0, 4)) == [(Kind.REPEAT, 0, 5)]
    assert judge((0, 4), (4, 4), (5, 5)) == [(Kind.REPEAT, 4, 1)]
    assert judge((0, 4), (3, 8), (9, 9)) == [(Kind.REPEAT, 3, 2)]


def test_messages_that_come_late_are_disorder_and_no_gap() -> None:
    """What fills a gap stands behind later messages: 1, 3, 2 is not 1, 3 with 2 missing."""
    assert judge((0, 1), (3, 3), (2, 2), (4, 9)) == [(Kind.DISORDER, 2, 1)]
    assert judge((0, 1), (6, 6), (3, 4)) == [(Kind.DISORDER, 3, 2), (Kind.GAP, 2, 1), (Kind.GAP, 5, 1)]


def test_a_late_batch_is_taken_apart() -> None:
    """Messages of it that were missing came late, those that were there are stored twice."""
    assert judge((0, 2), (5, 6), (2, 5)) == [(Kind.DISORDER, 3, 2), (Kind.REPEAT, 2, 2)]


def test_before_the_first_retained_message_late_and_repeated_messages_are_not_distinguished() -> None:
    """Both stand behind later ones, and are reported as that."""
    assert judge((7, 9), (5, 7), complete=False) == [(Kind.DISORDER, 5, 2), (Kind.REPEAT, 5, 1)]


def test_an_older_epoch_behind_a_newer_one_was_fenced() -> None:
    """Its messages are named, and also judged by their own sequences."""
    assert judge((0, 4), (0, 1, 2), (5, 6, 1), (2, 3, 2)) == [(Kind.FENCED, 5, 2)]
    assert judge((0, 4), (0, 1, 2), (6, 6, 1)) == [(Kind.FENCED, 6, 1), (Kind.GAP, 5, 1)]


def test_a_queue_that_begins_again_is_judged_from_the_beginning() -> None:
    """Queue offsets fall when a topic was deleted and made again; what was missing before is reported."""
    stream = Stream(True)
    found = [*stream.take(run(0, 3)), *stream.take(run(5, 5, place=4)), *stream.take(run(0, 1, epoch=7))]

    assert [(each.kind, each.first, each.count) for each in found] == [
        (Kind.GAP, 4, 1), (Kind.RESTART, 0, 1),
    ]  # fmt: skip
    assert stream.take(run(2, 4, epoch=7, place=2)) == []


def test_what_is_remembered_has_a_bound() -> None:
    """Of too many gaps the oldest is reported at once, and a message in it counts as late when it comes."""
    holes = [(2 * number + 1, 2 * number + 1) for number in range(MISSING_KEPT + 3)]
    stream, place = Stream(True), 0
    found: list[Anomaly] = []
    for first, last in holes:
        found += stream.take(run(first, last, place=place))
        place += 1

    assert [(each.kind, each.first) for each in found] == [(Kind.GAP, 0), (Kind.GAP, 2), (Kind.GAP, 4)]
    assert len(stream.finish()) == MISSING_KEPT
    assert [each.kind for each in stream.take(run(0, place=place))] == [Kind.DISORDER]


def test_epochs_that_are_followed_have_a_bound() -> None:
    """Of a much older epoch only that it was fenced is known; gaps of one that is let go are reported."""
    stream, place, found = Stream(True), 0, []
    for epoch in range(1, EPOCHS_KEPT + 2):
        found += stream.take(run(0 if epoch > 1 else 1, epoch=epoch, place=place))
        place += 1

    assert [(each.kind, each.run.epoch) for each in found] == [(Kind.GAP, 1)]
    assert [each.kind for each in stream.take(run(9, epoch=1, place=place))] == [Kind.FENCED]
    assert len(stream.epochs) == EPOCHS_KEPT
