"""A broker's part in users and policies of the whole cluster, against controllers that answer at once."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import orjson
import pytest

from brokerset_acl.access_book import AccessBook, acls_of, users_of
from brokerset_acl.users import User
from brokerset_broker.member.cluster_access import ClusterAccess
from brokerset_broker.member.membership.controllers import NoAnswer
from brokerset_broker.tables.access import AccessTable
from brokerset_formats.config import fields
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.controller import (
    ChangeAccess,
    ChangeAccessResponse,
    GetAccess,
    GetAccessResponse,
)
from brokerset_rig.waiting import until

GET, ADOPT = RequestCode.BROKERSET_GET_ACCESS, RequestCode.BROKERSET_ADOPT_ACCESS


class Leader:
    """A controller that leads: its users, and what it was asked."""

    def __init__(self) -> None:
        self.book = AccessBook()
        self.version = 0
        self.adopted = False
        self.asked: list[Command] = []
        self.code = 0
        """Of all answers, if not 0."""

        self.silent = False

    async def ask(self, command: Command, seconds: float) -> Command:
        await asyncio.sleep(0)
        self.asked.append(command)
        if self.silent:
            raise NoAnswer("nobody leads")
        if self.code:
            return command.reply(self.code, "the reason")
        if command.code == GET:
            return self._book(command)
        if command.code == ADOPT:
            found = fields.parse_object(command.body)
            self.adopted = True
            self.put(**{name: user.password for name, user in users_of(found).items() if user is not None})
            return command.reply()
        self.put(**{command.ext["username"]: None})
        return command.reply(ext=ChangeAccessResponse(access_version=self.version).to_ext())

    def put(self, **passwords: str | None) -> None:
        """Users are these now, by name."""
        self.version += 1
        users = {name: None if key is None else User(name, key) for name, key in passwords.items()}
        self.book.put(users, acls_of({"acls": {}}))

    def codes(self) -> list[int]:
        return [command.code for command in self.asked]

    def _book(self, command: Command) -> Command:
        header = GetAccess.from_ext(command.ext)
        users = {name: user.to_json() for name, user in self.book.users.items()}
        wanted = self.adopted and header.known_version != self.version
        return command.reply(
            ext=GetAccessResponse(access_version=self.version, adopted=self.adopted).to_ext(),
            body=orjson.dumps({"users": users, "acls": {}}) if wanted else b"",
        )


def broker(
    leader: Leader, mastership: Callable[[], tuple[int, int] | None] = lambda: (1, 3)
) -> tuple[ClusterAccess, AccessTable]:
    table = AccessTable()
    return ClusterAccess(table=table, ask=leader.ask, broker_name="a", mastership=mastership), table


def slave(leader: Leader) -> tuple[ClusterAccess, AccessTable]:
    return broker(leader, lambda: None)


async def test_controllers_that_say_nothing_of_users_are_asked_nothing() -> None:
    """Java's, and older ones: users are the group's own."""
    leader = Leader()
    access, _ = broker(leader)

    assert not await access.has_users()
    assert not leader.asked


async def test_a_cluster_without_users_stays_without() -> None:
    """No group is taken over before there is anything to be taken over: nothing is written."""
    leader = Leader()
    access, _ = broker(leader)
    access.version_heard(0)

    assert await access.has_users()
    assert leader.codes() == [GET]


async def test_a_master_gives_what_its_group_has_once() -> None:
    """And goes by the controllers' book from then on."""
    leader = Leader()
    access, table = broker(leader)
    table.put({"own": User("own", "k")}, {})
    task = asyncio.create_task(access.run())
    access.version_heard(0)

    await until(lambda: table.version, 60)
    assert await access.has_users()

    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert leader.codes().count(ADOPT) == 1
    assert (table.version, set(table.book.users)) == (leader.version, {"own"})


async def test_a_slave_keeps_the_groups_users_until_its_master_has_given_them() -> None:
    """It would forget users that the controllers do not have yet."""
    leader = Leader()
    leader.put(app="k")
    access, table = slave(leader)
    table.put({"own": User("own", "k")}, {})
    access.version_heard(leader.version)

    assert await access.has_users()
    assert (table.version, set(table.book.users)) == (0, {"own"})

    leader.adopted = True
    assert await access.has_users()
    assert (table.version, set(table.book.users)) == (leader.version, {"app"})


