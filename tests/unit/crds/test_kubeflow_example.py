"""The example for Kubeflow's Spark operator is what that operator's API server would accept."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from brokerset_spark.commands.table import main

ROOT = Path(__file__).parents[3]
SCHEMA = Path(__file__).parent / "kubeflow" / "scheduledsparkapplication.json"
EXAMPLE = ROOT / "examples" / "kubeflow-sparkapplication.yaml"

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
}

KNOWN = {
    "additionalProperties",
    "allOf",
    "anyOf",
    "default",
    "enum",
    "format",
    "items",
    "maxItems",
    "maximum",
    "minItems",
    "minLength",
    "minimum",
    "nullable",
    "oneOf",
    "pattern",
    "properties",
    "required",
    "type",
}
"""What the schema may say, besides Kubernetes' own words: nothing of it is passed over unread."""

Edit = Callable[[dict[str, Any]], None]


def problems(value: Any, schema: dict[str, Any], path: str = "") -> Iterator[str]:
    """What a structural schema says against a value, unknown fields included."""
    unread = {word for word in schema if word not in KNOWN and not word.startswith("x-kubernetes-")}
    assert not unread, f"{path}: this test does not read {unread}"
    if schema.get("x-kubernetes-int-or-string"):
        if isinstance(value, bool) or not isinstance(value, int | str):
            yield f"{path}: is neither a whole number nor a text"
        return
    kind = schema.get("type")
    if kind and (not isinstance(value, TYPES[kind]) or (isinstance(value, bool) and kind != "boolean")):
        yield f"{path}: is no {kind}"
        return
    if "enum" in schema and value not in schema["enum"]:
        yield f"{path}: is none of {schema['enum']}"
    if "pattern" in schema and not re.search(schema["pattern"], value):
        yield f"{path}: does not look like {schema['pattern']}"
    if isinstance(value, int) and not schema.get("minimum", value) <= value <= schema.get("maximum", value):
        yield f"{path}: is out of bounds"
    if isinstance(value, list):
        for number, item in enumerate(value):
            yield from problems(item, schema.get("items", {}), f"{path}[{number}]")
    if isinstance(value, dict):
        yield from (f"{path}.{name}: is missing" for name in schema.get("required", ()) if name not in value)
        fields, further = schema.get("properties", {}), schema.get("additionalProperties")
        for name, item in value.items():
            if name in fields:
                yield from problems(item, fields[name], f"{path}.{name}")
            elif isinstance(further, dict):
                yield from problems(item, further, f"{path}.{name}")
            elif not schema.get("x-kubernetes-preserve-unknown-fields") and path != ".metadata":
                yield f"{path}.{name}: is not a field"


@pytest.fixture(scope="module")
def schema() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    return found


@pytest.fixture
def example() -> dict[str, Any]:
    (found,) = yaml.safe_load_all(EXAMPLE.read_text(encoding="utf-8"))
    copied: dict[str, Any] = copy.deepcopy(found)
    return copied


def test_the_example_is_valid(schema: dict[str, Any], example: dict[str, Any]) -> None:
    assert (example["apiVersion"], example["kind"]) == (
        "sparkoperator.k8s.io/v1beta2",
        "ScheduledSparkApplication",
    )

    assert list(problems(example, schema)) == []


def _driver(example: dict[str, Any], **fields: Any) -> None:
    example["spec"]["template"]["driver"].update(fields)


@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (lambda e: _driver(e, serviceAccountName="spark"), "driver.serviceAccountName: is not a field"),
        (lambda e: _driver(e, cores="1"), "driver.cores: is no integer"),
        (lambda e: _driver(e, cores=0), "driver.cores: is out of bounds"),
        (lambda e: _driver(e, volumeMounts=[{"name": "x"}]), "mountPath: is missing"),
        (lambda e: e["spec"]["template"].update(mode="pod"), "template.mode: is none of"),
        (lambda e: e["spec"]["template"].pop("sparkVersion"), "sparkVersion: is missing"),
        (lambda e: e["spec"]["template"]["sparkConf"].update(a=True), "sparkConf.a: is no string"),
        (lambda e: e["spec"].update(image="x"), "spec.image: is not a field"),
    ],
)
def test_what_that_operator_would_refuse_is_seen(
    schema: dict[str, Any], example: dict[str, Any], edit: Edit, said: str
) -> None:
    edit(example)

    assert any(said in each for each in problems(example, schema))


def test_what_the_example_says_fits_together(example: dict[str, Any]) -> None:
    """Volumes that are mounted are there, and read-only; Spark is the image's; its settings are texts."""
    template = example["spec"]["template"]
    volumes = {each["name"]: each for each in template["volumes"]}
    for role in ("driver", "executor"):
        for mount in template[role]["volumeMounts"]:
            assert mount["readOnly"] is True
            assert volumes[mount["name"]]["persistentVolumeClaim"]["readOnly"] is True
            assert any(each.startswith(f"{mount['mountPath']}/") for each in template["arguments"])
    locked = re.search(r"^pyspark==(\S+)", (ROOT / "locks" / "spark.txt").read_text(), re.M)
    assert locked is not None
    assert template["sparkVersion"] == locked[1]
    image = (ROOT / "Dockerfile").read_text()
    folder = template["mainApplicationFile"].removeprefix("local://").partition("/lib/")[0]
    assert f"/opt/brokerset {folder}" in image


def test_the_arguments_of_the_example_are_those_of_the_command(example: dict[str, Any]) -> None:
    """They are read: what is wrong is that there is no such store here."""
    done = CliRunner().invoke(main, [each for each in example["spec"]["template"]["arguments"]])

    assert done.exit_code != 2 or "No such" not in done.output
    assert "no such option" not in done.output.lower()
