"""Interop suite `access-group`: a broker of ours and one of Java's that check users in one group; each follows the other.

The controllers and name servers are ours, and check who administers: brokers of both makes sign what they ask them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Final

from brokerset_rig import access_mqadmin, access_suite, replicated_group, stack, wire
from brokerset_rig.access_suite import ADMINISTRATION, CHECKED, ROOT, Add, Peer, unlike
from brokerset_rig.controllers import until
from brokerset_rig.replicated_group import NAME, Group, Member

COUNT: Final = 20
FAILOVER_SECONDS_MAX: Final = 60.0

JAVA_PROVIDERS: Final = {
    f"{kind}MetadataProvider": f"org.apache.rocketmq.auth.{kind}.provider.Local{kind.capitalize()}MetadataProvider"
    for kind in ("authentication", "authorization")
}
"""Java's broker has no default for where it keeps users and policies."""


@contextmanager
def mixed() -> Iterator[tuple[Group, Member, Member]]:
    """Our controllers, and a broker of each make; ours leads."""
    controllers = partial(stack.our_controllers, settings=ADMINISTRATION)
    access = wire.Access(ROOT.access_key, ROOT.secret_key)
    with replicated_group.group("access", 2, controllers, access) as group:
        ours = group.add("ours", CHECKED)
        until("our broker leads", lambda: group.panel.master(NAME) is not None, FAILOVER_SECONDS_MAX)
        java = group.add("Java", {**CHECKED, **JAVA_PROVIDERS})
        group.wait_in_sync(ours, java)
        yield group, ours, java


def hand_over(group: Group, to: Member) -> None:
    """Kill the other one, which comes back when this one leads."""
    (other,) = (member for member in group.members if member is not to)
    other.server.kill()
    until(f"{to} leads", lambda: leads(group, to), FAILOVER_SECONDS_MAX)
    group.start(other)
    group.wait_in_sync(to, other)


def leads(group: Group, member: Member) -> bool:
    """Whether the controllers name it, and it answers whom it should."""
    found = group.panel.master(NAME)
    return found is not None and found[1] == member.port


async def make_user(member: Member, group: str) -> None:
    """The user `app`, who may send and consume; Java replicates no users, so each broker is asked."""
    await access_suite.create_user(member.port)
    await access_suite.give_rights(member.port, "Topic:orders", f"Group:{group}*")


def check() -> list[str]:
    """What a signing client could not do, or another one could."""
    problems: list[str] = []
    with mixed() as (group, ours, java):
        peer = Peer(group.folder, group.servers.name_servers)
        asyncio.run(access_suite.create_topic(ours.port))
        for member in (ours, java):
            asyncio.run(make_user(member, "g"))
        for turn, leader in enumerate((ours, java, ours), 1):
            if not leads(group, leader):
                hand_over(group, leader)
            text = asyncio.run(peer.signed("k", f"g{turn}", COUNT))
            problems += [f"{leader} leads: {each}" for each in unlike(text, f"consumed {COUNT}")]
            text = asyncio.run(peer.signed("wrong", f"g{turn}", 1))
            problems += [f"{leader} leads, another key: {each}" for each in unlike(text, "refused")]
    return problems


def run(add: Add) -> None:
    """One group with three masters, and one that mqadmin administers."""
    for what, part in (
        ("Java's client signs, whichever make leads the group", check),
        ("mqadmin with name servers and controllers that check who administers", access_mqadmin.check),
    ):
        began = time.monotonic()
        problems = part()
        add(what, problems, time.monotonic() - began)
