"""Users and policies as the controllers agree on them: events, snapshots, limits."""

from __future__ import annotations

import random
from dataclasses import replace

import orjson
import pytest

from brokerset_acl.policies import Acl, Action, Decision, Entry, resource_of
from brokerset_acl.users import USERS_MAX, FormerPassword, User, UserStatus, UserType
from brokerset_controller.access import machine as limits
from brokerset_controller.access.codec import ACCESS_VERSION, FORMER_VERSION, encode_event, event_of
from brokerset_controller.access.events import AccessEvent, BookAdopted, BookChanged
from brokerset_controller.access.machine import AccessApplied, AccessMachine, size_of
from brokerset_controller.machine import ReplicasMachine
from brokerset_controller.ordered.codec import ORDERED_VERSION
from brokerset_controller.ordered.codec import encode_event as encode_subject_event
from brokerset_controller.ordered.events import SubjectCreated
from brokerset_controller.replicas.events import Superseded
from brokerset_protocol.subject_words import OrderStrategy

APP = User("app", "key")
ROOT = User("root", "root-key", UserType.SUPER)


SUBJECT = encode_subject_event(SubjectCreated("orders", OrderStrategy.STRICT, ("a",), 2))


def acl(name: str, *keys: str) -> Acl:
    """All about topics, allowed."""
    entries = []
    for key in keys:
        resource = resource_of(key)
        assert resource is not None
        entries.append(Entry(resource, (Action.PUB,), Decision.ALLOW, ("10.0.0.0/8",)))
    return Acl(f"User:{name}", tuple(entries))


def changed(machine: AccessMachine, **more: object) -> BookChanged:
    """A change of the newest version."""
    event = BookChanged(machine.version, 1_000, {}, {})
    return replace(event, **more)  # type: ignore[arg-type]  # fields of the event


def bytes_of(machine: AccessMachine) -> int:
    return sum(map(size_of, machine.book.users.values())) + sum(map(size_of, machine.book.acls.values()))


def test_each_change_has_a_version_above_all_before() -> None:
    """It is the leader's time, unless that has gone back, or stands still."""
    machine = AccessMachine()

    for at_ms, version in ((5_000, 5_000), (5_000, 5_001), (10, 5_002), (6_000, 6_000)):
        assert machine.apply(changed(machine, at_ms=at_ms, users={"app": APP})) == AccessApplied(version)


def test_a_change_that_was_decided_on_another_version_does_nothing() -> None:
    """Of two that were decided on the same book the second one is decided again."""
    machine = AccessMachine()
    first, second = changed(machine, users={"app": APP}), changed(machine, users={"app": ROOT})
    machine.apply(first)

    assert isinstance(machine.apply(second), Superseded)
    assert machine.book.users == {"app": APP}


def test_policies_go_with_their_user() -> None:
    """Whoever is created under that name later has none."""
    machine = AccessMachine()
    machine.apply(changed(machine, users={"app": APP}, acls={"User:app": acl("app", "Topic:t")}))
    assert machine.book_bytes == bytes_of(machine) > 0

    machine.apply(changed(machine, users={"app": None}))

    assert (machine.book.users, machine.book.acls, machine.book_bytes) == ({}, {}, 0)


def test_what_a_group_had_is_taken_over_once_and_the_first_group_wins() -> None:
    """Of a name that is there already user and policies stay; deleted users do not come back."""
    machine = AccessMachine()
    own = BookAdopted("a", 7, {"app": APP, "x": APP}, {"User:app": acl("app", "Topic:a")})
    assert machine.apply(own) == AccessApplied(7)

    other = BookAdopted(
        "b", 9, {"app": replace(APP, password="other"), "y": ROOT}, {"User:app": acl("app", "Topic:b")}
    )
    assert machine.apply(other) == AccessApplied(9, ("User:app", "app"))

    assert set(machine.book.users) == {"app", "x", "y"}
    assert machine.book.users["app"] == APP
    assert machine.book.acls == {"User:app": acl("app", "Topic:a")}
    machine.apply(changed(machine, users={"y": None}))
    assert machine.apply(other) == AccessApplied(machine.version)
    assert "y" not in machine.book.users
    assert machine.adopted == {"a", "b"}


def test_a_group_without_users_changes_no_version() -> None:
    """Nobody needs to fetch the book again."""
    machine = AccessMachine()
    machine.apply(changed(machine, users={"app": APP}))
    before = machine.version

    assert machine.apply(BookAdopted("a", 9_000, {}, {})) == AccessApplied(before)
    assert machine.adopted == {"a"}


