from __future__ import annotations

import gc

import pytest

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
