"""The engine of all flows: what it does with steps in each state, and when it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click
import pytest

from brokerset_cli.output import CommandFailed
from brokerset_cli.takeover import flow
from brokerset_cli.takeover.flow import Flow
from brokerset_cli.takeover.steps import (
    Standing,
    Step,
    StepState,
    as_json,
    blocked,
    current,
    done,
    in_order,
    ready,
    waiting,
    yours,
)


class Made(Flow[int]):
    """A flow whose first step stands as listed, one observation after the other, and is done behind them."""

    def __init__(self, standings: Sequence[Standing], *, yes: bool = True, again: bool = False) -> None:
        super().__init__(yes=yes)
        self.standings = list(standings)
        self.asks_again = again  # type: ignore[misc]  # of this flow only
        self.acts: list[str] = []

    async def observe(self) -> int:
        return len(self.standings)

    def plan(self, facts: int) -> tuple[Step, ...]:
        one = self.standings.pop(0) if self.standings else done()
        return in_order([Step("one", "One.", *one), Step("two", "Two.", *done())])

    async def act(self, step: Step, facts: int) -> None:
        self.acts.append(step.detail)

    def pause(self, facts: int) -> float:
        return 0.0


@pytest.fixture
def questions(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a person, who says yes, was asked."""
    asked: list[str] = []
    monkeypatch.setattr(click, "confirm", lambda text, **_: asked.append(text))
    return asked


def run(made: Made, last: str | None = None) -> StepState | None:
    step = current(asyncio.run(made.run(last)))
    return None if step is None else step.state


@pytest.mark.parametrize(
    ("standings", "acts", "end"),
    [
        ([], [], None),
        ([ready("a"), ready("b"), waiting("c")], ["a", "b"], None),
        ([waiting("a"), ready("b"), yours("c", "do it"), ready("d")], ["b"], StepState.YOURS),
        ([blocked("a", "change it"), ready("b")], [], StepState.BLOCKED),
    ],
)
def test_it_goes_on_until_nothing_is_left_or_it_is_the_persons(
    standings: list[Standing], acts: list[str], end: StepState | None
) -> None:
    """It acts on what is ready, and observes again; nobody acts for the person, or against an obstacle."""
    made = Made(standings)

    assert run(made) is end
    assert made.acts == acts


@pytest.mark.parametrize(("again", "asked", "acts"), [(False, "ac", "bde"), (True, "ace", "bd")])
def test_what_was_observed_before_the_answer_does_not_count(
    questions: list[str], again: bool, asked: str, acts: str
) -> None:
    """The person may take long: the act is of the observation behind the answer. What was agreed to is asked
    for once, unless the flow asks again when another act came in between."""
    standings = [ready(detail, act) for detail, act in zip("abcde", (1, 1, 2, 2, 1), strict=True)]
    made = Made(standings, yes=False, again=again)

    run(made)

    assert made.acts == list(acts)
    assert questions == [f"one: One. {detail}. Do it?" for detail in asked]


def test_nobody_is_asked_who_said_yes_before(questions: list[str]) -> None:
    """`--yes`."""
    run(Made([ready("a")]))

    assert questions == []


def test_what_never_changes_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting, or acting without an effect that anybody sees, ends with what it was about."""
    monkeypatch.setattr(flow, "STALL_SECONDS_MAX", 0.01)

    for standing in (waiting("nobody comes"), ready("no effect")):
        with pytest.raises(CommandFailed, match=f"one: {standing.detail}: nothing has changed"):
            run(Made([standing] * 100_000))


def test_it_stops_behind_a_step_and_names_the_others() -> None:
    """`--to`: of a name that is none it says which there are."""
    assert run(Made([ready("a")]), "one") is None
    with pytest.raises(CommandFailed, match="there is no step 'three'") as told:
        run(Made([]), "three")
    assert told.value.advice == "give --to one of: one, two"


def test_steps_behind_the_current_one_come_later() -> None:
    """With no act and nothing for the person; but what is done, or stands against it, is shown as it is."""
    now, hinted = Step("a", "A.", *ready("x", 1), back="b"), Step("b", "B.", *yours("y", "do it"), back="c")
    end, against = Step("c", "C.", *done()), Step("d", "D.", *blocked("z", "change it"))

    found = in_order([now, hinted, end, against])

    assert (found[0], *found[2:]) == (now, end, against)
    assert (found[1].state, found[1].hint, found[1].act) == (StepState.LATER, "", None)
    assert as_json(found)[1] == {
        "name": "b", "title": "B.", "state": "later", "detail": "y", "hint": "", "back": "c",
    }  # fmt: skip
