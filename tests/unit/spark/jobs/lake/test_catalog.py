"""What may stand in a command line that names a catalog of Iceberg."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_spark.jobs.lake.catalog import CatalogOptions, catalog_of
from brokerset_spark.jobs.lake.exporting import LakeOptions


@pytest.mark.parametrize(
    ("name", "value", "variable"),
    [
        ("credential", "id:secret", "PYICEBERG_CATALOG__LAKE__CREDENTIAL"),
        ("token", "abc", "PYICEBERG_CATALOG__LAKE__TOKEN"),
        ("s3.secret-access-key", "abc", "PYICEBERG_CATALOG__LAKE__S3__SECRET_ACCESS_KEY"),
        ("uri", "postgresql://lake:secret@db/lake", "PYICEBERG_CATALOG__LAKE__URI"),
        ("uri", "postgresql://db/lake?user=lake&password=abc", "PYICEBERG_CATALOG__LAKE__URI"),
        ("adls.account-key", "abc", "PYICEBERG_CATALOG__LAKE__ADLS__ACCOUNT_KEY"),
        ("adls.connection-string", "AccountKey=abc", "PYICEBERG_CATALOG__LAKE__ADLS__CONNECTION_STRING"),
        ("header.Authorization", "Basic abc", "PYICEBERG_CATALOG__LAKE__HEADER__AUTHORIZATION"),
        ("header.X-Api-Key", "abc", "PYICEBERG_CATALOG__LAKE__HEADER__X_API_KEY"),
    ],
)
def test_secrets_are_refused_and_their_variable_is_named(name: str, value: str, variable: str) -> None:
    """Everybody on the machine can read command lines."""
    (problem,) = CatalogOptions("lake", {name: value}).problems()
    assert variable in problem
    assert value not in problem


def test_what_is_no_secret_is_taken() -> None:
    """A value may have = in it; a property without a value is a mistake."""
    found = catalog_of(
        "lake", ["type=sql", "uri=sqlite:////data/a=b.db", "x=postgresql://lake@db:5432/lake"], None
    )

    assert found.properties["uri"] == "sqlite:////data/a=b.db"
    assert (found.name, found.table, found.problems()) == ("lake", "brokerset.messages", [])
    assert catalog_of(None, [], "messages").problems() == ["table 'messages': write NAMESPACE.NAME"]
    with pytest.raises(ValueError, match="NAME=VALUE"):
        catalog_of(None, ["uri"], None)


def test_a_catalog_and_iceberg_belong_together() -> None:
    """Each without the other is a mistake that would be found late."""
    wanted = LakeOptions(name_servers="n:1", target="/lake", topics=("t",))
    text = "a catalog belongs to the format iceberg: give both, or neither"

    assert replace(wanted, format="iceberg").problems() == [text]
    assert replace(wanted, catalog=CatalogOptions()).problems() == [text]
    assert replace(wanted, format="csv").problems() == ["format 'csv' is none of delta, parquet, iceberg"]
