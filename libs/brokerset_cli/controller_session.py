"""Runs a command's work against controllers; turns what can go wrong into errors that say what to do next."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

from brokerset_cli import client_session
from brokerset_cli.folder import DataFolder
from brokerset_cli.ledger_session import LedgerAdmin
from brokerset_cli.options import controller_address, controller_options, namesrv_address
from brokerset_cli.output import CommandFailed
from brokerset_client.controller_admin import NOT_SERVED, ControllerAdmin, ControllersUnavailable
from brokerset_client.errors import AnswerTimeout, BrokerUnreachable, ClientError, RequestRefused
from brokerset_client.subject_admin import SubjectAdmin
from brokerset_protocol.bodies.controllers import GroupState, ReplicaState
from brokerset_protocol.codes import ResponseCode
from brokerset_runtime.logs import configure_logs

T = TypeVar("T")


A = TypeVar("A", bound=ControllerAdmin)


def run(controllers: str, work: Callable[[ControllerAdmin], Awaitable[T]]) -> T:
    """Connect to controllers, do `work`, disconnect; ends the command when that fails."""
    return _run(ControllerAdmin(controllers), controllers, work)


def _run(unopened: A, controllers: str, work: Callable[[A], Awaitable[T]]) -> T:
    configure_logs("error", json=False)

    async def session() -> T:
        async with unopened as admin:
            return await work(admin)

    try:
        return asyncio.run(session())
    except ClientError as error:
        raise CommandFailed(str(error), advice_for(error, controllers)) from None


@dataclass(frozen=True, slots=True)
class Controllers:
    """The controllers that a command is for, as its options name them."""

    controller: str | None
    data: Path

    def run(self, work: Callable[[ControllerAdmin], Awaitable[T]]) -> T:
        """Do `work` with them; ends the command when that fails."""
        return run(controller_address(self.controller, self.data), work)

    def run_subjects(self, work: Callable[[SubjectAdmin], Awaitable[T]]) -> T:
        """The same for work on ordered subjects."""
        address = controller_address(self.controller, self.data)
        return _run(SubjectAdmin(address), address, work)

    @property
    def has_ledgers(self) -> bool:
        """Whether the set in the folder has DLedger groups, and no controllers are named."""
        state = DataFolder(self.data).read_state()
        return self.controller is None and state is not None and state.is_dledger

    def run_at_members(self, namesrv: str | None, work: Callable[[LedgerAdmin], Awaitable[T]]) -> T:
        """Do `work` with the DLedger groups of the set in the folder, or those that name servers know."""
        configure_logs("error", json=False)
        address = namesrv_address(namesrv, self.data)

        async def session() -> T:
            async with LedgerAdmin(None if namesrv is not None else self.data, address) as admin:
                return await work(admin)

        try:
            return asyncio.run(session())
        except ClientError as error:
            raise CommandFailed(str(error), client_session.advice_for(error, address)) from None


def controllers_options(function: Callable[..., None]) -> Callable[..., None]:
    """`--controller HOST:PORT` and `--data DIR`, which the command is given as `controllers`."""

    @wraps(function)
    def with_controllers(*args: Any, controller: str | None, data: Path, **others: Any) -> None:
        function(*args, controllers=Controllers(controller, data), **others)

    return controller_options(with_controllers)


def advice_for(error: ClientError, controllers: str) -> str:
    """Return what to do next about an error of a request to controllers."""
    match error:
        case ControllersUnavailable():
            return (
                "see `brokerset status` whether they run, more than half of them must; "
                f"name others than {controllers} with --controller"
            )
        case RequestRefused(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, address=address):
            return f"{address} is no controller of brokerset; name one with --controller"
        case RequestRefused(code=ResponseCode.BROKERSET_SUBJECT_UNKNOWN):
            return "see `brokerset subject list`, or create it with `brokerset subject create`"
        case RequestRefused(code=ResponseCode.BROKERSET_SUBJECT_REFUSED):
            return "nothing was changed; `brokerset subject describe` shows the subject"
        case RequestRefused():
            return "nothing was changed; `brokerset status` shows controllers, groups and replicas"
        case BrokerUnreachable() | AnswerTimeout():
            return "whether it was carried out is unknown; see `brokerset status`, then try again"
        case _:
            return "see `brokerset status`"


async def one_group(admin: ControllerAdmin, name: str) -> GroupState:
    """Return a group that the controllers know; ends the command with the names of those that they know."""
    try:
        groups = await admin.groups()
    except RequestRefused as error:
        if error.code not in NOT_SERVED:
            raise
        groups = await admin.groups([name])  # Java's controllers answer for groups that are named
    for group in groups:
        if group.broker_name == name:
            return group
    names = ", ".join(sorted(group.broker_name for group in groups)) or "none"
    raise CommandFailed(
        f"the controllers know no group {name!r}, only: {names}", "correct the name; see `brokerset status`"
    )


def one_replica(state: GroupState, broker_id: int) -> ReplicaState:
    """Return a replica of a group; ends the command with the ids that there are."""
    found = next((r for r in state.replicas if r.broker_id == broker_id), None)
    if found is None:
        known = ", ".join(str(r.broker_id) for r in state.replicas) or "none"
        raise CommandFailed(
            f"{state.broker_name} has no replica {broker_id}, only: {known}",
            "correct the id; see `brokerset status`",
        )
    return found
