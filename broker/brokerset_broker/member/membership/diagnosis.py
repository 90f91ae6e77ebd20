"""Why a broker is not in service yet, and what to do about it. Pure: facts in, words out."""

from __future__ import annotations

from enum import Enum

from brokerset_broker.member.role import Role
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_protocol.codes import ResponseCode


class ProblemKind(Enum):
    """What keeps a broker out of service; also the label of the metric."""

    CONTROLLERS_SILENT = "controllers_silent"
    CONTROLLERS_OLD = "controllers_too_old"
    IDENTITY_DAMAGED = "identity_damaged"
    DISK = "disk"
    NAMES_DIFFER = "names_differ"
    CONFLICT = "identity_conflict"
    OWNED = "group_owned"
    RETIRED = "id_retired"
    UNKNOWN_ID = "unknown_id"
    REFUSED = "refused"
    NO_MASTER = "no_master"
    EPOCH = "epoch_behind_log"
    SWITCH = "role_change_failed"
    FENCED = "fenced"
    LEASE = "lease_lost"
    REPLICATION = "replication_refused"
    INCOMPLETE = "log_incomplete"


@dataclass(frozen=True, slots=True)
class Problem:
    """One reason. `detail` may change from try to try; `text` and `advice` say the same all the time."""

    kind: ProblemKind
    text: str
    advice: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Whether the broker has registered and knows its role; if not, why, and what to do.

    A broker that is ready may have a problem, too: it is fenced, lacks its lease, or cannot follow.
    """

    ready: bool
    problem: str | None = None
    advice: str | None = None


@dataclass(frozen=True, slots=True)
class Names:
    """What messages call the broker and its file."""

    cluster_name: str
    broker_name: str
    identity_path: str


def silent(addresses: tuple[str, ...], reason: str) -> Problem:
    """No controller answers, or none knows a leader; `reason` is the last failure."""
    shown = ";".join(addresses) or "no address"
    return Problem(
        ProblemKind.CONTROLLERS_SILENT,
        f"no controller at {shown} could do what was asked",
        "check controllerAddr, and that more than half of the controllers run",
        reason,
    )


def damaged(path: str, reason: str, ways_out: str) -> Problem:
    """A file next to the identity cannot be read."""
    return Problem(ProblemKind.IDENTITY_DAMAGED, f"{path} cannot be read: {reason}", ways_out)


def disk(path: str, reason: str) -> Problem:
    """The system refuses to read or write the identity files."""
    return Problem(
        ProblemKind.DISK,
        f"files next to {path} cannot be read or written: {reason}",
        "check the folder's permissions and free space",
    )


def names_differ(names: Names, cluster_name: str, broker_name: str) -> Problem:
    """The identity belongs to another broker than the settings name."""
    return Problem(
        ProblemKind.NAMES_DIFFER,
        f"{names.identity_path} belongs to broker {broker_name} of cluster {cluster_name}, but the settings "
        f"say broker {names.broker_name} of cluster {names.cluster_name}",
        "set brokerName and brokerClusterName to what they were, or give this broker an empty folder",
    )


def refused(code: int, remark: str | None, names: Names, broker_id: int | None) -> Problem:
    """A controller's answer that repeating the request alone will not change."""
    who = f"broker {broker_id} of group {names.broker_name}" if broker_id is not None else names.broker_name
    said = remark or f"code {code}"
    match code:
        case ResponseCode.BROKERSET_IDENTITY_CONFLICT:
            return Problem(
                ProblemKind.CONFLICT,
                f"another process or copy of this folder has the identity of {who}: {said}",
                "start the folder that registered last and remove the others; `brokerset replica replace "
                "--empty` makes this one a new, empty replica",
            )
        case ResponseCode.BROKERSET_GROUP_OWNED:
            return Problem(
                ProblemKind.OWNED,
                f"the group {names.broker_name} belongs to another BrokerSet: {said}",
                "give this broker another brokerName or other controllers; ownerUid tells BrokerSets apart",
            )
        case ResponseCode.BROKERSET_ID_RETIRED:
            return Problem(
                ProblemKind.RETIRED,
                f"the controllers have retired the id of {who}: {said}",
                "`brokerset replica replace --empty` makes this broker a new, empty replica",
            )
        case ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED:
            return Problem(
                ProblemKind.UNKNOWN_ID,
                f"the controllers do not know {who}, though {names.identity_path} has that id: {said}",
                "if the controllers' data was lost, run `brokerset controller rebuild`; if these are the "
                "wrong controllers, set controllerAddr; else `brokerset replica replace --empty` makes this "
                "broker a new, empty replica",
            )
        case ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            return Problem(
                ProblemKind.CONTROLLERS_OLD,
                f"the controllers are too old for {who}: they know no persistent ids of brokers"
                f" ({said.strip()}), so they are of RocketMQ 5.0 or 5.1.0",
                "replace the controllers by ours, or by RocketMQ's of 5.1.1 or later, with empty stores;"
                " `brokerset upgrade identity` leads over from old ones. This broker registers by itself as"
                " soon as new ones are at controllerAddr; nothing was registered with the old ones",
            )
        case _:
            return Problem(
                ProblemKind.REFUSED,
                f"the controllers refuse {who} with code {code}: {said}",
                "check the settings, and that controllerAddr names controllers",
            )


