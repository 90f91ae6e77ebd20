"""Requests of RocketMQ 5.0 and 5.1.0, which know a broker by its address: told apart, and refused.

Answered as if they were today's they would do harm. Such a heartbeat names a role in the field of the
persistent id: another broker would be taken for alive. Such a cleaning names an address in a field that later
releases do not read: a whole group would be forgotten. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.versions import is_address_based, release_text

LINE_SECONDS: Final = 60.0
"""Least time between two lines about one broker; such a broker asks every 5 s, permanently."""

BROKERS_KNOWN_MAX: Final = 256
"""Addresses that are remembered for that; with more, the one that is silent for the longest is forgotten."""

SHOWN_MAX: Final = 64
"""Characters of a name or address that a remark repeats."""

WAY_OUT: Final = (
    "these controllers know brokers by persistent ids, as RocketMQ does since 5.1.1; upgrade this broker to"
    " 5.1.1 or later, or replace it by one of ours: `brokerset upgrade identity` leads its store over"
)

_SIGNS: Final[Mapping[int, tuple[str, str]]] = {
    RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET: ("masterAddress", "masterBrokerId"),
    RequestCode.CONTROLLER_ELECT_MASTER: ("brokerAddress", "brokerId"),
    RequestCode.CONTROLLER_REGISTER_BROKER: ("brokerAddress", "brokerId"),
    RequestCode.CONTROLLER_GET_REPLICA_INFO: ("brokerAddress", "brokerId"),
    RequestCode.CLEAN_BROKER_DATA: ("brokerAddress", "brokerControllerIdsToClean"),
}
"""The field that only the old releases send without the other one."""


@dataclass(frozen=True, slots=True)
class OldPeer:
    """Who sent such a request, as far as it says."""

    request: int
    broker_name: str
    address: str
    """Where the broker is that the request is about."""

    release: str
    """`5.1.0`, or `5.0 or 5.1.0` when the sender announces no version."""

    def rejection(self) -> Rejected:
        """The answer: the sender's log shows code and remark."""
        return Rejected(
            ResponseCode.VERSION_NOT_SUPPORTED,
            f"the broker {self.broker_name[:SHOWN_MAX]} at {self.address[:SHOWN_MAX]} is of RocketMQ"
            f" {self.release}, which knows brokers by their addresses, and is not served: {WAY_OUT}",
        )


def old_peer(command: Command) -> OldPeer | None:
    """Whether a request is one of those; None if it may be served."""
    if command.code == RequestCode.BROKER_HEARTBEAT:
        old = is_address_based(command.language, command.version)
        address = command.ext.get("brokerAddr", "")
    else:
        has, lacks = _SIGNS.get(command.code, ("", ""))
        old = bool(has) and has in command.ext and lacks not in command.ext
        address = command.ext.get(has, "")
    if not old or not command.ext.get("brokerName"):
        return None
    known = is_address_based(command.language, command.version)
    return OldPeer(
        command.code,
        command.ext.get("brokerName", ""),
        address,
        release_text(command.version) if known else "5.0 or 5.1.0",
    )


class OldPeerLines:
    """Decides which refusals are written to the log: the first of a broker, then one in `LINE_SECONDS`."""

    def __init__(self) -> None:
        self._logged: dict[tuple[str, str], tuple[float, int]] = {}

    def admit(self, peer: OldPeer, now: float) -> int | None:
        """At `now` (monotonic seconds): how many were left out since the last line; None: leave this out."""
        key = (peer.broker_name[:SHOWN_MAX], peer.address[:SHOWN_MAX])
        logged_at, left_out = self._logged.pop(key, (float("-inf"), 0))
        admitted = now - logged_at >= LINE_SECONDS
        self._logged[key] = (now, 0) if admitted else (logged_at, left_out + 1)
        while len(self._logged) > BROKERS_KNOWN_MAX:
            del self._logged[next(iter(self._logged))]
        return left_out if admitted else None
