"""An audit of order of stores that were made here: correct ones are not accused, and each fault is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from brokerset_formats.order_keys import logical_partition
from brokerset_protocol.bodies.ordered import SubjectState, SubjectStates
from brokerset_protocol.subject_words import OrderStrategy
from brokerset_rig.made_stores import damage
from brokerset_rig.order_audit_stores import (
    SUBJECT,
    Producer,
    Sent,
    changed,
    partition_state,
    sent,
    subject_state,
    write_order_store,
)
from brokerset_spark.jobs.order import OrderOptions, audit_order, folding, parse_states, parts, scan
from brokerset_spark.jobs.report import Finding, JobFailed, NoInput, Report
from brokerset_spark.jobs.running import LocalRunner, Result, Row

RANGE = 65_536


def keys_of(low: int, high: int, count: int) -> list[str]:
    """Keys whose logical partitions lie in `[low, high)`."""
    found = (f"k-{number}" for number in range(100_000))
    return [
        key
        for _, key in zip(
            range(count), (k for k in found if low <= logical_partition(k) < high), strict=False
        )
    ]


def audit(*stores: Path, states: SubjectState | None = None, subjects: tuple[str, ...] = ()) -> Report:
    options = OrderOptions(
        subjects=subjects, states={states.name: states} if states else {}, range_bytes=RANGE
    )
    return audit_order(LocalRunner(), [str(path) for path in stores], options)


def named(report: Report) -> list[tuple[str, str, str, int | None]]:
    return sorted((each.code, str(each.level), each.file, each.offset) for each in report.findings)


def only(report: Report, code: str) -> Finding:
    (found,) = [each for each in report.findings if each.code == code]
    return found


def summary(report: Report) -> dict[str, object]:
    (row,) = report.facts["subjects"]
    return dict(row)


def one_queue(count: int, *, key: str = "order-1") -> list[Sent]:
    return [sent(number, key=key) for number in range(count)]


def test_a_correct_history_is_not_accused(tmp_path: Path) -> None:
    """Two producers, one of which starts again, two partitions, messages without a key, several ranges."""
    first, other, again = Producer("p-1", 1), Producer("p-2", 2), Producer("p-1", 3)
    messages = [
        producer.send(number % 2, key, queue_id=number % 2)
        for number in range(600)
        for producer, key in ((first if number < 300 else again, f"k-{number % 7}"), (other, None))
    ]
    write_order_store(tmp_path / "a", messages)

    report = audit(tmp_path / "a")

    assert report.findings == []
    assert report.exit_code == 0
    assert summary(report) == {
        "subject": SUBJECT, "orderStrategy": "Strict", "messages": 1_200, "keyed": 600, "keys": 7,
        "keysExact": True, "partitions": 2, "producers": 2, "missing": 0, "duplicates": 0, "disorder": 0,
        "fenced": 0, "elsewhere": 0, "behindSeal": 0,
    }  # fmt: skip
    assert report.bytes_read > 2 * RANGE


@pytest.mark.parametrize("entries", [False, True])
def test_a_message_that_is_missing_is_named_with_its_place_and_key(tmp_path: Path, entries: bool) -> None:
    """In a CommitLog and in a DLedger."""
    messages = one_queue(5)
    places = write_order_store(tmp_path / "a", [*messages[:2], *messages[3:]], entries=entries)

    report = audit(tmp_path / "a")

    assert named(report) == [("order-gap", "error", "orders/0", 2)]
    assert only(report, "order-gap").text == (
        "producer p-1, epoch 1: message 2 is missing: queue offset 2 (record at "
        f"{places[2].offset:,} of the log, key 'order-1') has 3 instead; they were lost, or never stored"
    )
    assert summary(report)["missing"] == 1
    assert report.exit_code == 1


def test_faults_are_found_over_the_borders_of_ranges(tmp_path: Path) -> None:
    """A gap, a repeat and a message that came late, each in another range than what it is compared with."""
    messages = one_queue(1_500)
    moved = [*messages[:400], *messages[401:700], messages[10], *messages[700:1_100], messages[400]]
    write_order_store(tmp_path / "a", [*moved, *messages[1_103:]])

    report = audit(tmp_path / "a")

    assert [each[0] for each in named(report)] == ["order-disorder", "order-gap", "order-repeat"]
    row = summary(report)
    assert (row["missing"], row["duplicates"], row["disorder"]) == (3, 1, 1)


def test_what_expired_is_not_missing(tmp_path: Path) -> None:
    """Of a queue whose first messages are gone the sequences begin anywhere."""
    write_order_store(tmp_path / "a", one_queue(50), expired=20)

    assert audit(tmp_path / "a").findings == []


def test_records_without_a_readable_stamp_of_their_partition_are_counted_and_the_first_named(
    tmp_path: Path,
) -> None:
    """None, one that is no stamp, and one of another partition in the same queue."""
    messages = one_queue(40)
    for number in (3, 4, 9):
        messages = changed(messages, number, stamp=None)
    messages = changed(messages, 5, stamp="0:1:p-1:x:5")
    messages = changed(messages, 39, stamp=sent(0, partition=8).stamp)
    write_order_store(tmp_path / "a", messages)

    report = audit(tmp_path / "a")

    stamps = [each for each in report.findings if each.code == "order-stamp"]
    assert [(each.offset, each.text.split(":")[0]) for each in stamps] == [
        (3, "3 of 40 messages have no order stamp"),
        (5, "1 of 40 messages have an order stamp that cannot be read"),
    ]
    assert "'0:1:p-1:x:5'" in stamps[1].text
    assert "have stamps of partition 8, and the queue is partition 0" in only(report, "order-partition").text
    assert summary(report)["missing"] == 4


@pytest.mark.parametrize("key", ["order-1", "订单1001", "\N{GRINNING FACE}", "polygenelubricants"])
def test_a_logical_partition_that_is_not_that_of_the_key_is_named(tmp_path: Path, key: str) -> None:
    """By the hash over UTF-16 units; right ones of the same keys are not accused."""
    messages = one_queue(4, key=key)
    messages = changed(messages, 2, stamp=sent(2, logical=77).stamp)
    write_order_store(tmp_path / "a", messages)

    found = only(audit(tmp_path / "a"), "order-key")

    assert found.offset == 2
    assert f"key {key!r} belongs to {logical_partition(key)}, and the stamp says 77" in found.text


def test_a_fenced_producer_that_wrote_is_named(tmp_path: Path) -> None:
    """Its messages stand behind those of its newer epoch; other producers' epochs do not matter."""
    old, new, other = Producer("p-1", 4), Producer("p-1", 9), Producer("p-2", 2)
    senders = [old, old, new, other, old, new]
    write_order_store(tmp_path / "a", [each.send(0, "order-1", queue_id=0) for each in senders])

    report = audit(tmp_path / "a")

    assert named(report) == [("order-fenced", "error", "orders/0", 4)]
    assert "epoch 4: message 2 stands behind epoch 9" in report.findings[0].text


