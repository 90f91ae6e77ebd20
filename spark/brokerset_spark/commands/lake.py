"""`lake`: topics of a running BrokerSet into tables."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click

from brokerset_spark.commands.options import JobOptions, bytes_option, job_options


@click.command()
@click.option("--name-servers", required=True, metavar="HOST:PORT;…", help="Addresses of the name servers.")
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="This topic; may be repeated.")
@click.option(
    "--topic-pattern",
    "pattern",
    default="",
    metavar="REGEX",
    help="Topics that match as a whole; later ones are found by each run.",
)
@click.option("--target", required=True, metavar="URL",
              help="A folder, or s3://BUCKET/PATH, gs://, abfss://, hdfs://.")  # fmt: skip
@click.option("--format", "kind", type=click.Choice(("delta", "parquet", "iceberg")), default="delta",
              show_default=True, help="parquet: plain files, with a log of commits beside them.")  # fmt: skip
@click.option("--catalog", metavar="NAME", help="Iceberg's catalog, as pyiceberg's settings name it.")
@click.option("--catalog-property", "catalog_properties", multiple=True, metavar="NAME=VALUE",
              help="Of the catalog: type=sql|rest|glue|hive, uri=…; no secrets, those are taken from "
              "PYICEBERG_CATALOG__NAME__… in the environment or from .pyiceberg.yaml.")  # fmt: skip
@click.option("--table", metavar="NAMESPACE.NAME", help="Iceberg's table.  [default: brokerset.messages]")
@click.option("--schema", type=click.Choice(("raw", "json", "avro")), default="raw", show_default=True,
              help="json, avro: fields of bodies are columns, too.")  # fmt: skip
@click.option("--json-columns", "json_text", metavar="'NAME TYPE, …'",
              help="Which, with types string, bigint, double, boolean.")  # fmt: skip
@click.option("--registry", metavar="URL", help="Schema registry of Avro bodies.")
@click.option("--subject", metavar="NAME",
              help="Its newest schema makes the columns.  [default: TOPIC-value]")  # fmt: skip
@click.option("--schema-file", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="Avro schema that makes the columns instead.")  # fmt: skip
@click.option(
    "--compression", type=click.Choice(("zstd", "snappy", "lz4", "gzip", "none")), default="zstd",
    show_default=True,
)  # fmt: skip
@click.option("--messages-per-task", type=click.IntRange(1), default=1_000_000, show_default=True)
@click.option(
    "--messages-per-queue", type=click.IntRange(1), help="Read at most so many of a queue in this run."
)
@click.option("--compact", is_flag=True, help="Make large files of small ones after the commit.")
@bytes_option("--compact-size", default="128M", show_default=True, help="Size of the large files.")
@click.option(
    "--vacuum-hours",
    type=click.IntRange(1),
    help="Delete files that no version of the last hours names; 168 or more unless no reader is slow.",
)
@job_options
def lake(
    kind: str,
    catalog: str | None,
    catalog_properties: tuple[str, ...],
    table: str | None,
    schema: str,
    json_text: str | None,
    registry: str | None,
    subject: str | None,
    schema_file: Path | None,
    compact: bool,
    compact_size: int,
    job: JobOptions,
    **given: Any,
) -> None:
    """Add what is new in topics of a BrokerSet to a table below the target URL, each message once.

    A run goes on where the last one's commit ended. One that fails adds nothing: give the command again.
    Credentials of the target are taken from the environment (AWS_ACCESS_KEY_ID, …).
    """
    from brokerset_spark.jobs.lake.catalog import catalog_of
    from brokerset_spark.jobs.lake.exporting import LakeOptions, export_pass
    from brokerset_spark.jobs.lake.files import TABLE_SCHEMA
    from brokerset_spark.jobs.lake.json_columns import parse_columns
    from brokerset_spark.jobs.lake.registry import avro_target

    if (schema == "json") != (json_text is not None):
        raise ValueError("--schema json and --json-columns belong together: give both, or neither")
    if (schema == "avro") != (registry is not None) or (schema != "avro" and (subject or schema_file)):
        raise ValueError("--schema avro and --registry belong together: give both, or neither")
    if kind != "iceberg" and (catalog or catalog_properties or table):
        raise ValueError("--catalog, --catalog-property and --table are of --format iceberg")
    columns = parse_columns(json_text, TABLE_SCHEMA.names) if json_text is not None else ()
    if "://" not in given["target"]:
        given["target"] = os.path.abspath(given["target"])
    options = LakeOptions(
        **given,
        format=kind,
        catalog=catalog_of(catalog, catalog_properties, table) if kind == "iceberg" else None,
        json_columns=columns,
        avro=avro_target(registry, subject, schema_file, given["topics"]) if registry is not None else None,
        compact_bytes=compact_size if compact else 0,
    )
    with job.running() as (runner, _):
        found = export_pass(runner, options)
    job.finish(found.as_report(options))
