"""Requests about users and policies at a controller, on an engine that agrees at once."""

from __future__ import annotations

import json
from dataclasses import replace

import orjson
import pytest

from brokerset_acl.users import User
from brokerset_controller.access.codec import encode_event
from brokerset_controller.access.events import BookChanged
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.headers.controller import (
    AdoptAccess,
    BrokerHeartbeatAnswer,
    ChangeAccess,
    ChangeAccessResponse,
    GetAccess,
    GetAccessResponse,
)
from brokerset_raft.configuration import Configuration, Member
from brokerset_rig.controller_bench import GROUP, Bench, make_bench

AUTH_CODES = range(3001, 3011)


def checking_bench() -> Bench:
    """A controller that checks who administers; the check itself stands before the handlers."""
    bench = make_bench(
        authentication_enabled=True,
        init_authentication_user='{"username":"root","password":"root-key"}',
        inner_client_authentication_credentials='{"accessKey":"inner","secretKey":"inner-key"}',
    )
    bench.engine.status = replace(bench.engine.status, configuration=Configuration())
    bench.sender = "root"
    return bench


async def create(bench: Bench, name: str, password: str = "key", **more: str) -> Command:
    body = orjson.dumps({"username": name, "password": password, **more})
    return await bench.ask(RequestCode.AUTH_CREATE_USER, {"username": name}, body)


async def users(bench: Bench) -> list[str]:
    answer = await bench.ask(RequestCode.AUTH_LIST_USER)
    assert answer.code == 0, answer.remark
    return [user["username"] for user in json.loads(answer.body)]


async def master(bench: Bench) -> AdoptAccess:
    """The group with a master, and what that one would say of itself."""
    await bench.join(1, "start-1")
    await bench.beat(1, "start-1")
    assert (await bench.elect(1)).code == 0
    return AdoptAccess(broker_name=GROUP, broker_id=1, master_epoch=bench.machine.groups[GROUP].master_epoch)


def body_of(**named: str) -> bytes:
    """What a group has: passwords by name."""
    return orjson.dumps(
        {"users": {name: User(name, key).to_json() for name, key in named.items()}, "acls": {}}
    )


async def test_users_and_policies_are_created_shown_and_deleted() -> None:
    """As brokers do it, with Java's codes and texts."""
    bench = checking_bench()
    assert (await create(bench, "app")).code == 0
    policy = {"resource": "Topic:t", "actions": ["Pub"], "decision": "Allow"}
    body = orjson.dumps({"policies": [{"entries": [policy]}]})
    subject = {"subject": "User:app"}
    assert (await bench.ask(RequestCode.AUTH_CREATE_ACL, subject, body)).code == 0

    assert await users(bench) == ["app", "inner", "root"]
    shown = await bench.ask(RequestCode.AUTH_GET_USER, {"username": "app"})
    assert json.loads(shown.body)["password"] == "key"
    assert b"Topic:t" in (await bench.ask(RequestCode.AUTH_GET_ACL, subject)).body
    assert b"Topic:t" in (await bench.ask(RequestCode.AUTH_LIST_ACL)).body

    again = await create(bench, "app", "other")
    assert (again.code, again.remark) == (ResponseCode.NO_PERMISSION, "The user is existed")
    assert (await bench.ask(RequestCode.AUTH_DELETE_ACL, subject)).code == 0
    gone = await bench.ask(RequestCode.AUTH_DELETE_ACL, subject)
    assert (gone.code, gone.remark) == (ResponseCode.NO_PERMISSION, "The acl is not exist.")
    assert (await bench.ask(RequestCode.AUTH_DELETE_USER, {"username": "app"})).code == 0
    assert (await bench.ask(RequestCode.AUTH_GET_USER, {"username": "app"})).body == b""


async def test_users_of_settings_stay() -> None:
    """Whom brokers sign as cannot be changed, and who is named there cannot be deleted."""
    bench = checking_bench()
    body = b'{"password":"new"}'

    refused = await bench.ask(RequestCode.AUTH_UPDATE_USER, {"username": "inner"}, body)
    assert "brokers sign as User:inner" in (refused.remark or "")
    refused = await bench.ask(RequestCode.AUTH_DELETE_USER, {"username": "root"})
    assert "named by a setting" in (refused.remark or "")

    assert (await bench.ask(RequestCode.AUTH_UPDATE_USER, {"username": "root"}, body)).code == 0
    changed = bench.service.access.accounts.user("root")
    assert changed is not None
    assert changed.password == "new"


