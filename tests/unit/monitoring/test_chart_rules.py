"""The chart's PrometheusRules: what they are made of, and when they are there. Needs helm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

CHART = Path(__file__).parents[3] / "charts" / "brokerset"

SECONDS_MAX = 60


def _helm() -> str | None:
    """A helm program: the one that HELM names, one on the PATH, or that of the cluster for tests."""
    cache = Path(os.environ.get("BROKERSET_CACHE", Path.home() / ".cache" / "brokerset"))
    cached = cache / "cluster" / "bin" / "helm"
    return os.environ.get("HELM") or shutil.which("helm") or (str(cached) if cached.exists() else None)


HELM = _helm()
needs_helm = pytest.mark.skipif(HELM is None, reason="no helm: set HELM, or put it on the PATH")


def rules(**values: Any) -> dict[str, dict[str, Any]]:
    """The PrometheusRules that the chart makes of `prometheusRule`, by name."""
    assert HELM is not None
    done = subprocess.run(
        [HELM, "template", "messaging", str(CHART), "--set-json", f"prometheusRule={json.dumps(values)}"],
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {
        each["metadata"]["name"]: each
        for each in yaml.load_all(done.stdout, yaml.CSafeLoader)
        if each and each["kind"] == "PrometheusRule"
    }


@needs_helm
def test_no_rules_are_made_unless_somebody_asks() -> None:
    """The kind may not be there, and each set brings its own rules."""
    assert rules() == {}


@needs_helm
def test_rules_of_the_operator_of_all_sets_and_of_clients_are_the_files() -> None:
    """What is applied is what promtool has checked, with Prometheus' templates left alone."""
    made = rules(enabled=True, allSets=True, clients=True, labels={"release": "prometheus"})

    assert sorted(made) == ["messaging-operator", "messaging-operator-clients", "messaging-operator-sets"]
    for name, file in (
        ("messaging-operator", "operator"),
        ("messaging-operator-clients", "clients"),
        ("messaging-operator-sets", "sets"),
    ):
        written = yaml.safe_load((CHART / "files" / "rules" / f"{file}.yaml").read_text())
        assert made[name]["spec"] == written
        assert made[name]["metadata"]["labels"]["release"] == "prometheus"


@needs_helm
def test_runbooks_may_be_elsewhere() -> None:
    """Who has copies of the runbooks names their address."""
    (made,) = rules(enabled=True, runbooks="https://wiki.example.com/alerts").values()

    for group in made["spec"]["groups"]:
        for rule in group["rules"]:
            assert rule["annotations"]["runbook_url"] == f"https://wiki.example.com/alerts/{rule['alert']}"