@pytest.mark.parametrize("what", ["users", "bytes"])
def test_a_group_with_too_much_is_not_taken_over(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Nothing of it is, and the reason says what to do; when others were deleted it is asked again."""
    machine = AccessMachine()
    machine.apply(changed(machine, users={"app": APP}))
    if what == "bytes":
        monkeypatch.setattr(limits, "BOOK_BYTES_MAX", machine.book_bytes + 10)
    count = USERS_MAX if what == "users" else 1
    event = BookAdopted("a", 9, {f"u{number}": APP for number in range(count)}, {})

    refused = machine.apply(event)

    assert isinstance(refused, Superseded)
    assert "delete some first" in refused.reason
    assert (len(machine.book.users), machine.adopted) == (1, frozenset())


EVENTS: list[AccessEvent] = [
    BookChanged(3, 5, {"app": APP, "gone": None}, {"User:app": acl("app", "Topic:t*", "*"), "User:x": None}),
    BookChanged(0, 0, {"ä": User("ä", "𝄞", UserType.SUPER, UserStatus.DISABLE)}, {}),
    BookAdopted("broker-a", 5, {"app": APP}, {"User:app": acl("app", "Group:g")}),
]


@pytest.mark.parametrize("event", EVENTS)
def test_events_come_back_from_their_bytes(event: AccessEvent) -> None:
    """With the format that has them first."""
    version, *values = orjson.loads(encode_event(event))

    assert version == ACCESS_VERSION
    assert event_of(values) == event


@pytest.mark.parametrize(
    "text",
    [
        '[5,"BookChanged",0,1,{}]',
        '[5,"BookChanged",-1,1,{},{}]',
        '[5,"BookChanged",0,1,{"app":{"username":"app"}},{}]',
        '[5,"BookChanged",0,1,[],{}]',
        '[5,"BookAdopted","a",1,{"app":null},{}]',
        '[5,"BookAdopted",7,1,{},{}]',
        '[7,"BookChanged",0,1,{},{}]',
    ],
)
def test_what_no_version_writes_is_not_read(text: str) -> None:
    """All controllers read the same, or stop."""
    with pytest.raises(ValueError, match=r".+"):
        ReplicasMachine().apply(1, text.encode())


@pytest.mark.parametrize("adopted", [False, True])
def test_a_former_password_is_agreed_on_in_a_format_of_its_own(adopted: bool) -> None:
    """So a controller that would drop it stops; without one entries and snapshots are those of before."""
    user = replace(APP, former=FormerPassword("old-key", 9_000))
    event = BookAdopted("a", 5, {"app": user}, {}) if adopted else BookChanged(0, 5, {"app": user}, {})
    machine, other = ReplicasMachine(), ReplicasMachine()

    machine.apply(1, encode_event(event))
    other.restore(machine.snapshot())

    assert orjson.loads(encode_event(event))[0] == orjson.loads(machine.snapshot())[0] == FORMER_VERSION
    assert other.access.book.users == {"app": user}
    assert other.access.book_bytes == bytes_of(other.access)
    machine.apply(2, encode_event(changed(machine.access, users={"app": APP})))
    assert orjson.loads(machine.snapshot())[0] == ACCESS_VERSION


def test_without_users_snapshots_are_those_of_before() -> None:
    """So a group of controllers without them can go back to a version that knows none."""
    machine = ReplicasMachine()
    assert orjson.loads(machine.snapshot())[0] < ORDERED_VERSION
    machine.apply(1, SUBJECT)
    assert orjson.loads(machine.snapshot())[0] == ORDERED_VERSION


def test_an_old_snapshot_has_no_users() -> None:
    """It replaces those that were there."""
    old = ReplicasMachine()
    old.apply(1, SUBJECT)
    machine = ReplicasMachine()
    machine.apply(1, encode_event(BookChanged(0, 5, {"app": APP}, {})))

    machine.restore(old.snapshot())

    assert machine.access.is_empty
    assert (machine.access.book.users, machine.access.book_bytes) == ({}, 0)


@pytest.mark.parametrize("seed", range(20))
def test_a_controller_that_restored_a_snapshot_is_like_the_others(seed: int) -> None:
    """Whatever was agreed on: the same book, version and groups, and the same bytes."""
    source = random.Random(seed)
    first, second = ReplicasMachine(), ReplicasMachine()
    for index in range(60):
        if source.random() < 0.2:
            second.restore(first.snapshot())
        data = encode_event(random_event(source, first.access))
        assert first.apply(index, data) == second.apply(index, data)
        assert first.snapshot() == second.snapshot()
    one, two = first.access, second.access
    assert (one.version, one.adopted, one.book, one.book_bytes) == (
        two.version, two.adopted, two.book, two.book_bytes,
    )  # fmt: skip
    assert one.book_bytes == bytes_of(one)


def random_event(source: random.Random, machine: AccessMachine) -> AccessEvent:
    """Of few names, so that they meet."""
    name = source.choice("abc")
    user = User(name, source.choice("xy"))
    about = acl(name, source.choice(("Topic:t", "Topic:u", "*")))
    at_ms = source.randrange(100)
    if source.random() < 0.3:
        return BookAdopted(source.choice("pqr"), at_ms, {name: user}, {about.subject: about})
    base = machine.version - (source.random() < 0.2)
    some: list[User | None] = [user, None]
    acls: list[Acl | None] = [about, None]
    return BookChanged(max(base, 0), at_ms, {name: source.choice(some)}, {about.subject: source.choice(acls)})
