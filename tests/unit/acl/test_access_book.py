"""Changes of users and policies, with Java's refusals."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from brokerset_acl.access_book import AccessBook, Accounts, WantedUser, configured_users
from brokerset_acl.policies import ACL_BYTES_MAX, Acl, PolicyType, Resource, ResourceType, network_of
from brokerset_acl.signatures import Credentials
from brokerset_acl.users import User, UserStatus, UserType, user_of
from brokerset_formats.errors import FormatError
from brokerset_protocol.errors import Rejected

NOW = 1_700_000_000_000

ALICE = User("alice", "a-key")
ROOT = User("root", "r-key", UserType.SUPER)


def accounts() -> Accounts:
    book = AccessBook({"alice": ALICE, "root": ROOT}, {})
    return Accounts(book, configured_users(("first", "f-key"), Credentials("inner", "i-key")), "inner")


def said(resource: str = "Topic:t", **more: Any) -> Acl:
    entry = {"resource": resource, "actions": ["Pub"], "decision": "Allow", **more}
    return Acl.from_json({"subject": "User:alice", "policies": [{"entries": [entry]}]})


def create(name: str, **more: Any) -> Callable[[Accounts], object]:
    return lambda book: book.decide_create(WantedUser(name, **{"password": "p", **more}), by_super=False)


def update(name: str, *, by_super: bool = False, **more: Any) -> Callable[[Accounts], object]:
    return lambda book: book.decide_update(WantedUser(name, **more), by_super=by_super, now_ms=NOW)


@pytest.mark.parametrize(
    ("change", "code", "text"),
    [
        (create(""), 29, "The username is blank"),
        (create("alice", password="other"), 16, "The user is existed"),
        (create("inner"), 16, "The user is existed"),
        (create("bob", password=" "), 16, "password can not be blank"),
        (create("bob", type=UserType.SUPER), 1, "The super user can only be create by super user"),
        (create("b" * 256), 16, "a username has at most 255 characters"),
        (create("bob", password="p" * 1025), 16, "a password has at most 1024 characters"),
        (update("inner", by_super=True, password="x"), 16, "brokers sign as User:inner"),
        (update("inner", by_super=True, status=UserStatus.DISABLE), 16, "brokers sign as User:inner"),
        (update("inner", by_super=True, type=UserType.NORMAL), 16, "brokers sign as User:inner"),
        (update("bob"), 16, "The user is not exist"),
        (update("root", password="x"), 16, "The super user can only be update by super user"),
        (update("alice", type=UserType.SUPER), 1, "The super user can only be update by super user"),
        (lambda book: book.decide_delete("root", by_super=False), 16, "The super user can only be update"),
        (lambda book: book.decide_delete("inner", by_super=True), 16, "named by a setting"),
        (
            lambda book: book.decide_acl(Acl("User:bob"), by_super=True),
            16,
            "The subject of User:bob is not exist.",
        ),
        (
            lambda book: book.decide_acl(Acl("Role:bob"), by_super=True),
            16,
            "The subject of Role:bob is not exist.",
        ),
        (lambda book: book.decide_acl(Acl("User:root"), by_super=False), 16, "only be update by super user"),
        (lambda book: book.acl_of("User:bob"), 16, "The subject is not exist."),
        (
            lambda book: book.decide_acl_without("User:alice", PolicyType.CUSTOM, None, by_super=False),
            16,
            "The acl is not exist.",
        ),
    ],
)
def test_refusals(change: Callable[[Accounts], object], code: int, text: str) -> None:
    """Codes and texts are Java's where Java refuses, too."""
    with pytest.raises(Rejected) as refused:
        change(accounts())
    assert refused.value.code == code
    assert text in refused.value.remark


def test_what_an_update_does_not_name_stays() -> None:
    """A new password leaves type and status as they are."""
    changed = accounts().decide_update(WantedUser("alice", password="new"), by_super=False, now_ms=NOW)
    assert changed == User("alice", "new")
    disabled = accounts().decide_update(
        WantedUser("alice", status=UserStatus.DISABLE), by_super=False, now_ms=NOW
    )
    assert disabled == User("alice", "a-key", status=UserStatus.DISABLE)


def test_a_configured_user_counts_until_the_book_has_one_of_the_name() -> None:
    """A password of the settings is what a new group begins with; it is changed like any other."""
    book = accounts()
    changed = book.decide_update(WantedUser("first", password="new"), by_super=True, now_ms=NOW)
    book.book.put({"first": changed}, {})
    assert book.user("first") == User("first", "new", UserType.SUPER)
    assert [user.username for user in book.users()] == ["alice", "first", "inner", "root"]
    assert [user.username for user in book.users("li")] == ["alice"]


