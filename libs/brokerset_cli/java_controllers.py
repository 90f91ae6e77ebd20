"""Whether controllers are Java's, and which of them leads (1005): asked where none of ours answers."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from brokerset_cli.readiness import ask
from brokerset_cli.takeover.mix import Make, controller_make
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.headers import GetMetaDataResponse


@dataclass(frozen=True, slots=True)
class JavaController:
    """A controller of Java's, as it answers."""

    address: str
    leads: bool
    leader_id: str | None
    """`n0` and so on: the leader's name in `controllerDLegerPeers`."""

    leader_address: str | None


async def probe_java(addresses: Sequence[str]) -> tuple[JavaController, ...]:
    """Those of the addresses at which a controller of Java's answers, and the leader that they name."""
    found = [each for each in await asyncio.gather(*map(_probe_one, addresses)) if each is not None]
    if leader_of(found) is None:
        named = {each.leader_address for each in found if each.leader_address} - set(addresses)
        more = await asyncio.gather(*map(_probe_one, sorted(named)))
        found += [each for each in more if each is not None]
    return tuple(found)


async def _probe_one(address: str) -> JavaController | None:
    own, metadata = await asyncio.gather(
        ask(address, RequestCode.BROKERSET_CONTROLLER_STATUS),
        ask(address, RequestCode.CONTROLLER_GET_METADATA_INFO),
    )
    make = controller_make(
        own.code if own is not None else None, metadata.code if metadata is not None else None
    )
    if make is not Make.JAVA or metadata is None:
        return None
    found = GetMetaDataResponse.from_ext(metadata.ext)
    return JavaController(
        address, found.is_leader, found.controller_leader_id, found.controller_leader_address
    )


def leader_of(controllers: Sequence[JavaController]) -> JavaController | None:
    """Who says that it leads."""
    return next((each for each in controllers if each.leads), None)


def java_problems(controllers: Sequence[JavaController], silent: Sequence[str]) -> list[str]:
    """What is wrong with Java's controllers; `silent` are those of the addresses that do not answer."""
    found = [f"the controller at {address} does not answer" for address in silent]
    if leader_of(controllers) is None:
        found.append(
            f"none of Java's controllers leads ({len(controllers)} answer): ids and masters cannot change "
            "until more than half of them run"
        )
    return found
