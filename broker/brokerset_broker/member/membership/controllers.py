"""Where the controllers are and which of them leads; requests to the leader, each with a time limit.

A request is tried once. When it fails the leader is forgotten, so that the next one asks all controllers who
leads; whoever repeats requests waits a little in between.
"""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import structlog

from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.controller import GetMetaDataResponse
from brokerset_runtime.peer_requests import Asker
from brokerset_runtime.remoting import ConnectionClosed, RequestTimeout
from brokerset_runtime.remoting.pool import split_address

log = structlog.get_logger(__name__)

LOOK_UP_SECONDS: Final = 1.0
"""Time that controllers have to say who leads; one that is silent holds nobody up longer."""

REQUEST_SECONDS: Final = 3.0
"""Time limit of a request to the leader, as in RocketMQ."""

CONTROLLERS_MAX: Final = 32
"""Addresses that are used; a DNS name with more records than this is truncated."""

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""Finds the IP addresses of a name. Raises `OSError`."""


_PEER: Final = re.compile(r"n\d+:([^;\s]+:\d{1,5})(?=;|$)")


class NoAnswer(Exception):
    """The request may or may not have been carried out; nobody answered it, or whoever did does not lead."""


async def resolve(host: str, port: int) -> Sequence[str]:
    """The IP addresses of a name, by the system's resolver, sorted. Raises `OSError`."""
    found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return sorted({str(entry[4][0]) for entry in found})


