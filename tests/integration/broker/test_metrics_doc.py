"""The page about metrics and the metrics of a live broker and name server are the same."""

from __future__ import annotations

import asyncio
import contextlib
import re
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

from brokerset_broker.app import Broker
from brokerset_formats.pop.handles import Handle
from brokerset_namesrv.app import NameServer
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_rig.local_servers import HOST, connected, running_broker, running_name_server
from brokerset_rig.stack import free_port
from brokerset_rig.waiting import until
from brokerset_runtime.remoting import Connection

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"
ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| (.*?) ?\| (.+) \|$", re.M)
COMMON = {"cluster", "node_type", "node_id"}
WAIT_SECONDS = 20


@dataclass(frozen=True)
class Family:
    """One metric as it is documented or exported."""

    kind: str
    labels: frozenset[str] | None
    """None: it has no sample, so that its labels cannot be seen."""

    meaning: str


def documented(section: str) -> dict[str, Family]:
    """The rows of one section of the page."""
    text = PAGE.read_text().split(f"\n## {section}\n")[1].split("\n## ")[0]
    return {
        name: Family(kind, frozenset(re.findall(r"`(\w+)`", labels)), meaning)
        for name, kind, labels, meaning in ROW.findall(text)
    }


def exported(text: str) -> dict[str, Family]:
    """The families of a scrape."""
    found: dict[str, Family] = {}
    helps = dict(re.findall(r"^# HELP (\w+) (.+)$", text, re.M))
    for name, kind in re.findall(r"^# TYPE (\w+) (\w+)$", text, re.M):
        samples = re.findall(rf"^{name}(?:_bucket)?(?:\{{(.*)\}})? \S+$", text, re.M)
        labels = frozenset(re.findall(r'(\w+)="', samples[0])) - COMMON - {"le"} if samples else None
        found[name] = Family(kind, labels, helps[name])
    return found


def assert_same(page: dict[str, Family], scrape: dict[str, Family]) -> None:
    """Same names, types and labels; the page may say more than the help text, but nothing else."""
    assert page.keys() == scrape.keys()
    for name, family in scrape.items():
        assert page[name].kind == family.kind, name
        assert family.labels is not None, f"{name} has no sample here: let the test make one"
        assert page[name].labels == family.labels, name
        assert page[name].meaning.startswith(family.meaning), name


def get(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=WAIT_SECONDS) as answer:
        return str(answer.read().decode())


@contextlib.asynccontextmanager
async def pair(folder: Path) -> AsyncIterator[tuple[NameServer, Broker, Connection]]:
    """A name server, a broker that knows it, and a connection to the broker."""
    async with (
        running_name_server(folder) as namesrv,
        running_broker(
            folder / "store", http_port=free_port(), namesrv_addr=f"{HOST}:{namesrv.port}"
        ) as broker,
        connected(broker.port) as connection,
    ):
        await until(lambda: broker.http_port and broker.registrar.registered)
        yield namesrv, broker, connection


async def ask(connection: Connection, code: int, body: bytes = b"", **ext: object) -> None:
    answer = await connection.call(Command(code, {k: str(v) for k, v in ext.items()}, body), WAIT_SECONDS)
    assert answer.code == 0, answer.remark


async def make_traffic(broker: Broker, connection: Connection) -> None:
    """Something of everything that has labels of its own."""
    await ask(
        connection, RequestCode.SEND_MESSAGE_V2, b"body",
        a="g", b="t", c="TBW102", d=1, e=0, f=0, g=1, h=0, i="", j=0, k="false", l=0, m="false",
    )  # fmt: skip
    half = "TRAN_MSG\x01true\x02PGROUP\x01p\x02UNIQ_KEY\x01K\x02"
    await ask(
        connection, RequestCode.SEND_MESSAGE_V2, b"body",
        a="g", b="t", c="TBW102", d=1, e=0, f=4, g=1, h=0, i=half, j=0, k="false", l=0, m="false",
    )  # fmt: skip
    for timer in ("TIMER_DELAY_MS\x01300\x02", "TIMER_DELAY_SEC\x013600\x02"):
        await ask(
            connection, RequestCode.SEND_MESSAGE_V2, b"body",
            a="g", b="t", c="TBW102", d=1, e=0, f=0, g=1, h=0, i=timer, j=0, k="false", l=0, m="false",
        )  # fmt: skip
    counts = broker.timers.counts
    await until(lambda: counts.dequeued.total() == 1 and counts.waiting() == {"t": 1})
    await make_pops(broker, connection)
    beat = (
        b'{"clientID":"c","producerDataSet":[{"groupName":"p"}],"consumerDataSet":[{"groupName":"g",'
        b'"subscriptionDataSet":[{"topic":"t","subString":"*","subVersion":1}]}]}'
    )
    await ask(connection, RequestCode.HEART_BEAT, beat)
    await ask(
        connection, RequestCode.PULL_MESSAGE, consumerGroup="g", topic="t", queueId=0, queueOffset=0,
        maxMsgNums=1, sysFlag=5, commitOffset=0, suspendTimeoutMillis=0, subscription="*", subVersion=1,
        expressionType="TAG",
    )  # fmt: skip
    await ask(
        connection, RequestCode.CONSUMER_SEND_MSG_BACK, offset=0, group="g", delayLevel=-1, originTopic="t"
    )


async def make_pops(broker: Broker, connection: Connection) -> None:
    """Three messages popped for a moment and for long; one comes back, and its ack is too late."""
    await until(lambda: broker.pop_log.is_known)
    handles: list[Handle] = []
    for invisible_ms in (50, 60_000, 60_000):
        await ask(
            connection, RequestCode.SEND_MESSAGE_V2, b"body",
            a="g", b="popped", c="TBW102", d=1, e=0, f=0, g=1, h=0, i="", j=0, k="false", l=0, m="false",
        )  # fmt: skip
        answer = await connection.call(
            Command(RequestCode.POP_MESSAGE, {
                "consumerGroup": "popping", "topic": "popped", "queueId": "0", "maxMsgNums": "1",
                "invisibleTime": str(invisible_ms), "pollTime": "0", "bornTime": "0", "initMode": "0",
            }), WAIT_SECONDS,
        )  # fmt: skip
        assert answer.code == 0, answer.remark
        ext = answer.ext
        broker_name, offset = broker.settings.broker_name, len(handles)
        handles.append(
            Handle(
                offset, int(ext["popTime"]), invisible_ms, int(ext["reviveQid"]), 0, broker_name, 0, offset
            )
        )
    await until(lambda: broker.pop_revival.revived == 1)
    codes = []
    for offset in (0, 1):
        acked = await connection.call(
            Command(RequestCode.ACK_MESSAGE, {
                "consumerGroup": "popping", "topic": "popped", "queueId": "0", "offset": str(offset),
                "extraInfo": handles[offset].encode(),
            }), WAIT_SECONDS,
        )  # fmt: skip
        codes.append(acked.code)
    assert codes == [ResponseCode.MESSAGE_ILLEGAL, 0]


def test_the_page_lists_the_metrics_of_broker_and_name_server_and_no_others(tmp_path: Path) -> None:
    """Name, type, labels and the beginning of the text are equal, each way."""

    async def scenario() -> tuple[str, str]:
        async with pair(tmp_path) as (namesrv, broker, connection):
            await make_traffic(broker, connection)
            return await asyncio.to_thread(get, broker.http_port), await asyncio.to_thread(
                get, namesrv.http_port
            )

    of_broker, of_namesrv = asyncio.run(scenario())

    assert_same(documented("Broker"), exported(of_broker))
    assert_same(documented("Name server"), exported(of_namesrv))
