from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from brokerset_rig import examples

pytest_plugins = ["brokerset_rig.async_tests", "brokerset_rig.processor_costs"]
examples.register()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the real output into the scenario files")
    parser.addoption("--seeds", type=int, default=100, help="how many seeds the simulations run")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames and "simulation" in str(metafunc.definition.path):
        metafunc.parametrize("seed", range(metafunc.config.getoption("--seeds")))


def pytest_collection_finish() -> None:
    """Thousands of tests and all modules are there to stay: who collects garbage need not visit them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _logs_as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What a test configures for logs ends with it: no module's logger keeps it for the tests that follow."""
    before, configure = structlog.get_config(), structlog.configure

    def uncached(**settings: Any) -> None:
        configure(**{**settings, "cache_logger_on_first_use": False})

    monkeypatch.setattr(structlog, "configure", uncached)
    yield
    configure(**before)
