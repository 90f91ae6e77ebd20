"""Rules, dashboards and runbooks fit together; promtool, of Debian's package `prometheus`, runs the rules."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from brokerset_operator.model.names import RUNBOOKS
from brokerset_operator.resources.alerts import (
    BROKER_ALERTS,
    CONDITION_ALERTS,
    CONTROLLER_ALERTS,
    DLEDGER_ALERTS,
    OPERATOR_ALERTS,
    SET_ALERTS,
)
from brokerset_operator.resources.message_alerts import MESSAGE_ALERTS
from brokerset_operator.resources.monitoring import groups_of_set
from brokerset_operator.resources.ordered_alerts import (
    ORDERED_BROKER_ALERTS,
    ORDERED_CLIENT_ALERTS,
    ORDERED_CONTROLLER_ALERTS,
)
from brokerset_operator.resources.pop_alerts import POP_ALERTS

from .alert_times import HEALTHY as SET_HEALTHY
from .alert_times import OF_RETIRED, SAMPLES, gone_group
from .alert_times import TIMES as SET_TIMES
from .ordered_alert_times import ORDERED_HEALTHY, ORDERED_TIMES

ROOT = Path(__file__).parents[3]
CHART = ROOT / "charts" / "brokerset"
RULES = sorted((CHART / "files" / "rules").glob("*.yaml"))
DASHBOARDS = sorted((CHART / "dashboards").glob("*.json"))

PROMTOOL = shutil.which("promtool")
needs_promtool = pytest.mark.skipif(
    PROMTOOL is None, reason="no promtool on the PATH: apt-get install prometheus"
)


SECONDS_MAX = 300
"""A guard against one that hangs; alone it takes 10 s, beside everything else of two cores ten times that."""

UNITS = ("short", "cps", "reqps", "Bps", "bytes", "percentunit", "ms", "s", "µs")
"""Of Grafana's units (their ids, not what is shown) those that panels have."""

VARIABLE = re.compile(r"\$\{?(\w+)")

HEALTHY = {**SET_HEALTHY, **ORDERED_HEALTHY}
TIMES = (*SET_TIMES, *ORDERED_TIMES)

ALERTS = (
    *CONTROLLER_ALERTS,
    *BROKER_ALERTS,
    *DLEDGER_ALERTS,
    *ORDERED_CONTROLLER_ALERTS,
    *MESSAGE_ALERTS,
    *POP_ALERTS,
    *ORDERED_BROKER_ALERTS,
    *ORDERED_CLIENT_ALERTS,
    *SET_ALERTS,
    *CONDITION_ALERTS,
    *OPERATOR_ALERTS,
)

SECTIONS = ("## What it means", "## Impact", "## How to inspect", "## What to do")

METRIC = re.compile(
    r"\b([a-z]\w+(?=\{)|(?:rocketmq|brokerset_(?:broker|client|controller|operator|audit|migration))_\w+)"
)
"""Before a selector, or one of ours without."""


