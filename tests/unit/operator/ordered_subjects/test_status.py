"""What the status of a Subject says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.operator.ordered_subjects.states import (
    OPEN_2,
    OPEN_4,
    SCALING_TO_4,
    consumers,
    generation,
    manifest,
    observed,
    state,
)

from brokerset_operator.model import claim_reasons
from brokerset_operator.model.verdict import Verdict
from brokerset_operator.ordered_subjects import reasons
from brokerset_operator.ordered_subjects.plan import judge, progress_of
from brokerset_operator.ordered_subjects.status import GROUPS_SHOWN_MAX, status_of
from brokerset_protocol.bodies.ordered import SubjectState
from brokerset_protocol.subject_words import PartitionStatus

ROOT = Path(__file__).parents[4]
T0, T1 = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


def _status(
    agreed: SubjectState, moment: str = T0, before: dict[str, Any] | None = None, refusal: str | None = None
) -> dict[str, Any]:
    live = manifest()
    live["metadata"]["generation"] = 3
    live["status"] = before or {}
    found = observed(agreed)
    verdict, progress = judge(found, refusal), progress_of(found)
    return status_of(live, "events", verdict, moment, state=agreed, progress=progress)


def _declared() -> dict[str, Any]:
    """The schema of the status in the CRD."""
    crd = yaml.load((ROOT / "crds" / "subjects.yaml").read_text(encoding="utf-8"), yaml.CSafeLoader)
    schema: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    found: dict[str, Any] = schema["properties"]["status"]
    return found


def _faults(value: Any, schema: dict[str, Any], path: str = "status") -> list[str]:
    """What the API server would refuse, or drop."""
    if isinstance(value, dict):
        fields = schema.get("properties", {})
        lacking = [f"{path}.{name} is not declared" for name in value if name not in fields]
        inner = [(item, fields[name], f"{path}.{name}") for name, item in value.items() if name in fields]
    elif isinstance(value, list):
        lacking = [f"{path} is too long"] if len(value) > schema["maxItems"] else []
        inner = [(item, schema["items"], f"{path}[]") for item in value]
    else:
        types = {"string": str, "integer": int}
        wrong = not isinstance(value, types[schema["type"]])
        long = isinstance(value, str) and "maxLength" in schema and len(value) > schema["maxLength"]
        lacking, inner = ([f"{path} is wrong"] if wrong or long else []), []
    return [*lacking, *(fault for item in inner for fault in _faults(*item))]


def _condition(status: dict[str, Any], kind: str) -> dict[str, Any] | None:
    return next((one for one in status["conditions"] if one["type"] == kind), None)


def test_the_status_says_what_is_agreed_on() -> None:
    """Numbers of partitions, and the groups of consumers with what they have not drained."""
    agreed = state(
        generation(0, 2, PartitionStatus.SEALED),
        generation(1, 4, PartitionStatus.OPEN, first=2),
        groups=(consumers("late", 1, drained=(1,)), consumers("early", 2, drained=(0, 1))),
    )

    status = _status(agreed)

    assert {key: value for key, value in status.items() if key != "conditions"} == {
        "observedGeneration": 3,
        "phase": "Ready",
        "subject": "events",
        "generation": 1,
        "partitions": 4,
        "sealing": 0,
        "route": ["orders-0", "orders-1"],
        "groupCount": 2,
        "groups": [
            {"name": "early", "strategy": "Exclusive", "members": 2, "undrained": 0},
            {"name": "late", "strategy": "Exclusive", "members": 1, "undrained": 1},
        ],
    }


def test_only_partitions_that_take_messages_count_for_scale() -> None:
    """`kubectl scale` and autoscalers see the change when it has happened, not when it was agreed on."""
    during, after = _status(SCALING_TO_4), _status(OPEN_4)

    assert (during["partitions"], during["sealing"], during["generation"]) == (0, 2, 1)
    assert (after["partitions"], after["sealing"], after["generation"]) == (4, 0, 1)


def test_a_condition_keeps_its_time_while_its_status_is_the_same() -> None:
    """Also when its reason is another."""
    first = _status(SCALING_TO_4)
    second = _status(OPEN_4, T1, first)
    third = _status(OPEN_4, "2026-01-01T00:02:00Z", second)

    times = [[one["lastTransitionTime"] for one in each["conditions"]] for each in (first, second, third)]
    assert times == [[T0, T0], [T1, T1], [T1, T1]]


def test_a_refusal_is_a_condition_only_while_it_lasts() -> None:
    """Who reads the conditions sees no refusal of last week."""
    refused = _status(OPEN_2, refusal="no")
    told = _condition(refused, reasons.REFUSED)
    assert told is not None
    assert (told["status"], told["message"]) == ("True", "no")

    assert _condition(_status(OPEN_2, T1, refused), reasons.REFUSED) is None


def test_what_was_known_stays_while_nobody_can_be_asked() -> None:
    """A subject does not shrink in the eyes of an autoscaler because controllers are silent."""
    before = _status(OPEN_4)
    live = {**manifest(), "status": before}

    status = status_of(live, "events", Verdict(False, claim_reasons.CONTROLLERS_SILENT, "nobody leads"), T1)

    assert {key: status[key] for key in ("generation", "partitions", "sealing", "route", "groupCount")} == {
        "generation": 1,
        "partitions": 4,
        "sealing": 0,
        "route": ["orders-0", "orders-1"],
        "groupCount": 0,
    }
    assert _condition(status, reasons.SCALING) == _condition(before, reasons.SCALING)
    assert status["phase"] == claim_reasons.CONTROLLERS_SILENT


def test_a_status_is_never_longer_than_the_api_server_takes() -> None:
    """The number of groups and of characters is bounded, and the whole number of groups is said."""
    many = tuple(consumers(f"g{number:04}", 1) for number in range(1000))
    agreed = state(generation(0, 2, PartitionStatus.OPEN), groups=many, problems=("x" * 100_000,))

    status = _status(agreed)

    assert _faults(status, _declared()) == []
    assert (len(status["groups"]), status["groupCount"]) == (GROUPS_SHOWN_MAX, 1000)


@pytest.mark.parametrize("agreed", [OPEN_2, SCALING_TO_4, OPEN_4])
def test_a_status_is_what_the_crd_declares(agreed: SubjectState) -> None:
    """A field that is not declared would be dropped without a word."""
    status = _status(agreed)

    assert _faults(status, _declared()) == []


def test_the_reference_says_what_to_do_about_every_condition_and_reason() -> None:
    """Whoever reads one of them finds it there."""
    text = (ROOT / "docs" / "subject-reference.md").read_text(encoding="utf-8")
    used = [value for name, value in vars(reasons).items() if name.isupper() and isinstance(value, str)]
    assert "NextWaits" in used

    assert [name for name in used if f"`{name}`" not in text] == []
