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
        try:
            out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
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

    assert shown.splitlines()[1] == f"To take it back: brokerset recall t {handle}"
    assert recalled == f"Recalled message {shown.split()[6].rstrip(',')} of t\n"
    assert "recall handle is invalid" in problem
    assert "What to do: nothing was sent" in problem


async def test_a_delayed_message_comes(tmp_path: Path) -> None:
    """After its delay; scripts get its handle, too."""
    async with cluster(tmp_path) as brokerset:
        late = json.loads(await brokerset("send", "t", "--body", "late", "--delay", "1s", "--json"))

        assert late["lastRecallHandle"]
        assert await consumed(brokerset, 1) == ["late"]


async def test_transactions_end_as_the_option_says(tmp_path: Path) -> None:
    """What was rolled back before is not there when what was committed later is."""
    async with cluster(tmp_path) as brokerset:
        await brokerset("send", "t", "--body", "no", "--transaction", "rollback")
        committed = await brokerset("send", "t", "--body", "yes", "--transaction", "commit")

        assert "Transactions: commit, 1 confirmed" in committed
        assert await consumed(brokerset, 1) == ["yes"]


async def test_open_transactions_are_ended_by_answers_to_checks(tmp_path: Path) -> None:
    """The command waits until the broker has asked for each."""
    async with cluster(tmp_path) as brokerset:
        checked = json.loads(
            await brokerset(
                "send", "t", "--body", "asked", "--count", "2", "--json",
                "--transaction", "unknown", "--check-answer", "commit",
            )
        )  # fmt: skip

        assert checked["ends"] == {"left to check": 2}
        assert await consumed(brokerset, 2) == ["asked", "asked"]


async def test_a_message_is_traced_by_its_id(tmp_path: Path) -> None:
    """Who sent it, and who consumed it."""
    async with cluster(tmp_path) as brokerset:
        sent = json.loads(await brokerset("send", "t", "--trace", "--json"))
        await consumed(brokerset, 1, "--trace", "--group", "readers")
        rows: list[dict[str, Any]] = []
        while len(rows) < 2:  # what was written last is indexed a moment later
            rows = json.loads(await brokerset("message", "trace", sent["lastMessageId"], "--json"))

    assert [(row["what"], row["group"], row["client"]) for row in rows] == [
        ("sent", "brokerset-cli", HOST),
        ("consumed", "readers", HOST),
    ]


async def test_traces_are_a_table_for_people(tmp_path: Path) -> None:
    """An unknown id is an error that says what traces need."""
    async with cluster(tmp_path) as brokerset:
        sent = json.loads(await brokerset("send", "t", "--trace", "--json"))
        table = await brokerset("message", "trace", sent["lastMessageId"])
        missing = await brokerset("message", "trace", "NOBODY", code=1)

    heading, row = table.splitlines()
    assert heading.split() == ["WHAT", "GROUP", "CLIENT", "TIME", "TOOK", "RESULT"]
    assert row.startswith("sent  brokerset-cli  127.0.0.1  20")
    assert "there is no trace of message NOBODY" in missing
    assert "traceTopicEnable=true" in missing
