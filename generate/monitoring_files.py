"""The chart's rules and dashboards, and `docs/dashboards.md`.

Rules come from `brokerset_operator.resources.alerts`, panels from `monitoring.panels`.
"""

# so does the head of a page

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import yaml
from generate.lists import entry
from monitoring.message_panels import MESSAGES
from monitoring.ordered_client_panels import ORDERED_CLIENTS
from monitoring.ordered_panels import ORDERED
from monitoring.panels import ALL as OTHERS
from monitoring.panels import Dashboard, Panel
from monitoring.pop_panels import POP
from monitoring.store_job_panels import STORE_JOBS

from brokerset_operator.resources.alerts import (
    BROKER_ALERTS,
    CONDITION_ALERTS,
    CONTROLLER_ALERTS,
    DLEDGER_ALERTS,
    OPERATOR_ALERTS,
    SET_ALERTS,
)
from brokerset_operator.resources.message_alerts import MESSAGE_ALERTS
from brokerset_operator.resources.monitoring import (
    groups_of_all_sets,
    groups_of_clients,
    groups_of_operator,
)
from brokerset_operator.resources.ordered_alerts import (
    ORDERED_BROKER_ALERTS,
    ORDERED_CLIENT_ALERTS,
    ORDERED_CONTROLLER_ALERTS,
)
from brokerset_operator.resources.pop_alerts import POP_ALERTS

ALL: Final = (*OTHERS, MESSAGES, POP, ORDERED, ORDERED_CLIENTS, STORE_JOBS)
CHART: Final = Path("charts/brokerset")

SCHEMA_VERSION: Final = 39
"""Of Grafana 10.4 and 11; newer ones migrate it when they load it."""

SOURCE: Final = {"type": "prometheus", "uid": "${datasource}"}

SET_LABELS: Final = 'namespace=~"$namespace",brokerset_io_set=~"$set"'
SELECTORS: Final = {
    "<b>": f'{SET_LABELS},node_id=~"$group"',
    "<c>": SET_LABELS,
    "<g>": f'{SET_LABELS},broker_set=~"$group"',
    "<o>": 'namespace=~"$namespace"',
    "<s>": 'namespace=~"$namespace",subject=~"$subject"',
}

COLUMNS: Final = 24
WIDTHS: Final = {"stat": 6, "timeseries": 8}
HEIGHTS: Final = {"stat": 4, "timeseries": 8}

HEAD: Final = """\
# Dashboards and alerts

Made by `make generate`; change `monitoring/panels.py` or `operator/brokerset_operator/resources/alerts.py`,
not this page.

The chart makes a ConfigMap of each dashboard, which Grafana's sidecar picks up by its label
(`dashboards.labels`). Without it, import the files of
[`charts/brokerset/dashboards`](../charts/brokerset/dashboards). Each asks for a data source, namespaces,
BrokerSets and groups. They cannot be edited in place, because the next version of the chart would undo it:
save a copy under another name.

Samples need the labels `namespace`, `pod` and `brokerset_io_set`, which is the pods' label
`brokerset.io/set`. With `spec.monitoring.podMonitor` the operator makes a PodMonitor that adds them; other
scrape configurations copy that label. The operator's own samples come with the chart's `podMonitor.enabled`;
the namespace of a BrokerSet is in `exported_namespace` there. Brokers of a set that uses another set's
controllers find those under the other set's name.

## Alerts

Each BrokerSet with `spec.monitoring.rules` gets a PrometheusRule for its own pods. `prometheusRule.enabled`
of the chart makes one for the operator, and `prometheusRule.allSets` another for all sets at once; switch
the sets' own off then. `prometheusRule.clients` makes one for applications that export the metrics of their
ordered clients; Prometheus has to scrape them. Without the Prometheus operator, load the files of
[`charts/brokerset/files/rules`](../charts/brokerset/files/rules). All rest on the metrics of
[metrics.md](metrics.md). Those under "Conditions" are about the operator's metrics, also in the rules of a
single set: they need the chart's `podMonitor.enabled`, and a Prometheus that sees the operator's namespace
as well as the set's; `namespace` and `name` are those of the BrokerSet there.

"""


def files() -> dict[Path, str]:
    """What is written, by path below the root."""
    found = {
        CHART / "files" / "rules" / "sets.yaml": _yaml(groups_of_all_sets()),
        CHART / "files" / "rules" / "operator.yaml": _yaml(groups_of_operator()),
        CHART / "files" / "rules" / "clients.yaml": _yaml(groups_of_clients()),
        Path("docs/dashboards.md"): _page(),
    }
    for dashboard in ALL:
        name = dashboard.uid.removeprefix("brokerset-")
        found[CHART / "dashboards" / f"{name}.json"] = json.dumps(_dashboard(dashboard), indent=1) + "\n"
    return found