class Controllers:
    """The controllers of `controllerAddr`."""

    def __init__(
        self, configured: Sequence[str], asker: Asker, *, use_dns: bool = False, resolver: Resolve = resolve
    ) -> None:
        """With `use_dns` each name stands for all addresses behind it; else names are resolved on dialing."""
        self._configured = tuple(configured)
        self._asker = asker
        self._use_dns = use_dns
        self._resolver = resolver
        self._resolved: dict[str, tuple[str, ...]] = {}
        self._failed: str | None = None
        self._finding: asyncio.Task[str] | None = None
        self._quiet_names: dict[str, None] = {}
        self._members: tuple[str, ...] = ()
        self.leader: str | None = None
        """Address of the leading controller, as far as known."""
        self.changed = asyncio.Event()
        """Set when `addresses` may have changed."""

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where heartbeats go: controllers that are configured, found by DNS, or members as the leader says.

        A member that never hears the broker would have to ask it before it could judge it as a new leader.
        """
        found: dict[str, None] = {}
        for entry in self._configured:
            found.update(dict.fromkeys(self._resolved.get(entry, () if self._use_dns else (entry,))))
        found.update(dict.fromkeys(self._members))
        if self.leader is not None:
            found[self.leader] = None
        return tuple(found)[:CONTROLLERS_MAX] or self._configured

    async def ask(self, command: Command, seconds: float = REQUEST_SECONDS) -> Command:
        """Ask the leader once. Raises `NoAnswer`, also when the answer is that it does not lead."""
        address = self.leader or await self.find_leader()
        try:
            reply = await self._asker.ask(address, command, seconds)
        except (ConnectionClosed, RequestTimeout) as error:
            self.forget(address)
            raise NoAnswer(str(error)) from error
        if reply.code == ResponseCode.CONTROLLER_NOT_LEADER:
            self.forget(address)
            raise NoAnswer(f"{address} does not lead any more")
        return reply

    def forget(self, address: str) -> None:
        """Do not ask this one next, unless it is the only one that claims to lead."""
        if self.leader == address:
            self.leader = None
        self._failed = address

    async def find_leader(self) -> str:
        """Find the leader; callers at the same time share one search. Raises `NoAnswer`."""
        if self._finding is None:
            self._finding = asyncio.create_task(self._find_leader())
            self._finding.add_done_callback(self._found_leader)
        return await asyncio.shield(self._finding)

    async def run(self, period_seconds: float) -> None:
        """Ask from time to time who leads, for as long as this task runs."""
        try:
            while True:
                await asyncio.sleep(period_seconds)
                try:
                    await self.find_leader()
                except NoAnswer as error:
                    log.debug("no leading controller found", reason=str(error))
        finally:
            if self._finding is not None:
                self._finding.cancel()

    def _found_leader(self, task: asyncio.Task[str]) -> None:
        self._finding = None
        if not task.cancelled():
            task.exception()  # whoever waits gets it; nobody may be waiting any more

    async def _find_leader(self) -> str:
        if self._use_dns:
            await self._resolve_all()
        addresses = self.addresses
        probes = [asyncio.create_task(self._probe(address)) for address in addresses]
        claims: list[str] = []
        named: list[str] = []
        reasons: list[str] = []
        try:
            async with asyncio.timeout(LOOK_UP_SECONDS):
                for answered in asyncio.as_completed(probes):
                    address, answer = await answered
                    if isinstance(answer, str):
                        reasons.append(answer)
                    elif answer.is_leader and address != self._failed:
                        self._learn(answer.peers)
                        return self._lead(address)
                    elif answer.is_leader:
                        claims.append(address)
                    elif _is_address(answer.controller_leader_address or ""):
                        named.append(answer.controller_leader_address or "")
        except TimeoutError:
            reasons.append(f"no answer in {LOOK_UP_SECONDS:g} s")
        finally:
            for probe in probes:
                probe.cancel()
            await asyncio.gather(*probes, return_exceptions=True)
        candidates = [*(address for address in named if address != self._failed), *claims, *named]
        if candidates:
            return self._lead(max(candidates, key=candidates.count))
        self.leader = None
        if reasons:
            raise NoAnswer(", ".join(dict.fromkeys(reasons)))
        raise NoAnswer("none of them knows a leader")

    def _learn(self, peers: str | None) -> None:
        """Keep the members that a leader names, as `n0:host:port;n1:host:port;`; other forms are ignored."""
        found = (match[1] for match in _PEER.finditer(peers or ""))
        members = tuple(filter(_is_address, found))[:CONTROLLERS_MAX]
        if members and members != self._members:
            self._members = members
            self.changed.set()

    def _lead(self, address: str) -> str:
        self._failed = None
        if address != self.leader:
            log.info("leading controller found", address=address)
            self.leader = address
            self.changed.set()
        return address

    async def _probe(self, address: str) -> tuple[str, GetMetaDataResponse | str]:
        """What one controller says, or why it says nothing."""
        command = Command(RequestCode.CONTROLLER_GET_METADATA_INFO)
        try:
            reply = await self._asker.ask(address, command, LOOK_UP_SECONDS)
        except (ConnectionClosed, RequestTimeout) as error:
            return address, str(error)
        if reply.code != ResponseCode.SUCCESS:
            return address, f"{address} answers code {reply.code}: it may be no controller"
        try:
            return address, GetMetaDataResponse.from_ext(reply.ext)
        except Rejected as rejected:
            return address, f"{address}: {rejected.remark}"

    async def _resolve_all(self) -> None:
        """Look all names up at once; a name that fails keeps the addresses that it had."""
        await asyncio.gather(*(self._resolve(entry) for entry in self._configured))

    async def _resolve(self, entry: str) -> None:
        host, port = split_address(entry)
        try:
            async with asyncio.timeout(LOOK_UP_SECONDS):
                found = await self._resolver(host, port)
        except (OSError, TimeoutError) as error:
            if entry not in self._quiet_names:
                log.warning(
                    "controllers' name cannot be resolved", name=entry, reason=str(error) or "time-out"
                )
            self._quiet_names[entry] = None
            return
        self._quiet_names.pop(entry, None)
        addresses = tuple(f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}" for ip in found)
        if addresses and addresses != self._resolved.get(entry):
            log.info("controllers found by name", name=entry, addresses=addresses)
            self._resolved[entry] = addresses
            self.changed.set()


def _is_address(text: str) -> bool:
    """Whether what a controller says can be connected to; what it cannot must not end the broker."""
    try:
        split_address(text)
    except ValueError:
        return False
    return True
