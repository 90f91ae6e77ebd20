"""`brokerset send --delay`, `--transaction`, `recall`, `message trace` as commands, with a real broker."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from brokerset_client import TopicConfig
from brokerset_rig.local_servers import HOST, running_broker, running_name_server
from brokerset_rig.waiting import until

SETTINGS: dict[str, Any] = {
    "transaction_time_out": 0,
    "transaction_check_interval": 50,
    "recall_message_enable": True,
    "trace_topic_enable": True,
}


class Commands:
    """Runs `brokerset` for one cluster."""

    def __init__(self, namesrv: str, folder: Path) -> None:
        self._options = ("--namesrv", namesrv, "--data", str(folder))

    async def __call__(self, *arguments: str, code: int = 0) -> str:
        """Run one command and return what it writes to standard output, or, failing, to standard error."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "brokerset_cli.main",
            *arguments,
            *self._options,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        async with asyncio.timeout(60):
            out, err = await process.communicate()
        assert process.returncode == code, err.decode()
        return (err if code else out).decode()


@asynccontextmanager
async def cluster(folder: Path) -> AsyncIterator[Commands]:
    async with running_name_server(folder) as server:
        namesrv = f"{HOST}:{server.port}"
        async with running_broker(folder / "store", namesrv_addr=namesrv, **SETTINGS) as broker:
            broker.topics.update(TopicConfig("t", 1, 1))
            await until(lambda: broker.registrar.registered)
            yield Commands(namesrv, folder)


async def consumed(brokerset: Commands, count: int, *options: str) -> list[str]:
    lines = await brokerset("consume", "t", "--count", str(count), "--json", *options)
    return [json.loads(line)["body"] for line in lines.splitlines()]


async def test_a_delayed_message_can_be_taken_back(tmp_path: Path) -> None:
    """The handle that `send` shows is what `recall` takes; a bad one is refused with an advice."""
    async with cluster(tmp_path) as brokerset:
        shown = await brokerset("send", "t", "--body", "gone", "--delay", "2d")
        handle = shown.split()[-1]
        recalled = await brokerset("recall", "t", handle)
        problem = await brokerset("recall", "t", "x", code=1)
        late = json.loads(await brokerset("send", "t", "--body", "late", "--delay", "1s", "--json"))

        assert shown.splitlines()[1] == f"To take it back: brokerset recall t {handle}"
        assert recalled == f"Recalled message {shown.split()[6].rstrip(',')} of t\n"
        assert "recall handle is invalid" in problem
        assert "What to do: nothing was sent" in problem
        assert late["lastRecallHandle"]
        assert await consumed(brokerset, 1) == ["late"]


async def test_transactions_end_as_the_option_says(tmp_path: Path) -> None:
    """Committed, rolled back, and left open until the broker asks."""
    async with cluster(tmp_path) as brokerset:
        committed = await brokerset("send", "t", "--body", "yes", "--transaction", "commit")
        await brokerset("send", "t", "--body", "no", "--transaction", "rollback")
        checked = json.loads(
            await brokerset(
                "send", "t", "--body", "asked", "--count", "2", "--json",
                "--transaction", "unknown", "--check-answer", "commit",
            )
        )  # fmt: skip
        await brokerset("send", "t", "--body", "last")

        assert "Transactions: commit, 1 confirmed" in committed
        assert checked["ends"] == {"left to check": 2}
        assert sorted(await consumed(brokerset, 4)) == ["asked", "asked", "last", "yes"]


async def test_a_message_is_traced_by_its_id(tmp_path: Path) -> None:
    """Who sent it, who consumed it; an unknown id is an error that says what traces need."""
    async with cluster(tmp_path) as brokerset:
        sent = json.loads(await brokerset("send", "t", "--trace", "--json"))
        await consumed(brokerset, 1, "--trace", "--group", "readers")
        message_id = sent["lastMessageId"]
        async with asyncio.timeout(60):
            rows: list[dict[str, Any]] = []
            while len(rows) < 2:  # what was written last is indexed a moment later
                rows = json.loads(await brokerset("message", "trace", message_id, "--json"))
        table = await brokerset("message", "trace", message_id)
        missing = await brokerset("message", "trace", "NOBODY", code=1)

    assert [(row["what"], row["group"], row["client"]) for row in rows] == [
        ("sent", "brokerset-cli", HOST),
        ("consumed", "readers", HOST),
    ]
    assert table.splitlines()[0].split() == ["WHAT", "GROUP", "CLIENT", "TIME", "TOOK", "RESULT"]
    assert "there is no trace of message NOBODY" in missing
    assert "traceTopicEnable=true" in missing
