"""From the files on the disk to a registered start, as a state machine: results in, steps out. Pure.

The shell does `step` and feeds what came of it; the machine then has the next step. What failed without an
answer is done again as it was, because the controllers may have carried it out: each request can be repeated.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from brokerset_broker.member.membership import diagnosis
from brokerset_broker.member.membership.diagnosis import Names, Problem
from brokerset_formats.identity import TRIED_NONCES_MAX, BrokerIdentity, StartRecord
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.codes import ResponseCode

# -- steps ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ReadFiles:
    """Read the files next to the identity; feed `FilesRead` or `FilesUnusable`."""


@dataclass(frozen=True, slots=True)
class AskNextId:
    """Ask for the group's next id (1012); feed `NextIdReceived`."""


@dataclass(frozen=True, slots=True)
class WriteTemp:
    """Replace the temporary file, so that the id can be claimed again after a crash."""

    identity: BrokerIdentity


@dataclass(frozen=True, slots=True)
class ApplyId:
    """Claim the id (1013); feed `IdGranted`."""

    broker_id: int
    check_code: str


@dataclass(frozen=True, slots=True)
class WriteIdentity:
    """Replace the identity file: the id is this broker's permanently."""

    identity: BrokerIdentity


@dataclass(frozen=True, slots=True)
class WriteStart:
    """Replace the start file before its new nonce is told to anybody."""

    record: StartRecord


@dataclass(frozen=True, slots=True)
class DeleteTemp:
    """Remove the temporary file."""


@dataclass(frozen=True, slots=True)
class Register:
    """Register this start (1003); feed `StartCommitted`."""

    broker_id: int
    last_nonce: str | None
    tried_nonces: tuple[str, ...]
    next_nonce: str
    adopt: bool
    lost_cache: bool
    unclean: bool = False
    """Whether the process before did not close its log in order."""


@dataclass(frozen=True, slots=True)
class FinishStart:
    """Replace the start file: the start is known to be committed."""

    record: StartRecord


@dataclass(frozen=True, slots=True)
class Serve:
    """Registered: the broker may take a role."""


Step = (
    ReadFiles | AskNextId | WriteTemp | ApplyId | WriteIdentity | WriteStart | DeleteTemp | Register
    | FinishStart | Serve
)  # fmt: skip

# -- results ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class FilesRead:
    """What was found; None for what is not there. An unreadable temporary file counts as not there."""

    identity: BrokerIdentity | None = None
    temp: BrokerIdentity | None = None
    start: StartRecord | None = None


@dataclass(frozen=True, slots=True)
class FilesUnusable:
    """The files could not be read or written."""

    problem: Problem


@dataclass(frozen=True, slots=True)
class StepDone:
    """A file was written or deleted, and is synced."""


@dataclass(frozen=True, slots=True)
class NextIdReceived:
    """The answer to `AskNextId`."""

    next_broker_id: int


@dataclass(frozen=True, slots=True)
class IdGranted:
    """The answer to `ApplyId`."""


@dataclass(frozen=True, slots=True)
class StartCommitted:
    """The answer to `Register`. All None: the controllers are RocketMQ's."""

    incarnation: int | None = None
    next_broker_id: int | None = None
    group_epoch: int | None = None


@dataclass(frozen=True, slots=True)
class Refused:
    """An answer with another code than success."""

    code: int
    remark: str | None = None
    next_broker_id: int | None = None


@dataclass(frozen=True, slots=True)
class Unanswered:
    """No answer: whether the request was carried out is unknown."""

    problem: Problem


Result = (
    FilesRead | FilesUnusable | StepDone | NextIdReceived | IdGranted | StartCommitted | Refused | Unanswered
)

TRANSIENT = (
    ResponseCode.SYSTEM_ERROR,
    ResponseCode.SYSTEM_BUSY,
    ResponseCode.CONTROLLER_NOT_LEADER,
    ResponseCode.CONTROLLER_JRAFT_INTERNAL_ERROR,
)
"""After these the request may have been carried out or not, or another controller must be asked."""

LOST_BOOT = "lost"
"""Boot id in the start file while the log lacks what was not synced and no master is known since."""


