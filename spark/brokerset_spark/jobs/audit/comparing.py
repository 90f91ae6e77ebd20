"""The reduce of an audit: from maps of replicas to a report. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Any, Final

from brokerset_formats.identity import BrokerIdentity
from brokerset_spark.jobs.audit.byte_checks import PairBytes, compare_bytes
from brokerset_spark.jobs.audit.byte_findings import check_bytes, check_own_log
from brokerset_spark.jobs.audit.controller_view import ControllerView
from brokerset_spark.jobs.audit.drilling import DrilledPair
from brokerset_spark.jobs.audit.epoch_checks import check_epochs
from brokerset_spark.jobs.audit.intervals import missing, union
from brokerset_spark.jobs.audit.replica_map import ReplicaMap
from brokerset_spark.jobs.audit.truncations import Cut, Election, elections, matrix, may_have_grown
from brokerset_spark.jobs.audit.verdict import verdict_of
from brokerset_spark.jobs.report import Finding, Level, Report

JOB: Final = "audit"


def compare(
    maps: Sequence[ReplicaMap],
    view: ControllerView | None = None,
    drilled: Sequence[DrilledPair] = (),
    pairs: Sequence[PairBytes] | None = None,
) -> Report:
    """All checks. `drilled` names what was read again by record; `pairs` saves comparing the digests
    again."""
    pairs = compare_bytes(maps) if pairs is None else pairs
    cuts, elected = matrix(maps), elections(maps)
    report = Report(JOB, inputs={"stores": [each.url for each in maps]})
    for finding in (
        *_identities(maps),
        *check_epochs(maps, view),
        *_truncations(maps, cuts, view),
        *_confirmed(maps, view),
        *check_own_log(maps),
        *check_bytes(maps, pairs, drilled),
    ):
        report.add(finding)
    report.bytes_read = sum(each.bytes_read for each in maps)
    report.counters["records"] = sum(each.records for each in maps)
    report.counters["bytesFromCache"] = sum(each.bytes_cached for each in maps)
    report.counters["bytesNotCompared"] = sum(_uncompared(pair, drilled) for pair in pairs)
    report.facts = {
        "replicas": [_replica(each, view) for each in maps],
        "pairs": [_pair(maps, pair, drilled) for pair in pairs],
        "matrix": [_cut(maps, each) for each in cuts],
        "elections": [_election(maps, each) for each in elected],
        "controller": None
        if view is None
        else {"brokerName": view.broker_name, "masterId": view.master_id, "masterEpoch": view.master_epoch,
              "syncStateSet": sorted(view.in_sync)},
        "verdict": verdict_of(maps, report, pairs, elected),
    }  # fmt: skip
    return report


def _identities(maps: Sequence[ReplicaMap]) -> Iterator[Finding]:
    known = [each for each in maps if each.identity is not None]
    names = {(each.identity.cluster_name, each.identity.broker_name) for each in known if each.identity}
    if len(names) > 1:
        said = ", ".join(f"{cluster}/{name}" for cluster, name in sorted(names))
        yield Finding("identity", Level.ERROR, f"these are replicas of different brokers: {said}")
    seen: dict[BrokerIdentity | None, ReplicaMap] = {}
    for each in known:
        if each.identity in seen:
            yield Finding(
                "identity",
                Level.WARNING,
                f"{seen[each.identity].name} and {each.name} have the same identity: one is a copy of the "
                "other. "
                "Never start both",
                each.url,
                "brokerIdentity",
            )
        seen.setdefault(each.identity, each)
    if len({each.is_ledger for each in maps if each.layout != "empty"}) > 1:
        yield Finding(
            "layout", Level.ERROR, "some stores are a DLedger and some are not: they cannot be compared"
        )
    sizes = {each.file_sizes for each in maps if each.file_sizes}
    if len(sizes) > 1:
        said = "; ".join(f"{each.name} has {', '.join(f'{s:,}' for s in each.file_sizes)}" for each in maps)
        yield Finding(
            "file-size",
            Level.WARNING,
            f"the files of the logs have different sizes: {said}. Replicas need the same "
            "mappedFileSizeCommitLog",
        )


def _truncations(
    maps: Sequence[ReplicaMap], cuts: Sequence[Cut], view: ControllerView | None
) -> Iterator[Finding]:
    by_pair = {(each.replica, each.master): each for each in cuts}
    for cut in cuts:
        replica, master = maps[cut.replica], maps[cut.master]
        if not replica.epochs.pairs or not master.epochs.pairs:
            continue
        if cut.point is None:
            if cut.replica < cut.master and replica.last > replica.first and master.last > master.first:
                yield Finding(
                    "truncate-point",
                    Level.ERROR,
                    f"{replica.name} and {master.name} have no epoch in common: neither can follow the "
                    "other, a "
                    "handshake fails for ever. Rebuild the one that is wrong from the other",
                )
            continue
        if cut.forked:
            back = by_pair[cut.master, cut.replica]
            if cut.replica < cut.master:
                yield _fork(replica, master, cut, back, view)
        elif cut.bytes and not (replica.written and master.written) and _is_master(master, view):
            yield Finding(
                "truncate-point",
                Level.INFO,
                f"{replica.name} would cut {cut.bytes:,} bytes from {cut.point:,} on if it followed "
                f"{master.name}, "
                f"whose log ends there; {cut.confirmed_bytes:,} of them are confirmed",
                replica.url,
                "",
                cut.point,
                replica.last,
            )


def _is_master(replica: ReplicaMap, view: ControllerView | None) -> bool:
    """Whether it is the one that the others follow; any may be if nobody tells."""
    if view is None or view.master_id is None or replica.identity is None:
        return True
    return replica.identity.broker_id == view.master_id


def _fork(
    replica: ReplicaMap, master: ReplicaMap, cut: Cut, back: Cut, view: ControllerView | None
) -> Finding:
    """One of the two must be able to give up its tail without losing what is confirmed: the one that
    follows."""
    confirmed = min(cut.confirmed_bytes, back.confirmed_bytes)
    if view is not None and view.master_id is not None:
        if _is_master(master, view):
            confirmed = cut.confirmed_bytes
        elif _is_master(replica, view):
            confirmed = back.confirmed_bytes
    at = cut.point if cut.point is not None else 0
    said = (
        f"{replica.name} and {master.name} part at {at:,}: following, the first would cut {cut.bytes:,} "
        "bytes "
        f"({cut.confirmed_bytes:,} of them confirmed), the second {back.bytes:,} ({back.confirmed_bytes:,})"
    )
    if confirmed:
        return Finding(
            "truncate-point",
            Level.ERROR,
            f"{said}. Confirmed messages would be lost: do not let them meet before one is chosen",
            "",
            "",
            at,
            replica.last,
        )
    return Finding(
        "truncate-point",
        Level.WARNING,
        f"{said}. That is what a master leaves which was replaced before its last messages were "
        "confirmed; the "
        "next handshake cuts them",
        "",
        "",
        at,
        replica.last,
    )


def _confirmed(maps: Sequence[ReplicaMap], view: ControllerView | None) -> Iterator[Finding]:
    for number, each in enumerate(maps):
        if each.confirmed is not None and each.confirmed > each.last:
            yield Finding(
                "confirm",
                Level.ERROR,
                f"{each.name} ends at {each.last:,}, and {_by(each)} that everything below "
                f"{each.confirmed:,} is "
                f"confirmed: {each.confirmed - each.last:,} bytes are gone from its end. Do not elect it; "
                "rebuild it",
                each.url,
                "",
                each.last,
                each.confirmed,
            )
            continue
        holder = max(
            (other for other in range(len(maps)) if maps[other].confirmed is not None and other != number),
            key=lambda other: maps[other].confirmed or 0,
            default=None,
        )
        confirmed = 0 if holder is None else maps[holder].confirmed or 0
        if holder is None or confirmed <= each.last or may_have_grown(maps, number, holder):
            continue
        in_sync = view is not None and each.identity is not None and each.identity.broker_id in view.in_sync
        advice = (
            "The controllers take it for in sync: it may be elected, and lose them"
            if in_sync
            else "The controllers do not take it for in sync"
            if view is not None
            else "That is right for a replica out of sync, and an error for one in sync: give the "
            "controllers' view"
        )
        yield Finding(
            "confirm",
            Level.ERROR if in_sync else Level.WARNING if view is None else Level.INFO,
            f"{each.name} ends at {each.last:,}; {maps[holder].name} knows everything below {confirmed:,} "
            "to be "
            f"confirmed. {advice}",
            each.url,
            "",
            each.last,
            confirmed,
        )


def _by(each: ReplicaMap) -> str:
    return {
        "given": "you say",
        "broker": "its broker says",
        "checkpoint": "its checkpoint says",
        "committed": "its DLedger checkpoint says",
    }.get(each.confirmed_by, "it says")


def _uncompared(pair: PairBytes, drilled: Sequence[DrilledPair]) -> int:
    read = [
        each
        for every in drilled
        if (every.one, every.other) == (pair.one, pair.other)
        for each in every.covered
    ]
    return sum(end - start for gap in pair.uncovered for start, end in missing(gap, union(read)))


def _replica(each: ReplicaMap, view: ControllerView | None) -> dict[str, Any]:
    number = each.identity.broker_id if each.identity else None
    return {
        "name": each.name,
        "url": each.url,
        "brokerId": number,
        "layout": each.layout,
        "first": each.first,
        "last": each.last,
        "confirmed": each.confirmed,
        "confirmedBy": each.confirmed_by,
        "bound": each.bound,
        "records": each.records,
        "written": each.written,
        "epochs": [list(pair) for pair in each.epochs.pairs],
        "epochsFrom": each.epochs.source,
        "damages": [asdict(damage) for damage in each.damages],
        "damagesTotal": each.damages_total,
        "isMaster": None if view is None else number == view.master_id,
        "inSync": None if view is None else number in view.in_sync,
        "bytesRead": each.bytes_read,
        "bytesFromCache": each.bytes_cached,
    }


def _pair(maps: Sequence[ReplicaMap], pair: PairBytes, drilled: Sequence[DrilledPair]) -> dict[str, Any]:
    found = next((each for each in drilled if (each.one, each.other) == (pair.one, pair.other)), None)
    return {
        "one": maps[pair.one].name,
        "other": maps[pair.other].name,
        "from": pair.start,
        "to": pair.limit,
        "differing": [list(each) for each in pair.differing],
        "uncovered": [list(each) for each in pair.uncovered],
        "notCompared": _uncompared(pair, drilled),
        "firstDifference": asdict(found.first) if found is not None and found.first is not None else None,
        "recordsThatDiffer": found.records if found is not None else None,
    }


def _cut(maps: Sequence[ReplicaMap], cut: Cut) -> dict[str, Any]:
    return {
        "replica": maps[cut.replica].name,
        "master": maps[cut.master].name,
        "point": cut.point,
        "cutBytes": cut.bytes,
        "cutConfirmedBytes": cut.confirmed_bytes,
        "forked": cut.forked,
    }


def _election(maps: Sequence[ReplicaMap], each: Election) -> dict[str, Any]:
    return {
        "candidate": maps[each.candidate].name,
        "lostFrom": each.lost_from,
        "lostTo": each.lost_to,
        "damagedAt": each.damaged_at,
        "mayHaveGrown": each.may_have_grown,
    }
