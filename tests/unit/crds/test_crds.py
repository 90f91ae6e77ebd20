"""What is true of every CRD, whatever its model declares; pages explain every condition and annotation."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from brokerset_operator.access_users import reasons as user_reasons
from brokerset_operator.model import claim_reasons, names
from brokerset_operator.plan import reasons
from brokerset_operator.store_jobs import reasons as job_reasons
from brokerset_spec.manifest import read_manifest
from brokerset_spec.store_audit_manifest import read_store_audit
from brokerset_spec.store_export_manifest import read_store_export
from brokerset_spec.store_migration_manifest import read_store_migration
from brokerset_spec.subject_manifest import read_subject
from brokerset_spec.topic_manifest import read_topic
from brokerset_spec.user_manifest import read_user

ROOT = Path(__file__).parents[3]
CRDS = ROOT / "crds"
FILES = [
    "brokersets.yaml",
    "topics.yaml",
    "subjects.yaml",
    "storeaudits.yaml",
    "storemigrations.yaml",
    "storeexports.yaml",
]

Schema = dict[str, Any]


def _crd(file: str) -> Schema:
    document: Schema = yaml.load((CRDS / file).read_text(encoding="utf-8"), yaml.CSafeLoader)
    return document


def _root(file: str) -> Schema:
    schema: Schema = _crd(file)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _everything(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema in a schema, with its path."""
    yield path, schema
    for name, item in schema.get("properties", {}).items():
        yield from _everything(item, f"{path}.{name}" if path else name)
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), dict):
            yield from _everything(schema[key], f"{path}{mark}")


@pytest.mark.parametrize("file", FILES)
def test_every_field_is_described(file: str) -> None:
    """`kubectl explain` shows these texts."""
    bare = [
        path
        for path, schema in _everything(_root(file))
        if not path.endswith(("[]", "{}")) and not path.startswith("metadata")
        if "description" not in schema
    ]

    assert bare == []


@pytest.mark.parametrize("file", FILES)
def test_everything_that_people_write_is_bounded(file: str) -> None:
    """The API server counts on it when it estimates what a rule costs."""
    unbounded = [
        path
        for path, schema in _everything(_root(file)["properties"]["spec"], "spec")
        if (schema.get("type") == "string" and not schema.keys() & {"maxLength", "enum"})
        or (schema.get("type") == "array" and "maxItems" not in schema)
        or ("additionalProperties" in schema and "maxProperties" not in schema)
    ]

    assert [
        path for path in unbounded if path not in ("spec.podTemplate.command[]", "spec.podTemplate.args[]")
    ] == []


@pytest.mark.parametrize("file", FILES)
def test_every_rule_says_what_to_do_where(file: str) -> None:
    rules = [
        (path, rule)
        for path, schema in _everything(_root(file))
        for rule in schema.get("x-kubernetes-validations", [])
    ]
    assert rules

    for path, rule in rules:
        assert rule["reason"] == "FieldValueForbidden", path
        assert len(rule["message"]) > 20, path
        assert not rule["message"].endswith("."), path
        assert path or "fieldPath" in rule, rule


@pytest.mark.parametrize("file", FILES)
def test_every_column_shows_a_field_that_there_is(file: str) -> None:
    version = _crd(file)["spec"]["versions"][0]
    known = {path for path, _ in _everything(_root(file))} | {"metadata.creationTimestamp"}

    for column in version["additionalPrinterColumns"]:
        path = re.sub(
            r'\[\?\(@\.type=="(Ready|ControllersReady|AuditPassed|Exported)"\)\]', "[]", column["jsonPath"]
        )
        path = path.removeprefix(".")
        assert path in known, column["name"]


@pytest.mark.parametrize("file", FILES)
def test_no_column_is_empty_because_a_field_was_left_out(file: str) -> None:
    """A column of `spec` shows a field that must be given, or that the API server gives its default."""
    for column in _crd(file)["spec"]["versions"][0]["additionalPrinterColumns"]:
        if column["jsonPath"].startswith(".spec."):
            schema = _root(file)
            for name in column["jsonPath"].removeprefix(".").split("."):
                given = name == "spec" or name in schema.get("required", ())
                schema = schema["properties"][name]
                assert given or "default" in schema, column["name"]


