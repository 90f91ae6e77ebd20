"""What controllers say about a group's master, as one value whatever the request was. Pure."""

from __future__ import annotations

from brokerset_broker.member.role import GroupNews
from brokerset_protocol.bodies.replicas import ElectMasterBody, SyncStateSet
from brokerset_protocol.commands import Command
from brokerset_protocol.headers import controller as headers


def news_of(
    epoch: int | None,
    header: headers.NotifyBrokerRoleChanged
    | headers.RegisterBrokerToControllerResponse
    | headers.GetReplicaInfoResponse,
    body: bytes,
) -> GroupNews:
    """What a header and the set behind it say. Raises `Rejected` for a body that is no set."""
    found = SyncStateSet.from_json(body)
    return GroupNews(
        epoch,
        header.master_broker_id,
        header.master_address,
        found.sync_state_set_epoch,
        found.sync_state_set,
        header.master_nonce,
    )


def news_of_election(reply: Command) -> GroupNews:
    """What an answer to 1002 says. Raises `Rejected` for one that cannot be read."""
    answer = headers.ElectMasterResponse.from_ext(reply.ext)
    return GroupNews(
        answer.master_epoch,
        answer.master_broker_id,
        answer.master_address,
        answer.sync_state_set_epoch or 0,
        ElectMasterBody.from_json(reply.body).sync_state_set,
        answer.master_nonce,
    )
