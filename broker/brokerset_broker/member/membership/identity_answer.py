"""The answer to GET_BROKER_EPOCH_CACHE (1007): the epochs of the log, and who really answers here. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from brokerset_broker.member.membership.diagnosis import Diagnosis, Problem
from brokerset_broker.member.membership.registration import Registration
from brokerset_broker.member.role import LogEnd, Role, RoleState
from brokerset_formats.epochs import END_UNBOUNDED
from brokerset_formats.epochs import EpochEntry as LogEpoch
from brokerset_protocol.bodies.replicas import EpochEntry, EpochEntryCache
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.controller import BrokerIdentityAnswer
from brokerset_spec.broker_settings import BrokerSettings

NO_ROLE_ID: Final = -1
"""The role id that is named before there is an id."""

MASTER_ROLE_ID: Final = 0


def identity_answer(
    command: Command,
    *,
    settings: BrokerSettings,
    role: RoleState,
    fenced: bool,
    registration: Registration,
    entries: Sequence[LogEpoch],
    log_end: LogEnd,
    append_age_ms: int | None,
    ha_address: str,
    found: Diagnosis,
    problem: Problem | None,
) -> Command:
    """What Java's broker answers, and in the header what ours knows beyond that."""
    leads, broker_id, record = role.role is Role.MASTER, registration.broker_id, registration.record
    ends = [entry.start_offset for entry in entries[1:]] + [END_UNBOUNDED]
    body = EpochEntryCache(
        settings.broker_cluster_name,
        settings.broker_name,
        MASTER_ROLE_ID if leads else NO_ROLE_ID if broker_id is None else broker_id,
        tuple(EpochEntry(e.epoch, e.start_offset, until) for e, until in zip(entries, ends, strict=False)),
        log_end.offset,
    )
    header = BrokerIdentityAnswer(
        replica_id=broker_id,
        nonce=registration.nonce,
        incarnation=registration.incarnation,
        check_code=record.check_code or None,
        owner_uid=settings.owner_uid or None,
        expected_replicas=settings.expected_replicas or None,
        next_broker_id=record.next_broker_id or None,
        group_epoch=max(record.group_epoch, role.epoch),
        log_epoch=log_end.epoch,
        log_offset=log_end.offset,
        registration=found.problem or f"registered, {role.role}",
        problem=problem.kind.value if problem is not None and found.problem is not None else None,
        ha_address=ha_address or None,
        master_epoch=role.epoch if leads else None,
        fenced=True if fenced else None,
        append_age_ms=append_age_ms,
        lost_cache=registration.reports_loss or None,
    )
    return command.reply(ext=header.to_ext(), body=body.to_json())
