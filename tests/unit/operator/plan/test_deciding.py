"""How the answers of rules become one plan."""

from __future__ import annotations

import re
from pathlib import Path

import brokerset_operator
from brokerset_operator.model.actions import Action, Fence, PromoteController, ResizeClaim
from brokerset_operator.plan import steps
from brokerset_operator.plan.deciding import CARRYING_OUT, PAUSED, SHAPING, Decided
from brokerset_operator.plan.facts import Facts, gather
from brokerset_operator.plan.steps import Rule, Stage, Steps
from brokerset_sim.kubernetes_worlds import settled


def decided(*rules: Rule) -> Decided:
    """What rules have decided about a set at rest."""
    found = Decided(gather(settled().observe_now()))
    found.follow(rules)
    return found


def test_actions_come_in_the_order_of_their_stages() -> None:
    """Whichever rule was asked first; within a stage the order is that of the rules."""
    first, second, third, last = (ResizeClaim(name, "1Gi") for name in "abcd")

    def early(_: Facts) -> Steps:
        yield steps.At(Stage.SETTINGS, last)
        yield second

    def late(_: Facts) -> Steps:
        yield third
        yield steps.At(Stage.OBJECTS, first)

    found = decided(Rule(Stage.SIZE, early), Rule(Stage.SIZE, late)).finished()

    assert found.actions == (first, second, third, last)


def test_what_takes_a_scope_excludes_what_comes_later() -> None:
    """Also an action that disturbs a group; in its place holds what is said instead."""

    def rule(_: Facts) -> Steps:
        yield steps.Unless("x", (PromoteController(1), steps.Takes("x")))
        yield steps.Unless("x", (PromoteController(2),), (PromoteController(3),))
        yield Fence("orders-0", 1, True, "")
        yield steps.Unless("orders-0", (PromoteController(4),), (steps.Waits("later"),))

    found = decided(Rule(Stage.SIZE, rule))

    done: list[Action] = [action for _, action in found.actions]
    assert done == [PromoteController(1), PromoteController(3), Fence("orders-0", 1, True, "")]
    assert found.notes == ["later"]


def test_what_a_rule_remembers_is_seen_by_the_rules_after_it() -> None:
    """Not by itself: a rule is a function of facts."""
    seen = []

    def writes(facts: Facts) -> Steps:
        group = facts.groups[0]
        yield steps.remember(group, empty_since=5.0)
        seen.append(facts.work_of(group).empty_since)

    def reads(facts: Facts) -> Steps:
        seen.append(facts.work_of(facts.groups[0]).empty_since)
        yield steps.Again(1.0)

    decided(Rule(Stage.SIZE, writes), Rule(Stage.SIZE, reads))

    assert seen == [None, 5.0]


def test_the_design_names_the_rules_in_their_order() -> None:
    """A stranger reads there what is asked when."""
    text = (Path(brokerset_operator.__file__).parent / "DESIGN.md").read_text(encoding="utf-8")
    rows = text.partition("| asked | rule |")[2].partition("\n\n")[0].splitlines()[2:]

    told = [name.rpartition(".")[2] for row in rows for name in re.findall(r"`([\w.]+)`", row.split("|")[2])]

    asked = [rule.steps.__name__ for rule in (*SHAPING, *CARRYING_OUT)]
    assert [name for name in told if name != "keep_volumes"] == asked
    assert {rule.steps.__name__ for rule in PAUSED} - {"report_paused"} <= set(asked)
