"""The kinds that the API server knows are those that the reader of manifests knows."""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from pydantic import BaseModel

from brokerset_formats.names import SYSTEM_TOPICS
from brokerset_operator.model import names
from brokerset_operator.plan import reasons
from brokerset_operator.store_jobs import reasons as job_reasons
from brokerset_spec.manifest import NAME_LENGTH_MAX, OWN_SETTINGS, BrokerSet, read_manifest
from brokerset_spec.pod_template import (
    FORBIDDEN,
    OWN_KEY_PREFIXES,
    OWN_KEYS,
    OWN_VARIABLE_PREFIXES,
    PodTemplate,
)
from brokerset_spec.store_audit_manifest import StoreAudit, read_store_audit
from brokerset_spec.store_job_parts import JOB_NAME_LENGTH_MAX
from brokerset_spec.store_migration_manifest import StoreMigration, read_store_migration
from brokerset_spec.topic_manifest import OBJECT_NAME_LENGTH_MAX, Topic, read_topic

ROOT = Path(__file__).parents[3]
CRDS = ROOT / "crds"
FILES = ["brokersets.yaml", "topics.yaml", "storeaudits.yaml", "storemigrations.yaml"]

Schema = dict[str, Any]

LIMITS = (
    "minimum",
    "maximum",
    "minLength",
    "maxLength",
    "pattern",
    "minItems",
    "maxItems",
    "maxProperties",
    "enum",
)

NO_DEFAULT = {
    "spec.groups": "the number of names, when those are listed",
    "spec.controllers.replicas": "nothing, when the controllers are another set's",
}
"""Fields whose default depends on another field, so that the CRD cannot have it, and on what."""


def _crd(file: str) -> Schema:
    document: Schema = yaml.load((CRDS / file).read_text(encoding="utf-8"), yaml.CSafeLoader)
    return document


