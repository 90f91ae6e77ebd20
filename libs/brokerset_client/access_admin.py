"""Users and policies: requests 3001 to 3010 at every broker group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import orjson

from brokerset_acl.access_book import WantedUser
from brokerset_acl.policies import Acl
from brokerset_client.admin import Admin
from brokerset_protocol import headers
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command


class AccessAdmin:
    """Requests over an `Admin`, which the caller opens and closes.

    Each broker group has its own users and policies; these requests go to the masters of all groups of a
    cluster, or of all clusters, one after the other. They raise `RequestRefused` at the first that refuses.
    """

    def __init__(self, admin: Admin, cluster: str | None = None) -> None:
        self._admin = admin
        self._cluster = cluster

    async def create_user(self, wanted: WantedUser) -> None:
        """Create a user; at a group that has it just so nothing is done."""
        await self._send_user(RequestCode.AUTH_CREATE_USER, headers.NamedUser, wanted)

    async def update_user(self, wanted: WantedUser) -> dict[str, int | None]:
        """Change what is not None. Returns by broker group until when the former password is accepted (in
        milliseconds since 1970); None: it is not, as at servers that know none."""
        header = partial(headers.UpdateUser, former_password_seconds=wanted.former_seconds or None)
        answers = await self._send_user(RequestCode.AUTH_UPDATE_USER, header, wanted)
        return {
            name: headers.UpdateUserResponse.from_ext(answer.ext).former_until
            for name, answer in answers.items()
        }

    async def delete_user(self, name: str) -> None:
        """Delete a user with all policies; without the user nothing is done."""
        await self._everywhere(RequestCode.AUTH_DELETE_USER, headers.NamedUser(username=name))

    async def users(self) -> dict[str, list[dict[str, object]]]:
        """The users of each broker group, as RocketMQ's `UserInfo`; with passwords for Super users alone."""
        return await self._lists(RequestCode.AUTH_LIST_USER, headers.ListUsers())

    async def put_acl(self, acl: Acl) -> None:
        """Add entries to what is said about a user; those of the same resource are replaced."""
        await self._everywhere(
            RequestCode.AUTH_CREATE_ACL,
            headers.NamedSubject(subject=acl.subject),
            orjson.dumps(acl.to_json()),
        )

    async def delete_acl(self, subject: str, resource: str | None = None, policy: str | None = None) -> None:
        """Remove what is said about a resource, or everything."""
        await self._everywhere(
            RequestCode.AUTH_DELETE_ACL,
            headers.DeleteAcl(subject=subject, policy_type=policy, resource=resource),
        )

    async def acls(self, subject_part: str | None = None) -> dict[str, list[Acl]]:
        """What is said about users in each broker group."""
        found = await self._lists(RequestCode.AUTH_LIST_ACL, headers.ListAcls(subject_filter=subject_part))
        return {name: [Acl.from_json(each) for each in acls] for name, acls in found.items()}

    # -- inside -------------------------------------------------------------------------------------------

    async def _send_user(
        self, code: RequestCode, header: Callable[..., headers.Header], wanted: WantedUser
    ) -> dict[str, Command]:
        body = {
            "username": wanted.username,
            "password": wanted.password,
            "userType": wanted.type,
            "userStatus": wanted.status,
        }
        given = {name: str(value) for name, value in body.items() if value is not None}
        return await self._everywhere(code, header(username=wanted.username), orjson.dumps(given))

    async def _everywhere(
        self, code: RequestCode, header: headers.Header, body: bytes = b""
    ) -> dict[str, Command]:
        return {
            name: await self._admin.instance.request(address, code, header, body)
            for name, address in (await self._masters()).items()
        }

    async def _lists(self, code: RequestCode, header: headers.Header) -> dict[str, list[dict[str, object]]]:
        found = {}
        for name, address in (await self._masters()).items():
            answer = await self._admin.instance.request(address, code, header)
            found[name] = _objects(orjson.loads(answer.body or b"[]"))
        return found

    async def _masters(self) -> dict[str, str]:
        return await self._admin.masters(self._cluster)


def _objects(items: Sequence[object]) -> list[dict[str, object]]:
    return [each for each in items if isinstance(each, dict)]
