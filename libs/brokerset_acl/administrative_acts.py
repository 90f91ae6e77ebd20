"""Which requests are administrative acts, and what each one is about, for the log; pure.

An act creates, changes or deletes something that is not the sender's own. Which codes those are follows from
the rules of access control, so a new request is one as soon as it has a rule. Nothing of a request is shown
but names that are listed here: values of settings, of entries, and passwords are not.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Final

from brokerset_acl.needs import Rule, needs_of
from brokerset_acl.policies import Action, ResourceType
from brokerset_formats.errors import FormatError
from brokerset_protocol.bodies import properties_text
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected

_C = RequestCode

_WRITES: Final = frozenset({Action.CREATE, Action.UPDATE, Action.DELETE})

OF_MEMBERS: Final = frozenset({_C.NOTIFY_BROKER_ROLE_CHANGED, _C.BROKERSET_SUBJECT_QUEUES})
"""What controllers ask brokers for by themselves, under rules that are administrators', too."""

BY_ADMINISTRATORS: Final = frozenset({_C.BROKERSET_CHANGE_MEMBERS, _C.BROKERSET_REBUILD_GROUP})
"""What administrators ask for under rules for Super users alone, which are members' otherwise."""

SETTINGS: Final = frozenset({_C.UPDATE_BROKER_CONFIG, _C.UPDATE_CONTROLLER_CONFIG, _C.UPDATE_NAMESRV_CONFIG})
"""Requests whose body is a properties text."""

_USERS: Final = frozenset({_C.AUTH_CREATE_USER, _C.AUTH_UPDATE_USER, _C.AUTH_DELETE_USER})
_POLICIES: Final = frozenset({_C.AUTH_CREATE_ACL, _C.AUTH_UPDATE_ACL, _C.AUTH_DELETE_ACL})
_ENTRIES: Final = frozenset({_C.PUT_KV_CONFIG, _C.DELETE_KV_CONFIG})

DETAILS: Final = (
    "action", "nodeId", "brokerId", "toBrokerId", "fenced", "force", "unclean",
    "partitions",
    "brokerControllerIdsToClean", "isCleanLivingBroker", "policyType", "resource",
)  # fmt: skip
"""Header fields that are shown as they came: which one of a group, and how. None has a secret."""

OBJECTS_MAX: Final = 50
"""Objects of one act that are named; the others are counted."""

TEXT_MAX: Final = 255
"""Characters of one name that are shown."""


def act_codes(rules: Mapping[int, Rule]) -> frozenset[int]:
    """The codes of a table whose requests are acts: what they need is to create, update or delete, and
    nothing that a producer or a consumer has."""
    return frozenset(
        code
        for code, rule in rules.items()
        if code in BY_ADMINISTRATORS
        or (
            rule.actions
            and _WRITES.issuperset(rule.actions)
            and not rule.super_only
            and code not in OF_MEMBERS
        )
    )


def is_act(command: Command) -> bool:
    """Whether this request of an act's code is one: members ask for elections, too, with other fields."""
    if command.code != _C.CONTROLLER_ELECT_MASTER:
        return True
    return command.ext.get("designateElect", "").lower() == "true" and "handoverEpoch" not in command.ext


def objects_of(command: Command, rules: Mapping[int, Rule], settings: Collection[str]) -> list[str]:
    """What the act is about, as `Topic:orders`, `User:app`, `Setting:flushDiskType`; nothing for a body that
    cannot be read. `settings`: names that the server has; of others, nobody knows what they are."""
    try:
        found = dict.fromkeys((*_needed(command, rules), *_named(command, settings)))
    except (Rejected, FormatError):
        return []
    return [name[:TEXT_MAX] for name in found]


def details_of(command: Command) -> dict[str, str]:
    """The header fields that are shown as they came."""
    ext = command.ext
    return {name: ext[name][:TEXT_MAX] for name in DETAILS if name in ext}


def _needed(command: Command, rules: Mapping[int, Rule]) -> Iterator[str]:
    """Topics and groups that access control asks about."""
    for need in needs_of(command, "", rules):
        if need.resource.type is not ResourceType.CLUSTER:
            yield need.resource.key


def _named(command: Command, settings: Collection[str]) -> Iterator[str]:
    """What only the whole cluster's rights are asked for."""
    code, ext = command.code, command.ext
    if code in _USERS:
        yield f"User:{ext.get('username', '')}"
    elif code in _POLICIES:
        yield ext.get("subject", "")
    elif code in _ENTRIES:
        yield f"KV:{ext.get('namespace', '')}/{ext.get('key', '')}"
    elif code in SETTINGS:
        for name in properties_text.from_text(command.body):
            if name in settings:
                yield f"Setting:{name}"
    elif code == _C.BROKERSET_REMOVE_CONSUMER_GROUP:
        yield f"Topic:{ext.get('subject', '')}"
