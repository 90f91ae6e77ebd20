"""The controllers themselves: who they are, who leads, and how that is changed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from brokerset_controller.access.codec import FORMER_VERSION
from brokerset_controller.engine_errors import not_leader, refused_by_engine
from brokerset_controller.request_limits import check_address, refuse
from brokerset_protocol.bodies.controllers import ControllerMember, ControllerStatus
from brokerset_protocol.headers.controller import ChangeMembers, GetMetaDataResponse
from brokerset_raft.configuration import Member
from brokerset_raft.engine import Engine, EngineStatus, Role


def metadata(status: EngineStatus, group: str) -> GetMetaDataResponse:
    """The answer to 1005: any controller gives it; the leader is named as soon as it is known."""
    members = status.configuration.members
    leader = status.configuration.member(status.leader_id) if status.leader_id is not None else None
    return GetMetaDataResponse(
        group=group,
        controller_leader_id=f"n{leader.node_id}" if leader is not None else None,
        controller_leader_address=leader.service_address if leader is not None else None,
        is_leader=status.role is Role.LEADER,
        peers="".join(f"n{member.node_id}:{member.service_address};" for member in members),
    )


def own_status(status: EngineStatus) -> ControllerStatus:
    """The answer to 21001."""
    return ControllerStatus(
        node_id=status.node_id,
        role=status.role.value,
        term=status.term,
        leader_id=status.leader_id,
        leading=status.leading,
        last_index=status.last_index,
        commit_index=status.commit_index,
        applied_index=status.applied_index,
        snapshot_index=status.snapshot_index,
        members=tuple(
            ControllerMember(
                node_id=member.node_id,
                raft_address=member.raft_address,
                service_address=member.service_address,
                voter=member.voter,
                match_index=status.match_indexes.get(member.node_id) if status.role is Role.LEADER else None,
                heard=member.node_id in status.heard if status.role is Role.LEADER else None,
            )
            for member in status.configuration.members
        ),
        log_format=FORMER_VERSION,
    )


class MemberChanges:
    """Changes of the controllers' group, on its leader."""

    def __init__(self, engine: Engine, timeout: Callable[[], float]) -> None:
        """`timeout` gives the seconds that a change may take."""
        self._engine = engine
        self._timeout = timeout

    async def change(self, header: ChangeMembers) -> None:
        """21002: returns when the change is agreed on. Raises `Rejected`."""
        self._must_lead()
        with refused_by_engine():
            async with asyncio.timeout(self._timeout()):
                if header.action == "add":
                    await self._engine.add_learner(_member(header))
                elif header.action == "promote":
                    await self._engine.promote(header.node_id)
                elif header.action == "remove":
                    await self._engine.remove(header.node_id)
                else:
                    raise refuse(f"the action {header.action[:64]!r} is not add, promote or remove")

    async def transfer(self, node_id: int) -> None:
        """21003: returns when this node does not lead any more. Raises `Rejected`."""
        status = self._must_lead()
        if node_id == status.node_id:
            return
        if node_id not in status.configuration.voters:
            raise refuse(f"node n{node_id} is no voting member; the voters are {_names(status)}")
        with refused_by_engine():
            async with asyncio.timeout(self._timeout()):
                await self._engine.transfer(node_id)

    async def hand_over(self, seconds_max: float) -> None:
        """Let the voter that has the most of the log lead, if this node leads and there is one."""
        status = self._engine.status
        others = [node_id for node_id in status.configuration.voters if node_id != status.node_id]
        if status.role is not Role.LEADER or not others:
            return
        target = max(others, key=lambda node_id: (status.match_indexes.get(node_id, 0), -node_id))
        with refused_by_engine():
            async with asyncio.timeout(seconds_max):
                await self._engine.transfer(target)

    async def take_snapshot(self) -> int:
        """21004: on this node; returns the index of the last entry in it."""
        with refused_by_engine():
            return await self._engine.take_snapshot()

    def _must_lead(self) -> EngineStatus:
        status = self._engine.status
        if not status.leading:
            raise not_leader(status.leader_id if status.leader_id != status.node_id else None)
        return status


def _names(status: EngineStatus) -> str:
    return ", ".join(f"n{node_id}" for node_id in status.configuration.voters)


def _member(header: ChangeMembers) -> Member:
    if header.node_id < 0:
        raise refuse(f"nodeId is {header.node_id}; send 0 or more")
    return Member(
        header.node_id,
        check_address(header.raft_address, "raftAddress"),
        check_address(header.service_address, "serviceAddress"),
        False,
    )