def test_findings_of_one_queue_are_named_up_to_a_limit_and_all_counted(tmp_path: Path) -> None:
    """Every second message is missing; ten are named, and other queues have room of their own."""
    gaps = [sent(2 * number) for number in range(60)]
    write_order_store(tmp_path / "a", [*gaps, sent(1, partition=1, queue_id=1)])

    report = audit(tmp_path / "a")

    assert len(report.findings) == 11
    assert report.findings_total == report.counters["finding.order-gap"] == 60
    assert summary(report)["missing"] == 60
    assert {each.file for each in report.findings} == {"orders/0", "orders/1"}


def test_only_topics_with_stamps_are_subjects(tmp_path: Path) -> None:
    """Other topics, retries and dead letters are none, unless they are asked for by name."""
    plain = Sent(None, topic="plain")
    retry = Sent(sent(7).stamp, "order-1", topic="%RETRY%group%orders")
    write_order_store(tmp_path / "a", [plain, retry, *one_queue(3)])

    assert audit(tmp_path / "a").findings == []
    asked = audit(tmp_path / "a", subjects=("plain", "orders", "empty"))
    assert named(asked) == [("order-nothing", "info", "empty", None), ("order-stamp", "error", "plain/0", 0)]
    assert [row["subject"] for row in asked.facts["subjects"]] == ["plain", "orders", "empty"]


def test_damage_is_reported_next_to_what_it_took(tmp_path: Path) -> None:
    """A record that cannot be read is damage, and its message is missing."""
    places = write_order_store(tmp_path / "a", one_queue(40))
    damage(places[11])

    assert {each[0] for each in named(audit(tmp_path / "a"))} == {"damage", "order-gap"}


def test_messages_that_were_moved_are_an_error_under_strict_and_counted_under_best_tried(
    tmp_path: Path,
) -> None:
    """A message outside the range of its partition, and one that came late (statement 81)."""
    low, high = keys_of(0, 512, 6), keys_of(512, 1024, 1)
    messages = [sent(number, key=key) for number, key in enumerate([*low[:3], *high, *low[3:]])]
    write_order_store(tmp_path / "a", [*messages[:4], messages[5], messages[4], messages[6]])
    parts = partition_state(0, (0, 512)), partition_state(1, (512, 1024))

    strict = audit(tmp_path / "a", states=subject_state(*parts))
    tried = audit(tmp_path / "a", states=subject_state(*parts, order=OrderStrategy.BEST_TRIED))

    assert [each[:2] for each in named(strict)] == [("order-disorder", "error"), ("order-range", "error")]
    assert [each[:2] for each in named(tried)] == [("order-disorder", "info"), ("order-range", "info")]
    assert tried.exit_code == 0
    assert (summary(tried)["disorder"], summary(tried)["elsewhere"]) == (1, 1)
    assert summary(tried)["orderStrategy"] == "BestTried"