def _root(file: str) -> Schema:
    schema: Schema = _crd(file)["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return schema


def _declared(model: type[BaseModel]) -> Schema:
    """What a model declares, as a schema without references."""
    schema = model.model_json_schema(by_alias=True)
    definitions = schema.get("$defs", {})

    def resolve(value: Any) -> Any:
        if isinstance(value, dict):
            if "$ref" in value:
                rest = {key: item for key, item in value.items() if key != "$ref"}
                return {**resolve(definitions[value["$ref"].rpartition("/")[2]]), **rest}
            return {key: resolve(item) for key, item in value.items() if key != "$defs"}
        return [resolve(item) for item in value] if isinstance(value, list) else value

    resolved: Schema = resolve(schema)
    return resolved


def _differences(declared: Schema, crd: Schema, path: str, *, defaults: bool = True) -> Iterator[str]:
    """Say where a field of the CRD is not what the model declares, both ways; `defaults`: and null."""
    if "anyOf" in declared:
        members = [member for member in declared["anyOf"] if member != {"type": "null"}]
        if defaults and not crd.get("nullable"):
            yield f"{path}: may be null, and not in the CRD"
        assert len(members) == 1, path
        declared = {**members[0], **{k: v for k, v in declared.items() if k != "anyOf"}}
    elif crd.get("nullable"):
        yield f"{path}: may be null in the CRD only"
    kind = declared.get("type")
    if kind is None:
        return  # checked by a function of its own, or by Kubernetes
    if kind != crd.get("type"):
        yield f"{path}: is of type {kind}, in the CRD {crd.get('type')}"
    for limit in LIMITS:
        if declared.get(limit) != crd.get(limit):
            yield f"{path}: {limit} is {declared.get(limit)}, in the CRD {crd.get(limit)}"
    if "properties" in declared:
        yield from _different_fields(declared, crd, path, defaults=defaults)
    if defaults and path not in NO_DEFAULT:
        wanted = declared.get("default")
        if "properties" in declared and wanted is not None:
            wanted = {}  # then each field's own
        if wanted != crd.get("default"):
            yield f"{path}: its default is {wanted}, in the CRD {crd.get('default')}"
    item = declared.get("items", {})
    if item and (item.get("type") != "object" or "properties" in item):
        yield from _differences(item, crd["items"], f"{path}[]", defaults=defaults)
    if isinstance(declared.get("additionalProperties"), dict) and "additionalProperties" in crd:
        inner = declared["additionalProperties"], crd["additionalProperties"]
        yield from _differences(*inner, f"{path}{{}}", defaults=defaults)


def _different_fields(declared: Schema, crd: Schema, path: str, *, defaults: bool) -> Iterator[str]:
    ours, theirs = declared["properties"], crd.get("properties", {})
    for name in sorted(ours.keys() - theirs.keys()):
        yield f"{path}.{name}: is not in the CRD"
    for name in sorted(theirs.keys() - ours.keys()):
        yield f"{path}.{name}: is in the CRD only"
    if sorted(declared.get("required", [])) != sorted(crd.get("required", [])):
        yield f"{path}: requires {declared.get('required')}, in the CRD {crd.get('required')}"
    for name in ours.keys() & theirs.keys() - {"config", "podTemplate"}:
        yield from _differences(ours[name], theirs[name], f"{path}.{name}", defaults=defaults)


def _everything(schema: Schema, path: str = "") -> Iterator[tuple[str, Schema]]:
    """Every schema in a schema, with its path."""
    yield path, schema
    for name, item in schema.get("properties", {}).items():
        yield from _everything(item, f"{path}.{name}" if path else name)
    for key, mark in (("items", "[]"), ("additionalProperties", "{}")):
        if isinstance(schema.get(key), dict):
            yield from _everything(schema[key], f"{path}{mark}")


MODELS: list[tuple[str, type[BaseModel]]] = [
    ("brokersets.yaml", BrokerSet),
    ("topics.yaml", Topic),
    ("storeaudits.yaml", StoreAudit),
    ("storemigrations.yaml", StoreMigration),
]


@pytest.mark.parametrize(("file", "model"), MODELS)
def test_the_crd_has_the_fields_defaults_and_limits_of_the_model(file: str, model: type[BaseModel]) -> None:
    """If this fails, one of both was changed alone."""
    declared, root = _declared(model)["properties"]["spec"], _root(file)["properties"]["spec"]

    assert list(_differences(declared, root, "spec")) == []


def test_the_comparison_sees_what_differs() -> None:
    """Else it would prove nothing."""
    declared, crd = _declared(BrokerSet)["properties"]["spec"], _root("brokersets.yaml")["properties"]["spec"]
    del crd["properties"]["image"]
    crd["properties"]["replicas"] |= {"default": 2, "maximum": 8}
    crd["properties"]["storage"]["properties"]["className"]["nullable"] = False
    crd["properties"]["update"]["properties"]["pace"] = {"type": "integer"}

    assert sorted(_differences(declared, crd, "spec")) == [
        "spec.image: is not in the CRD",
        "spec.replicas: its default is 3, in the CRD 2",
        "spec.replicas: maximum is 9, in the CRD 8",
        "spec.storage.className: may be null, and not in the CRD",
        "spec.update.pace: is in the CRD only",
    ]


def test_the_crd_has_the_pod_template_of_the_model_and_refuses_the_rest_by_name() -> None:
    template = _root("brokersets.yaml")["properties"]["spec"]["properties"]["podTemplate"]
    rules = {rule["rule"]: rule for rule in template["x-kubernetes-validations"]}
    allowed = {name: item for name, item in template["properties"].items() if name not in FORBIDDEN}

    found = list(
        _differences(
            _declared(PodTemplate), {**template, "properties": allowed}, "podTemplate", defaults=False
        )
    )

    assert found == []
    assert {f"!has(self.{name})" for name in FORBIDDEN} == set(rules)
    for name, why in FORBIDDEN.items():
        rule = rules[f"!has(self.{name})"]
        assert (rule["message"], rule["fieldPath"]) == (f"cannot be set; {why}; leave it out", f".{name}")
        assert name in template["properties"], "a field that no schema names is dropped without a word"


def test_the_crd_knows_which_labels_and_variables_are_not_for_manifests() -> None:
    template = _root("brokersets.yaml")["properties"]["spec"]["properties"]["podTemplate"]["properties"]
    variables = template["env"]["items"]["properties"]["name"]["x-kubernetes-validations"][0]["rule"]

    for kind in ("labels", "annotations"):
        rule = template["metadata"]["properties"][kind]["x-kubernetes-validations"][0]["rule"]
        assert all(f"'{key}'" in rule for key in (*OWN_KEYS, *OWN_KEY_PREFIXES))
    assert variables.count("'") == 2 * len(OWN_VARIABLE_PREFIXES)
    assert all(f"'{prefix}'" in variables for prefix in OWN_VARIABLE_PREFIXES)


def test_the_crd_has_the_settings_of_the_settings_class() -> None:
    """If this fails: `python crds/write_settings.py`, and commit the result."""
    text = (CRDS / "brokersets.yaml").read_text(encoding="utf-8")

    made = runpy.run_path(str(CRDS / "write_settings.py"), run_name="module")["with_settings"](text)

    assert made == text
    config = _root("brokersets.yaml")["properties"]["spec"]["properties"]["config"]
    assert {f".{name}" for name in OWN_SETTINGS} <= {
        r["fieldPath"] for r in config["x-kubernetes-validations"]
    }


def test_names_of_objects_are_as_long_as_the_reader_allows() -> None:
    def longest(file: str) -> object:
        return _root(file)["properties"]["metadata"]["properties"]["name"]["maxLength"]

    assert longest("brokersets.yaml") == NAME_LENGTH_MAX
    assert longest("topics.yaml") == OBJECT_NAME_LENGTH_MAX
    assert longest("storeaudits.yaml") == longest("storemigrations.yaml") == JOB_NAME_LENGTH_MAX


def test_the_crd_of_topics_knows_the_topics_of_the_system() -> None:
    rules = _root("topics.yaml")["properties"]["spec"]["properties"]["topicName"]["x-kubernetes-validations"]

    listed = str(rules[1]["rule"]).partition("[")[2].partition("]")[0]

    assert set(listed.replace("'", "").split(", ")) == SYSTEM_TOPICS


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
        path = re.sub(r'\[\?\(@\.type=="(Ready|ControllersReady|AuditPassed)"\)\]', "[]", column["jsonPath"])
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
    "StoreAudit": read_store_audit,
    "StoreMigration": read_store_migration,
}


