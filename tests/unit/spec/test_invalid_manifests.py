"""The reader of manifests refuses what the API server refuses, in the same words where both see it."""

from __future__ import annotations

import runpy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from brokerset_spec.manifest import ManifestError, read_manifest
from brokerset_spec.store_audit_manifest import read_store_audit
from brokerset_spec.store_export_manifest import read_store_export
from brokerset_spec.store_migration_manifest import read_store_migration
from brokerset_spec.subject_manifest import read_subject
from brokerset_spec.topic_manifest import read_topic
from brokerset_spec.user_manifest import read_user

TABLE = runpy.run_path(
    str(Path(__file__).parents[2] / "e2e" / "kubernetes" / "invalid_manifests.py"), run_name="table"
)
CASES: list[Any] = list(TABLE["CASES"])
ACCEPTED: dict[str, Any] = dict(TABLE["ACCEPTED"])


READERS: dict[str, Callable[[object], object]] = {
    "BrokerSet": read_manifest,
    "Topic": read_topic,
    "Subject": read_subject,
    "User": read_user,
    "StoreAudit": read_store_audit,
    "StoreExport": read_store_export,
    "StoreMigration": read_store_migration,
}


def _read(document: dict[str, Any]) -> None:
    READERS[document["kind"]](document)


def test_there_are_enough_of_them_and_each_has_a_name_of_its_own() -> None:
    names = [case.name for case in CASES]

    assert len(names) >= 40
    assert len(names) == len(set(names))


@pytest.mark.parametrize("case", [case for case in CASES if case.reader], ids=lambda case: str(case.name))
def test_an_invalid_manifest_is_refused(case: Any) -> None:
    """With all its problems, and one of them is the expected one."""
    with pytest.raises(ManifestError) as caught:
        _read(case.manifest)

    assert case.reader in str(caught.value)


@pytest.mark.parametrize(
    "case", [case for case in CASES if case.before is not None], ids=lambda case: str(case.name)
)
def test_a_change_that_the_api_server_refuses_is_one_between_valid_manifests(case: Any) -> None:
    """Else the table would show something else than it says."""
    _read(case.earlier)
    _read(case.manifest)


@pytest.mark.parametrize("name", sorted(ACCEPTED))
def test_a_valid_manifest_is_accepted(name: str) -> None:
    valid, _, patch = ACCEPTED[name]

    _read(TABLE["patched"](valid, patch))
