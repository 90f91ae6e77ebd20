"""Tells running brokers which name servers there are now, so that none has to be started again for that."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from brokerset_cli.readiness import broker_is_found
from brokerset_cli.waiting import until
from brokerset_protocol.bodies import properties_text
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting import ConnectionClosed, RequestTimeout, connect
from brokerset_runtime.supervision import Child
from brokerset_runtime.tls import tls_of_environment
from brokerset_spec.plan import ProcessPlan

TRIES_MAX: Final = 5
"""How often a broker that runs is sent the news at once."""

TRY_SECONDS_MAX: Final = 2.0
"""Longest time for a connection, and for an answer."""

PAUSE_SECONDS: Final = 0.2
"""Between two tries."""

FOUND_SECONDS_MAX: Final = 5.0
"""How long is waited until the name servers know a broker that has the news."""


@dataclass(frozen=True, slots=True)
class NotInformed:
    """Who runs and has not taken the name servers; each by name of the broker, with the reason."""

    refused: Mapping[str, str]
    silent: Mapping[str, str]
    """They cannot be reached, or give no answer; to be informed later."""


@dataclass(frozen=True, slots=True)
class _Problem:
    text: str
    refused: bool


class NameServerNews:
    """Which name servers the process of each broker knows: from its file, and from the news."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[int, str]] = {}
        """By name of the broker: its process, and what that knows."""

    def on_start(self, child: Child, name_servers: str) -> None:
        """Remember what stands in the file that a new process reads; may be called again for the same one."""
        if child.pid and self._known.get(child.spec.name, (0, ""))[0] != child.pid:
            self._known[child.spec.name] = (child.pid, name_servers)

    def known_to_all(self, name_servers: str, brokers: Iterable[Child]) -> str:
        """Those of these name servers that every broker that runs knows; all, where they have none in common.

        Others run as well, but do not lead to every broker.
        """
        known = [self._known[child.spec.name][1].split(";") for child in brokers if self._is_known(child)]
        common = [one for one in name_servers.split(";") if all(one in each for each in known)]
        return ";".join(common) or name_servers

    async def tell(
        self, brokers: Iterable[tuple[ProcessPlan, Child]], name_servers: str, tries: int = TRIES_MAX
    ) -> NotInformed:
        """Tell all brokers that run and know other ones, and wait a while until they are found there.

        One that does not run reads its file.
        """
        old = [
            (process, child)
            for process, child in brokers
            if self._is_known(child) and self._known[process.name][1] != name_servers
        ]
        answers = await asyncio.gather(
            *(self._tell_one(process, child, name_servers, tries) for process, child in old)
        )
        problems = {
            process.name: answer
            for (process, _), answer in zip(old, answers, strict=True)
            if answer is not None
        }
        return NotInformed(
            refused={name: each.text for name, each in problems.items() if each.refused},
            silent={name: each.text for name, each in problems.items() if not each.refused},
        )

    async def _tell_one(
        self, process: ProcessPlan, child: Child, name_servers: str, tries: int
    ) -> _Problem | None:
        pid = child.pid

        def runs() -> bool:
            return child.pid == pid and child.state in ("starting", "running")

        problem = await _tell(process.address, name_servers, runs, tries)
        if problem is None and runs():
            self._known[process.name] = (pid, name_servers)
            await _until_found(process, name_servers, runs)
        return problem

    def _is_known(self, child: Child) -> bool:
        return bool(child.pid) and self._known.get(child.spec.name, (0, ""))[0] == child.pid


async def _tell(address: str, name_servers: str, runs: Callable[[], bool], tries: int) -> _Problem | None:
    """Tell the broker at `address`, as often as it takes; None when it has taken them, or does not run."""
    problem = None
    for number in range(tries):
        if number:
            await asyncio.sleep(PAUSE_SECONDS)
        if not runs():
            return None
        problem = await _try(address, name_servers)
        if problem is None:
            return None
    return problem if runs() else None


async def _try(address: str, name_servers: str) -> _Problem | None:
    body = properties_text.to_text({"namesrvAddr": name_servers})
    try:
        connection = await connect(address, timeout=TRY_SECONDS_MAX, tls=tls_of_environment())
    except ConnectionClosed as error:
        return _Problem(str(error), refused=False)
    try:
        answer = await connection.call(Command(RequestCode.UPDATE_BROKER_CONFIG, body=body), TRY_SECONDS_MAX)
    except (ConnectionClosed, RequestTimeout) as error:
        return _Problem(str(error) or f"no answer from {address}", refused=False)
    finally:
        connection.close()
    if answer.code == ResponseCode.SUCCESS:
        return None
    return _Problem(answer.remark or f"it answers with code {answer.code}", refused=True)


async def _until_found(process: ProcessPlan, name_servers: str, runs: Callable[[], bool]) -> None:
    """Wait until the name servers that answer know a broker. One that serves nobody is unknown to them."""
    servers = name_servers.split(";")

    async def is_found() -> bool:
        return not runs() or await broker_is_found(process.address, process.http_port, servers)

    await until(is_found, FOUND_SECONDS_MAX)