async def test_a_repetition_changes_nothing() -> None:
    """Tools ask every broker of a cluster for the same, and each asks the controllers."""
    bench = checking_bench()
    version = ChangeAccessResponse.from_ext((await create(bench, "app")).ext)
    assert ChangeAccessResponse.from_ext((await create(bench, "app")).ext) == version
    assert len(bench.engine.proposed) == 1

    by_broker = {**ChangeAccess(by_super=True).to_ext(), "subject": "User:app"}
    assert (await bench.ask(RequestCode.AUTH_DELETE_ACL, by_broker)).code == 0


async def test_who_is_no_super_user_at_a_broker_is_none_here() -> None:
    """A broker passes on who sent a request: it signs, but its rights are not the client's."""
    bench = checking_bench()
    header = {**ChangeAccess(by_super=False, sent_by="app").to_ext(), "username": "new"}
    body = b'{"password":"key","userType":"Super"}'

    refused = await bench.ask(RequestCode.AUTH_CREATE_USER, header, body)

    assert (refused.code, refused.remark) == (
        ResponseCode.SYSTEM_ERROR, "The super user can only be create by super user",
    )  # fmt: skip


async def test_a_change_that_came_in_between_is_decided_on() -> None:
    """Of two that create the same user with different passwords one is refused."""
    bench = checking_bench()

    async def another() -> None:
        bench.engine.commit(encode_event(BookChanged(0, 5, {"app": User("app", "theirs")}, {})))

    bench.engine.before_propose = another
    refused = await create(bench, "app", "mine")

    assert refused.remark == "The user is existed"
    assert bench.machine.access.book.users["app"].password == "theirs"


async def test_who_does_not_lead_answers_2007() -> None:
    """Also to what only reads, and to brokers; nothing of users is in the answer."""
    bench = checking_bench()
    await create(bench, "app")
    bench.engine.follow(2)

    for code in (*AUTH_CODES, RequestCode.BROKERSET_GET_ACCESS, RequestCode.BROKERSET_ADOPT_ACCESS):
        ext = {
            "brokerName": GROUP,
            "username": "u",
            "subject": "User:app",
            "brokerId": "1",
            "masterEpoch": "1",
        }
        answer = await bench.ask(code, ext, body_of())
        assert (answer.code, answer.ext, answer.body) == (ResponseCode.CONTROLLER_NOT_LEADER, {}, b"")


async def test_who_checks_nobody_has_no_users() -> None:
    """Else anybody could read passwords, and make a Super user for all brokers: as Java's, it answers 3."""
    bench = make_bench()

    for code in (*AUTH_CODES, RequestCode.BROKERSET_GET_ACCESS, RequestCode.BROKERSET_ADOPT_ACCESS):
        answer = await bench.ask(code)
        assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    await master(bench)
    assert BrokerHeartbeatAnswer.from_ext((await bench.beat(1, "start-1")).ext).access_version is None


async def test_heartbeats_are_answered_with_the_version() -> None:
    """Of the leader alone: what others have applied may be old."""
    bench = checking_bench()
    await master(bench)
    assert BrokerHeartbeatAnswer.from_ext((await bench.beat(1, "start-1")).ext).access_version == 0

    version = ChangeAccessResponse.from_ext((await create(bench, "app")).ext).access_version

    answer = BrokerHeartbeatAnswer.from_ext((await bench.beat(1, "start-1")).ext)
    assert answer.lease_ms is not None
    assert answer.access_version == version
    bench.engine.follow(2)
    assert BrokerHeartbeatAnswer.from_ext((await bench.beat(1, "start-1")).ext).access_version is None


async def test_a_group_gets_the_book_when_its_own_was_taken_over() -> None:
    """Before that its brokers would forget users that nobody else has."""
    bench = checking_bench()
    header = await master(bench)
    await create(bench, "app")
    wanted = GetAccess(broker_name=GROUP)
    first = await bench.ask(RequestCode.BROKERSET_GET_ACCESS, wanted)
    assert not GetAccessResponse.from_ext(first.ext).adopted
    assert first.body == b""

    own = body_of(app="other", mine="m", inner="stolen")
    assert (await bench.ask(RequestCode.BROKERSET_ADOPT_ACCESS, header, own)).code == 0

    answer = await bench.ask(RequestCode.BROKERSET_GET_ACCESS, wanted)
    found = GetAccessResponse.from_ext(answer.ext)
    assert found.adopted
    passwords = {name: user["password"] for name, user in json.loads(answer.body)["users"].items()}
    assert passwords == {"app": "key", "mine": "m"}
    known = GetAccess(broker_name=GROUP, known_version=found.access_version)
    assert (await bench.ask(RequestCode.BROKERSET_GET_ACCESS, known)).body == b""