def no_master(names: Names, remark: str | None) -> Problem:
    """Nobody in the group can be elected now."""
    return Problem(
        ProblemKind.NO_MASTER,
        f"the group {names.broker_name} has no master: {remark or 'no reason given'}",
        "start the group's other brokers; `brokerset controller` shows who is in sync",
    )


def epoch_behind_log(names: Names, epoch: int, log_epoch: int) -> Problem:
    """The controllers chose a master epoch that this log has passed already."""
    return Problem(
        ProblemKind.EPOCH,
        f"the controllers made this broker master of {names.broker_name} in epoch {epoch}, but its log has "
        f"epoch {log_epoch} already: the controllers' data is older than the broker's",
        "restore the controllers' data, or rebuild the group with `brokerset controller rebuild`",
    )


def switch_failed(names: Names, role: Role, epoch: int, reason: str = "") -> Problem:
    """A step on the way to another role failed; `reason` says which, and why."""
    return Problem(
        ProblemKind.SWITCH,
        f"this broker of {names.broker_name} could not become {role} in epoch {epoch}",
        "it is tried again by itself; a master that cannot lead is replaced when another replica is in sync",
        reason or "see what the log says before this",
    )


def fenced(names: Names, broker_id: int | None) -> Problem:
    """An administrator took this broker out of service."""
    return Problem(
        ProblemKind.FENCED,
        f"broker {broker_id} of group {names.broker_name} is fenced: it follows, but is never in sync",
        f"`brokerset unfence {names.broker_name} {broker_id}` takes it back into service",
    )


def lease_lost(names: Names, epoch: int, addresses: tuple[str, ...]) -> Problem:
    """A master that no leading controller has confirmed for longer than its lease lasts."""
    return Problem(
        ProblemKind.LEASE,
        f"this broker is master of {names.broker_name} in epoch {epoch}, but has no lease: no controller at"
        f" {';'.join(addresses)} that leads confirms it, so it must not serve",
        "check that more than half of the controllers run and reach each other, and that this broker reaches"
        " them",
    )


def replication_refused(text: str, advice: str) -> Problem:
    """This broker cannot follow its master."""
    return Problem(ProblemKind.REPLICATION, text, advice)


def log_incomplete(names: Names, reason: str) -> Problem:
    """This replica's log is damaged, or was, and it has not got what it lacks from its master."""
    return Problem(
        ProblemKind.INCOMPLETE,
        f"the log of this replica of {names.broker_name} is damaged, or was, and lacks something that others"
        f" may have: {reason}",
        "it gets that by itself when it can follow a master; until then it is not elected. If the group has"
        " no other replica with the messages, start this one once with acceptDamagedStore=true",
    )


IN_SERVICE = (ProblemKind.FENCED, ProblemKind.LEASE, ProblemKind.REPLICATION, ProblemKind.INCOMPLETE)
"""Problems of a broker that is a member and knows its role; they are shown, too."""


def diagnose(role: Role, registered: bool, problem: Problem | None) -> Diagnosis:
    """The state of a broker in one sentence."""
    if registered and role is not Role.NONE:
        if problem is None or problem.kind not in IN_SERVICE:
            return Diagnosis(True)
        return Diagnosis(True, problem.text, problem.advice)
    if problem is None:
        return Diagnosis(
            role is not Role.NONE,
            "registered, waits for its role" if registered else "registers with the controllers",
            "wait a moment",
        )
    text = f"{problem.text} ({problem.detail})" if problem.detail else problem.text
    stays = role is not Role.NONE and problem.kind is not ProblemKind.CONTROLLERS_OLD
    return Diagnosis(stays, text, problem.advice)