class Registration:
    """The state machine of one process. `nonce` is this start's, drawn at random by the caller."""

    def __init__(
        self,
        *,
        names: Names,
        nonce: str,
        boot_id: str,
        closed_cleanly: bool,
        new_check_code: Callable[[], str],
        known_epoch: int = 0,
    ) -> None:
        """`boot_id` is the host's, empty if not known; `new_check_code` makes `address;milliseconds`;
        `known_epoch` is the highest master epoch that the broker knows without its start file."""
        self.step: Step = ReadFiles()
        self.problem: Problem | None = None
        """Why the last try of this step failed; None after a success."""
        self.waits = False
        """Whether to wait long before the next try, because only people can change the outcome."""
        self.broker_id: int | None = None
        """The persistent id, once it is granted."""
        self.incarnation: int | None = None
        """How many starts were committed, this one included; None from Java's controllers."""
        self.nonce = nonce
        """This start's nonce; an older one is used again when too many are undecided."""
        self.group_epoch: int | None = None
        """The group's master epoch as the registration named it."""
        self.lost_cache = False
        """Whether the log lacks what was not synced, and no master is known since."""
        self.loss_is_known = closed_cleanly
        """Whether the start file, or the controllers, know how the process before ended, so that closing the
        log in order hides nothing. That it was not closed in order only the controllers keep."""
        self._names = names
        self._boot_id = boot_id
        self._closed_cleanly = closed_cleanly
        self._new_check_code = new_check_code
        self._known_epoch = known_epoch
        self._record = StartRecord()
        self._claim: BrokerIdentity | None = None
        self._has_temp = False
        self._next_id_received = 0
        self._retry_id: int | None = None

    @property
    def record(self) -> StartRecord:
        """What the start file holds or is about to hold."""
        return self._record

    def feed(self, result: Result) -> None:
        """Take what came of the current step; afterwards `step` is what to do next."""
        step, self.problem, self.waits = self.step, None, False
        match result, step:
            case (Unanswered(problem), _):
                self.problem = problem
            case (FilesUnusable(problem), _):
                self.problem, self.waits = problem, True
            case (Refused() as refused, _):
                self._refused(refused)
            case (FilesRead(identity, temp, start), ReadFiles()):
                self._read(identity, temp, start)
            case (NextIdReceived(next_id), AskNextId()):
                self._apply_for(next_id)
            case (StepDone(), WriteTemp(identity)):
                self._claim, self._has_temp = identity, True
                self.step = ApplyId(identity.broker_id, identity.check_code)
            case (IdGranted(), ApplyId()):
                assert self._claim is not None
                self.step = WriteIdentity(replace(self._claim, check_code=""))
            case (StepDone(), WriteIdentity(identity)):
                assert self._claim is not None
                self._begin(identity.broker_id, None, self._claim.check_code)
            case (StepDone(), WriteStart()):
                self.loss_is_known = self._closed_cleanly or self.lost_cache
                self.step = DeleteTemp() if self._has_temp else self._register()
            case (StepDone(), DeleteTemp()):
                self._has_temp, self._claim = False, None
                self._after_delete()
            case (StartCommitted() as committed, Register()):
                self._committed(committed)
            case (StepDone(), FinishStart(record)):
                self._record = record
                self.step = Serve()
            case _:
                raise AssertionError(f"{result} is no result of {step}")

    @property
    def adopts(self) -> bool:
        """Whether another program made the identity, and no start of it was committed yet."""
        return self._record.last_nonce is None and not self._record.check_code

    @property
    def reports_loss(self) -> bool:
        """Whether to tell whoever asks that the page cache is lost. Of a volume that another program made
        nothing is known."""
        return self.lost_cache and not self.adopts

    @property
    def settled(self) -> StartRecord:
        """What the start file holds once a master is known: in this boot the log has lost nothing yet."""
        return replace(self._record, boot_id=self._boot_id)

    def loss_settled(self) -> None:
        """`settled` is on the disk. Only from `Serve`."""
        assert isinstance(self.step, Serve)
        self._record, self.lost_cache = self.settled, False

    def register_again(self) -> None:
        """Register the same start once more: the controllers seem not to know it. Only from `Serve`."""
        assert isinstance(self.step, Serve)
        self.step = self._register()

    # -- transitions --------------------------------------------------------------------------------------

    def _read(
        self, identity: BrokerIdentity | None, temp: BrokerIdentity | None, start: StartRecord | None
    ) -> None:
        names = self._names
        self._has_temp = temp is not None
        if identity is not None:
            if not self._is_ours(identity):
                self.problem = diagnosis.names_differ(names, identity.cluster_name, identity.broker_name)
                self.waits = True
                return
            claimed = temp is not None and temp == replace(identity, check_code=temp.check_code)
            self._begin(identity.broker_id, start, temp.check_code if temp is not None and claimed else "")
        elif temp is not None and self._is_ours(temp):
            self._claim = temp
            self.step = ApplyId(temp.broker_id, temp.check_code)
        else:  # a claim under other names holds nothing but an unused id
            self.step = AskNextId()

    def _is_ours(self, identity: BrokerIdentity) -> bool:
        names = self._names
        return (identity.cluster_name, identity.broker_name) == (names.cluster_name, names.broker_name)

    def _apply_for(self, broker_id: int) -> None:
        self._next_id_received = max(self._next_id_received, broker_id)
        names = self._names
        self.step = WriteTemp(
            BrokerIdentity(names.cluster_name, names.broker_name, broker_id, self._new_check_code())
        )

    def _begin(self, broker_id: int, start: StartRecord | None, claim_code: str) -> None:
        """The identity is settled: write this start down. `claim_code` is empty without a claim."""
        self.broker_id = broker_id
        old = start if start is not None else StartRecord(check_code=claim_code)
        if not old.check_code:
            old = replace(old, check_code=claim_code)
        if start is not None and old.boot_id == LOST_BOOT:
            self.lost_cache = True  # no controller knows it yet, and closing the log did not bring it back
        elif self._closed_cleanly:
            self.lost_cache = False
        elif start is None:  # who just claimed an id was never in sync; of a foreign volume nothing is known
            self.lost_cache = not old.check_code
        else:
            self.lost_cache = not self._boot_id or old.boot_id != self._boot_id
        tried = old.tried_nonces
        if old.next_nonce is not None and old.next_nonce != self.nonce:
            if len(tried) < TRIED_NONCES_MAX:
                tried = (*tried, old.next_nonce)
            else:
                self.nonce = old.next_nonce
        self._record = replace(
            old,
            next_nonce=self.nonce,
            tried_nonces=tried,
            next_broker_id=max(old.next_broker_id, self._next_id_received),
            group_epoch=max(old.group_epoch, self._known_epoch),
            boot_id=LOST_BOOT if self.lost_cache else self._boot_id,
        )
        self.step = WriteStart(self._record)

    def _register(self) -> Register:
        assert self.broker_id is not None
        record = self._record
        return Register(
            self.broker_id,
            record.last_nonce,
            record.tried_nonces,
            self.nonce,
            adopt=self.adopts,
            lost_cache=self.lost_cache,
            unclean=not self._closed_cleanly,
        )

    def _after_delete(self) -> None:
        if self.broker_id is not None:
            self.step = self._register()
        elif self._retry_id is not None:
            broker_id, self._retry_id = self._retry_id, None
            self._apply_for(broker_id)
        else:
            self.step = AskNextId()

    def _committed(self, committed: StartCommitted) -> None:
        self.loss_is_known = True
        self.incarnation = committed.incarnation
        self.group_epoch = committed.group_epoch
        if self.adopts:
            self.lost_cache = False
        record = self._record
        if committed.incarnation is not None:
            record = replace(record, last_nonce=self.nonce, tried_nonces=())
        self.step = FinishStart(
            replace(
                record,
                next_nonce=None,  # RocketMQ's controllers keep no nonce, so none of theirs is undecided
                next_broker_id=max(record.next_broker_id, committed.next_broker_id or 0),
                group_epoch=max(record.group_epoch, committed.group_epoch or 0),
                boot_id=LOST_BOOT if self.lost_cache else self._boot_id,
            )
        )

    def _refused(self, refused: Refused) -> None:
        step = self.step
        self._next_id_received = max(self._next_id_received, refused.next_broker_id or 0)
        lost_claim = (ResponseCode.CONTROLLER_BROKER_ID_INVALID, ResponseCode.BROKERSET_ID_RETIRED)
        if isinstance(step, ApplyId) and refused.code in lost_claim:
            self._retry_id = refused.next_broker_id
            self.step = DeleteTemp()
            return
        broker_id = step.broker_id if isinstance(step, ApplyId | Register) else self.broker_id
        self.problem = diagnosis.refused(refused.code, refused.remark, self._names, broker_id)
        self.waits = True
