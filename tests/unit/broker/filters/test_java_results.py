"""Some hundreds of expressions with what Java gave for them, from a file.

The file was made once, with the filter classes of RocketMQ 5.5.0: random expressions, some of them damaged,
and random properties. Of 60,000 pairs, 300 of different forms were kept; none of all these differed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from brokerset_broker.filters import EvaluationFailed, FilterError, compile_filter
from brokerset_formats.properties import encode_properties

PAIRS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("java_results.json").read_text())["pairs"]


def test_the_file_has_every_outcome_many_times() -> None:
    """True, false, null, failed evaluations and errors."""
    outcomes = [str(pair.get("value", "fails" if "fails" in pair else "error")) for pair in PAIRS]

    assert {outcome: outcomes.count(outcome) for outcome in set(outcomes)} == {
        "True": 75, "False": 60, "None": 45, "fails": 45, "error": 75,
    }  # fmt: skip


def outcome(expression: str, properties: dict[str, str]) -> dict[str, object]:
    try:
        result = compile_filter(expression).evaluate(encode_properties(properties))
    except FilterError as error:
        return {"error": error.remark}
    return {"fails": True} if isinstance(result, EvaluationFailed) else {"value": result}


@pytest.mark.parametrize("pair", PAIRS, ids=[str(number) for number in range(len(PAIRS))])
def test_a_filter_gives_what_java_gave(pair: dict[str, Any]) -> None:
    """The same value, a failed evaluation where Java raised an exception, and the same text of an error."""
    result = outcome(pair["expression"], pair["properties"])

    assert {"expression": pair["expression"], "properties": pair["properties"], **result} == pair
