"""A member whose log is a number: real membership and the real member machine, without replication."""

from __future__ import annotations

import random
from collections.abc import Callable

from brokerset_broker.member.core import Ask, Circumstances, Member, Serve, Step, SwitchEnded
from brokerset_broker.member.epoch_file import EpochFile
from brokerset_broker.member.membership.identity_folder import IdentityFolder
from brokerset_broker.member.membership.membership import Membership, new_nonce
from brokerset_broker.member.role import LogEnd, RoleState
from brokerset_broker.member.shell import MemberShell, StepFailed
from brokerset_runtime.clock import Clock
from brokerset_runtime.disk import RunBlocking
from brokerset_runtime.peer_requests import Asker
from brokerset_spec.broker_settings import BrokerSettings


class LoneMember:
    """Implements `MemberEffects` and `MemberBroker`: as master it writes down where its epoch begins."""

    def __init__(
        self,
        *,
        settings: BrokerSettings,
        folder: IdentityFolder,
        epochs: EpochFile,
        asker: Asker,
        clock: Clock,
        random_source: random.Random,
        closed_cleanly: bool,
        boot_id: str,
        run_blocking: RunBlocking,
        log_end: Callable[[], LogEnd],
        own_address: Callable[[], str],
        on_role: Callable[[RoleState], None],
        step_done: Callable[[str], None] | None = None,
    ) -> None:
        self.settings = settings
        self.epochs = epochs
        self._run_blocking = run_blocking
        self._end_of_log = log_end
        self._address = own_address
        self._on_role = on_role
        self.core = Member(
            new_nonce(random_source),
            poll_seconds=settings.sync_broker_metadata_period / 1000,
            heartbeat_seconds=settings.broker_heartbeat_interval / 1000,
        )
        self.shell = MemberShell(self.core, self, clock)
        self.membership = Membership(
            settings=settings,
            member=self.core,
            shell=self.shell,
            broker=self,
            folder=folder,
            epochs=epochs,
            asker=asker,
            clock=clock,
            closed_cleanly=closed_cleanly,
            boot_id=boot_id,
            run_blocking=run_blocking,
            step_done=step_done,
        )

    # -- `MemberEffects` ----------------------------------------------------------------------------------

    def circumstances(self) -> Circumstances:
        return Circumstances()

    async def carry_out(self, step: Step, role: RoleState) -> None:
        if step is Step.GIVE_BACK:
            await self.membership.give_back(role)
        if step is not Step.BEGIN_EPOCH or role.epoch == self.epochs.history.last_epoch:
            return
        offset = self._end_of_log().offset
        if not await self._run_blocking(lambda: self.epochs.append(role.epoch, offset)):
            raise StepFailed(f"the log has passed the epoch {role.epoch}")

    def ask(self, what: Ask) -> None:
        self.membership.ask(what)

    def role_taken(self, before: RoleState, after: RoleState) -> None:
        self.membership.role_taken(after)
        self._on_role(after)

    def take_in_sync(self, role: RoleState) -> None:
        """Nothing replicates."""

    def serve(self, service: Serve) -> None:
        """Nothing is served."""

    def switch_ended(self, ended: SwitchEnded) -> None:
        self.membership.switch_ended(ended)

    # -- `MemberBroker` -----------------------------------------------------------------------------------

    def log_end(self) -> LogEnd:
        return self._end_of_log()

    def own_address(self) -> str:
        return self._address()

    def ha_address(self) -> str:
        return ""

    def append_age_ms(self) -> int | None:
        return None

    def all_ack(self) -> bool:
        return self.settings.all_ack_in_sync_state_set

    def replication_problem(self) -> tuple[str, str] | None:
        return None

    def log_damage(self) -> str:
        return ""

    def java_ha_address(self, address: str) -> str | None:
        return None
