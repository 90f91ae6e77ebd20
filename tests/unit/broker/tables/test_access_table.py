"""A broker's users: the group's own, or a copy of the controllers'."""

from __future__ import annotations

import asyncio
import json
import stat
from pathlib import Path

from brokerset_acl.access_book import AccessBook
from brokerset_acl.users import FormerPassword, User
from brokerset_broker.tables.access import FILE_NAME, AccessTable


def book(*names: str) -> AccessBook:
    return AccessBook({name: User(name, "key") for name in names})


def names(table: AccessTable) -> set[str]:
    return set(table.book.users)


async def saved(table: AccessTable) -> None:
    """Written down, by the task that does it."""
    task = asyncio.create_task(table.run())
    await table.saved()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_copy_of_the_controllers_outlives_a_start_without_them(tmp_path: Path) -> None:
    """With its version, in a file that only the broker's user reads."""
    table = AccessTable(tmp_path)
    table.take_from_controllers(7, book("app"))
    await saved(table)

    again = AccessTable(tmp_path)
    again.load()

    assert (names(again), again.version) == ({"app"}, 7)
    assert stat.S_IMODE((tmp_path / FILE_NAME).stat().st_mode) == 0o600


async def test_former_passwords_are_in_the_file_of_users_that_have_one(tmp_path: Path) -> None:
    """They outlive a restart; the file has nothing more of other users than it always had."""
    table = AccessTable(tmp_path)
    table.put({"app": User("app", "key", former=FormerPassword("old", 5)), "other": User("other", "key")}, {})
    await saved(table)

    again = AccessTable(tmp_path)
    again.load()

    assert again.book == table.book
    found = json.loads((tmp_path / FILE_NAME).read_bytes())["users"]
    assert set(found["other"]) == {"username", "password", "userType", "userStatus"}
    assert set(found["app"]) - set(found["other"]) == {"formerPassword", "formerUntil"}


def test_the_groups_log_says_nothing_while_the_controllers_have_users() -> None:
    """An old record, or an old snapshot, brings no deleted user back."""
    table = AccessTable()
    table.take_from_controllers(7, book("app"))

    table.put({"old": User("old", "key"), "app": None}, {})
    assert names(table) == {"app"}
    table.take_over(book("old"))
    assert names(table) == {"app"}


def test_without_controllers_that_have_users_the_copy_is_the_groups_own() -> None:
    """With what the group's log has said since, for the master may have left before."""
    table = AccessTable()
    table.take_from_controllers(7, book("app"))
    table.put({"new": User("new", "key")}, {})
    before = table.book.changes

    table.leave_controllers()

    assert (names(table), table.version) == ({"app", "new"}, 0)
    assert table.book.changes > before
    table.put({"app": None}, {})
    assert names(table) == {"new"}


def test_the_same_users_in_another_version_are_no_change() -> None:
    """Decisions that were kept stay good."""
    table = AccessTable()
    table.put({"app": User("app", "key")}, {})
    before = table.book.changes

    table.take_from_controllers(8, book("app"))

    assert (table.book.changes, table.version) == (before, 8)
