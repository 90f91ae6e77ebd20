"""Requests about users and policies: decide on the agreed book, have the change agreed on, then answer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

import structlog

from brokerset_acl.access_requests import BookChange, answer_read, decide_change, former_until
from brokerset_acl.policies import Acl
from brokerset_acl.signatures import ACCESS_KEY
from brokerset_acl.users import User, user_of
from brokerset_controller.access.codec import ACCESS_VERSION, FORMER_VERSION, encode_event, has_former
from brokerset_controller.access.events import AccessEvent, BookAdopted, BookChanged
from brokerset_controller.access.machine import BOOK_BYTES_MAX, AccessApplied
from brokerset_controller.agreement import Agreement
from brokerset_controller.log_readers import reader_problems
from brokerset_controller.machine import ReplicasMachine
from brokerset_controller.replicas.events import Superseded
from brokerset_namesrv.administration import settings_accounts
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.controller import AdoptAccess
from brokerset_runtime.clock import Clock
from brokerset_runtime.peer_requests import Asker
from brokerset_runtime.remoting.password_checks import PasswordChecks
from brokerset_spec.access_settings import inner_credentials_of
from brokerset_spec.controller_settings import ControllerSettings

log = structlog.get_logger(__name__)

ATTEMPTS_MAX: Final = 8
"""How often a request decides again because other changes came in between."""

NOT_KEPT: Final = (
    "controllers have users only while they check who administers: set authenticationEnabled there"
)


class AccessService:
    """Users and policies of the cluster, as this controller has applied them."""

    def __init__(
        self,
        *,
        settings: Callable[[], ControllerSettings],
        agreement: Agreement,
        machine: ReplicasMachine,
        clock: Clock,
        asker: Asker,
        others: Callable[[], Mapping[int, str]],
    ) -> None:
        """`settings` gives those in force; users of settings count from the start. `others` gives the other
        controllers, addresses by id."""
        self._settings = settings
        self._agreement = agreement
        self._groups = machine
        self._machine = machine.access
        self._clock = clock
        self._asker = asker
        self._others = others
        inner = inner_credentials_of(settings().inner_client_authentication_credentials)
        self._inner = None if inner is None else inner[0]
        self.accounts = settings_accounts(settings(), machine.access.book)
        """All users: those of the book, and those of the settings."""

        self.checks = PasswordChecks(clock)
        """Of who administers this controller."""

        self._former_readers: Mapping[int, str] | None = None
        """The other controllers that were seen to read former passwords."""

    @property
    def enabled(self) -> bool:
        """Whether this controller has users and policies at all."""
        return self._settings().authentication_enabled

    @property
    def heartbeat_version(self) -> int | None:
        """The version for heartbeats; None of a controller that does not lead, or has no users."""
        return self._machine.version if self.enabled and self._agreement.status.leading else None

    def is_super(self, command: Command) -> bool:
        """Whether a Super user sent a request that was let through."""
        user = self.accounts.user(command.ext.get(ACCESS_KEY, ""))
        return user is not None and user.is_super

    def behind(self) -> Rejected | None:
        """What a client gets that is not let through here, where users and policies may be old ones: the one
        that leads has applied all that was committed. None from that one."""
        return self._agreement.refusal()

    def check_enabled(self) -> None:
        """Raise `Rejected` unless this controller has users and policies."""
        if not self.enabled:
            raise Rejected(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, NOT_KEPT)

    async def change(
        self, command: Command, *, by_super: bool, repeated: bool
    ) -> tuple[int, BookChange | None]:
        """What a request to change something changed, and the version with it. Raises `Rejected`.

        Decided behind a barrier, so a deposed leader refuses nothing from the past.
        """
        deadline = self._agreement.deadline()
        for _ in range(ATTEMPTS_MAX):
            await self._agreement.barrier(deadline)
            base = self._machine.version
            now_ms = self._clock.now_ms()
            change = decide_change(
                self.accounts, command, by_super=by_super, now_ms=now_ms, repeated=repeated
            )
            if change is None:
                return base, None
            if self._machine.size_after(change.users, change.acls) > BOOK_BYTES_MAX:
                raise Rejected(
                    ResponseCode.NO_PERMISSION,
                    f"there would be more than {BOOK_BYTES_MAX} bytes of users and policies; delete some",
                )
            event = BookChanged(base, now_ms, change.users, change.acls)
            outcome = await self._propose(event, deadline)
            if isinstance(outcome, AccessApplied):
                return outcome.version, change
        raise Rejected(
            ResponseCode.SYSTEM_BUSY,
            f"other changes of users came in between {ATTEMPTS_MAX} times; repeat the request",
        )

    def former_until(self, command: Command) -> dict[str, str]:
        """Fields of the answer to a change, as it is applied here."""
        return former_until(self.accounts, command, self._clock.now_ms())

    def answer_read(self, command: Command) -> Command:
        """The answer to a request that reads, from what is applied; Super users see passwords.

        Raises `Rejected`.
        """
        passwords, now_ms = self.is_super(command), self._clock.now_ms()
        return answer_read(self.accounts, command, passwords=passwords, now_ms=now_ms, uses=self.checks.uses)

    async def current(self) -> int:
        """The version, when all that was agreed on before is applied here. Raises `Rejected`."""
        await self._agreement.barrier()
        return self._machine.version

    def is_adopted(self, broker_group: str) -> bool:
        """Whether what a group had was taken over."""
        return broker_group in self._machine.adopted

    async def adopt(
        self, header: AdoptAccess, users: Mapping[str, User], acls: Mapping[str, Acl]
    ) -> tuple[str, ...]:
        """Take over what a group had, once; what was left out, because it is there already or is of this
        controller's settings. Raises `Rejected`."""
        deadline = self._agreement.deadline()
        await self._agreement.barrier(deadline)
        name = header.broker_name
        group = self._groups.group(name)
        if group is None or (group.master_id, group.master_epoch) != (header.broker_id, header.master_epoch):
            raise Rejected(
                ResponseCode.CONTROLLER_INVALID_MASTER,
                f"broker {header.broker_id} is not master of {name} in epoch {header.master_epoch}",
            )
        now_ms = self._clock.now_ms()
        event = BookAdopted(
            name,
            now_ms,
            {
                user: replace(found, former=found.former_at(now_ms))
                for user, found in users.items()
                if user != self._inner
            },
            {subject: acl for subject, acl in acls.items() if user_of(subject) != self._inner},
        )
        if len(encoded := encode_event(event)) > BOOK_BYTES_MAX:
            raise Rejected(
                ResponseCode.NO_PERMISSION,
                f"{name} has {len(encoded)} bytes of users and policies; BOOK_BYTES_MAX is {BOOK_BYTES_MAX}",
            )
        outcome = await self._propose(event, deadline)
        if isinstance(outcome, Superseded):
            raise Rejected(ResponseCode.NO_PERMISSION, outcome.reason)
        return outcome.left_out

    async def _propose(self, event: AccessEvent, deadline: float) -> AccessApplied | Superseded:
        if self._machine.is_empty:
            found = await reader_problems(self._asker, self._others(), ACCESS_VERSION, "users and policies")
            if found:
                raise Rejected(
                    ResponseCode.SYSTEM_BUSY, f"the first user needs all controllers: {'; '.join(found)}"
                )
        if has_former(event.users):
            await self._check_former_readers()
        outcome = await self._agreement.propose(encode_event(event), deadline)
        assert isinstance(outcome, AccessApplied | Superseded), outcome
        return outcome

    async def _check_former_readers(self) -> None:
        """Raise `Rejected` unless the other controllers of now were seen to read former passwords."""
        others = dict(self._others())
        if others == self._former_readers:
            return
        found = await reader_problems(self._asker, others, FORMER_VERSION, "former passwords")
        if found:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                "a former password that is accepted needs all controllers, or change the password at once:"
                f" {'; '.join(found)}",
            )
        self._former_readers = others
