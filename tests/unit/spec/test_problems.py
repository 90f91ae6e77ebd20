"""Problems of manifests: where they are said to be, and what is left when they are taken out."""

from __future__ import annotations

import pytest

from brokerset_spec.problems import ManifestError, Problem, is_covered, without_faults, without_nulls


def test_a_problem_reads_as_path_reason_and_advice() -> None:
    assert str(Problem("spec.groups", "is less than 1", "use 1 or more")) == (
        "spec.groups: is less than 1; use 1 or more"
    )
    assert str(Problem("", "is not a manifest", "write one")) == "is not a manifest; write one"


def test_an_error_has_all_problems_one_on_a_line() -> None:
    problems = [Problem("a", "b", "c"), Problem("d", "e", "f")]

    assert str(ManifestError(problems)) == "a: b; c\nd: e; f"


@pytest.mark.parametrize(
    ("path", "covered"),
    [
        ("spec.storage", True),
        ("spec.storage.size", True),
        ("spec.storage.size.x", True),
        ("spec.storages", False),
    ],
)
def test_what_is_said_about_a_field_covers_what_it_is_in_and_what_is_in_it(path: str, covered: bool) -> None:
    assert is_covered(path, [Problem("spec.storage.size", "is not a size", "write one")]) is covered


def test_nulls_count_as_left_out_also_inside_lists() -> None:
    assert without_nulls({"a": None, "b": [{"c": None, "d": 0}], "e": {"f": None}}) == {
        "b": [{"d": 0}],
        "e": {},
    }


def test_faults_are_taken_out_of_a_copy() -> None:
    document = {"spec": {"replicas": "3", "config": {"a": [1], "b": 2}, "groups": 1}}

    rest = without_faults(
        document, [("spec", "replicas"), ("spec", "config", "a", "bool"), ("spec", "tls", "x"), ("kind",)]
    )

    assert rest == {"spec": {"config": {"b": 2}, "groups": 1}}
    assert document["spec"]["replicas"] == "3"