def _yaml(groups: list[dict[str, Any]]) -> str:
    return yaml.safe_dump({"groups": groups}, sort_keys=False, width=10_000)


def _page() -> str:
    lines = [HEAD]
    for title, alerts in (
        ("Controllers", CONTROLLER_ALERTS),
        ("Brokers", BROKER_ALERTS),
        ("Transactions and timers", MESSAGE_ALERTS),
        ("POP", POP_ALERTS),
        ("Brokers in DLedger mode", DLEDGER_ALERTS),
        ("Ordered subjects", (*ORDERED_CONTROLLER_ALERTS, *ORDERED_BROKER_ALERTS)),
        ("Ordered clients", ORDERED_CLIENT_ALERTS),
        ("Pods", SET_ALERTS),
        ("Conditions", CONDITION_ALERTS),
        ("Operator", OPERATOR_ALERTS),
    ):
        lines.append(f"### {title}\n\n| alert | severity | after | says |\n| --- | --- | --- | --- |\n")
        for alert in alerts:
            after = f"{alert.minutes} min" if alert.minutes else "at once"
            lines.append(
                f"| [{alert.name}](runbooks/{alert.name}.md) | {alert.severity} | {after} | "
                f"{_plain(alert.summary)} |\n"
            )
        lines.append("\n")
    lines.append("## Panels\n")
    for dashboard in ALL:
        lines.append(f"\n### {dashboard.title}\n\n{dashboard.description}\n\n")
        lines += [
            entry(panel.title, panel.answers) + "\n" for _, panels in dashboard.rows for panel in panels
        ]
    return "".join(lines)


def _plain(text: str) -> str:
    """A text of an alert with names in place of values."""
    text = re.sub(r"\{\{ \$labels\.(\w+) \}\}", r"`\1`", text).replace(
        "{{ $value | humanize1024 }}B", "N bytes"
    )
    return re.sub(r"\{\{ \$value.*?\}\}", "N", text)


def _dashboard(dashboard: Dashboard) -> dict[str, Any]:
    return {
        "uid": dashboard.uid,
        "title": dashboard.title,
        "description": dashboard.description,
        "tags": ["brokerset"],
        "schemaVersion": SCHEMA_VERSION,
        "version": 1,
        "editable": False,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "timezone": "browser",
        "annotations": {"list": []},
        "links": [
            {
                "type": "dashboards",
                "title": "BrokerSet",
                "icon": "external link",
                "tooltip": "",
                "tags": ["brokerset"],
                "asDropdown": True,
                "keepTime": True,
                "includeVars": False,
                "targetBlank": False,
            }
        ],
        "templating": {"list": [_source_variable(), *(_variable(*each) for each in dashboard.variables)]},
        "panels": list(_panels(dashboard)),
    }


def _source_variable() -> dict[str, Any]:
    return {
        "type": "datasource",
        "name": "datasource",
        "label": "Data source",
        "query": "prometheus",
        "refresh": 1,
        "multi": False,
        "includeAll": False,
    }


def _variable(name: str, label: str, query: str) -> dict[str, Any]:
    return {
        "type": "query",
        "name": name,
        "label": label,
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": name},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def _panels(dashboard: Dashboard) -> Iterator[dict[str, Any]]:
    number = top = 0
    for title, panels in dashboard.rows:
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": {"h": 1, "w": COLUMNS, "x": 0, "y": top},
        }
        top += 1
        left = tallest = 0
        for panel in panels:
            width, height = WIDTHS[panel.kind], HEIGHTS[panel.kind]
            if left + width > COLUMNS:
                top, left, tallest = top + tallest, 0, 0
            number += 1
            yield _panel(panel, number, {"h": height, "w": width, "x": left, "y": top})
            left, tallest = left + width, max(tallest, height)
        top += tallest


def _panel(panel: Panel, number: int, place: dict[str, int]) -> dict[str, Any]:
    defaults: dict[str, Any] = {"unit": panel.unit}
    options: dict[str, Any] = {"reduceOptions": {"calcs": ["lastNotNull"]}, "colorMode": "none"}
    if panel.kind == "timeseries":
        defaults["custom"] = {
            "fillOpacity": 10 if panel.stacked else 0,
            "stacking": {"mode": "normal" if panel.stacked else "none"},
        }
        options = {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.answers,
        "datasource": SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": options,
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": SOURCE,
                "expr": _expression(query),
                "legendFormat": legend,
            }
            for index, (query, legend) in enumerate(panel.queries)
        ],
    }


def _expression(query: str) -> str:
    for letter, selector in SELECTORS.items():
        query = query.replace(letter, selector)
    return query