def test_policies_are_merged_by_resource() -> None:
    """A resource that is named again is replaced, others stay; what is removed last leaves nothing."""
    book = accounts()
    book.book.put({}, {"User:alice": book.decide_acl(said("Topic:t"), by_super=False)})
    book.book.put({}, {"User:alice": book.decide_acl(said("Group:g"), by_super=False)})
    merged = book.decide_acl(said("Topic:t", decision="Deny"), by_super=False)
    assert [(entry.resource.key, str(entry.decision)) for entry in merged.custom] == [
        ("Topic:t", "Deny"),
        ("Group:g", "Allow"),
    ]
    topic, group = (
        Resource(kind, name) for kind, name in ((ResourceType.TOPIC, "t"), (ResourceType.GROUP, "g"))
    )
    left = book.decide_acl_without("User:alice", PolicyType.CUSTOM, topic, by_super=False)
    assert left is not None
    assert [entry.resource for entry in left.custom] == [group]
    book.book.put({}, {"User:alice": left})
    assert book.acls(resource_part="Topic") == []
    assert book.acls("ali", "Group") == [left]
    assert book.decide_acl_without("User:alice", PolicyType.CUSTOM, group, by_super=False) is None


def test_policies_go_with_their_user() -> None:
    """A user of the same name later begins without rights."""
    book = AccessBook({"alice": ALICE}, {"User:alice": said()})
    book.put({"alice": None}, {})
    assert (book.users, book.acls) == ({}, {})


@pytest.mark.parametrize(
    ("entry", "text"),
    [
        ({"resource": "Nothing:t"}, "The resource is null."),
        ({"resource": "Topic:a*b*"}, "The resource is null."),
        ({"actions": []}, "The actions is empty."),
        ({"actions": ["Pub", "Fly"]}, "The actions are not all known."),
        ({"actions": ["Any"]}, "The actions can not be Any."),
        ({"sourceIps": [" "]}, "The source ip is empty."),
        ({"sourceIps": ["localhost"]}, "The source ip is invalid."),
        ({"sourceIps": ["10.0.0.0/33"]}, "The source ip is invalid."),
        ({"decision": "Maybe"}, "The decision is null or illegal."),
    ],
)
def test_entries_that_say_nothing_are_refused(entry: dict[str, object], text: str) -> None:
    """The texts are Java's where Java refuses, too."""
    with pytest.raises(FormatError, match=text.replace(".", r"\.")):
        said(**entry)  # type: ignore[arg-type]  # by name


def test_users_and_policies_are_read_back() -> None:
    """What is written into records and files is what was there, and shown without the password on request."""
    acl = said("Topic:or*", actions=["pub", "SUB"], sourceIps=["10.0.0.5/8"])
    assert Acl.from_json(acl.to_json()) == acl
    assert User.from_json(ROOT.to_json()) == ROOT
    assert "password" not in ROOT.to_json(password=False)
    assert "r-key" not in repr(ROOT)
    assert user_of("user:x") == "x"
    assert user_of("x") is None


def test_policies_of_one_subject_fit_a_record() -> None:
    """Names of resources are as long as somebody likes; addresses are not."""
    book = accounts()
    with pytest.raises(Rejected, match="more than 524288 bytes"):
        book.decide_acl(said("Topic:" + "t" * ACL_BYTES_MAX), by_super=True)
    assert network_of("10.0.0.0/8") is not None
    assert network_of("1" * 65) is None


def test_passwords_are_in_no_text_of_a_request() -> None:
    """What is wanted of a user may be in a log line or a traceback."""
    assert "secret" not in repr(WantedUser("u", "secret")) + repr(User("u", "secret"))


def test_every_change_of_a_book_has_a_number() -> None:
    """Whoever keeps what follows from a book sees by it that the book is another one, also if no user is."""
    book, other = AccessBook(), AccessBook({"u": User("u", "k")})
    seen = [book.changes]

    book.put({"u": User("u", "k")}, {})
    seen.append(book.changes)
    book.put({}, {"User:u": said("Topic:t")})
    seen.append(book.changes)
    book.put({"u": None}, {})
    seen.append(book.changes)
    book.become(other)
    seen.append(book.changes)

    assert len(set(seen)) == len(seen)
    assert book == other, "how often each has changed is no difference"
