"""The objects of a run of an audit: a Job for each replica, what it said, and the Job that compares."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.plan.objects import part
from brokerset_operator.resources.set_facts import NewObject
from brokerset_operator.store_jobs import labels
from brokerset_operator.store_jobs.audit_work import Asked, AuditRun, Share, read_request
from brokerset_operator.store_jobs.job_objects import STATUS_FILE, engine_options
from brokerset_operator.store_jobs.job_parts import JobFacts, Mounted
from brokerset_operator.store_jobs.observed import ObservedAudit
from brokerset_operator.store_jobs.outcomes import Summary
from brokerset_spec.pod_template import PodTemplate
from brokerset_spec.store_audit_manifest import StoreAudit
from brokerset_spec.store_job_parts import Executors

STORES_MOUNT: Final = "/stores"
"""Below it a broker's volume under its pod's name: findings name a store by its path."""

STORE_FOLDER: Final = "store"
"""The store in a broker's volume (`resources.settings_files`)."""

REPORT_MOUNT: Final = "/report"
MAPS_MOUNT: Final = "/maps"
MAP_KEY: Final = "map.json"
VIEW_KEY: Final = "controllers.json"
QUERY_KEY: Final = "look.json"
HAS_VIEW: Final = f"{names.DOMAIN}/has-controllers"
"""Annotation of a map's ConfigMap: whether `VIEW_KEY` is in it, for who reads its metadata only."""

MAP_BYTES_MAX: Final = 1_000_000
"""Largest map that a ConfigMap takes: the API server allows 1 MiB for the whole object."""

ROUNDS_MAX: Final = 2
"""Rounds of queries: for the records of a stretch, and for what stands at the first that differs."""

REDUCE_SECONDS_MAX: Final = 3600
"""The reduce reads small files only."""


def map_job_name(audit: str, run: int, share: Share) -> str:
    """Name of the Job that reads one replica."""
    return f"{audit}-{run}-{share.index}-{share.ordinal}"


def reduce_job_name(audit: str, run: int, index: int, number: int = 0) -> str:
    """Name of the Job that compares the replicas of a group; `number`: after this round of queries."""
    name = f"{audit}-{run}-{index}-reduce"
    return f"{name}-{number}" if number else name


def query_job_name(audit: str, run: int, share: Share, number: int) -> str:
    """Name of the Job that asks a replica what differs."""
    return f"{map_job_name(audit, run, share)}-{labels.query_step(number)}"


def query_object_name(audit: str, share: Share, number: int) -> str:
    """Name of the ConfigMap with what a replica has answered."""
    return f"{audit}-{labels.query_step(number)}-{share.index}-{share.ordinal}"


def map_name(audit: str, share: Share) -> str:
    """Name of the ConfigMap with the map of a replica."""
    return f"{audit}-map-{share.index}-{share.ordinal}"


def map_job(observed: ObservedAudit, run: AuditRun, share: Share, *, shared_volume: bool) -> JobFacts:
    """The Job that reads one replica; `shared_volume`: the volume of reports is there on every node."""
    audit = _manifest(observed)
    spec = audit.spec
    volume = f"{STORES_MOUNT}/{share.pod}"
    mounts = [Mounted(name="store", claim=share.claim, path=volume)]
    command = ["audit", "map", store_url(share)]
    if share.confirmed_offset is not None:
        command += ["--confirm-offset", str(share.confirmed_offset)]
    if shared_volume and spec.report.claim_name is not None:
        mounts.append(_reports(audit))
        command += ["--cache", f"{REPORT_MOUNT}/digests-{share.pod}.json"]
    if run.full:
        command.append("--full")
    return _facts(
        observed,
        run,
        name=map_job_name(audit.metadata.name, run.number, share),
        step=labels.MAP,
        command=[*command, *engine_options(spec.engine, spec.limits, spec.executors)],
        mounts=mounts,
        next_to_pod=share.pod,
        engine=spec.engine,
        executors=spec.executors,
        labels={labels.AUDITED_SET: spec.broker_set_ref.name, labels.AUDITED_POD: share.pod},
    )


def query_job(observed: ObservedAudit, run: AuditRun, share: Share, asked: Asked) -> JobFacts:
    """The Job that asks a replica what differs; it reads little, and needs no Spark."""
    audit = _manifest(observed)
    spec = audit.spec
    volume = f"{STORES_MOUNT}/{share.pod}"
    command = ["audit", "look", store_url(share), "--bound", str(asked.bound)]
    command += [f"--list={start}:{end}" for start, end in asked.lists]
    command += [f"--show={offset}:{size}" for offset, size in asked.shows]
    return _facts(
        observed,
        run,
        name=query_job_name(audit.metadata.name, run.number, share, asked.number),
        step=labels.query_step(asked.number),
        command=[*command, *engine_options("processes", spec.limits, Executors())],
        mounts=[Mounted(name="store", claim=share.claim, path=volume)],
        next_to_pod=share.pod,
        labels={labels.AUDITED_SET: spec.broker_set_ref.name, labels.AUDITED_POD: share.pod},
    )


def store_url(share: Share) -> str:
    """Where a replica's store is in the pods of its Jobs, as findings name it."""
    return f"{STORES_MOUNT}/{share.pod}/{STORE_FOLDER}"


def queries(run: AuditRun, summaries: Iterable[Summary]) -> tuple[Asked, ...]:
    """The next round of queries; none when the comparisons want nothing, or would only ask the same again."""
    number = run.round + 1
    if number > ROUNDS_MAX:
        return ()
    by_url = {store_url(share): share for share in run.shares if share.failed is None}
    found = []
    for summary in summaries:
        for each in summary.further:
            share = by_url.get(str(each.get("url")))
            if share is None:
                continue
            asked = read_request(each, number, share.pod)
            known = {(one.pod, one.lists, one.shows) for one in run.asked}
            if (asked.lists or asked.shows) and (asked.pod, asked.lists, asked.shows) not in known:
                found.append(asked)
    return tuple(found)


