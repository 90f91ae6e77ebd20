"""Replicas as bars over the offsets of their log: epochs, marks, and in red what differs. SVG, pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from brokerset_spark.jobs.audit.replica import ReplicaMap

WIDTH: Final = 1140
LEFT: Final = 170
RIGHT: Final = 24
ROW: Final = 74
BAR: Final = 26
TOP: Final = 34
COLOURS: Final = 6
TICKS: Final = 5
EPOCHS_DRAWN_MAX: Final = 200
"""Of one replica; older ones are drawn as one."""

RED_MIN: Final = 4.0
"""Least width of what is red: a wrong byte of a terabyte must be seen."""


@dataclass(frozen=True, slots=True)
class RedStretch:
    """What is wrong with a replica."""

    replica: int
    begin: int
    end: int
    label: str


@dataclass(frozen=True, slots=True)
class Scale:
    """From offsets to the picture."""

    begin: int
    end: int

    def x(self, offset: int) -> float:
        """Where an offset is drawn; those outside at the nearer edge."""
        share = (min(max(offset, self.begin), self.end) - self.begin) / max(1, self.end - self.begin)
        return LEFT + share * (WIDTH - LEFT - RIGHT)


def draw(maps: Sequence[ReplicaMap], reds: Sequence[RedStretch], begin: int, end: int, title: str) -> str:
    """One picture of all replicas between two offsets."""
    scale = Scale(begin, max(end, begin + 1))
    height = TOP + ROW * len(maps) + 30
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{escape(title, quote=True)}">',
        '<defs><pattern id="open" width="8" height="8" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)">'
        '<line class="hatch" x1="0" y1="0" x2="0" y2="8"/></pattern></defs>',
    ]
    for number in range(TICKS):
        offset = scale.begin + (scale.end - scale.begin) * number // (TICKS - 1)
        x = scale.x(offset)
        anchor = "start" if number == 0 else "end" if number == TICKS - 1 else "middle"
        parts.append(f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{TOP - 8}" y2="{height - 26}"/>')
        parts.append(
            f'<text class="dim" x="{x:.1f}" y="{height - 8}" text-anchor="{anchor}">{offset:,}</text>'
        )
    parts.append(f'<text class="dim" x="{LEFT}" y="18">{escape(title)}</text>')
    colours = colours_of(maps)
    for number, each in enumerate(maps):
        mine = [red for red in reds if red.replica == number]
        parts += _row(each, mine, scale, TOP + ROW * number, colours)
    parts.append("</svg>")
    return "\n".join(parts)


def colours_of(maps: Sequence[ReplicaMap]) -> dict[tuple[int, int], int]:
    """A colour for each (epoch, start): the same epoch has the same one everywhere, unless its starts
    differ."""
    pairs = sorted({pair for each in maps for pair in each.epochs.pairs})
    return {pair: number % COLOURS for number, pair in enumerate(pairs)}


def _row(
    each: ReplicaMap, reds: Sequence[RedStretch], scale: Scale, top: int, colours: dict[tuple[int, int], int]
) -> list[str]:
    y = top + 14
    text = y + BAR / 2 + 5
    parts = [f'<text class="name" x="12" y="{text:.1f}">{escape(shortened(each.name))}</text>']
    parts.append(f"<title>{escape(each.name)}: {escape(each.url)}</title>")
    if each.first > scale.begin:
        parts.append(_rect("expired", scale.x(scale.begin), scale.x(each.first), y))
    for epoch, begin, end, colour in stretches(each, colours):
        if end <= scale.begin or begin >= scale.end:
            continue
        left, right = scale.x(begin), scale.x(end)
        parts.append(_rect(colour, left, right, y, f"epoch {epoch}: {begin:,} to {end:,}" if epoch else ""))
        if epoch and right - left > 9 * len(epoch) + 6:
            parts.append(
                f'<text x="{(left + right) / 2:.1f}" y="{text:.1f}" text-anchor="middle">{epoch}</text>'
            )
    if each.confirmed is not None and each.confirmed < each.last and each.last > scale.begin:
        parts.append(
            _rect("open", scale.x(each.confirmed), scale.x(each.last), y, "not known to be confirmed")
        )
    for offset in (each.first, each.last):
        if scale.begin <= offset <= scale.end:
            x = scale.x(offset)
            parts.append(f'<line class="edge" x1="{x:.1f}" x2="{x:.1f}" y1="{y - 4}" y2="{y + BAR + 4}"/>')
    if each.confirmed is not None and scale.begin <= each.confirmed <= scale.end:
        x = scale.x(each.confirmed)
        parts.append(
            f'<path class="confirmed" d="M{x:.1f} {y} l-6 -11 h12 z">'
            f"<title>confirmed {each.confirmed:,}</title></path>"
        )
    labels = [f"first {each.first:,}"]
    labels.append("confirmed " + (f"{each.confirmed:,}" if each.confirmed is not None else "not known"))
    labels.append(f"last {each.last:,}")
    parts.append(f'<text class="dim" x="{LEFT}" y="{y + BAR + 17}">{" · ".join(labels)}</text>')
    shown = [red for red in reds if red.end > scale.begin and red.begin <= scale.end]
    for red in shown:
        left = scale.x(red.begin)
        right = max(scale.x(red.end), left + RED_MIN)
        parts.append(_rect("differs-bar", left, right, y, red.label))
        parts.append(
            f'<rect class="differs" x="{left:.1f}" y="{y - 4}" width="{RED_MIN:g}" height="{BAR + 8}"/>'
        )
    if shown:
        x = min(scale.x(shown[0].begin), WIDTH - 330.0)
        more = f", and {len(shown) - 1} more" if len(shown) > 1 else ""
        parts.append(f'<text class="red" x="{x:.1f}" y="{y - 6}">{escape(shown[0].label)}{more}</text>')
    return parts


def stretches(each: ReplicaMap, colours: dict[tuple[int, int], int]) -> list[tuple[str, int, int, str]]:
    """Epoch (empty for none), begin, end and class of the parts of a bar, from first to last offset."""
    found: list[tuple[str, int, int, str]] = []
    pairs = list(each.epochs.pairs)
    inside = [pair for pair in pairs if pair[1] < each.last]
    skipped = max(0, len(inside) - EPOCHS_DRAWN_MAX)
    at = each.first
    label, colour = "", "none"
    for number, (epoch, start) in enumerate(inside):
        begin = max(each.first, min(start, each.last))
        if number < skipped:
            label, colour = f"{inside[0][0]}–{epoch}", "none"
            continue
        if begin > at:
            found.append((label, at, begin, colour))
        at, label, colour = max(at, begin), str(epoch), f"e{colours[epoch, start]}"
    if each.last > at:
        found.append((label, at, each.last, colour))
    return found


def shortened(name: str) -> str:
    """The end of a long name, which tells replicas apart."""
    return name if len(name) <= 20 else "…" + name[-19:]


def _rect(kind: str, left: float, right: float, y: float, title: str = "") -> str:
    width = max(0.5, right - left)
    inner = f"<title>{escape(title)}</title>" if title else ""
    return f'<rect class="{kind}" x="{left:.1f}" y="{y}" width="{width:.1f}" height="{BAR}">{inner}</rect>'
