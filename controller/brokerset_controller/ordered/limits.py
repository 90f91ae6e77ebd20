"""How much the state of ordered subjects may be, and which names it takes.

Decisions and guards ask the same functions, so what is refused before it is proposed is refused when it is
applied, too. Each function that ends in `_problem` returns what is wrong, or None.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Final

from brokerset_controller.replicas.state import NAME_SIZE_MAX
from brokerset_formats.order_keys import LOGICAL_PARTITIONS

if TYPE_CHECKING:
    from brokerset_controller.ordered.state import Subject

SUBJECTS_MAX: Final = 10_000
"""Names of subjects of one set of controllers, those of deleted subjects included."""

SUBJECT_SIZE_MAX: Final = 100
"""Characters of a subject's name."""

CONSUMER_GROUP_SIZE_MAX: Final = 120
"""Characters of a group of consumers: with a subject it fits into the name of a retry topic (255)."""

SESSION_SIZE_MAX: Final = 64
"""Characters of a session."""

CLIENT_ID_SIZE_MAX: Final = 255
"""Bytes of a client id."""

PRODUCER_ID_SIZE_MAX: Final = 64
"""Characters of a producer id."""

PARTITIONS_KEPT_MAX: Final = 4_096
"""Partitions of a subject, those of older generations included."""

GROUPS_MAX: Final = 1_000
"""Groups of consumers of a subject."""

MEMBERS_MAX: Final = 1_024
"""Members of a group: as many as there are logical partitions."""

BROKER_GROUPS_MAX: Final = 256
"""Broker groups that a subject ever had partitions on."""

QUEUES_MAX: Final = 16_384
"""Queues that a subject ever has on one broker group, deletions included: a topic of a broker has no more."""

PARTS_MAX: Final = 400_000
"""What all subjects have together, see `parts`: a snapshot of so many takes about 40 MiB."""

PERMISSION_MS_MAX: Final = 600_000
"""Longest permission: what a new leader may have to wait before it gives partitions to others."""

_SUBJECT: Final = re.compile(r"[A-Za-z0-9_|-]+")
"""What RocketMQ takes as a topic, without `%`, which names of retry topics are built with."""

_PRODUCER_ID: Final = re.compile(r"[A-Za-z0-9_.-]+")


def subject_problem(name: str) -> str | None:
    """What keeps a text from being a subject's name."""
    return _name_problem("a subject", name, SUBJECT_SIZE_MAX)


def consumer_group_problem(name: str) -> str | None:
    """What keeps a text from being the name of a group of consumers."""
    return _name_problem("a group of consumers", name, CONSUMER_GROUP_SIZE_MAX)


def producer_id_problem(producer_id: str) -> str | None:
    """What keeps a text from being a producer id."""
    if not 1 <= len(producer_id) <= PRODUCER_ID_SIZE_MAX:
        return f"a producer id has 1 to {PRODUCER_ID_SIZE_MAX} characters, not {len(producer_id)}"
    if _PRODUCER_ID.fullmatch(producer_id) is None:
        return f"{producer_id!r} is no producer id: letters, digits, `_`, `-` and `.` are"
    return None


def session_problem(session: str, client_id: str) -> str | None:
    """What keeps two texts from being a member's session and client id."""
    if not 1 <= len(session) <= SESSION_SIZE_MAX:
        return f"a session has 1 to {SESSION_SIZE_MAX} characters, not {len(session)}"
    if not (session.isascii() and session.isprintable()):
        return f"{session!r} is no session: characters of ASCII that can be printed are"
    if not client_id.isprintable():
        return f"{client_id[:SESSION_SIZE_MAX]!r} is no client id: characters that can be printed are"
    if len(client_id) > CLIENT_ID_SIZE_MAX or len(client_id.encode()) > CLIENT_ID_SIZE_MAX:
        return f"a client id has at most {CLIENT_ID_SIZE_MAX} bytes"
    return None


def permission_problem(permission_ms: int) -> str | None:
    """What keeps a length from being that of a permission."""
    if not 1 <= permission_ms <= PERMISSION_MS_MAX:
        return f"a permission of {permission_ms} ms; 1 to {PERMISSION_MS_MAX} can be"
    return None


def count_problem(partitions: int) -> str | None:
    """What keeps a number from being that of a generation's partitions."""
    if not 1 <= partitions <= LOGICAL_PARTITIONS:
        return f"{partitions} partitions; a subject has 1 to {LOGICAL_PARTITIONS}"
    return None


def route_problem(route: Collection[str], ever: Collection[str] = ()) -> str | None:
    """What keeps broker groups from being a route; `ever` are those that the subject has had until now."""
    if not route:
        return "there is no broker group to put partitions on"
    if len(set(route)) != len(route):
        return f"the route {', '.join(sorted(route))} names a broker group twice"
    if len(set(route) | set(ever)) > BROKER_GROUPS_MAX:
        return f"a subject has had {len(ever)} broker groups; it can have {BROKER_GROUPS_MAX} in all"
    long = [name for name in route if not 1 <= len(name.encode("utf-8", "surrogatepass")) <= NAME_SIZE_MAX]
    if long or not all(name.isprintable() for name in route):
        return f"the name of a broker group has 1 to {NAME_SIZE_MAX} bytes that can be printed"
    return None


def parts(subject: Subject) -> int:
    """How much a subject is at most: partitions, what each group may keep of each, groups and members.

    Of a partition a group keeps its ownership, and whether it is drained, or finished.
    """
    groups = len(subject.groups)
    members = sum(len(each.members) for each in subject.groups.values())
    return len(subject.partitions) * (1 + groups) + groups + members + len(subject.next_queue_ids) + 1


def _name_problem(what: str, name: str, limit: int) -> str | None:
    if not 1 <= len(name) <= limit:
        return f"{what} has 1 to {limit} characters, not {len(name)}"
    if _SUBJECT.fullmatch(name) is None:
        return f"{name!r} is no name of {what}: letters, digits, `_`, `-` and `|` are"
    return None