def map_object(observed: ObservedAudit, run: AuditRun, share: Share, text: str) -> NewObject:
    """The ConfigMap that keeps what the Job of a replica said, and the controllers of its group."""
    views = observed.audited.views if observed.audited is not None else {}
    data = {MAP_KEY: text}
    if share.group in views:
        data[VIEW_KEY] = json.dumps(views[share.group], sort_keys=True)
    has_view = {HAS_VIEW: str(VIEW_KEY in data).lower()}
    name = map_name(_manifest(observed).metadata.name, share)
    return _kept(observed, run, share, name, labels.MAP, data, has_view)


def query_object(observed: ObservedAudit, run: AuditRun, share: Share, number: int, text: str) -> NewObject:
    """The ConfigMap that keeps what a replica has answered."""
    name = query_object_name(_manifest(observed).metadata.name, share, number)
    return _kept(observed, run, share, name, labels.query_step(number), {QUERY_KEY: text}, {})


def _kept(
    observed: ObservedAudit,
    run: AuditRun,
    share: Share,
    name: str,
    step: str,
    data: Mapping[str, str],
    annotations: Mapping[str, str],
) -> NewObject:
    audit = _manifest(observed).metadata.name
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": name,
            "namespace": observed.meta.namespace,
            "labels": labels.labels(labels.AUDIT, audit, run=run.number, step=step),
            "annotations": {**annotations, labels.AUDITED_POD: share.pod},
            "ownerReferences": labels.owner(labels.AUDIT, audit, observed.meta.uid),
        },
        "data": dict(data),
    }


def reduce_job(observed: ObservedAudit, run: AuditRun, read: Sequence[Share], report: str | None) -> JobFacts:
    """The Job that compares the maps of a group's replicas that were read; `report` as `report_name` says."""
    index = read[0].index
    answers = run.answered(index)
    audit = _manifest(observed)
    name = audit.metadata.name
    files = [f"{MAPS_MOUNT}/{share.pod}.json" for share in read]
    command = ["audit", "reduce", *files, "--summary", STATUS_FILE]
    newest = next((share for share in reversed(read) if _has_view(observed, share)), None)
    if newest is not None:
        command += ["--controller", f"{MAPS_MOUNT}/{VIEW_KEY}"]
    mounts = []
    if report is not None and audit.spec.report.claim_name is not None:
        mounts.append(_reports(audit))
        place = f"{REPORT_MOUNT}/{report.rpartition('/')[2]}-{index}"
        command += ["--report", f"{place}.json", "--page", f"{place}.html"]
    else:
        command.append("--no-page")
    sources = []
    for share in read:
        for asked in answers:
            if asked.pod == share.pod:
                path = f"{share.pod}-{asked.number}.json"
                command += ["--look", f"{MAPS_MOUNT}/{path}"]
                entry = {"key": QUERY_KEY, "path": path}
                answer = {"name": query_object_name(name, share, asked.number), "items": [entry]}
                sources.append({"configMap": answer})
        items = [{"key": MAP_KEY, "path": f"{share.pod}.json"}]
        if share is newest:
            items.append({"key": VIEW_KEY, "path": VIEW_KEY})
        sources.append({"configMap": {"name": map_name(name, share), "items": items}})
    return _facts(
        observed,
        run,
        name=reduce_job_name(name, run.number, index, max((each.number for each in answers), default=0)),
        step=labels.REDUCE,
        command=command,
        mounts=mounts,
        volumes=[{"name": "maps", "projected": {"sources": sources}}],
        volume_mounts=[{"name": "maps", "mountPath": MAPS_MOUNT, "readOnly": True}],
        labels={labels.AUDITED_SET: audit.spec.broker_set_ref.name},
    )


def report_name(audit: StoreAudit, runs: int) -> str | None:
    """Beginning of the names of a run's reports in their volume; the oldest run's are written over.

    The number of the group follows, and `.json` or `.html`.
    """
    report = audit.spec.report
    if report.claim_name is None:
        return None
    return f"{report.path}/{audit.metadata.name}-{runs % report.keep_runs:03d}"


def _reports(audit: StoreAudit) -> Mounted:
    """The folder of reports, and of nothing else in their volume."""
    report = audit.spec.report
    assert report.claim_name is not None, "asked before"
    return Mounted(
        name="report", claim=report.claim_name, path=REPORT_MOUNT, folder=report.path, read_only=False
    )


def _has_view(observed: ObservedAudit, share: Share) -> bool:
    found = observed.maps.get(map_name(_manifest(observed).metadata.name, share), {})
    return bool(part(part(found, "metadata"), "annotations").get(HAS_VIEW) == "true")


def _facts(observed: ObservedAudit, run: AuditRun, **more: Any) -> JobFacts:
    audit = _manifest(observed)
    left = int(run.started + audit.spec.limits.deadline_seconds - observed.now)
    step = more["step"]
    placement = observed.audited.placement if observed.audited is not None else PodTemplate()
    return JobFacts(
        kind=labels.AUDIT,
        owner=audit.metadata.name,
        uid=observed.meta.uid,
        namespace=observed.meta.namespace,
        run=run.number,
        image=audit.spec.image or observed.image,
        limits=audit.spec.limits,
        deadline_seconds=min(left, REDUCE_SECONDS_MAX) if step == labels.REDUCE else left,
        placement=placement,
        **more,
    )


def _manifest(observed: ObservedAudit) -> StoreAudit:
    assert observed.manifest is not None, "an invalid manifest is not carried out"
    return observed.manifest