def scaled(tmp_path: Path, sealed_end: int, *, early: bool = False, clock: int = 0) -> Report:
    """Partition 0 of 8 messages, then 1 and 2 inherit from it: 1 in the same store, 2 in another."""
    producer = Producer()
    low, high = keys_of(0, 512, 2), keys_of(512, 1024, 2)
    older = [producer.send(0, key, queue_id=0, time=1_000) for key in (*low, *high) * 2]
    newer = [producer.send(1, key, queue_id=1, time=2_000) for key in low]
    last = older.pop() if early else None
    logged = [*older, *newer, *([last] if last else [])]
    if early:
        logged = [*older[:3], newer[0], *older[3:], newer[1], *([last] if last else [])]
    write_order_store(tmp_path / "a", logged)
    other = [producer.send(2, key, queue_id=0, time=2_000 - clock) for key in high]
    write_order_store(tmp_path / "b", other, broker="broker-b")
    state = subject_state(
        partition_state(0, (0, 1024), sealed_end=sealed_end),
        partition_state(1, (0, 512), generation=1, inherits=(0,)),
        partition_state(2, (512, 1024), generation=1, inherits=(0,), queue_id=0, broker="broker-b"),
    )
    return audit(tmp_path / "a", tmp_path / "b", states=state)


def test_a_subject_that_was_scaled_in_order_is_not_accused(tmp_path: Path) -> None:
    """The older partition ends at its sealed end, and those that inherit from it begin behind it."""
    report = scaled(tmp_path, 8)

    assert report.findings == []
    rows = report.facts["partitions"]
    assert [(row["partition"], row["generation"], row["sealedEnd"]) for row in rows] == [
        (0, 0, 8), (1, 1, None), (2, 1, None),
    ]  # fmt: skip


def test_messages_behind_a_sealed_end_are_named(tmp_path: Path) -> None:
    """And those that should be before it, and are not there."""
    assert named(scaled(tmp_path / "1", 6)) == [("order-seal", "error", "orders/0", 6)]
    assert named(scaled(tmp_path / "2", 9)) == [("order-seal-short", "error", "orders/0", 8)]


def test_a_newer_partition_that_took_messages_too_early_is_named(tmp_path: Path) -> None:
    """In one log by the order of its records."""
    report = scaled(tmp_path, 8, early=True)

    assert named(report) == [("order-generation", "error", "orders/1", 0)]
    assert "keys were in two partitions at once" in report.findings[0].text


def test_clocks_of_two_brokers_prove_nothing(tmp_path: Path) -> None:
    """A newer partition on another broker whose messages are older by the clock: said, and no error."""
    report = scaled(tmp_path, 8, clock=5_000)

    assert named(report) == [("order-time", "info", "orders/0", 0)]
    assert "up to 4000 ms before" in report.findings[0].text
    assert report.exit_code == 0


def test_partitions_are_compared_with_the_state(tmp_path: Path) -> None:
    """One in another queue than agreed, one that the state does not know, one whose store was not given."""
    write_order_store(tmp_path / "a", [sent(0, key=None), sent(0, key=None, partition=5, queue_id=3)])
    state = subject_state(
        partition_state(0, (0, 512), queue_id=7), partition_state(1, (512, 1024), broker="broker-b")
    )

    assert named(audit(tmp_path / "a", states=state)) == [
        ("order-not-given", "info", "orders/1", None), ("order-partition", "error", "orders/0", 0),
        ("order-unknown", "warning", "orders/3", 0),
    ]  # fmt: skip


def test_one_partition_in_two_queues_is_named_without_a_state(tmp_path: Path) -> None:
    """As two masters of one partition, or a topic that was made again, would leave it."""
    write_order_store(tmp_path / "a", one_queue(2))
    write_order_store(tmp_path / "b", one_queue(2), broker="broker-b")

    assert named(audit(tmp_path / "a", tmp_path / "b")) == [("order-partition", "error", "orders/0", 0)]


