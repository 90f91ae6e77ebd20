from __future__ import annotations

import pytest
from hypothesis import settings

# How long an example takes says how busy the machine is, and nothing about the property.
settings.register_profile("brokerset", deadline=None)
settings.load_profile("brokerset")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the real output into the scenario files")
    parser.addoption("--seeds", type=int, default=100, help="how many seeds the simulations run")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "seed" in metafunc.fixturenames and "simulation" in str(metafunc.definition.path):
        metafunc.parametrize("seed", range(metafunc.config.getoption("--seeds")))
