"""Where the master's HA port is: its remoting port is asked who it is (1007), before anything is followed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from brokerset_broker.member.group_link import MasterTarget
from brokerset_broker.member.ha.following import CannotFollow
from brokerset_broker.member.ha.links import LinkClosed
from brokerset_broker.member.membership.diagnosis import Names
from brokerset_broker.member.role import RoleState
from brokerset_protocol.bodies.replicas import EpochEntryCache
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.controller import BrokerIdentityAnswer
from brokerset_protocol.versions import is_address_based, release_text
from brokerset_runtime.peer_requests import Asker
from brokerset_runtime.remoting import ConnectionClosed, RequestTimeout
from brokerset_runtime.remoting.pool import split_address

ASK_SECONDS: Final = 1.0
"""Time that a master has to say who it is."""

MASTER_ROLE_ID: Final = 0
"""The id that a Java broker names while it is master."""

JavaHaAddress = Callable[[str], str | None]
"""The HA address that name servers tell for a Java master's address; None when they tell none."""


async def find_master(
    asker: Asker, names: Names, change: RoleState, java_ha_address: JavaHaAddress
) -> MasterTarget:
    """Ask the master that `change` names. Raises `LinkClosed` with the reason when it cannot be followed now,
    and `CannotFollow` when it cannot be at all."""
    address = change.master_address
    if not address or change.master_id is None:
        raise LinkClosed("the controllers name no master")
    try:
        reply = await asker.ask(address, Command(RequestCode.GET_BROKER_EPOCH_CACHE), ASK_SECONDS)
    except (ConnectionClosed, RequestTimeout) as error:
        raise LinkClosed(f"the master at {address} does not answer: {error}") from error
    check_release(address, reply)
    found = judge_master(names, change, address, reply)
    if isinstance(found, str):
        raise LinkClosed(found)
    if found.is_ours or found.ha_address:
        return found
    return MasterTarget(java_ha_address(address) or port_above(address), is_ours=False)


def check_release(address: str, reply: Command) -> None:
    """Raise `CannotFollow` if a Java master before 5.1.1 answers: it takes our handshake for another one,
    answers as if it had understood, and reads our acknowledgements at a wrong place."""
    if is_address_based(reply.language, reply.version):
        raise CannotFollow(
            f"the master at {address} is of RocketMQ {release_text(reply.version)}, which knows slaves by"
            " their addresses",
            "upgrade the master to RocketMQ 5.1.1 or later, or replace it by one of ours: `brokerset upgrade"
            " identity` leads its store over",
        )


def judge_master(names: Names, change: RoleState, address: str, reply: Command) -> MasterTarget | str:
    """What an answer to 1007 means: where to connect, or why not. Of a Java master the address is empty."""
    if reply.code != ResponseCode.SUCCESS:
        return f"{address} answers code {reply.code} when asked who it is: {reply.remark}"
    try:
        identity = BrokerIdentityAnswer.from_ext(reply.ext)
        cache = EpochEntryCache.from_json(reply.body)
    except Rejected as rejected:
        return f"{address} gives an answer that cannot be read: {rejected.remark}"
    if (cache.cluster_name, cache.broker_name) != (names.cluster_name, names.broker_name):
        return (
            f"{address} is a broker of the group {cache.broker_name} in the cluster {cache.cluster_name}, not"
            f" of {names.broker_name} in {names.cluster_name}"
        )
    if identity.nonce is None:
        if cache.broker_id != MASTER_ROLE_ID:
            return f"{address} has not become master yet"
        return MasterTarget("", is_ours=False)
    if identity.replica_id != change.master_id:
        return f"{address} is replica {identity.replica_id}, the master is replica {change.master_id}"
    if change.master_nonce is not None and identity.nonce != change.master_nonce:
        return f"another process than the master is at {address}"
    if identity.master_epoch != change.epoch:
        epoch = identity.master_epoch
        now = "has not become master yet" if epoch is None else f"is master in epoch {epoch}"
        return f"{address} {now}; the controllers named it for epoch {change.epoch}"
    return MasterTarget(identity.ha_address or port_above(address), is_ours=True)


def port_above(address: str) -> str:
    """The usual HA address of a broker: one port above its remoting port."""
    host, port = split_address(address)
    return f"[{host}]:{port + 1}" if ":" in host else f"{host}:{port + 1}"
