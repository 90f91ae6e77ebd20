"""The page of an audit: whole, self-contained, escaped, and red where it must be."""

from __future__ import annotations

import re
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from brokerset_rig.replica_stores import Log, flip, write_replica
from brokerset_spark.jobs.audit import ReplicaMap, audit_with_maps, compare
from brokerset_spark.jobs.report import Finding, Level, Report
from brokerset_spark.jobs.running import LocalRunner
from brokerset_spark.pages.audit_page import red_stretches, render
from brokerset_spark.pages.replica_chart import LEFT, RIGHT, WIDTH, Scale, draw, stretches

VOID = {"meta", "line", "br", "path", "rect"}


class Checker(HTMLParser):
    """Every element is closed, and none loads anything."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "onclick", "onload", "srcset"}, (tag, attrs)
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.fixture
def log() -> Log:
    made = Log()
    made.fill(600)
    return made


@pytest.fixture
def damaged(tmp_path: Path, log: Log) -> tuple[Report, list[ReplicaMap]]:
    """Three replicas, the second with a wrong byte, the third with an expired head and a hostile name."""
    epochs = ((1, 0), (2, log.starts[200]), (3, log.starts[400]))
    name = "<script>alert(1)</script>&\"'"
    stores = [
        write_replica(tmp_path / str(n), log, epochs=epochs, confirmed=log.starts[590], broker_id=n,
                      name=name, expired=1 if n == 2 else 0)
        for n in range(3)
    ]  # fmt: skip
    flip(stores[1], log.starts[300] + 100)
    return audit_with_maps(LocalRunner(), [str(each) for each in stores])


def test_the_page_is_whole_loads_nothing_and_escapes_everything(
    damaged: tuple[Report, list[ReplicaMap]],
) -> None:
    page = render(*damaged)

    checker = Checker()
    checker.feed(page)
    checker.close()
    assert checker.open == []
    assert "script" not in checker.tags
    assert "<script>" not in page
    assert "&lt;script&gt;" in page
    assert not re.search(r"https?://|url\((?!#)|@import", page)
    assert "prefers-color-scheme: dark" in page


def test_the_pictures_are_xml_with_a_bar_for_each_replica(damaged: tuple[Report, list[ReplicaMap]]) -> None:
    page = render(*damaged)

    pictures = [ElementTree.fromstring(each) for each in re.findall(r"<svg .*?</svg>", page, re.DOTALL)]
    assert pictures
    for picture in pictures:
        assert picture.get("viewBox", "").startswith(f"0 0 {WIDTH} ")
        names = [each for each in picture.iter("text") if each.get("class") == "name"]
        assert len(names) == 3
        for rect in picture.iter("rect"):
            assert LEFT - 1 <= float(rect.get("x", "")) <= WIDTH - RIGHT + 1
            assert float(rect.get("width", "")) >= 0.5


def test_red_stands_at_the_wrong_record_of_the_guilty_replica_only(
    damaged: tuple[Report, list[ReplicaMap]], log: Log
) -> None:
    report, maps = damaged

    reds = red_stretches(report, maps)
    picture = ElementTree.fromstring(draw(maps, reds, 0, log.end, "all"))

    assert {(each.replica, each.begin) for each in reds} == {(1, log.starts[300])}
    expected = Scale(0, log.end).x(log.starts[300])
    (mark,) = [each for each in picture.iter("rect") if each.get("class") == "differs"]
    assert float(mark.get("x", "")) == pytest.approx(expected, abs=0.06)
    assert f"damaged at {log.starts[300]:,}" in "".join(each.text or "" for each in picture.iter("text"))


def test_bars_begin_and_end_at_the_offsets_of_their_epochs(
    damaged: tuple[Report, list[ReplicaMap]], log: Log
) -> None:
    """Of the replica with an expired head the first epoch is cut, and what is missing is dashed."""
    _, maps = damaged
    found = stretches(maps[2], {pair: 0 for pair in maps[2].epochs.pairs})

    assert [(label, begin, end) for label, begin, end, _ in found] == [
        ("1", maps[2].first, log.starts[200]),
        ("2", log.starts[200], log.starts[400]),
        ("3", log.starts[400], log.end),
    ]
    picture = ElementTree.fromstring(draw(maps, (), 0, log.end, "all"))
    (expired,) = [each for each in picture.iter("rect") if each.get("class") == "expired"]
    scale = Scale(0, log.end)
    assert float(expired.get("width", "")) == pytest.approx(scale.x(maps[2].first) - scale.x(0), abs=0.1)


def test_a_wrong_byte_of_a_terabyte_is_wide_enough_to_be_seen(
    damaged: tuple[Report, list[ReplicaMap]],
) -> None:
    report, maps = damaged
    end = 1 << 40
    large = [replace(each, last=end, confirmed=end) for each in maps]

    page = draw(large, red_stretches(report, large), 0, end, "all")

    widths = [float(each.get("width", "")) for each in ElementTree.fromstring(page).iter("rect")
              if (each.get("class") or "").startswith("differs")]  # fmt: skip
    assert widths
    assert min(widths) >= 4


def test_the_verdict_stands_on_top_in_the_colour_of_the_worst_finding(
    tmp_path: Path, log: Log, damaged: tuple[Report, list[ReplicaMap]]
) -> None:
    clean = [write_replica(tmp_path / f"clean-{n}", log, confirmed=log.end, broker_id=n) for n in range(2)]
    report, maps = audit_with_maps(LocalRunner(), [str(each) for each in clean])

    good, bad = render(report, maps), render(*damaged)

    assert '<div class="verdict clean" role="status">In order. Both replicas hold the same bytes' in good
    assert '<div class="verdict error" role="status">Not in order.' in bad
    assert bad.index("verdict error") < bad.index("<svg")


def test_a_page_of_nothing_and_of_one_replica_can_be_made(tmp_path: Path, log: Log) -> None:
    one = audit_with_maps(LocalRunner(), [str(write_replica(tmp_path / "a", log))])

    assert "nothing to compare it with" in render(*one)
    assert "no replicas" in render(compare([]), [])


def test_nothing_that_a_store_or_a_job_says_is_markup(damaged: tuple[Report, list[ReplicaMap]]) -> None:
    """Topics, hosts, file names and controllers' words, in whatever part of the page they are told."""
    report, maps = damaged
    hostile = {
        "topic": "<script>topic</script>",
        "host": "http://<script>host</script>\"'onload='x':8080/store",
        "file": "consumequeue/<script>file</script>/0/00000000000000000000",
        "code": "<script>code</script>",
        "verdict": "<script>verdict</script>",
    }
    maps = [replace(maps[0], url=hostile["host"], confirmed_by="<script>by</script>"), *maps[1:]]
    found = Finding(
        hostile["code"],
        Level.ERROR,
        f"topic {hostile['topic']} differs",
        hostile["host"],
        hostile["file"],
        1,
        2,
    )
    other = replace(found, store="<script>unknown host</script>", offset=None, end=None)
    report = replace(
        report, findings=[*report.findings, found, other],
        facts=report.facts | {"verdict": hostile["verdict"]},
    )  # fmt: skip

    page = render(report, maps)

    checker = Checker()
    checker.feed(page)
    checker.close()
    assert "script" not in checker.tags
    assert "<script" not in page
    for each in (*hostile.values(), "<script>by</script>", "<script>unknown host</script>"):
        escaped = escape(each)
        assert escaped in page, each
    assert ElementTree.fromstring(re.findall(r"<svg .*?</svg>", page, re.DOTALL)[0]) is not None