def test_too_many_interruptions_are_counted_and_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was not judged is an error; what stands behind it in a later range is judged again."""
    monkeypatch.setattr(scan, "RUNS_MAX", 4)
    broken = [sent(2 * number) for number in range(300)]
    write_order_store(tmp_path / "a", [*broken, *(sent(600 + number) for number in range(600)), sent(1_400)])

    report = audit(tmp_path / "a")

    found = only(report, "order-unjudged")
    assert "were not judged" in found.text
    assert report.counters["finding.order-gap"] == 4
    assert report.exit_code == 1


def test_more_producers_than_are_followed_end_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With what to do, and not with a report that leaves some of them out."""
    monkeypatch.setattr(folding, "STREAMS_MAX", 3)
    write_order_store(tmp_path / "a", [sent(0, producer=f"p-{number}") for number in range(4)])

    with pytest.raises(JobFailed, match="more than 3 producers") as caught:
        audit(tmp_path / "a")
    assert "--subject" in caught.value.advice


def test_bad_records_that_are_named_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All are counted; where there is no room for an example, the text says so."""
    monkeypatch.setattr(scan, "EXAMPLES_MAX", 2)
    messages = [Sent(None, queue_id=number % 4) for number in range(40)]
    write_order_store(tmp_path / "a", [*messages, sent(0, queue_id=9)])

    report = audit(tmp_path / "a")

    assert report.counters["finding.order-stamp"] == 4
    texts = [each.text for each in report.findings]
    assert sum("too many to name one" in text for text in texts) == 2
    assert parts.EXAMPLES_MAX > 2


def test_replicas_of_one_group_are_read_once(tmp_path: Path) -> None:
    """Else each of their messages would be there twice."""
    for name in ("a", "b"):
        write_order_store(tmp_path / name, one_queue(9))

    assert summary(audit(tmp_path / "a", tmp_path / "b"))["messages"] == 9


def test_what_is_no_store_is_no_input(tmp_path: Path) -> None:
    """No store, one that is named twice, one that is not there."""
    write_order_store(tmp_path / "a", one_queue(1))

    for stores in ((), (tmp_path / "a", tmp_path / "a"), (tmp_path,)):
        with pytest.raises(NoInput):
            audit(*stores)


def test_states_are_read_from_the_answer_to_describe_subjects() -> None:
    """Whole, as a list, or one subject; and nothing else."""
    state = subject_state(partition_state(0, (0, 1024), sealed_end=7))
    whole = SubjectStates((state,)).to_json()
    inner = whole[whole.index(b"[") : whole.rindex(b"]") + 1]

    for text in (whole, inner, inner[1:-1]):
        assert parse_states(text) == {SUBJECT: state}
    for text in (b"", b"{}", b"7", b'{"subjects":[{"name":"x"}]}'):
        with pytest.raises(ValueError, match="no states of subjects"):
            parse_states(text)


class Watched(LocalRunner):
    """Keeps what the driver gets."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0
        self.got: list[Result] = []

    def run(self, task: str, rows: Sequence[Row], reducer: str = "") -> Iterator[Result]:
        """The same results."""
        self.rows += len(rows)
        for result in super().run(task, rows, reducer):
            self.got.append(result)
            yield result


def disordered(count: int) -> list[Sent]:
    """Every third message is missing or behind later ones."""
    messages = one_queue(count)
    return [*(each for number, each in enumerate(messages) if number % 3), *messages[: count // 2 : 3]]


def test_the_driver_gets_one_fold_of_a_store(tmp_path: Path) -> None:
    """However many ranges and faults there are: it is not larger for eight times as many."""
    sizes = []
    for name, count in (("a", 3_000), ("b", 24_000)):
        write_order_store(tmp_path / name, disordered(count))
        runner = Watched()

        report = audit_order(runner, [str(tmp_path / name)], OrderOptions(range_bytes=RANGE))

        folds = [each for each in runner.got if each.data]
        assert len(folds) == 1
        assert len(runner.got) == runner.rows + 1
        assert {*(name for each in runner.got if not each.data for name in each.row)} == {"number", "read"}
        assert report.counters["finding.order-gap"] > count // 8
        sizes.append(len(folds[0].data))
    assert sizes[1] < sizes[0] * 1.1


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Faults of all kinds, and more of one than are named."""
    root = tmp_path_factory.mktemp("faulty") / "a"
    other = Producer("p-2", 2)
    write_order_store(
        root,
        [*disordered(900), *(other.send(number % 2, f"k-{number}", queue_id=1) for number in range(200))],
    )
    return root


@settings(deadline=None, max_examples=20)
@given(some.integers(3_000, 400_000))
def test_folds_of_any_ranges_say_what_one_range_says(faulty: Path, size: int) -> None:
    """The same findings in the same order, counters and facts."""

    def said(range_bytes: int) -> tuple[object, ...]:
        report = audit_order(LocalRunner(), [str(faulty)], OrderOptions(range_bytes=range_bytes))
        return report.findings, report.counters, report.facts

    assert said(size) == said(1 << 30)
