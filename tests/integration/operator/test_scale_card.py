"""The program that measures one operator with many sets measures something."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
PROGRAM = ROOT / "tests" / "bench" / "scale_card.py"


def program() -> ModuleType:
    spec = importlib.util.spec_from_file_location("scale_card", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = found
    spec.loader.exec_module(found)
    return found


def test_three_sets_become_ready_and_are_counted(tmp_path: Path) -> None:
    """A real operator makes them ready, starts again without changing anything, and is quiet then."""
    out = tmp_path / "card.json"
    done = subprocess.run(
        [sys.executable, PROGRAM, "--sets", "3", "--idle-seconds", "2", "--http-port", "21893", "--out", out],
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    card = json.loads(out.read_text())
    assert card["sets"] == 3
    assert card["create"]["rounds"] >= 3
    assert card["start"]["changes"] == 0
    assert card["start"]["memoryMib"]["anonymous"] > 10
    assert set(card["idle"]["callsPerMinuteByVerb"]) <= {"update"}  # the Lease
    assert "3 BrokerSets in 1 namespaces" in done.stdout


@pytest.mark.parametrize(("share", "seconds"), [(0.25, 0.05), (0.5, 0.1), (0.75, 0.55), (1.0, 1.0)], ids=str)
def test_quantiles_lie_within_their_bucket(share: float, seconds: float) -> None:
    """Interpolated as Prometheus does."""
    buckets = {0.1: 5.0, 1.0: 10.0, float("inf"): 10.0}

    assert program().quantile(buckets, share) == pytest.approx(seconds)


def test_rounds_that_took_longer_than_every_bound_are_not_guessed() -> None:
    """The highest bound is told; and nothing when there were no reconciles."""
    assert program().quantile({0.1: 1.0, float("inf"): 10.0}, 0.9) == 0.1
    assert program().quantile({0.1: 0.0, float("inf"): 0.0}, 0.9) is None
    assert program().quantile({}, 0.5) is None


def test_every_pod_has_an_address_of_its_own() -> None:
    """Ports are fixed, so two pods at one address would answer for each other."""
    card = program()
    places = [card.SetPlace(index) for index in range(2000)]
    addresses = {
        place.address(net, ordinal)
        for place in places
        for net in (card.CONTROLLER_NET, card.BROKER_NET)
        for ordinal in range(3)
    }

    assert len(addresses) == 2000 * 6
