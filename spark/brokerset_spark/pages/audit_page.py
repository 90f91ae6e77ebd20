"""The audit as one page of HTML: a sentence on top, the replicas as bars, what would be cut, what was
found. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any, Final

from brokerset_spark.jobs.audit.replica import ReplicaMap
from brokerset_spark.jobs.report import Level, Report
from brokerset_spark.pages.replica_chart import RedStretch, draw

ZOOM_SHARE: Final = 0.3
"""A second picture shows the end of the logs if what matters there fills less than this share of the
first."""

_LEGEND: Final = (
    "Colours are epochs, with their number. Bars end at the last record; <span aria-hidden='true'>▼</span> "
    "green: confirmed; hatched: not known to be confirmed; dashed: expired; red: differs or damaged."
)


def render(report: Report, maps: Sequence[ReplicaMap]) -> str:
    """The whole page. Names, topics and sentences come from stores, so all of them are escaped."""
    verdict = str(report.facts.get("verdict", ""))
    mood = "error" if not report.clean else "warning" if report.counters.get("findings.warning") else "clean"
    said = {"error": "Not in order", "warning": "In order, with warnings", "clean": "In order"}[mood]
    names = ", ".join(each.name for each in maps)
    reds = red_stretches(report, maps)
    body = [
        f"<h1>Audit of {escape(names)}</h1>",
        f'<div class="verdict {mood}" role="status">{said}. {escape(verdict)}</div>',
        "<h2>Replicas</h2>",
        *_charts(maps, reds),
        f'<p class="dim">{_LEGEND}</p>',
        _replicas(report, maps),
        "<h2>If one became master</h2>",
        _elections(report),
        "<h2>What a replica would cut if it followed another</h2>",
        _matrix(report, maps),
        f"<h2>Findings ({report.findings_total:,})</h2>",
        _findings(report, maps),
        "<h2>Bytes compared</h2>",
        _pairs(report),
        f'<p class="dim">{report.bytes_read:,} bytes read in {report.seconds:.1f} s, '
        f"{report.counters.get('bytesFromCache', 0):,} known from earlier audits.</p>",
    ]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src '
        "'unsafe-inline'\">\n"
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{said}: audit of {escape(names)}</title>\n<style>{STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def red_stretches(report: Report, maps: Sequence[ReplicaMap]) -> list[RedStretch]:
    """What is drawn in red: first differences on the guilty replica, or on both; damage; wrong starts
    of epochs."""
    by_url = {each.url: number for number, each in enumerate(maps)}
    by_name = {each.name: number for number, each in enumerate(maps)}
    found: dict[tuple[int, int], RedStretch] = {}

    def add(number: int, begin: int, end: int, label: str) -> None:
        found.setdefault((number, begin), RedStretch(number, begin, max(begin, end), label))

    for each in report.findings:
        if each.offset is not None and each.store in by_url and each.level is Level.ERROR:
            words = {
                "damage": "damaged at", "epoch-start": "epoch starts at", "epoch-boundary": "no record at",
                "confirm": "ends at", "bytes": "differs from",
            }  # fmt: skip
            if each.code in words:
                end = each.end if each.code in ("damage", "confirm") and each.end is not None else each.offset
                add(by_url[each.store], each.offset, end, f"{words[each.code]} {each.offset:,}")
    guilty = {(each.offset, each.store) for each in report.findings if each.code == "bytes" and each.store}
    for pair in report.facts.get("pairs", []):
        first = pair["firstDifference"]
        if first is None and not pair["differing"]:
            continue
        begin = first["offset"] if first is not None else pair["differing"][0][0]
        end = next((end for start, end in pair["differing"] if start <= begin < end), begin)
        for name in (pair["one"], pair["other"]):
            number = by_name[name]
            others = {store for offset, store in guilty if offset == begin}
            if not others or maps[number].url in others:
                add(number, begin, end if first is None else begin, f"differs from {begin:,}")
    return sorted(found.values(), key=lambda each: (each.replica, each.begin))


def _charts(maps: Sequence[ReplicaMap], reds: Sequence[RedStretch]) -> list[str]:
    if not maps:
        return []
    begin, end = min(each.first for each in maps), max(each.last for each in maps)
    found = [f'<div class="scroll">{draw(maps, reds, begin, end, "the whole log, by offset")}</div>']
    points = [each.last for each in maps] + [each.confirmed for each in maps if each.confirmed is not None]
    points += [each.epochs.pairs[-1][1] for each in maps if each.epochs.pairs]
    points += [red.begin for red in reds]
    near = max(begin, min(points))
    margin = max(1, (end - near) // 20)
    if end - near < (end - begin) * ZOOM_SHARE and end > near:
        title = f"the end, from {near:,} on: confirmed offsets, the newest epoch and what differs"
        found.append(
            f'<p></p><div class="scroll">{draw(maps, reds, max(begin, near - margin), end, title)}</div>'
        )
    return found


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], empty: str) -> str:
    """Cells are finished `<td>`s."""
    if not rows:
        return f'<p class="dim">{escape(empty)}</p>'
    titles = "".join(f"<th>{escape(each)}</th>" for each in head)
    lines = "\n".join(f"<tr>{''.join(row)}</tr>" for row in rows)
    return (
        f'<div class="scroll"><table><thead><tr>{titles}</tr></thead><tbody>\n{lines}\n</tbody></table></div>'
    )


def _cell(value: object, kind: str = "") -> str:
    text = "" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
    classes = " ".join(each for each in (kind, "num" if isinstance(value, int) else "") if each)
    return f'<td class="{classes}">{escape(text)}</td>' if classes else f"<td>{escape(text)}</td>"


def _replicas(report: Report, maps: Sequence[ReplicaMap]) -> str:
    known: list[dict[str, Any]] = report.facts.get("replicas", [])
    rows = []
    for each, facts in zip(maps, known, strict=True):
        roles = [word for word, key in (("master", "isMaster"), ("in sync", "inSync")) if facts[key]]
        roles += ["being written"] if each.written else []
        epochs = each.epochs.pairs
        newest = f"{epochs[-1][0]} from {epochs[-1][1]:,}" if epochs else "none"
        confirmed = f"{each.confirmed:,} ({each.confirmed_by})" if each.confirmed is not None else "not known"
        rows.append(
            [_cell(each.name), _cell(", ".join(roles)), _cell(each.first), _cell(confirmed), _cell(each.last),
             _cell(each.records), _cell(newest), _cell(each.url, "url")]
        )  # fmt: skip
    head = ("replica", "role", "first", "confirmed", "last", "records compared", "newest epoch", "store")
    return _table(head, rows, "no replicas")


def _elections(report: Report) -> str:
    rows = []
    for each in report.facts.get("elections", []):
        if each["lostFrom"] is not None:
            count = each["lostTo"] - each["lostFrom"]
            text = f"loses {count:,} confirmed bytes, from {each['lostFrom']:,} to {each['lostTo']:,}"
            text += "; it may have got them since" if each["mayHaveGrown"] else ""
            cell = _cell(text, "lost")
        else:
            cell = _cell("nothing that is confirmed would be lost")
        damage = each["damagedAt"]
        rows.append([
            _cell(each["candidate"]), cell,
            _cell(f"damaged at {damage:,}", "lost") if damage is not None else _cell("whole as far as read"),
        ])  # fmt: skip
    return _table(("candidate", "what would be lost", "its own log"), rows, "no replicas")


def _matrix(report: Report, maps: Sequence[ReplicaMap]) -> str:
    cuts = {(each["replica"], each["master"]): each for each in report.facts.get("matrix", [])}
    rows = []
    for replica in maps:
        row = [_cell(replica.name)]
        for master in maps:
            cut = cuts.get((replica.name, master.name))
            if cut is None:
                row.append(_cell("–", "self"))
            elif cut["point"] is None:
                known = replica.epochs.pairs and master.epochs.pairs
                row.append(
                    _cell("no common epoch: cannot follow", "lost") if known else _cell("no epochs", "self")
                )
            elif not cut["cutBytes"]:
                row.append(_cell("nothing"))
            else:
                kind = "lost" if cut["cutConfirmedBytes"] else "warning" if cut["forked"] else ""
                confirmed = f", {cut['cutConfirmedBytes']:,} confirmed" if cut["cutConfirmedBytes"] else ""
                row.append(_cell(f"{cut['cutBytes']:,} bytes from {cut['point']:,}{confirmed}", kind))
        rows.append(row)
    return _table(("replica \\ master", *(each.name for each in maps)), rows, "no replicas")


def _findings(report: Report, maps: Sequence[ReplicaMap]) -> str:
    names = {each.url: each.name for each in maps}
    order = list(Level)
    rows = [
        [
            _cell(str(each.level), str(each.level)),
            _cell(each.code),
            _cell(names.get(each.store, each.store)),
            _cell(each.offset),
            _cell(each.text + (f" [{each.file}]" if each.file else "")),
        ]
        for each in sorted(report.findings, key=lambda each: order.index(each.level))
    ]
    more = report.findings_total - len(report.findings)
    note = f'<p class="dim">{more:,} more are counted, not kept.</p>' if more else ""
    return _table(("level", "what", "replica", "offset", "in words"), rows, "Nothing was found.") + note


def _pairs(report: Report) -> str:
    rows = []
    for each in report.facts.get("pairs", []):
        first = each["firstDifference"]
        if first is not None:
            result = _cell(f"differs from {first['offset']:,} on", "lost")
        elif each["differing"]:
            result = _cell(
                f"differs between {each['differing'][0][0]:,} and {each['differing'][0][1]:,}", "lost"
            )
        else:
            result = _cell("the same" if each["to"] > each["from"] else "nothing in common to compare")
        rows.append(
            [_cell(each["one"]), _cell(each["other"]), _cell(each["from"]), _cell(each["to"]), result,
             _cell(each["notCompared"])]
        )  # fmt: skip
    head = ("one", "other", "from", "to", "result", "bytes not compared")
    return _table(head, rows, "There is only one replica.")


STYLE: Final = """
:root { color-scheme: light dark; --bg:#fff; --fg:#15181c; --dim:#59626e; --line:#d5dae0; --card:#f5f7f9;
  --red:#c4161c; --redbg:#fdeaea; --amber:#8f5a00; --amberbg:#fdf3dd; --green:#146c34; --greenbg:#e6f5ea;
  --e0:#bcd4ee; --e1:#c9e3d3; --e2:#ddd0ee; --e3:#cfdfe6; --e4:#e3dfc4; --e5:#d3d9f3; --mark:#15181c; }
@media (prefers-color-scheme: dark) { :root { --bg:#14171b; --fg:#e9edf1; --dim:#a2adb9;
--line:#353c45; --card:#1c2127;
  --red:#ff7b78; --redbg:#3f1719; --amber:#f3bf5b; --amberbg:#3a2c10; --green:#78d895; --greenbg:#15321f;
  --e0:#2a4a6e; --e1:#24523a; --e2:#493a66; --e3:#2f4853; --e4:#504b2a; --e5:#36406e; --mark:#e9edf1; } }
* { box-sizing: border-box }
body { margin:0 auto; max-width:1180px; padding:20px; background:var(--bg); color:var(--fg);
  font:16px/1.5 system-ui,sans-serif }
h1 { font-size:20px; margin:0 0 12px } h2 { font-size:17px; margin:30px 0 8px }
p { margin:6px 0 } .dim { color:var(--dim) } .num { text-align:right;
font-variant-numeric:tabular-nums; white-space:nowrap }
.verdict { padding:16px 18px; border-radius:8px; border-left:8px solid; font-size:20px;
font-weight:600; overflow-wrap:anywhere }
.verdict.error { background:var(--redbg); border-color:var(--red) }
.verdict.warning { background:var(--amberbg); border-color:var(--amber) }
.verdict.clean { background:var(--greenbg); border-color:var(--green) }
.scroll { overflow-x:auto } table { border-collapse:collapse; width:100% }
th,td { text-align:left; vertical-align:top; padding:6px 10px; border-bottom:1px solid var(--line) }
th { font-size:14px; color:var(--dim); font-weight:600 } td.error, td.lost { color:var(--red);
font-weight:600 }
td.warning { color:var(--amber); font-weight:600 } td.self { color:var(--dim) } td.url {
overflow-wrap:anywhere }
svg { width:100%; height:auto; background:var(--card); border-radius:8px; display:block }
svg text { fill:var(--fg); font:13px system-ui,sans-serif } svg .dim { fill:var(--dim) } svg .name {
font-weight:600 }
svg .red { fill:var(--red) } svg text.red { font-weight:600 }
.e0{fill:var(--e0)} .e1{fill:var(--e1)} .e2{fill:var(--e2)} .e3{fill:var(--e3)} .e4{fill:var(--e4)}
.e5{fill:var(--e5)}
.none { fill:var(--line) } .expired { fill:none; stroke:var(--dim); stroke-dasharray:4 4 }
.open { fill:url(#open) } .hatch { stroke:var(--fg); stroke-width:1.5; opacity:.45 }
.differs { fill:var(--red) } .differs-bar { fill:var(--red); opacity:.35 }
.axis { stroke:var(--line) } .edge { stroke:var(--mark); stroke-width:2 } .confirmed { fill:var(--green) }
@media print { body { max-width:none } }
"""
"""Inline CSS. Red is kept for what differs, is damaged or would be lost."""
"""Light and dark, large enough to be read at three in the morning."""
