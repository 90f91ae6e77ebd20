"""What a manifest may say about its pods."""

from __future__ import annotations

from typing import Any

import pytest

from brokerset_spec.pod_template import FORBIDDEN, OWN_VARIABLE_PREFIXES, PodTemplate, check_pod_template


@pytest.mark.parametrize("name", sorted(FORBIDDEN))
@pytest.mark.parametrize("value", [{}, [], True, "x", 0])
def test_a_field_that_would_give_more_rights_is_refused_with_any_value(name: str, value: Any) -> None:
    (problem,) = check_pod_template({name: value})

    assert problem.path == f"spec.podTemplate.{name}"
    assert str(problem).endswith("; leave it out")


def test_no_field_that_is_refused_is_one_that_is_read() -> None:
    read = {field.alias or name for name, field in PodTemplate.model_fields.items()}

    assert read.isdisjoint(FORBIDDEN)


@pytest.mark.parametrize("prefix", OWN_VARIABLE_PREFIXES)
def test_variables_that_decide_what_is_run_are_refused(prefix: str) -> None:
    (problem,) = check_pod_template({"env": [{"name": f"{prefix}X", "value": "1"}]})

    assert problem.path == "spec.podTemplate.env"


@pytest.mark.parametrize(
    ("asked", "most", "fits"),
    [
        ("500m", "0.5", True),
        ("501m", "0.5", False),
        (1, "1000m", True),
        ("1Gi", "1G", False),
        ("1G", "1Gi", True),
        ("1024Ki", "1Mi", True),
        ("1.5Gi", "1536Mi", True),
        ("1E", "1Ei", True),
        ("1k", 999, False),
        (0, 0, True),
    ],
)
def test_more_cannot_be_asked_for_than_may_be_used(asked: int | str, most: int | str, fits: bool) -> None:
    resources: Any = {"requests": {"cpu": asked}, "limits": {"cpu": most, "memory": "1Gi"}}

    found = check_pod_template({"resources": resources})

    assert [problem.path for problem in found] == (
        [] if fits else ["spec.podTemplate.resources.requests.cpu"]
    )


@pytest.mark.parametrize("amount", ["", "1 Gi", "1GB", "-1", -1, 1.5, True, None, "1e3", "9" * 33, "4Gi\n"])
def test_what_is_no_amount_is_refused(amount: Any) -> None:
    (problem,) = check_pod_template({"resources": {"limits": {"memory": amount}}})

    assert str(problem) == (
        "spec.podTemplate.resources.limits.memory: is not an amount; write it like 500m, 2 or 4Gi"
    )


def test_an_amount_stays_as_it_was_written() -> None:
    template = PodTemplate.model_validate({"resources": {"requests": {"cpu": 2, "memory": "4Gi"}}})

    assert template.resources.requests == {"cpu": 2, "memory": "4Gi"}


@pytest.mark.parametrize("value", ["a", "A-b_c.d1", "", "9"])
def test_values_of_labels_are_those_that_kubernetes_takes(value: str) -> None:
    assert (
        check_pod_template({"metadata": {"labels": {"team": value}}, "nodeSelector": {"disk": value}}) == []
    )


@pytest.mark.parametrize("value", ["-a", "a-", "a b", "ü", "a" * 64])
def test_values_of_labels_that_kubernetes_would_refuse_later_are_refused_at_once(value: str) -> None:
    (problem,) = check_pod_template({"metadata": {"labels": {"team": value}}})

    assert problem.path == "spec.podTemplate.metadata.labels.team"
