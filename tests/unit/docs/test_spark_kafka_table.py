"""Every test that `docs/spark-kafka-table.md` names is there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[3]
TABLE = ROOT / "docs" / "spark-kafka-table.md"
FOLDERS = {
    "source": "tests/integration/spark/test_topic_source.py",
    "spark": "tests/integration/spark/test_topic_on_spark.py",
    "kinds": "tests/integration/spark/test_topic_kinds.py",
    "lake": "tests/integration/spark/test_lake.py",
    "e2e": "tests/e2e/test_spark_source.py",
    "e2e-lake": "tests/e2e/test_lake_export.py",
    "planning": "tests/unit/spark/topics/test_planning.py",
    "following": "tests/unit/spark/topics/test_following.py",
    "options": "tests/unit/spark/topics/test_source_options.py",
    "reading": "tests/unit/spark/topics/test_reading.py",
    "questions": "tests/unit/spark/topics/test_first_questions.py",
}
_NAMED = re.compile(r"`([a-z0-9-]+)::(\w+)`")


def rows(text: str) -> Iterator[str]:
    """The rows, each in one line."""
    for part in re.split(r"^\* ", text, flags=re.MULTILINE)[1:]:
        yield " ".join(part.partition("\n## ")[0].split())


def test_every_test_that_the_table_names_is_there() -> None:
    """A test that is renamed or removed would leave a row without its evidence."""
    names = _NAMED.findall(TABLE.read_text())
    assert len(names) > 50
    there = {
        short: set(re.findall(r"^def (test_\w+)", (ROOT / path).read_text(), re.MULTILINE))
        for short, path in FOLDERS.items()
    }
    assert [f"{short}::{name}" for short, name in names if name not in there.get(short, ())] == []


def test_a_row_that_is_tested_names_its_test() -> None:
    """No row refers to another one, or to a part of a name."""
    assert [row for row in rows(TABLE.read_text()) if "Tested" in row and not _NAMED.search(row)] == []