def promtool(*arguments: str) -> None:
    assert PROMTOOL is not None
    done = subprocess.run(
        [PROMTOOL, *arguments], capture_output=True, text=True, timeout=SECONDS_MAX, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def rules_of(file: Path) -> list[dict[str, Any]]:
    return [rule for group in yaml.safe_load(file.read_text())["groups"] for rule in group["rules"]]


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    """Each page says what the alert means, what it does to users, how to look, and what to do."""
    pages = {file.stem: file.read_text() for file in (ROOT / "docs" / "runbooks").glob("*.md")}

    assert len({alert.name for alert in ALERTS}) == len(ALERTS)
    assert pages.keys() == {alert.name for alert in ALERTS}
    for alert in ALERTS:
        page = pages[alert.name]
        assert page.startswith(f"# {alert.name}\n\nSeverity: {alert.severity}.\n")
        parts = [page.index(f"\n{section}\n") for section in SECTIONS]
        assert parts == sorted(parts)


def test_links_of_runbooks_lead_somewhere() -> None:
    """A page that refers to another one names a file that is there."""
    for file in (ROOT / "docs" / "runbooks").glob("*.md"):
        for target in re.findall(r"\]\(([^)#]+)\)", file.read_text()):
            assert (file.parent / target).exists(), f"{file.name}: {target}"


def test_every_rule_says_how_bad_what_and_where_to_read() -> None:
    """Severity, summary, description and the address of the runbook are never missing."""
    assert sum(len(rules_of(file)) for file in RULES) == len(ALERTS)
    for file in RULES:
        for rule in rules_of(file):
            assert rule["labels"]["severity"] in ("critical", "warning")
            assert rule["annotations"]["summary"]
            assert rule["annotations"]["description"]
            assert rule["annotations"]["runbook_url"] == f"{RUNBOOKS}/{rule['alert']}"


def test_figures_in_rules_and_panels_are_documented() -> None:
    """A name that is not in the page of metrics is a mistake."""
    page = (ROOT / "docs" / "metrics.md").read_text()
    known = set(re.findall(r"^\| `(\w+)` \|", page, re.M))
    expressions = [rule["expr"] for file in RULES for rule in rules_of(file)]
    for file in DASHBOARDS:
        for panel in json.loads(file.read_text())["panels"]:
            expressions += [target["expr"] for target in panel.get("targets", ())]

    for expression in expressions:
        for name in METRIC.findall(expression):
            plain = re.sub(r"_bucket$", "", name)
            assert plain in known or name == "up", f"{name} in {expression}"


def test_rules_of_two_sets_do_not_look_at_each_other() -> None:
    """Every selector of a set's rules names its namespace, and the set itself or pods of it alone."""
    for has_controllers in (True, False):
        for group in groups_of_set("shop", "orders", has_controllers):
            for rule in group["rules"]:
                for selector in re.findall(r"\{([^}]*)\}", rule["expr"]):
                    if selector.startswith('kind="BrokerSet",exported_namespace="shop",name="orders",'):
                        continue
                    if selector == 'exported_namespace="shop",brokerset_io_set="orders"':
                        continue
                    assert selector.startswith('namespace="shop",')
                    pattern = re.search(r'pod=~"([^"]*)"', selector)
                    assert pattern is not None
                    own = re.compile(pattern[1])
                    assert own.fullmatch("orders-0-1") or has_controllers
                    for foreign in ("orders-2-0-1", "my-orders-0-1", "orders-eu-0-1", "orders-eu-0"):
                        assert not own.fullmatch(foreign), selector


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_a_dashboard_can_be_read_and_imported(file: Path) -> None:
    """Panels have a title and say what they answer, do not overlap, and ask the chosen data source."""
    dashboard = json.loads(file.read_text())

    assert dashboard["uid"] == f"brokerset-{file.stem}"
    assert dashboard["templating"]["list"][0]["name"] == "datasource"
    assert dashboard["schemaVersion"] >= 39
    taken: set[tuple[int, int]] = set()
    numbers = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(numbers)) == len(numbers)
    for panel in dashboard["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, panel["title"]
        taken |= cells
        if panel["type"] == "row":
            continue
        assert panel["title"]
        assert panel["description"][-1] in ".?"
        for target in [panel, *panel["targets"]]:
            assert target["datasource"]["uid"] == "${datasource}"


@pytest.mark.parametrize("file", DASHBOARDS, ids=lambda file: file.stem)
def test_a_dashboard_has_the_fields_that_grafana_reads(file: Path) -> None:
    """Nothing is asked for at import, links and legends are whole, units and variables are known."""
    dashboard = json.loads(file.read_text())

    assert not {"__inputs", "__requires", "id"} & dashboard.keys(), "a sidecar answers no questions"
    assert len(dashboard["uid"]) <= 40
    assert dashboard["editable"] is False, "what is changed by hand is lost when the chart is upgraded"
    for link in dashboard["links"]:
        assert {
            "type",
            "title",
            "icon",
            "tooltip",
            "tags",
            "asDropdown",
            "keepTime",
            "includeVars",
        } <= link.keys()
    known = {variable["name"] for variable in dashboard["templating"]["list"]} | {"__rate_interval"}
    for variable in dashboard["templating"]["list"][1:]:
        assert variable["refresh"] == 2, "sets come and go: look again when the time is changed"
        assert set(VARIABLE.findall(variable["query"]["query"])) <= known
    for panel in (each for each in dashboard["panels"] if each["type"] != "row"):
        assert panel["fieldConfig"]["defaults"]["unit"] in UNITS
        if panel["type"] == "timeseries":
            assert panel["options"]["legend"].keys() == {"displayMode", "placement", "showLegend", "calcs"}
            assert panel["options"]["tooltip"].keys() == {"mode", "sort"}
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references)
        for target in panel["targets"]:
            assert set(VARIABLE.findall(target["expr"])) <= known, target["expr"]
            windows = set(re.findall(r"\[([^\]]+)\]", target["expr"]))
            assert windows <= {"$__rate_interval"}, target["expr"]


