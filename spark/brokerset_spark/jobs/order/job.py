"""The audit of order: read the stores of a subject's broker groups once, judge their stamps, and report."""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, Final

import numpy as np
import orjson

from brokerset_formats.errors import FormatError
from brokerset_protocol.bodies.ordered import SubjectState, SubjectStates
from brokerset_protocol.errors import Rejected
from brokerset_protocol.subject_words import OrderStrategy
from brokerset_spark.jobs.inspect import time_text
from brokerset_spark.jobs.order.concerns import Code, Concern, Concerns
from brokerset_spark.jobs.order.folding import QueueFold, StoreFold
from brokerset_spark.jobs.order.generations import StoredPartition, check_alone, check_state
from brokerset_spark.jobs.order.reducing import REDUCER
from brokerset_spark.jobs.order.scan import TASK
from brokerset_spark.jobs.order.streams import Kind
from brokerset_spark.jobs.order.tables import count_keys, least_hashes
from brokerset_spark.jobs.passed_over import report_missing, report_unread
from brokerset_spark.jobs.report import JobFailed, NoInput, Report
from brokerset_spark.jobs.running import Progress, Row, Runner, quiet
from brokerset_spark.jobs.verify.options import RANGE_BYTES, VerifyOptions
from brokerset_spark.jobs.verify.plan import find_target
from brokerset_spark.sources.replicas import ReplicasGiven, one_of_each
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.owner import owner_of

JOB: Final = "audit order"

PARTITIONS_SHOWN_MAX: Final = 4_096
"""Partitions that the report lists; all are judged and counted."""

