"""Requests about one user to the master of a broker group, by its own address."""

from __future__ import annotations

from typing import Final

import orjson

from brokerset_acl.access_book import USER_EXISTS, WantedUser
from brokerset_acl.policies import Acl
from brokerset_acl.users import UserStatus, UserType, subject_of
from brokerset_client.errors import AnswerTimeout, BrokerUnreachable, ClientError, RequestRefused
from brokerset_client.server_requests import ServerRequests
from brokerset_formats.config import fields
from brokerset_formats.errors import FormatError
from brokerset_operator.access_users.plan import (
    CreateUser,
    DropPolicy,
    KnownUser,
    PutPolicies,
    Request,
    UpdateUser,
)
from brokerset_operator.brokers_view import BrokerSilent
from brokerset_operator.connecting import Connecting
from brokerset_protocol import headers
from brokerset_protocol.bodies.access import UserInfo
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command

ASK_SECONDS: Final = 5.0
"""Time-out of one request; a change is answered when the replicas in sync have it."""


class UserRefused(Exception):
    """A broker does not do what it is asked; the text is its own."""


class UserRequests:
    """Requests to brokers; use it with `async with`. All raise `BrokerSilent` and `UserRefused`."""

    def __init__(self, connecting: Connecting) -> None:
        self._requests = ServerRequests(timeout=ASK_SECONDS, tls=connecting.tls, sign=connecting.sign)

    async def __aenter__(self) -> UserRequests:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._requests.close()

    async def known(self, address: str, name: str) -> tuple[KnownUser | None, Acl | None]:
        """A user and its policies as a group has them; None if it has not."""
        body = await self._ask(address, RequestCode.AUTH_GET_USER, headers.NamedUser(username=name))
        if not body:
            return None, None
        said = await self._ask(
            address, RequestCode.AUTH_GET_ACL, headers.NamedSubject(subject=subject_of(name))
        )
        try:
            info = UserInfo.from_json(body)
            known = KnownUser(
                UserType.named(info.user_type),
                UserStatus.named(info.user_status),
                info.password,
                info.former_until,
            )
            found: dict[str, object] = fields.parse_object(said) if said else {}
            return known, Acl.from_json(found) if found.get("policies") else None
        except FormatError as error:
            raise BrokerSilent(f"broker {address} says what cannot be read: {error}") from error

    async def carry_out(self, address: str, request: Request) -> int | None:
        """Do one thing. Returns of an update until when the broker accepts the former password, in
        milliseconds since 1970; None if it does not."""
        match request:
            case CreateUser(user):
                wanted = WantedUser(user.username, user.password, user.type, user.status)
                try:
                    await self._put_user(address, RequestCode.AUTH_CREATE_USER, wanted)
                except UserRefused as error:
                    # Controllers have users of all groups, and a broker hears of one a moment later.
                    if USER_EXISTS not in str(error):
                        raise
                    await self._put_user(address, RequestCode.AUTH_UPDATE_USER, wanted)
            case UpdateUser(wanted):
                return await self._put_user(address, RequestCode.AUTH_UPDATE_USER, wanted)
            case PutPolicies(acl):
                header = headers.NamedSubject(subject=acl.subject)
                await self._ask(address, RequestCode.AUTH_CREATE_ACL, header, orjson.dumps(acl.to_json()))
            case DropPolicy(subject, kind, resource):
                away = headers.DeleteAcl(subject=subject, policy_type=str(kind), resource=resource.key)
                await self._ask(address, RequestCode.AUTH_DELETE_ACL, away)
        return None

    async def delete(self, address: str, name: str) -> None:
        """Delete a user with all policies; without it nothing is done."""
        await self._ask(address, RequestCode.AUTH_DELETE_USER, headers.NamedUser(username=name))

    async def _put_user(self, address: str, code: RequestCode, wanted: WantedUser) -> int | None:
        given = {
            "username": wanted.username,
            "password": wanted.password,
            "userType": wanted.type,
            "userStatus": wanted.status,
        }
        body = {name: str(value) for name, value in given.items() if value is not None}
        header = headers.UpdateUser(
            username=wanted.username, former_password_seconds=wanted.former_seconds or None
        )
        answer = await self._answer(address, code, header, orjson.dumps(body))
        return headers.UpdateUserResponse.from_ext(answer.ext).former_until

    async def _ask(self, address: str, code: RequestCode, header: headers.Header, body: bytes = b"") -> bytes:
        return bytes((await self._answer(address, code, header, body)).body)

    async def _answer(self, address: str, code: RequestCode, header: headers.Header, body: bytes) -> Command:
        try:
            return await self._requests.request(address, code, header, body)
        except (AnswerTimeout, BrokerUnreachable) as error:
            raise BrokerSilent(f"broker {address} does not answer: {error}") from error
        except RequestRefused as error:
            raise UserRefused(f"broker {address} refused {code.name}: {error.remark}") from error
        except ClientError as error:
            raise BrokerSilent(f"broker {address}: {error}") from error