def _is_ours(document: dict[str, Any]) -> bool:
    return str(document["apiVersion"]).startswith("brokerset.io/")


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda path: str(path.name))
def test_every_example_is_valid(path: Path) -> None:
    documents = list(yaml.safe_load_all(path.read_text(encoding="utf-8")))
    assert documents

    for document in filter(_is_ours, documents):
        READERS[document["kind"]](document)


@pytest.mark.parametrize(
    ("file", "page"),
    [
        ("brokersets.yaml", "brokerset-reference.md"),
        ("topics.yaml", "topic-reference.md"),
        ("storeaudits.yaml", "storeaudit-reference.md"),
        ("storemigrations.yaml", "storemigration-reference.md"),
    ],
)
def test_the_reference_has_every_field(file: str, page: str) -> None:
    """Settings have a page of their own; what is inside affinity and the like is Kubernetes' own."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    elsewhere = (
        "spec.config.",
        "spec.podTemplate.affinity.",
        "spec.podTemplate.topologySpreadConstraints[].",
        "status.conditions[].",
        "status.history[].",
        *(f"spec.podTemplate.{name}" for name in FORBIDDEN),
    )
    wanted = [
        path
        for path, schema in _everything(_root(file))
        if path.startswith(("spec.", "status.")) and not path.startswith(elsewhere)
        if not path.endswith(("[]", "{}")) and ("properties" not in schema or path.endswith("affinity"))
    ]
    assert wanted

    assert [path for path in wanted if f"`{path}`" not in text] == []


def test_the_reference_says_what_to_do_about_every_condition_and_reason() -> None:
    text = (ROOT / "docs" / "brokerset-reference.md").read_text(encoding="utf-8")
    used = [value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, str)]
    assert "InvalidSpec" in used

    assert [name for name in used if f"`{name}`" not in text] == []


def test_the_references_of_jobs_say_what_to_do_about_every_reason() -> None:
    text = "".join(
        (ROOT / "docs" / page).read_text(encoding="utf-8")
        for page in ("storeaudit-reference.md", "storemigration-reference.md")
    )
    used = [value for name, value in vars(job_reasons).items() if name.isupper() and isinstance(value, str)]
    assert "VolumeInUse" in used

    assert [name for name in used if f"`{name}`" not in text] == []


def test_the_reference_has_every_annotation() -> None:
    text = (ROOT / "docs" / "brokerset-reference.md").read_text(encoding="utf-8")
    asked = (names.PAUSED, names.SWITCH_OVER, names.FENCE, names.APPROVE, names.BELOW_MINIMUM)

    assert [
        name
        for name in (*asked, names.DISCARD_GROUP, names.DELETE_CLAIMS, names.OPERATOR)
        if f"| `{name}` |" not in text
    ] == []


def test_the_scale_subresource_counts_groups() -> None:
    """Its paths lead to fields of the schema: a wrong path would read as 0, and nobody would be told."""
    version = _crd("brokersets.yaml")["spec"]["versions"][0]
    fields = dict(_everything(_root("brokersets.yaml")))

    scale = version["subresources"]["scale"]

    kinds = {name: fields[path.removeprefix(".")]["type"] for name, path in scale.items()}
    assert kinds == {
        "specReplicasPath": "integer",
        "statusReplicasPath": "integer",
        "labelSelectorPath": "string",
    }
    assert scale["specReplicasPath"] == ".spec.groups"
    assert scale["statusReplicasPath"] == ".status.groupCount"
