"""One Spark session, and the stores that the Java broker wrote, for all tests here."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from brokerset_rig.made_stores import unpacked_once
from brokerset_rig.spark_session import spark_session
from brokerset_spark.sources import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """A session that knows the data sources."""
    with spark_session() as session:
        register(session)
        yield session


@pytest.fixture(scope="session")
def fixture_store(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Unpacks an archive of stores once."""
    return unpacked_once(tmp_path_factory)
