"""What a manifest may say with `replication: {mode: dledger}`, and what not; decides, touches nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from brokerset_spec.dledger_members import member_id
from brokerset_spec.manifest_parts import rule
from brokerset_spec.problems import Problem
from brokerset_spec.set_parts import DLEDGER, Controllers, Replication

LEDGER_REPLICAS: Final = (3, 5)
"""Sizes of a group: one broker more does not let one more of them fail."""

FIXED_REPLICAS: Final = "members of a DLedger group cannot be added or taken away, as in RocketMQ"
"""Why the number of brokers cannot be changed."""

FIXED_REPLICAS_ADVICE: Final = (
    "keep the number; for another one create another set and carry the messages over with `brokerset store "
    "migrate`, or use mode: controller there, whose groups can be scaled"
)
"""How to come to another number of brokers."""

SIZES_ADVICE: Final = "use 3 or 5, or mode: controller"
NOT_TOGETHER_ADVICE: Final = "leave it out, or use mode: controller"

UNCLEAN: Final = "a DLedger elects no broker that may lack acknowledged messages"
NO_CONTROLLERS: Final = "a DLedger group elects its leader itself, and needs no controllers"

CONTROLLERS_STAY: Final = (
    "cannot be added or taken away with dledger: brokers know their name servers by them; put them back as "
    "they were, or create another BrokerSet"
)

_REPLICATION: Final = (
    (
        "min_in_sync_replicas",
        "minInSyncReplicas",
        "there are no in-sync sets with dledger: more than half of a group's brokers must have each message",
    ),
    (
        "acknowledge",
        "acknowledge",
        "cannot be chosen with dledger: a message is acknowledged when more than half of a group's brokers "
        "have it",
    ),
)


def _has_controllers(spec: str) -> str:
    fields = (f"has({spec}.controllers.{name})" for name in ("replicas", "storage", "resources"))
    return f"has({spec}.controllers) && ({' || '.join(fields)})"


def _with_dledger(cel: str, message: str, field: str) -> dict[str, Any]:
    elsewhere = f"!has(self.replication) || self.replication.mode != '{DLEDGER}'"
    return rule(f"{elsewhere} || {cel}", message, field)


LEDGER_RULES: Final = (
    _with_dledger(
        f"self.replicas in {list(LEDGER_REPLICAS)}",
        f"a DLedger group has 3 or 5 brokers: more than half of them must agree; {SIZES_ADVICE}",
        "replicas",
    ),
    _with_dledger(
        "self.replicas == oldSelf.replicas", f"{FIXED_REPLICAS}; {FIXED_REPLICAS_ADVICE}", "replicas"
    ),
    *(
        _with_dledger(
            f"!has(self.replication.{name})", f"{reason}; {NOT_TOGETHER_ADVICE}", f"replication.{name}"
        )
        for _, name, reason in _REPLICATION
    ),
    _with_dledger(
        "!has(self.replication.uncleanElection) || !self.replication.uncleanElection",
        f"{UNCLEAN}; {NOT_TOGETHER_ADVICE}",
        "replication.uncleanElection",
    ),
    _with_dledger(
        "!has(self.controllers) || !has(self.controllers.ref)",
        f"{NO_CONTROLLERS}; leave it out",
        "controllers.ref",
    ),
    _with_dledger(
        f"({_has_controllers('self')}) == ({_has_controllers('oldSelf')})", CONTROLLERS_STAY, "controllers"
    ),
)
"""What the API server refuses of a set in mode: dledger."""


def check_dledger(
    replication: Replication,
    replicas: int,
    controllers: Controllers,
    config: Mapping[str, bool | int | float | str],
) -> Iterable[Problem]:
    """Return what cannot be combined with mode: dledger; nothing for a set in another mode."""
    if replication.mode != DLEDGER:
        return
    if replicas not in LEDGER_REPLICAS:
        reason = f"a DLedger group has 3 or 5 brokers, not {replicas}: more than half of them must agree"
        yield Problem("spec.replicas", reason, SIZES_ADVICE)
    for name, outside, reason in _REPLICATION:
        if name in replication.model_fields_set and getattr(replication, name) is not None:
            yield Problem(f"spec.replication.{outside}", reason, NOT_TOGETHER_ADVICE)
    if replication.unclean_election:
        yield Problem("spec.replication.uncleanElection", UNCLEAN, NOT_TOGETHER_ADVICE)
    if controllers.ref is not None:
        yield Problem("spec.controllers.ref", NO_CONTROLLERS, "leave it out")
    yield from _config_problems(replicas, config)


def _config_problems(replicas: int, config: Mapping[str, bool | int | float | str]) -> Iterable[Problem]:
    """What is wrong with broker settings that mean something else, or more, with a DLedger."""
    if config.get("enabledAppendPropCRC") is True:
        reason = "records of a DLedger have no check code, as in RocketMQ"
        yield Problem("spec.config.enabledAppendPropCRC", reason, "leave it out")
    members = [member_id(number) for number in range(replicas)]
    for one in str(config.get("preferredLeaderId", "")).split(";"):
        if one and one not in members:
            reason = f"{one!r} is none of the members {', '.join(members)}"
            yield Problem("spec.config.preferredLeaderId", reason, "name one of these, or leave it out")