@pytest.mark.parametrize(("broker_id", "epochs_later"), [(2, 0), (1, 1)])
async def test_only_the_master_says_what_its_group_has(broker_id: int, epochs_later: int) -> None:
    """Who is none, or not in that epoch, may have missed something."""
    bench = checking_bench()
    header = await master(bench)
    other = AdoptAccess(
        broker_name=GROUP, broker_id=broker_id, master_epoch=header.master_epoch + epochs_later
    )

    refused = await bench.ask(RequestCode.BROKERSET_ADOPT_ACCESS, other, body_of(app="key"))

    assert refused.code == ResponseCode.CONTROLLER_INVALID_MASTER
    assert bench.machine.access.is_empty


@pytest.mark.parametrize("body", [b"", b"[]", b'{"users":{"a":{}}}', b'{"users":[]}'])
async def test_a_book_that_cannot_be_read_is_refused(body: bytes) -> None:
    """With what is wrong; nothing is agreed on."""
    bench = checking_bench()
    header = await master(bench)

    refused = await bench.ask(RequestCode.BROKERSET_ADOPT_ACCESS, header, body)

    assert refused.code == ResponseCode.SYSTEM_ERROR
    assert "cannot be read" in (refused.remark or "")


async def test_the_first_user_needs_all_controllers() -> None:
    """One that does not answer may be of a version that ends when it reads of users."""
    bench = checking_bench()
    others = Configuration((Member(1, "h:1", "127.0.0.1:1"),))
    bench.engine.status = replace(bench.engine.status, configuration=others)

    refused = await create(bench, "app")

    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert "controller 1 at 127.0.0.1:1 does not answer; start it, or remove it" in (refused.remark or "")
    assert not bench.engine.proposed


async def test_a_former_password_needs_all_controllers_and_a_change_at_once_does_not() -> None:
    """One of an older version would end; with passwords that do not overlap the log is one that it reads."""
    bench = checking_bench()
    assert (await create(bench, "app")).code == 0
    others = Configuration((Member(1, "h:1", "127.0.0.1:1"),))
    bench.engine.status = replace(bench.engine.status, configuration=others)
    name, body = {"username": "app"}, b'{"username":"app","password":"new"}'

    refused = await bench.ask(RequestCode.AUTH_UPDATE_USER, {**name, "formerPasswordSeconds": "60"}, body)

    assert refused.code == ResponseCode.SYSTEM_BUSY
    assert "controller 1 at 127.0.0.1:1 does not answer" in (refused.remark or "")
    assert bench.machine.access.book.users["app"].password == "key"
    assert (await bench.ask(RequestCode.AUTH_UPDATE_USER, name, body)).code == 0


async def test_the_answer_to_an_update_says_until_when_the_former_password_counts() -> None:
    """By the clock of the leader, which decides."""
    bench = checking_bench()
    assert (await create(bench, "app")).code == 0
    header = {"username": "app", "formerPasswordSeconds": "60"}

    answer = await bench.ask(RequestCode.AUTH_UPDATE_USER, header, b'{"username":"app","password":"new"}')

    assert int(answer.ext["formerUntil"]) == bench.clock.now_ms() + 60_000
    assert json.loads(bench.engine.proposed[-1])[0] == 6


async def test_who_is_no_super_user_sees_no_passwords_and_speaks_for_nobody() -> None:
    """With policies others may change users; what brokers say of a sender they cannot say of themselves."""
    bench = checking_bench()
    assert (await create(bench, "app")).code == 0
    bench.sender = "app"
    claims = ChangeAccess(by_super=True, sent_by="root").to_ext()

    shown = await bench.ask(RequestCode.AUTH_GET_USER, {"username": "root"})
    made = await bench.ask(
        RequestCode.AUTH_CREATE_USER,
        {"username": "evil", **claims},
        orjson.dumps({"username": "evil", "password": "key", "userType": "Super"}),
    )

    assert "password" not in json.loads(shown.body)
    assert made.remark == "The super user can only be create by super user"
    assert (await create(bench, "more")).code == 0
