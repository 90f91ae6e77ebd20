"""Former passwords: how long they count, which one counts, and who is reported to use one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from brokerset_acl.access_book import AccessBook, Accounts, WantedUser, configured_users
from brokerset_acl.former_passwords import FORMER_SECONDS_MAX, LINE_MS, FormerUse, FormerUses
from brokerset_acl.signatures import Credentials, signature, signing_password
from brokerset_acl.users import FormerPassword, User, UserStatus, UserType
from brokerset_formats.errors import FormatError
from brokerset_protocol.errors import Rejected

NOW = 1_700_000_000_000
APP = User("app", "one")
HOUR = 3_600


def updated(user: User, now_ms: int = NOW, **wanted: Any) -> User:
    """The user after an update."""
    accounts = Accounts(AccessBook({user.username: user}))
    return accounts.decide_update(WantedUser(user.username, **wanted), by_super=True, now_ms=now_ms)


def changed(user: User, password: str, seconds: int = HOUR, now_ms: int = NOW) -> User:
    """The user with another password, and the one before it for some time."""
    return updated(user, now_ms, password=password, former_seconds=seconds)


def test_both_passwords_count_until_the_time_is_over() -> None:
    """To the millisecond; the newest one is compared first."""
    user = changed(APP, "two")
    end = NOW + 1_000 * HOUR

    assert user.passwords(NOW) == user.passwords(end - 1) == ("two", "one")
    assert user.passwords(end) == ("two",)
    assert signing_password(user.passwords(NOW), b"x", signature("one", b"x")) == 1
    assert signing_password(user.passwords(end), b"x", signature("one", b"x")) is None
    assert signing_password(user.passwords(NOW), b"x", signature("three", b"x")) is None


def test_without_the_time_the_password_of_before_counts_no_more() -> None:
    """As in Java."""
    assert changed(APP, "two", seconds=0) == replace(APP, password="two")


def test_of_two_changes_the_newest_password_and_the_one_before_it_count() -> None:
    """The oldest one goes, though its time is not over."""
    user = changed(changed(APP, "two"), "three", seconds=60)

    assert user.passwords(NOW) == ("three", "two")
    assert user.former == FormerPassword("two", NOW + 60_000)


def test_a_change_back_makes_the_newer_one_the_former_one() -> None:
    """Whoever was restarted too early goes on, and so do the others."""
    assert changed(changed(APP, "two"), "one").passwords(NOW) == ("one", "two")


def test_a_repeated_change_changes_nothing_and_can_only_shorten_the_time() -> None:
    """Tools ask the masters of all groups for the same, and after a lost answer again."""
    user = changed(APP, "two")

    assert changed(user, "two", now_ms=NOW + 5) == user
    assert changed(user, "two", seconds=60, now_ms=NOW + 5).former == FormerPassword("one", NOW + 60_005)
    assert changed(user, "two", now_ms=NOW + 1_000 * HOUR).former is None, "what has expired is dropped"


@pytest.mark.parametrize(
    "wanted",
    [
        {"password": "two"},
        {},
        {"status": UserStatus.DISABLE, "former_seconds": HOUR},
        {"type": UserType.SUPER},
    ],
)
def test_an_update_that_does_not_ask_for_it_ends_the_former_password(wanted: dict[str, Any]) -> None:
    """Also with nothing else to change; a disabled user has none whatever is asked for."""
    assert updated(changed(APP, "two"), **wanted).former is None


@pytest.mark.parametrize("seconds", [-1, FORMER_SECONDS_MAX + 1])
def test_the_time_is_bounded(seconds: int) -> None:
    """30 days; the refusal says so."""
    with pytest.raises(Rejected, match="30 days"):
        changed(APP, "two", seconds=seconds)
    assert changed(APP, "two", seconds=FORMER_SECONDS_MAX).former is not None


def test_a_user_of_a_setting_has_the_password_of_the_setting_as_the_former_one() -> None:
    """The first administrator changes as others do."""
    configured = configured_users(("root", "first"), None)
    accounts = Accounts(AccessBook(), configured)

    user = accounts.decide_update(
        WantedUser("root", "second", former_seconds=HOUR), by_super=True, now_ms=NOW
    )

    assert user.passwords(NOW) == ("second", "first")


def signer(book: AccessBook, key: str) -> Accounts:
    """Of a process whose setting says that brokers sign as `inner` with a key."""
    return Accounts(book, configured_users(None, Credentials("inner", key)), "inner")


def test_who_brokers_sign_as_gets_another_password_only_while_that_of_the_setting_is_accepted() -> None:
    """Else they would refuse each other. A process that has the new one may end the former one."""
    book = AccessBook()
    wanted = WantedUser("inner", "new", former_seconds=HOUR)
    with pytest.raises(Rejected, match="--keep-former"):
        signer(book, "old").decide_update(replace(wanted, former_seconds=0), by_super=True, now_ms=NOW)
    disabled = replace(wanted, status=UserStatus.DISABLE)
    short = replace(wanted, former_seconds=60)
    for refused in (disabled, short):
        with pytest.raises(Rejected, match="brokers sign"):
            signer(book, "old").decide_update(refused, by_super=True, now_ms=NOW)

    user = signer(book, "old").decide_update(wanted, by_super=True, now_ms=NOW)
    book.put({"inner": user}, {})

    assert user.passwords(NOW) == ("new", "old")
    third = replace(wanted, password="third")
    at_once = replace(wanted, former_seconds=0)
    for refused in (third, at_once):
        with pytest.raises(Rejected, match="brokers sign"):
            signer(book, "old").decide_update(refused, by_super=True, now_ms=NOW)
    late = NOW + 1_000 * HOUR
    with pytest.raises(Rejected, match="brokers sign"):
        signer(book, "old").decide_update(wanted, by_super=True, now_ms=late)
    assert signer(book, "new").decide_update(at_once, by_super=True, now_ms=NOW).former is None


def test_what_is_stored_of_a_user_of_a_setting_can_go_when_the_setting_says_the_same() -> None:
    """Then the setting counts again, and with it another one after the next restart."""
    book = AccessBook()
    with pytest.raises(Rejected, match="named by a setting"):
        signer(book, "old").decide_delete("inner", by_super=True)
    wanted = WantedUser("inner", "new", former_seconds=HOUR)
    book.put({"inner": signer(book, "old").decide_update(wanted, by_super=True, now_ms=NOW)}, {})

    with pytest.raises(Rejected, match="named by a setting"):
        signer(book, "old").decide_delete("inner", by_super=True)
    with pytest.raises(Rejected, match="only"):
        signer(book, "new").decide_delete("inner", by_super=False)
    assert signer(book, "new").decide_delete("inner", by_super=True)


def test_creating_a_user_that_is_there_as_wanted_leaves_its_former_password() -> None:
    """Tools ask every broker."""
    user = changed(APP, "two")
    accounts = Accounts(AccessBook({"app": user}))

    assert accounts.decide_create(WantedUser("app", "two"), by_super=False) == user
    with pytest.raises(Rejected, match="existed"):
        accounts.decide_create(WantedUser("app", "one"), by_super=False)


def test_what_is_stored_is_read_again_and_without_a_former_password_is_that_of_before() -> None:
    """And no text shows it."""
    user = changed(APP, "two")

    assert User.from_json(user.to_json()) == user
    assert list(APP.to_json()) == ["password", "userStatus", "userType", "username"]
    assert "formerPassword" not in user.to_json(former=False)
    assert "'one'" not in repr(user)


@pytest.mark.parametrize("former", [{}, {"formerUntil": "5"}, {"formerUntil": True}])
def test_a_former_password_without_a_time_is_refused(former: dict[str, object]) -> None:
    """What is damaged gives no right without an end."""
    with pytest.raises(FormatError, match="former password"):
        User.from_json({**APP.to_json(), "formerPassword": "one", **former})


def test_one_line_a_minute_says_who_uses_a_former_password() -> None:
    """The first request at once, then how many there were; each user by itself, each overlap by itself."""
    uses, user = FormerUses(), changed(APP, "two")
    other = changed(User("other", "one"), "two")

    lines = [uses.add(user, f"10.0.0.{at}", NOW + at) for at in range(3)]
    assert lines == [1, None, None]
    assert uses.add(other, "10.0.0.9", NOW) == 1
    assert uses.last(user) == FormerUse(NOW + 2, "10.0.0.2")
    assert uses.add(user, "h", NOW + LINE_MS) == 3
    assert uses.add(user, "h", NOW - LINE_MS) == 1, "the clock was set back"
    assert uses.total == 6

    again = changed(user, "three")
    assert uses.last(again) is None
    assert uses.add(again, "h", NOW) == 1
    assert uses.last(APP) is None
