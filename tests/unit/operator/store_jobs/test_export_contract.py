"""The operator and the job that it starts understand each other: command line, and the summary at the end."""

from __future__ import annotations

from typing import Any

import pytest
from tests.unit.operator.store_jobs.worlds import ExportWorld, export_manifest

from brokerset_operator.store_jobs.outcomes import read_summary
from brokerset_spark.commands.lake import lake
from brokerset_spark.jobs.lake.catalog import catalog_of
from brokerset_spark.jobs.lake.json_columns import parse_columns
from brokerset_spark.jobs.report import Finding, Level, Report
from brokerset_spec.store_export_manifest import read_store_export

EXECUTORS = {"instances": 2, "resources": {"requests": {"cpu": "2"}}}
AVRO = {
    "registry": "http://registry:8081",
    "subject": "orders-value",
    "credentials": {"secretName": "schemas"},
}
ICEBERG = {
    "url": "s3://lake/orders",
    "credentials": {"secretName": "lake-keys"},
    "format": "iceberg",
    "catalog": {
        "name": "lake",
        "type": "rest",
        "uri": "https://catalog:8181",
        "warehouse": "main",
        "table": "shop.orders",
        "credentials": {"secretName": "catalog-keys"},
    },
}
COLUMNS = [{"name": "id", "type": "bigint"}, {"name": "amount", "type": "double"}]


@pytest.mark.parametrize(
    "spec",
    [
        {},
        {"topics": ["a", "b"], "compact": True, "vacuumHours": 168, "executors": EXECUTORS},
        {"schema": "json", "jsonColumns": COLUMNS},
        {"target": ICEBERG, "schema": "avro", "avro": AVRO},
        {"topics": [], "topicPattern": "pay.*", "target": {"claimName": "lake"}},
        {"topics": ["-p", "--help"]},
        {"topics": [], "topicPattern": "-p.*"},
    ],
    ids=["plain", "all", "json", "iceberg", "pattern", "names like options", "pattern like an option"],
)
def test_the_job_understands_every_command_that_the_operator_makes(spec: dict[str, Any]) -> None:
    """Each option is known to `brokerset_spark lake`, and so is each value."""
    manifest = read_store_export(export_manifest(**spec))
    world = ExportWorld(manifest=manifest, spark_role="ClusterRole/driver")
    name = world.begin()
    (container,) = world.observed.jobs[name]["spec"]["template"]["spec"]["containers"]
    job, *options = container["command"][3:]

    assert container["command"][:3] == ["python", "-m", "brokerset_spark"]
    with lake.make_context(job, options) as context:
        given = context.params
    assert given["topics"] == manifest.spec.topics
    assert given["pattern"] == (manifest.spec.topic_pattern or "")
    assert given["compact"] is manifest.spec.compact
    assert str(given["summary"]) == "/dev/termination-log"
    assert given["engine"] == "spark"
    assert given["vacuum_hours"] == manifest.spec.vacuum_hours
    target, avro = manifest.spec.target, manifest.spec.avro
    assert given["kind"] == target.format
    catalog = catalog_of(given["catalog"], given["catalog_properties"], given["table"])
    if target.catalog is not None:
        assert catalog.properties == {"type": "rest", "uri": "https://catalog:8181", "warehouse": "main"}
        assert (catalog.name, catalog.table) == ("lake", "shop.orders")
        assert not catalog.problems()
        assert [each["secretRef"]["name"] for each in container["envFrom"]] == [
            "lake-keys",
            "catalog-keys",
            "schemas",
        ]
    assert (given["registry"], given["subject"]) == (avro and avro.registry, avro and avro.subject)
    columns = parse_columns(given["json_text"], ()) if given["json_text"] else ()
    assert [(each.name, each.kind) for each in columns] == [
        (each.name, each.type) for each in manifest.spec.json_columns
    ]


def test_the_operator_reads_what_an_export_says_at_its_end() -> None:
    """Rows, bytes, files, lag and gaps are in the summary, and a gap is no error."""
    report = Report("lake", counters={f"export.{name}": 3 for name in ("rows", "bytes", "files", "lag")})
    report.counters["export.gaps"] = 2
    report.add(Finding("gap", Level.WARNING, "offsets 1 to 3 are gone"))
    found = read_summary(report.summary().decode())

    assert found is not None
    assert dict(found.exported) == {"rows": 3, "bytes": 3, "files": 3, "lag": 3, "gaps": 2}
    assert (found.errors, found.total) == (0, 1)
