from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the real output into the scenario files")
    parser.addoption("--seeds", type=int, default=100, help="how many seeds the simulations run")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames and "simulation" in str(metafunc.definition.path):
        metafunc.parametrize("seed", range(metafunc.config.getoption("--seeds")))
