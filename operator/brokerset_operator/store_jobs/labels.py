"""Names and labels of what audits, migrations and exports are made of.

None of it carries a set's own label: the operator takes whatever has that for a part of the set.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_spec.manifest import API_VERSION

AUDIT: Final = "StoreAudit"
MIGRATION: Final = "StoreMigration"
EXPORT: Final = "StoreExport"

STORE_JOB: Final = f"{names.DOMAIN}/store-job"
"""On every object of a job; its value tells which kind it belongs to."""

OWNER: Final = f"{names.DOMAIN}/job-owner"
"""Name of the object that the job is for."""

RUN: Final = f"{names.DOMAIN}/run"
STEP: Final = f"{names.DOMAIN}/step"
AUDITED_SET: Final = f"{names.DOMAIN}/audited-set"
AUDITED_POD: Final = f"{names.DOMAIN}/audited-pod"
"""The broker's pod whose volume a Job reads; before that pod is moved the Job is ended."""

AUDIT_NOW: Final = f"{names.DOMAIN}/audit-now"
EXPORT_NOW: Final = f"{names.DOMAIN}/export-now"
"""Annotations: run at once, once for each value."""

MAP: Final = "map"
REDUCE: Final = "reduce"
QUERY: Final = "look"
"""Begins the names of the steps that run `audit look`, which asks a replica what differs; the number of
the round of queries follows."""

MIGRATE: Final = "migrate"
VERIFY: Final = "verify"
LAKE: Final = "lake"

KIND_WORDS: Final[Mapping[str, str]] = {AUDIT: "audit", MIGRATION: "migration", EXPORT: "export"}
"""Values of the label `STORE_JOB`."""


def selector(kind: str, name: str) -> str:
    """Label selector of everything that belongs to one object."""
    return f"{STORE_JOB}={KIND_WORDS[kind]},{OWNER}={name}"


def labels(kind: str, name: str, *, run: int, step: str, **more: str) -> dict[str, str]:
    """Labels of an object of a job."""
    return {
        "app.kubernetes.io/name": f"brokerset-{KIND_WORDS[kind]}",
        "app.kubernetes.io/instance": name,
        "app.kubernetes.io/managed-by": names.FIELD_MANAGER,
        STORE_JOB: KIND_WORDS[kind],
        OWNER: name,
        RUN: str(run),
        STEP: step,
        **more,
    }


def query_step(number: int) -> str:
    """Step of a round of queries."""
    return f"{QUERY}-{number}"


def may_find(step: str) -> bool:
    """Whether the exit code of findings is a result of this step: not where a replica is only read."""
    return step != MAP and not step.startswith(f"{QUERY}-")


def owner(kind: str, name: str, uid: str) -> list[dict[str, Any]]:
    """The reference by which an object goes with the one that wanted it."""
    return [
        {
            "apiVersion": API_VERSION,
            "kind": kind,
            "name": name,
            "uid": uid,
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]


def run_of(obj: Mapping[str, Any]) -> int | None:
    """The run that an object belongs to."""
    text = str(((obj.get("metadata") or {}).get("labels") or {}).get(RUN) or "")
    return int(text) if text.isdecimal() else None


def step_of(obj: Mapping[str, Any]) -> str:
    """The step of a run that an object belongs to."""
    return str(((obj.get("metadata") or {}).get("labels") or {}).get(STEP) or "")
