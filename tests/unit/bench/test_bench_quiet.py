"""When a case is measured, waits, is refused or is marked."""

from __future__ import annotations

import pytest
from tests.bench.machine import (
    Process,
    Snapshot,
    Usage,
    descendants,
    parse_machine,
    parse_process,
    tree_seconds,
    usage,
)
from tests.bench.quiet import MachineBusy, Observation, Patience, Step, await_quiet, decide_step, remarks

QUIET, BUSY, STOLEN = Usage(0.01, 0.02), Usage(0.4, 0.0), Usage(0.0, 0.06)


@pytest.mark.parametrize(
    ("use", "waited", "strict", "step"),
    [
        (QUIET, 0.0, True, Step.MEASURE),
        (BUSY, 5.0, False, Step.WAIT),
        (STOLEN, 5.0, False, Step.WAIT),
        (BUSY, 20.0, False, Step.MEASURE),
        (BUSY, 20.0, True, Step.REFUSE),
    ],
)
def test_a_busy_machine_is_waited_for_then_marked_or_refused(
    use: Usage, waited: float, strict: bool, step: Step
) -> None:
    """Others and the host count together; only `--strict` refuses."""
    assert decide_step(use, waited, Patience(20, strict)) is step


def busy_machine() -> list[Snapshot]:
    return [Snapshot(second, second * 1.0, 0.0, 0.0, second * 0.2) for second in range(100)]


def test_a_strict_run_ends_on_a_machine_that_stays_busy() -> None:
    """The message says what others use, and what to do."""
    snapshots = iter(busy_machine())

    with pytest.raises(MachineBusy, match=r"others use 0\.80 cores .* end them"):
        await_quiet(Patience(3, strict=True), sleep=lambda _: None, observe=lambda: next(snapshots))

    assert next(snapshots).at == 4


def test_a_run_that_is_not_strict_measures_on_a_busy_machine() -> None:
    """It has waited as long as it may."""
    snapshots = iter(busy_machine())

    use = await_quiet(Patience(3, strict=False), sleep=lambda _: None, observe=lambda: next(snapshots))

    assert use.others == pytest.approx(0.8)


def test_own_processes_and_kernel_threads_are_not_others() -> None:
    """Two seconds: 3.0 busy, of them 1.5 ours and 0.5 kernel threads."""
    before, after = Snapshot(10, 100, 5, 20, 30), Snapshot(12, 103, 5.2, 20.5, 31.5)

    use = usage(before, after)

    assert use.others == pytest.approx(0.5)
    assert use.stolen == pytest.approx(0.1)


def test_remarks_name_the_most_and_the_sides_that_met_it() -> None:
    """What stayed below its limit is not said."""
    seen = [
        Observation("java", Usage(0.01, 0.0), 0.3),
        Observation("native", Usage(0.2, 0.0), 0.97),
        Observation("python", Usage(0.4, 0.0), 0.5),
    ]

    assert remarks(seen) == [
        "others used up to 0.40 cores (native, python)",
        "the load generator used up to 0.97 cores (native)",
    ]


def test_the_time_of_a_tree_has_children_and_those_that_have_ended() -> None:
    """A process with a parenthesis in its name, its child, and nobody else."""
    stat = "7 (a ) b) S 1 7 7 0 -1 0 0 0 0 0 100 50 25 25 20 0 1 0"
    root = parse_process(stat)
    table = {7: root, 8: Process(7, 0.5), 9: Process(8, 0.25), 10: Process(1, 9.0)}

    assert root == Process(1, 2.0)
    assert sorted(descendants(table, [7, 99])) == [7, 8, 9]
    assert tree_seconds(table, [7]) == 2.75


def test_time_in_interrupts_is_not_busy() -> None:
    """User, nice and system are; stolen time is told apart."""
    assert parse_machine("cpu  100 200 300 999 999 50 50 400 0 0") == (6.0, 4.0)
