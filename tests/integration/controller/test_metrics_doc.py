"""The page about metrics and the metrics of a live controller are the same."""

from __future__ import annotations

import asyncio
import re
import urllib.request
from pathlib import Path

import uvloop

from brokerset_protocol.codes import ResponseCode
from brokerset_rig.controller_group import HOST, SECONDS_MAX, brokers, controllers
from brokerset_rig.stack import free_port
from brokerset_rig.waiting import until

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (.*?) ?\| (.+) \|$", re.M)
COMMON = {"address", "group", "peer_id"}


def documented() -> dict[str, tuple[str, frozenset[str], str]]:
    """Type, labels and meaning of the rows of the controller's section."""
    text = PAGE.read_text().split("\n## Controller\n")[1].split("\n## ")[0]
    return {
        name: (kind, frozenset(re.findall(r"`(\w+)`", labels)), meaning)
        for name, kind, labels, meaning in ROW.findall(text)
    }


def exported(text: str) -> dict[str, tuple[str, frozenset[str], str]]:
    """The families of a scrape; every one must have a sample."""
    found = {}
    helps = dict(re.findall(r"^# HELP (\w+) (.+)$", text, re.M))
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M):
        samples = re.findall(rf"^{name}(?:_bucket)?\{{(.*)\}} \S+$", text, re.M)
        assert samples, f"{name} has no sample here: let the test make one"
        labels = set(re.findall(r'(\w+)="', samples[0])) - {"le"}
        assert labels >= COMMON, name
        found[name] = (kind, frozenset(labels - COMMON), helps[name])
    return found


def get(port: int) -> str:
    with urllib.request.urlopen(f"http://{HOST}:{port}/metrics", timeout=SECONDS_MAX) as answer:
        return str(answer.read().decode())


def test_the_page_says_what_is_exported(tmp_path: Path) -> None:
    """Same names, types and labels; the page may say more than the help text, but nothing else."""

    async def scene() -> str:
        port = free_port()
        async with controllers(tmp_path, 1, http_port=port) as group, brokers(group, 2) as (first, second):
            await first.hang_up()
            await until(lambda: first.asked)
            assert (await second.elect(group)).code == ResponseCode.CONTROLLER_MASTER_STILL_EXIST
            return await asyncio.to_thread(get, port)

    page, scrape = documented(), exported(uvloop.run(scene()))

    assert page.keys() == scrape.keys()
    for name, (kind, labels, meaning) in scrape.items():
        assert page[name][:2] == (kind, labels), name
        assert page[name][2].startswith(meaning), name