@pytest.mark.parametrize("file", FILES)
def test_conditions_are_kept_apart_by_their_type(file: str) -> None:
    """Two writers with server-side apply then never take each other's away."""
    conditions = _root(file)["properties"]["status"]["properties"]["conditions"]

    assert conditions["x-kubernetes-list-type"] == "map"
    assert conditions["x-kubernetes-list-map-keys"] == ["type"]


READERS: dict[str, Callable[[object], object]] = {
    "BrokerSet": read_manifest,
    "Topic": read_topic,
    "Subject": read_subject,
    "User": read_user,
    "StoreAudit": read_store_audit,
    "StoreMigration": read_store_migration,
    "StoreExport": read_store_export,
}


def _is_ours(document: dict[str, Any]) -> bool:
    return str(document["apiVersion"]).startswith("brokerset.io/")


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: str(path.name))
def test_every_example_is_valid(path: Path) -> None:
    documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    assert documents

    for document in filter(_is_ours, documents):
        READERS[document["kind"]](document)


def test_the_reference_says_what_to_do_about_every_condition_and_reason() -> None:
    text = (ROOT / "docs" / "brokerset-reference.md").read_text(encoding="utf-8")
    used = [value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, str)]
    assert "InvalidSpec" in used

    assert [name for name in used if f"`{name}`" not in text] == []


def test_the_references_of_jobs_say_what_to_do_about_every_reason() -> None:
    text = "".join(
        (ROOT / "docs" / page).read_text(encoding="utf-8")
        for page in ("storeaudit-reference.md", "storemigration-reference.md", "storeexport-reference.md")
    )
    used = [value for name, value in vars(job_reasons).items() if name.isupper() and isinstance(value, str)]
    assert "VolumeInUse" in used

    assert [name for name in used if f"`{name}`" not in text] == []


def test_the_reference_of_users_says_what_to_do_about_every_reason() -> None:
    text = (ROOT / "docs" / "user-reference.md").read_text(encoding="utf-8")
    both = vars(user_reasons) | vars(claim_reasons)
    used = {value for name, value in both.items() if name.isupper() and isinstance(value, str)}
    assert "SecretMissing" in used

    assert [name for name in used - {claim_reasons.AS_WANTED} if f"`{name}`" not in text] == []


def test_the_reference_has_every_annotation() -> None:
    text = (ROOT / "docs" / "brokerset-reference.md").read_text(encoding="utf-8")
    asked = (names.PAUSED, names.SWITCH_OVER, names.FENCE, names.APPROVE, names.BELOW_MINIMUM)

    assert [
        name
        for name in (*asked, names.DISCARD_GROUP, names.DELETE_CLAIMS, names.OPERATOR)
        if f"| `{name}` |" not in text
    ] == []


@pytest.mark.parametrize(
    ("file", "paths"),
    [
        (
            "brokersets.yaml",
            {
                "specReplicasPath": ".spec.groups",
                "statusReplicasPath": ".status.groupCount",
                "labelSelectorPath": ".status.selector",
            },
        ),
        (
            "subjects.yaml",
            {"specReplicasPath": ".spec.partitions", "statusReplicasPath": ".status.partitions"},
        ),
    ],
)
def test_the_scale_subresource_counts_what_is_scaled(file: str, paths: dict[str, str]) -> None:
    """Its paths lead to fields of the schema: a wrong path would read as 0, and nobody would be told."""
    version = _crd(file)["spec"]["versions"][0]
    fields = dict(_everything(_root(file)))

    scale = version["subresources"]["scale"]

    assert scale == paths
    for name, path in scale.items():
        wanted = "string" if name == "labelSelectorPath" else "integer"
        assert fields[path.removeprefix(".")]["type"] == wanted, name