@needs_promtool
def test_promtool_has_no_complaints(tmp_path: Path) -> None:
    """The chart's rules and those of single sets are rules that Prometheus takes."""
    own = tmp_path / "orders.yaml"
    own.write_text(yaml.safe_dump({"groups": groups_of_set("shop", "orders", True)}))
    other = tmp_path / "bills.yaml"
    other.write_text(yaml.safe_dump({"groups": groups_of_set("shop", "bills", False)}))

    promtool("check", "rules", *map(str, RULES), str(own), str(other))


@needs_promtool
@pytest.mark.long
def test_alerts_fire_when_they_should_and_only_then(tmp_path: Path) -> None:
    """At each time of the table exactly those alerts fire that stand there, and none before it is due."""
    tests = []
    for time in TIMES:
        series = {
            name: values.replace(f"x{SAMPLES}", f"x{time.minute}")  # later ones would only take time
            for name, values in {**HEALTHY, **time.series}.items()
            if values is not None
        }
        expected = [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in sorted(time.alerts)]
        firing = {
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
            "eval_time": f"{time.minute}m",
            "exp_samples": expected,
        }
        before = {**firing, "eval_time": f"{time.quiet_minute}m", "exp_samples": []}
        tests.append(
            {
                "name": ", ".join(time.alerts) or "all is well",
                "interval": "1m",
                "input_series": [{"series": name, "values": values} for name, values in series.items()],
                "promql_expr_test": [firing] if time.quiet_minute is None else [before, firing],
            }
        )
    file = tmp_path / "times.yaml"
    file.write_text(yaml.safe_dump({"rule_files": [str(each) for each in RULES], "tests": tests}))

    promtool("test", "rules", str(file))


@needs_promtool
def test_a_sets_own_rules_know_which_groups_were_scaled_in(tmp_path: Path) -> None:
    """Nobody is woken for a drained group, also where the operator's metrics are not scraped."""
    series = {**HEALTHY, **gone_group(30)}
    tests = []
    for retired, firing in (((), 2), (("orders-1", "a|b"), 0)):
        rules = tmp_path / f"{len(retired)}.yaml"
        rules.write_text(yaml.safe_dump({"groups": groups_of_set("shop", "orders", True, retired=retired)}))
        tests.append((rules, firing))
    for rules, firing in tests:
        expected = [{"labels": "{}", "value": firing}] if firing else []
        group = OF_RETIRED.partition('broker_set="')[2].partition('"')[0]
        test = {
            "interval": "1m",
            "input_series": [
                {"series": name, "values": values}
                for name, values in series.items()
                if not name.startswith("brokerset_operator")
            ],
            "promql_expr_test": [
                {
                    "expr": f'count(ALERTS{{alertstate="firing",broker_set="{group}"}})',
                    "eval_time": "30m",
                    "exp_samples": expected,
                }
            ],
        }
        file = tmp_path / f"test-{rules.name}"
        file.write_text(yaml.safe_dump({"rule_files": [str(rules)], "tests": [test]}))
        promtool("test", "rules", str(file))


def test_every_alert_is_shown_to_fire() -> None:
    """The table has a time for each alert, and one before it at which it does not fire yet."""
    fired = {name for time in TIMES for name in time.alerts if time.quiet_minute is not None}

    assert fired == {alert.name for alert in ALERTS}


def test_alerts_of_a_set_name_the_runbooks_of_the_installation() -> None:
    """Who keeps runbooks elsewhere says so once, for all sets."""
    for group in groups_of_set("shop", "orders", True, runbooks="https://wiki.shop.example/alerts"):
        for rule in group["rules"]:
            url = rule["annotations"]["runbook_url"]
            assert url == f"https://wiki.shop.example/alerts/{rule['alert']}"