SUBJECTS_MAX: Final = 1_024
"""Subjects of one report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderOptions:
    """What is audited, and how gently."""

    subjects: tuple[str, ...] = ()
    """None for those of `states`; without both, every topic with an order stamp."""

    states: Mapping[str, SubjectState] = field(default_factory=dict)
    """What the controllers agreed on, by subject; without it partitions are not compared with each other."""

    rate: int = 0
    """Bytes per second of one task; 0 for no limit."""

    drop_cache: bool = True
    range_bytes: int = RANGE_BYTES

    @property
    def wanted(self) -> tuple[str, ...]:
        """The subjects that are asked for; none for all."""
        return self.subjects or tuple(self.states)

    def order_of(self, subject: str) -> OrderStrategy:
        """Strict unless the state says otherwise."""
        state = self.states.get(subject)
        return state.order_strategy if state is not None else OrderStrategy.STRICT


def parse_states(data: bytes) -> dict[str, SubjectState]:
    """Read the answer to BROKERSET_DESCRIBE_SUBJECTS, by subject. FormatError if it is none."""
    try:
        value = orjson.loads(data)
        if isinstance(value, list):
            value = {"subjects": value}
        elif isinstance(value, dict) and "subjects" not in value and "partitions" in value:
            value = {"subjects": [value]}
        if not isinstance(value, dict) or "subjects" not in value:
            raise FormatError("it has no `subjects`")
        found = SubjectStates.from_json(orjson.dumps(value))
    except (FormatError, Rejected, ValueError) as error:
        raise FormatError(f"no states of subjects: {error}") from error
    return {each.name: each for each in found.subjects}


def audit_order(
    runner: Runner,
    urls: Sequence[str],
    options: OrderOptions | None = None,
    *,
    progress: Progress = quiet,
    clock: Callable[[], float] = time.monotonic,
) -> Report:
    """Audit stores, one for each broker group of the subjects; of replicas of a group one is read.

    NoInput if there is no store, or one is named twice; JobFailed for stores of one group that differ, and
    for more subjects or producers than are followed. The report's `facts` have `subjects` and `partitions`.
    """
    options = options or OrderOptions()
    begun = clock()
    urls = _distinct(urls)
    report = Report(JOB, inputs={"stores": list(urls), "subjects": list(options.wanted)})
    concerns = Concerns(report)

    def say(concern: Concern) -> None:
        concerns.add(concern, options.order_of(concern.subject))

    stores = [_read_store(runner, url, options, report, say, progress) for url in urls]
    subjects = _subjects(stores, options)
    stored: list[StoredPartition] = []
    for store in stores:
        for concern in store.ended:
            if concern.subject in subjects:
                say(concern)
        stored += store.partitions(subjects.__contains__)
    for concern in check_alone(stored):
        say(concern)
    for subject in subjects:
        state = options.states.get(subject)
        mine = [each for each in stored if each.subject == subject]
        if state is not None:
            for concern in check_state(state, mine, [store.broker for store in stores]):
                say(concern)
        if not any(queue.topic == subject for store in stores for queue in store.queues):
            say(Concern(code=Code.NOTHING, subject=subject, text=f"no store has a message of {subject}"))
    _tell_facts(report, stores, subjects, options, concerns)
    report.seconds = clock() - begun
    return report


def _distinct(urls: Sequence[str]) -> list[str]:
    if not urls:
        raise NoInput("no store to audit", "name one store of each broker group of the subjects")
    if len(set(urls)) < len(urls):
        raise NoInput("a store is named twice", "name one store of each broker group")
    try:
        return one_of_each(urls, "one")
    except ReplicasGiven as error:
        raise JobFailed(str(error), "give one store of each broker group") from error


def _read_store(
    runner: Runner, url: str, options: OrderOptions, report: Report, say: Callable[[Concern], None],
    progress: Progress,
) -> StoreFold:  # fmt: skip
    with closing(open_folder(url)) as folder:
        try:
            target = find_target(
                folder,
                VerifyOptions(
                    rate=options.rate, drop_cache=options.drop_cache, range_bytes=options.range_bytes,
                    queues=False, index=False,
                ),
            )  # fmt: skip
        except FileNotFoundError as error:
            advice = "if the broker runs, the file has expired: start the job again"
            raise JobFailed(f"a file went while the store was read: {error}", advice) from error
        _, broker, _ = owner_of(folder, target.facts)
    fold, unread = StoreFold(url, broker, target.live), list[tuple[int, Row | Concern]]()
    common = {"subjects": list(options.wanted), "broker": broker, "live": target.live}
    rows = [row | common | {"number": at} for at, row in enumerate(target.scan_rows([]))]
    done, total = 0, sum(row["end"] - row["start"] for row in rows)
    progress("order", done, total)
    fold.close()  # it stays empty if there is no range
    for result in runner.run(TASK, rows, REDUCER):
        if result.data:
            fold = pickle.loads(result.data)
            continue
        read = result.row["read"]
        if read["damaged"] or read["gone"]:
            unread.append((result.row["number"], read))
        done += read["bytes"]
        progress("order", done, total)
    report.bytes_read += done
    # In the order of the log; what was not read of a range comes before what its messages show.
    for _, found in sorted([*unread, *fold.said], key=itemgetter(0)):
        if isinstance(found, Concern):
            say(found)
        else:
            report_unread(found, report, target)
    report_missing(target, report)
    return fold


def _subjects(stores: Sequence[StoreFold], options: OrderOptions) -> list[str]:
    """Those that are asked for, else every topic with a stamp. JobFailed for too many."""
    found = list(dict.fromkeys(options.wanted)) or sorted(
        {queue.topic for store in stores for queue in store.queues if queue.stamped}
    )
    if len(found) > SUBJECTS_MAX:
        advice = "name those of interest with --subject"
        raise JobFailed(f"{len(found):,} subjects; one report has up to {SUBJECTS_MAX:,}", advice)
    return found


def _tell_facts(
    report: Report,
    stores: Sequence[StoreFold],
    subjects: Sequence[str],
    options: OrderOptions,
    concerns: Concerns,
) -> None:
    rows: list[dict[str, Any]] = []
    partitions: list[dict[str, Any]] = []
    together = {"partitions": 0, "messages": 0}
    for subject in subjects:
        queues = [(store, queue) for store in stores for queue in store.queues if queue.topic == subject]
        hashes = [store.hashes[subject] for store in stores if subject in store.hashes]
        keys, exact = count_keys(least_hashes(np.empty(0, np.uint64), *hashes))
        said = {code: concerns.messages[subject, code] for code in (*Kind, *Code)}
        rows.append(
            {
                "subject": subject,
                "orderStrategy": options.order_of(subject),
                "messages": sum(queue.records for _, queue in queues),
                "keyed": sum(queue.keyed for _, queue in queues),
                "keys": keys,
                "keysExact": exact,
                "partitions": len({queue.partition for _, queue in queues if queue.partition is not None}),
                "producers": len({name for _, queue in queues for name in queue.producers}),
                "missing": said[Kind.GAP],
                "duplicates": said[Kind.REPEAT],
                "disorder": said[Kind.DISORDER],
                "fenced": said[Kind.FENCED],
                "elsewhere": said[Code.RANGE],
                "behindSeal": said[Code.SEAL],
            }
        )
        partitions += [_partition(store, queue, options.states.get(subject)) for store, queue in queues]
        for name in together:
            together[name] += rows[-1][name]
    report.counters |= {"subjects": len(rows), **together}
    report.facts |= {"subjects": rows, "partitions": partitions[:PARTITIONS_SHOWN_MAX]}


def _partition(store: StoreFold, queue: QueueFold, state: SubjectState | None) -> dict[str, Any]:
    known = state.partitions if state is not None else ()
    agreed = next((each for each in known if each.partition_id == queue.partition), None)
    return {
        "subject": queue.topic,
        "partition": queue.partition,
        "store": store.url,
        "brokerGroup": store.broker,
        "queue": queue.queue_id,
        "generation": None if agreed is None else agreed.generation,
        "status": None if agreed is None else agreed.status,
        "sealedEnd": None if agreed is None else agreed.sealed_end,
        "messages": queue.records,
        "producers": len(queue.producers),
        "firstOffset": queue.first_place,
        "lastOffset": queue.last_place,
        "firstTime": time_text(queue.first_time),
        "lastTime": time_text(queue.last_time),
    }
