"""What a broker group is asked so that a user is there as wanted."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_acl.access_book import WantedUser
from brokerset_acl.policies import Acl, Action, Decision, Entry, PolicyType, resource_of
from brokerset_acl.users import User, UserStatus, UserType
from brokerset_operator.access_users.plan import (
    CORRECTED,
    CREATED,
    CreateUser,
    DropPolicy,
    KnownUser,
    Overlap,
    PutPolicies,
    UpdateUser,
    plan_user,
)

SHOP = User("shop", "secret-word", UserType.NORMAL, UserStatus.ENABLE)
KNOWN = KnownUser(UserType.NORMAL, UserStatus.ENABLE, "secret-word")
SUBJECT = "User:shop"


def entry(key: str, *actions: Action, sources: tuple[str, ...] = ()) -> Entry:
    """What allows actions on a resource."""
    resource = resource_of(key)
    assert resource is not None
    return Entry(resource, actions or (Action.PUB,), Decision.ALLOW, sources)


def acl(*entries: Entry, default: tuple[Entry, ...] = ()) -> Acl:
    """All that is said about the user."""
    return Acl(SUBJECT, entries, default)


ORDERS = entry("Topic:orders")
INVOICES = entry("Topic:invoices")


def test_a_user_that_is_missing_is_made_before_its_policies() -> None:
    """A broker refuses policies of a user that it does not know."""
    decided = plan_user(SHOP, acl(ORDERS), None, None)

    assert decided.requests == (CreateUser(SHOP), PutPolicies(acl(ORDERS)))
    assert decided.event == CREATED


def test_who_has_no_policies_gets_none() -> None:
    """An empty request would be refused."""
    assert plan_user(SHOP, acl(), None, None).requests == (CreateUser(SHOP),)


def test_nothing_is_asked_where_all_is_as_wanted() -> None:
    """The order of actions and addresses means nothing."""
    wanted = entry("Group:*", Action.SUB, Action.PUB, sources=("10.0.0.0/8", "::1"))
    there = entry("Group:*", Action.PUB, Action.SUB, sources=("::1", "10.0.0.0/8"))

    decided = plan_user(SHOP, acl(wanted), KNOWN, acl(there))

    assert (decided.requests, decided.text) == ((), "")


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (replace(KNOWN, password="stolen"), "another password"),
        (replace(KNOWN, type=UserType.SUPER), "type Normal, was Super"),
        (replace(KNOWN, status=UserStatus.DISABLE), "status enable, was disable"),
    ],
)
def test_a_user_that_somebody_changed_is_put_right_and_no_password_is_said(
    known: KnownUser, said: str
) -> None:
    """In the Event, which many may read."""
    decided = plan_user(SHOP, acl(ORDERS), known, acl(ORDERS))

    wanted = WantedUser("shop", "secret-word", UserType.NORMAL, UserStatus.ENABLE)
    assert decided.requests == (UpdateUser(wanted),)
    assert (decided.event, decided.text) == (CORRECTED, said)
    assert "secret-word" not in decided.text + repr(known)


def test_a_password_that_is_not_shown_is_given_again_without_an_event() -> None:
    """While nobody is checked no password is shown; the group does nothing if it has this one."""
    decided = plan_user(SHOP, acl(ORDERS), replace(KNOWN, password=None), acl(ORDERS))

    assert [type(each) for each in decided.requests] == [UpdateUser]
    assert decided.text == ""


NOW = 1_700_000_000_000
HOUR = Overlap(3_600, rotated=True, now_ms=NOW)


@pytest.mark.parametrize(
    ("known", "overlap", "seconds"),
    [
        (replace(KNOWN, password="old"), HOUR, 3_600),
        (replace(KNOWN, password="stolen"), replace(HOUR, rotated=False), 0),
        (replace(KNOWN, password=None), HOUR, 3_600),
        (replace(KNOWN, password=None), replace(HOUR, rotated=False), 0),
        (replace(KNOWN, password=None, former_until_ms=NOW + 9), replace(HOUR, rotated=False), 3_600),
        (replace(KNOWN, type=UserType.SUPER), replace(HOUR, rotated=False), 3_600),
        (replace(KNOWN, former_until_ms=NOW + 7_200_000), HOUR, 3_600),
        (replace(KNOWN, former_until_ms=NOW + 7_200_000), replace(HOUR, seconds=0), 0),
    ],
)
def test_the_former_password_counts_where_the_secret_has_changed_and_nowhere_else(
    known: KnownUser, overlap: Overlap, seconds: int
) -> None:
    """What somebody else set is gone at once. What counts already goes on, but no longer than is said now."""
    (update,) = plan_user(SHOP, acl(ORDERS), known, acl(ORDERS), overlap).requests

    assert isinstance(update, UpdateUser)
    assert update.wanted.former_seconds == seconds


@pytest.mark.parametrize("until_ms", [None, NOW + 3_599_000, NOW + 3_630_000])
def test_a_former_password_that_counts_as_long_as_is_wanted_is_left_alone(until_ms: int | None) -> None:
    """Also if the clock of the broker is ahead a little."""
    known = replace(KNOWN, former_until_ms=until_ms)

    assert plan_user(SHOP, acl(ORDERS), known, acl(ORDERS), HOUR).requests == ()


def test_policies_that_are_wanted_come_before_others_go() -> None:
    """No right that the user keeps is away in between; default policies are nobody's wish."""
    there = acl(entry("Topic:orders", Action.SUB), INVOICES, default=(entry("Group:readers"),))

    decided = plan_user(SHOP, acl(ORDERS), KNOWN, there)

    assert decided.requests == (
        PutPolicies(acl(ORDERS)),
        DropPolicy(SUBJECT, PolicyType.CUSTOM, INVOICES.resource),
        DropPolicy(SUBJECT, PolicyType.DEFAULT, entry("Group:readers").resource),
    )
    assert "no policies about Topic:invoices" in decided.text


def test_who_is_a_super_user_no_more_is_none_before_new_policies_come() -> None:
    """Else a request that fails in between would leave all rights."""
    known = replace(KNOWN, type=UserType.SUPER)

    decided = plan_user(SHOP, acl(ORDERS), known, None)

    assert [type(each) for each in decided.requests] == [UpdateUser, PutPolicies]
