"""Subject manifests: defaults, names, and every error at once."""

from __future__ import annotations

import random
from typing import Any

import pytest

from brokerset_controller.ordered.scaling import SubjectRefused, decide_creation
from brokerset_protocol.subject_words import OrderStrategy
from brokerset_spec.manifest import ManifestError
from brokerset_spec.subject_manifest import read_subject


def _with_spec(name: str = "order-events", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "Subject",
        "metadata": {"name": name},
        "spec": {"brokerSetRef": {"name": "orders"}, **spec},
    }


def test_everything_but_the_set_has_a_default() -> None:
    """A Subject is strict, has as many partitions as controllers give it, and outlives its object."""
    subject = read_subject(_with_spec())

    assert (subject.subject, subject.order) == ("order-events", OrderStrategy.STRICT)
    assert (subject.spec.partitions, subject.spec.route) == (None, ())
    assert subject.spec.deletion_policy == "Retain"


def test_a_subject_may_have_a_name_that_no_object_can_have() -> None:
    """Objects have dots and no capitals, subjects have capitals and no dots."""
    assert read_subject(_with_spec("order.events", subject="Order_Events|1")).subject == "Order_Events|1"


def _create(name: str) -> None:
    """What controllers decide about a subject of that name."""
    decide_creation(None, name, OrderStrategy.STRICT, None, (), {"orders-0": 0}, random.Random(1))


@pytest.mark.parametrize(
    "name", ["a%b", "a#b", "a/b", "a\rb", "a\nb", "a\n", "", "a" * 101, "a.b", "ä", "a b"]
)
def test_a_name_that_controllers_refuse_is_refused_in_the_manifest(name: str) -> None:
    """Nothing reaches the controllers that they would refuse by its name (statement 9)."""
    with pytest.raises(SubjectRefused):
        _create(name)
    with pytest.raises(ManifestError, match=r"spec\.subject: is (not a subject's name|longer than 100)"):
        read_subject(_with_spec(subject=name))


@pytest.mark.parametrize("name", ["a", "A-z_0|9", "a" * 100])
def test_a_name_that_controllers_take_is_taken_in_the_manifest(name: str) -> None:
    """The manifest refuses no more than the controllers do."""
    _create(name)

    assert read_subject(_with_spec(subject=name)).subject == name


def test_all_errors_are_reported_at_once_each_with_path_reason_and_advice() -> None:
    """Errors of shape do not hide contradictions."""
    with pytest.raises(ManifestError) as caught:
        read_subject(
            {
                "kind": "Subject",
                "metadata": {"name": "%"},
                "spec": {
                    "subject": "TBW102",
                    "partitions": 1025,
                    "orderStrategy": "strict",
                    "route": ["a", "a"],
                },
            }
        )

    assert [str(problem) for problem in caught.value.problems] == [
        "apiVersion: is missing; add apiVersion: brokerset.io/v1alpha1",
        "metadata.name: is not a name; use lower-case letters, digits, - and ., starting and ending with a "
        "letter or digit",
        "spec.brokerSetRef: is missing; add brokerSetRef: {name: orders}",
        "spec.orderStrategy: is not 'Strict' or 'BestTried'; use one of these",
        "spec.partitions: is more than 1024; use 1024 or less",
        "spec.subject: TBW102 is a topic of the system; choose another name",
        "spec.route: a is listed twice; list each group once",
    ]


def test_an_object_whose_name_cannot_be_a_subjects_must_say_another() -> None:
    """What to do stands in the message."""
    with pytest.raises(ManifestError, match=r"order\.events cannot be a subject; give 1 to 100 letters"):
        read_subject(_with_spec("order.events"))


@pytest.mark.parametrize("document", [None, [], "text", 3])
def test_what_is_no_object_is_refused(document: object) -> None:
    """With an outline of what to write."""
    with pytest.raises(ManifestError, match="is not a Subject manifest; write apiVersion"):
        read_subject(document)
