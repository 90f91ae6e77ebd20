"""Requests about the two users of a set's Secret, to the set's own controllers and brokers.

What is asked for is decided in `model/password_rotation`. Passwords are in no value that leaves here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress

import structlog

from brokerset_acl.access_book import WantedUser
from brokerset_operator.access_users.plan import UpdateUser
from brokerset_operator.brokers_view import BrokerSilent
from brokerset_operator.controllers_view import ControllersView
from brokerset_operator.model.observed import MemberPasswords
from brokerset_operator.set_signing import SetSigning
from brokerset_operator.user_requests import UserRefused, UserRequests

log = structlog.get_logger(__name__)


async def observe_passwords(
    signing: SetSigning, view: ControllersView, brokers: Mapping[str, str]
) -> MemberPasswords | None:
    """Compare what servers have with the manifest's Secret; None while no controller leads or answers.

    `brokers` are addresses by pod. One that runs and does not answer counts as one that has not heard yet.
    """
    if signing.problem is not None:
        return MemberPasswords(problem=signing.problem)
    if view.controllers.leader is None:
        return None
    async with UserRequests(view.connecting) as requests:
        try:
            found = [(await requests.known(view.addresses[0], name))[0] for name in signing.passwords]
        except BrokerSilent:
            return None
        except UserRefused as error:
            return MemberPasswords(problem=str(error))
        wanted = list(signing.passwords.values())
        changed = [None if each is None else each.password for each in found] == wanted
        former = any(each is not None and each.former_until_ms is not None for each in found)
        heard = await asyncio.gather(*(_has(requests, each, signing) for each in brokers.values()))
    return MemberPasswords(changed=changed, everywhere=changed and all(heard), former=former)


async def _has(requests: UserRequests, address: str, signing: SetSigning) -> bool:
    """Whether a broker has the passwords of the manifest's Secret."""
    try:
        for name, password in signing.passwords.items():
            known, _ = await requests.known(address, name)
            if known is None or known.password != password:
                return False
    except (BrokerSilent, UserRefused):
        return False
    return True


async def change_passwords(signing: SetSigning, view: ControllersView, kept_seconds: int) -> None:
    """Give the users the passwords of the manifest's Secret, and keep the former ones.

    Raises `BrokerSilent` and `UserRefused`.
    """
    async with UserRequests(view.connecting) as requests:
        for name, password in signing.passwords.items():
            address = _leader(view)
            known, _ = await requests.known(address, name)
            if known is not None and known.password == password:
                continue
            wanted = WantedUser(name, password, former_seconds=kept_seconds)
            until_ms = await requests.carry_out(address, UpdateUser(wanted))
            log.info("password of members changed", user=name, former_until_ms=until_ms)


async def end_former_passwords(signing: SetSigning, view: ControllersView) -> None:
    """Let controllers forget what they have stored of the users; where they have nothing, nothing is done.

    Raises `BrokerSilent` and `UserRefused`.
    """
    async with UserRequests(view.connecting) as requests:
        for name in signing.passwords:
            address = _leader(view)
            known, _ = await requests.known(address, name)
            if known is None or known.former_until_ms is None:
                with suppress(UserRefused):  # nothing is stored
                    await requests.delete(address, name)
            else:
                await requests.delete(address, name)
                log.info("former password of members ended", user=name)


def _leader(view: ControllersView) -> str:
    if view.controllers.leader is None:
        raise BrokerSilent("no controller leads, so users cannot be changed")
    return view.addresses[0]
