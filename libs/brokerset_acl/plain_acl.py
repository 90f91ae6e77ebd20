"""Users and policies that do what a file of ACL 1.0 (`plain_acl.yml`) says.

Source: RocketMQ's `AuthMigrator`, but for two things that ACL 1.0 took otherwise. Permissions that it did not
know it denied (`Permission.parsePermFromString`); the migrator allows them. Names with `*` it took literally,
so they were nobody's; in ACL 2.0 they would be everything. Addresses that may come without a signature
(`whiteRemoteAddress`) have no counterpart, so they are reported.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from brokerset_acl.policies import Acl, Action, Decision, Entry, Pattern, Resource, ResourceType
from brokerset_acl.users import User, UserType, subject_of
from brokerset_formats.names import RETRY_PREFIX

_ACTIONS = {
    "PUB": (Action.PUB,),
    "SUB": (Action.SUB,),
    "PUB|SUB": (Action.PUB, Action.SUB),
    "SUB|PUB": (Action.PUB, Action.SUB),
}


@dataclass(frozen=True, slots=True)
class Migrated:
    """What the files say, and what of it is lost."""

    users: dict[str, User]
    acls: dict[str, Acl]
    notes: tuple[str, ...] = ()
    """One text for each thing that ACL 2.0 does not have or that cannot be read."""


def migrate(files: Sequence[Mapping[str, object]]) -> Migrated:
    """Carry the content of files over, in this order; of accounts with one access key the first counts."""
    users: dict[str, User] = {}
    acls: dict[str, Acl] = {}
    notes: list[str] = []
    for found in files:
        if found.get("globalWhiteRemoteAddresses"):
            notes.append("globalWhiteRemoteAddresses: dropped, ACL 2.0 has no addresses without signatures")
        accounts = found.get("accounts")
        for account in accounts if isinstance(accounts, list) else []:
            _migrate(account, users, acls, notes)
    return Migrated(users, acls, tuple(notes))


def _migrate(account: object, users: dict[str, User], acls: dict[str, Acl], notes: list[str]) -> None:
    if not isinstance(account, dict):
        notes.append("an account is no map: dropped")
        return
    name, secret = account.get("accessKey"), account.get("secretKey")
    if not isinstance(name, str) or not isinstance(secret, str) or not name.strip() or not secret.strip():
        notes.append(f"account {str(name)[:64]!r} has no accessKey or no secretKey: dropped")
        return
    if name in users:
        return
    if account.get("whiteRemoteAddress"):
        notes.append(f"{name}: whiteRemoteAddress dropped, ACL 2.0 has no addresses without signatures")
    kind = UserType.SUPER if account.get("admin") is True else UserType.NORMAL
    users[name] = User(name, secret, kind)
    custom = [
        *_entries(account, "topicPerms", ResourceType.TOPIC, notes),
        *_entries(account, "groupPerms", ResourceType.GROUP, notes),
    ]
    default = [
        _entry(Resource(type_, None, Pattern.ANY), permission, f"{name}: {field}", notes)
        for field, type_ in (
            ("defaultTopicPerm", ResourceType.TOPIC),
            ("defaultGroupPerm", ResourceType.GROUP),
        )
        if isinstance(permission := account.get(field), str) and permission.strip()
    ]
    subject = subject_of(name)
    acl = Acl(subject).merged(Acl(subject, tuple(custom), tuple(default)))
    if not acl.is_empty:
        acls[subject] = acl


def _entries(account: Mapping[str, object], field: str, type_: ResourceType, notes: list[str]) -> list[Entry]:
    found = []
    permissions = account.get(field)
    for text in permissions if isinstance(permissions, list) else []:
        parts = [part.strip() for part in str(text).split("=") if part]
        if len(parts) != 2:
            notes.append(
                f"{account.get('accessKey')}: {field} {str(text)[:64]!r} is not name=permission: dropped"
            )
            continue
        name = parts[0].removeprefix(RETRY_PREFIX) if type_ is ResourceType.GROUP else parts[0]
        if "*" in name:
            notes.append(
                f"{account.get('accessKey')}: {field} {name[:64]!r} was no pattern, but a name: dropped"
            )
            continue
        where = f"{account.get('accessKey')}: {field} {name[:64]}"
        found.append(_entry(Resource(type_, name), parts[1], where, notes))
    return found


def _entry(resource: Resource, permission: str, where: str, notes: list[str]) -> Entry:
    text = permission.strip()
    actions = _ACTIONS.get(text)
    if actions is not None:
        return Entry(resource, actions, Decision.ALLOW)
    if text != "DENY":
        notes.append(f"{where}: {text[:64]!r} is no permission, so it is a denial, as it was")
    return Entry(resource, (Action.ALL,), Decision.DENY)
