"""Mistakes in the code of transactions that the model of `transaction_world` has to notice."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final
from unittest import mock

import pytest
from tests.property.transaction_world import CODE, Broken, Code, random_tape, run


@dataclass(frozen=True)
class Mutant:
    """One mistake: in which module, and which text becomes which."""

    module: str
    old: str
    new: str


MUTANTS: Final = {
    "a second commit is stored": Mutant("ending", "if facts.ending is not None:", "if False:"),
    "any end is answered as done": Mutant(
        "ending", "if ending is (Ending.COMMITTED if commit else Ending.ROLLED_BACK):", "if True:"
    ),
    "a final names the copy that was asked for": Mutant(
        "ending", "final_of(half, facts.newest_copy)", "final_of(half, half.offset)"
    ),
    "the id of a request is not compared": Mutant("ending", "if not _names(request, half):", "if False:"),
    "a final record proves nothing": Mutant(
        "resolved", "queue_offset = self._by_offset.get(prepared_transaction_offset)", "queue_offset = None"
    ),
    "a missing op is not written": Mutant("resolved", "return tuple(self._without_op)", "return ()"),
    "the scan begins at the newest open half": Mutant("resolved", "return min(\n", "return max(\n"),
    "copies are transactions of their own": Mutant(
        "resolved", "TransactionKey(origin_of(half), ", "TransactionKey(half.queue_offset, "
    ),
    "ops are passed too early": Mutant("resolved", "self._ops[0][1] < self", "self._ops[0][0] < self"),
    "the progress passes a half without its op record": Mutant(
        "resolved", "min(half_progress, min(self._without_op, default=half_progress))", "half_progress"
    ),
    "halves with a common key are one": Mutant(
        "resolved", "TransactionKey(origin_of(half), ", "TransactionKey(0, "
    ),
    "op records are not read": Mutant("resolved", "if op_queue_offset < self._op_end:", "if True:"),
    "copies of Java are transactions of their own": Mutant(
        "resolved", "self._sent.get((key.unique_key, half.born_timestamp))", "None"
    ),
    "a copy is not passed": Mutant("resolved", "return State.SUPERSEDED", "return State.OPEN"),
    "a rollback is not remembered": Mutant(
        "resolved",
        'can be rolled back"\n        transaction.ending = Ending.ROLLED_BACK',
        'can be rolled back"',
    ),
    "the progress passes what could not be copied": Mutant(
        "check_pass", "if self.left is None:\n            self.left = queue_offset", "pass"
    ),
    "an open half is passed without a copy": Mutant(
        "check_pass",
        "if state is State.OPEN:\n            yield from self._check(half)",
        "if False:\n            pass",
    ),
    "checks are not counted": Mutant("check_pass", "check_times_of(half) + 1)", "check_times_of(half))"),
    "the check names the old copy": Mutant("check_pass", "        return copy\n", "        return half\n"),
}


def mutated(mutant: Mutant) -> Code:
    """The three modules with one mistake in one of them."""
    made: dict[str, ModuleType] = {}
    names = {name: f"brokerset_broker.transactions.{name}" for name in ("resolved", "ending", "check_pass")}
    for name, whole in names.items():
        original = sys.modules[whole]
        source = Path(str(original.__file__)).read_text()
        if name == mutant.module:
            assert source.count(mutant.old) == 1, f"{mutant.old!r} is not in {name} once"
            source = source.replace(mutant.old, mutant.new)
        module = ModuleType(whole)
        with mock.patch.dict(sys.modules, {whole: module, **{names[each]: made[each] for each in made}}):
            exec(compile(source, whole, "exec"), module.__dict__)
        made[name] = module
    return Code(**made)


@pytest.mark.parametrize("name", MUTANTS)
def test_every_mistake_is_noticed(name: str) -> None:
    """The model fails for each of them, by an invariant or by an assertion of the code itself."""
    code = mutated(MUTANTS[name])

    for seed in range(200):
        try:
            run(random_tape(seed), code, java=seed % 3 * 20)
        except (Broken, AssertionError):
            return
    pytest.fail("no history notices it")


def test_the_same_histories_break_nothing_without_a_mistake() -> None:
    """Only mistakes are noticed."""
    for seed in range(10):
        run(random_tape(seed), CODE, java=seed % 3 * 20)