async def test_a_running_broker_follows_every_version_that_it_hears_of() -> None:
    """A smaller one, too: of controllers that lost their data and began from scratch."""
    leader = Leader()
    leader.adopted = True
    access, table = slave(leader)
    task = asyncio.create_task(access.run())
    for passwords in ({"a": "k"}, {"a": None, "b": "k"}):
        leader.put(**passwords)
        access.version_heard(leader.version)
        await until(lambda: table.version == leader.version, 60)
    assert set(table.book.users) == {"b"}

    leader.book, leader.version = AccessBook({"c": User("c", "k")}), 1
    access.version_heard(1)
    await until(lambda: set(table.book.users) == {"c"}, 60)

    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_controllers_that_lost_everything_get_it_from_masters_alone() -> None:
    """A slave keeps what it has, and does not take nothing for the newest."""
    leader = Leader()
    access, table = slave(leader)
    table.take_from_controllers(900, AccessBook({"app": User("app", "k")}))
    access.version_heard(0)
    assert await access.has_users()
    assert (table.version, set(table.book.users)) == (900, {"app"})

    access, table = broker(leader)
    table.take_from_controllers(900, AccessBook({"app": User("app", "k")}))
    access.version_heard(0)
    assert await access.has_users()
    assert (table.version, set(table.book.users)) == (1, {"app"})


async def test_a_copy_of_lost_users_brings_back_nobody_that_was_deleted_since() -> None:
    """Another group has given the same copy before, and somebody was deleted then."""
    leader = Leader()
    leader.put(app="k")
    access, table = broker(leader)
    table.take_from_controllers(900, AccessBook({"app": User("app", "k"), "gone": User("gone", "k")}))
    access.version_heard(leader.version)

    assert await access.has_users()

    assert leader.adopted
    assert set(leader.book.users) == set(table.book.users) == {"app"}


async def test_a_change_is_here_when_it_is_answered_though_versions_went_back() -> None:
    """The controllers lost everything, and their clock was set back; the broker has a higher version."""
    leader = Leader()
    leader.adopted = True
    leader.put(app="k")
    access, table = broker(leader)
    table.take_from_controllers(900, AccessBook({"app": User("app", "k")}))
    access.version_heard(leader.version)
    command = Command(RequestCode.AUTH_DELETE_USER, {"username": "app"})

    await access.change(command, by_super=True)

    assert (table.version, "app" in table.book.users) == (leader.version, False)


async def test_a_change_is_passed_on_and_here_when_it_is_answered() -> None:
    """With who sent it, and without that one's signature."""
    leader = Leader()
    leader.adopted = True
    leader.put(app="k")
    access, table = broker(leader)
    access.version_heard(leader.version)
    assert await access.has_users()
    ext = {"username": "app", "AccessKey": "root", "Signature": "of root", "other": "x"}

    await access.change(Command(RequestCode.AUTH_DELETE_USER, ext), by_super=True)

    passed_on = next(each for each in leader.asked if each.code == RequestCode.AUTH_DELETE_USER)
    assert passed_on.ext == {"username": "app", **ChangeAccess(by_super=True, sent_by="root").to_ext()}
    assert "app" not in table.book.users


@pytest.mark.parametrize("what", ["silent", "refused"])
async def test_a_change_that_the_controllers_do_not_make_is_refused(what: str) -> None:
    """It is never made in the group alone: others would go by the old state."""
    leader = Leader()
    access, table = broker(leader)
    table.take_from_controllers(7, AccessBook({"app": User("app", "k")}))
    leader.silent, leader.code = what == "silent", ResponseCode.NO_PERMISSION if what == "refused" else 0
    command = Command(RequestCode.AUTH_DELETE_USER, {"username": "app"})

    for request in (access.has_users, lambda: access.change(command, by_super=True)):
        with pytest.raises(Rejected) as refused:
            await request()
        busy = ResponseCode.SYSTEM_BUSY if what == "silent" else ResponseCode.NO_PERMISSION
        assert refused.value.code == busy
    assert set(table.book.users) == {"app"}


async def test_controllers_that_have_no_users_any_more_leave_them_to_the_group() -> None:
    """The answer 3: what the broker has is the group's own from now on."""
    leader = Leader()
    leader.code = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    access, table = broker(leader)
    table.take_from_controllers(7, AccessBook({"app": User("app", "k")}))

    assert not await access.has_users()
    assert (table.version, set(table.book.users)) == (0, {"app"})
