"""Of several StoreExports with one target the oldest writes, after the run of a younger one has ended."""

from __future__ import annotations

from typing import Any

import pytest

from brokerset_operator.store_jobs.export_targets import writer_of_target


def export(
    name: str, target: Any, *, created: int = 0, phase: str = "Idle", **metadata: Any
) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "creationTimestamp": f"2026-01-01T00:00:{created:02}Z", **metadata},
        "spec": {"target": target},
        "status": {"phase": phase},
    }


LAKE = {"url": "s3://lake/orders"}


def table(url: str, **catalog: str) -> dict[str, Any]:
    return {"url": url, "format": "iceberg", "catalog": {"type": "rest", "uri": "https://c:8181", **catalog}}


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (LAKE, {"url": "s3://lake/orders/"}, True),
        (LAKE, {"url": "s3a://lake/orders", "format": "delta"}, True),
        (LAKE, {"url": "s3://lake/orders2"}, False),
        (LAKE, {"url": "gs://lake/orders"}, False),
        ({"url": "abfs://c@a/x"}, {"url": "abfss://c@a/x"}, True),
        ({"claimName": "lake"}, {"claimName": "lake", "path": "lake"}, True),
        ({"claimName": "lake", "path": "a"}, {"claimName": "lake", "path": "b"}, False),
        ({"claimName": "lake", "path": "a"}, {"claimName": "other", "path": "a"}, False),
        (table("s3://a/x"), table("s3://b/y", table="brokerset.messages"), True),
        (table("s3://a/x"), table("s3://b/y", name="other"), True),
        (table("s3://a/x"), table("s3://b/y", table="brokerset.orders"), False),
        (table("s3://a/x"), table("s3://b/y", uri="https://d:8181"), False),
        ({}, {}, False),
        (None, None, False),
    ],
)
def test_two_spellings_of_a_place_are_one(one: Any, other: Any, same: bool) -> None:
    """An address and a folder of a volume in each of their spellings; what names none is nobody's."""
    first, second = export("first", one), export("second", other, created=1)
    assert writer_of_target(second, [first, second]) == ("first" if same else None)
    assert writer_of_target(first, [first, second]) is None


def test_the_oldest_writes_and_the_name_decides_between_two_as_old() -> None:
    """Everybody comes to the same answer from the same objects, so one of them writes and not two or none."""
    there = [export("b", LAKE, created=2), export("c", LAKE, created=1), export("a", LAKE, created=2)]
    assert [writer_of_target(each, there) for each in there] == ["c", None, "c"]
    equal = [export("b", LAKE), export("a", LAKE)]
    assert [writer_of_target(each, equal) for each in equal] == ["a", None]


def test_the_oldest_waits_for_a_run_of_a_younger_one() -> None:
    """Its manifest was changed while the target was the other one's."""
    older, younger = export("older", LAKE), export("younger", LAKE, created=1, phase="Running")
    assert writer_of_target(older, [older, younger]) == "younger"
    assert writer_of_target(younger, [older, younger]) == "older"


def test_one_that_is_deleted_is_in_nobodys_way() -> None:
    """What it owns goes with it; one whose run is on is waited for."""
    going = export("going", LAKE, deletionTimestamp="2026-01-02T00:00:00Z")
    own = export("own", LAKE, created=1)
    assert writer_of_target(own, [going, own]) is None
    assert writer_of_target(own, [{**going, "status": {"phase": "Running"}}, own]) == "going"
