"""A plugin for pytest: the seconds of processors that each test costs, and whether the quick ones are quick.

Seconds by the clock say how busy the machine is; seconds of processors say what a test costs everybody who runs it.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator

import pytest

COST = "processor seconds"
SHOWN = 15
"""Files in the table of `--costs`."""


def _spent() -> float:
    """Seconds of this process, and of its children that have ended."""
    return sum(os.times()[:4])


def pytest_addoption(parser: pytest.Parser) -> None:
    """Who asks for neither option pays nothing."""
    group = parser.getgroup("costs")
    group.addoption("--costs", action="store_true", help="show which files cost most seconds of processors")
    group.addoption(
        "--cost-max", type=float, help="fail if a test costs more seconds of processors than this"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Start counting: in the workers what each test costs, in the process that reports them all of it."""
    config.pluginmanager.register(Meter())
    if not hasattr(config, "workerinput") and (config.option.costs or config.option.cost_max is not None):
        config.pluginmanager.register(
            Costs(config.option.cost_max, shown=SHOWN if config.option.costs else 0)
        )


class Meter:
    """Adds its cost to the report of each test."""

    def __init__(self) -> None:
        self._before = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, None, None]:
        """A fixture of a module counts for the test that is first to need it."""
        self._before = _spent()
        return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: pytest.Item) -> Generator[None, None, None]:
        """The report that is made next carries the cost."""
        try:
            return (yield)
        finally:
            item.user_properties.append((COST, _spent() - self._before))


class Costs:
    """Sums the costs of all tests, and fails the run if one costs too much."""

    def __init__(self, maximum: float | None, *, shown: int) -> None:
        self.maximum = maximum
        self.shown = shown
        self.tests: dict[str, float] = {}

    @property
    def too_long(self) -> list[str]:
        """Tests above the maximum, with what they cost."""
        if self.maximum is None:
            return []
        return [f"{cost:.1f} s {name}" for name, cost in self.tests.items() if cost > self.maximum]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Reports of workers come here, too."""
        if report.when == "teardown":
            self.tests[report.nodeid] = float(dict(report.user_properties)[COST])  # type: ignore[arg-type]  # object

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """A test that is too long fails a run that would have passed."""
        if self.too_long and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Which files cost most, and which tests cost too much."""
        files: Counter[str] = Counter()
        for name, cost in self.tests.items():
            files[name.partition("::")[0]] += cost  # type: ignore[assignment]  # seconds, not numbers
        if self.shown:
            terminalreporter.section(f"{sum(files.values()):.0f} s of processors in {len(self.tests)} tests")
            for name, cost in files.most_common(self.shown):
                terminalreporter.line(f"{cost:8.1f} s {name}")
        if self.too_long:
            terminalreporter.section(
                f"more than {self.maximum} s of processors: quicken it, or mark it `long`"
            )
            for line in self.too_long:
                terminalreporter.line(line)
