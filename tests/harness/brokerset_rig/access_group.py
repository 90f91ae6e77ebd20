"""Interop suite `access-group`: a broker of ours and one of Java's that check users in one group; each follows the other.

The controllers and name servers are ours, and check who administers: brokers of both makes sign what they ask them.
The same group runs once in plain text, and once with TLS enforcing at all remoting ports; Java's HA has none.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

from brokerset_rig import access_mqadmin, access_suite, replicated_group, stack, wire
from brokerset_rig.access_suite import ADMINISTRATION, CHECKED, ROOT, Add, Peer, unlike
from brokerset_rig.certificates import Certificates
from brokerset_rig.controllers import until
from brokerset_rig.replicated_group import NAME, Group, Member
from brokerset_runtime.tls import Tls

COUNT: Final = 20
FAILOVER_SECONDS_MAX: Final = 60.0

JAVA_PROVIDERS: Final = {
    f"{kind}MetadataProvider": f"org.apache.rocketmq.auth.{kind}.provider.Local{kind.capitalize()}MetadataProvider"
    for kind in ("authentication", "authorization")
}
"""Java's broker has no default for where it keeps users and policies."""


class Secured:
    """TLS of a group of both makes: what servers and clients of each need."""

    def __init__(self, folder: Path) -> None:
        certificates = Certificates(folder)
        certificates.issue("both")
        folder = certificates.folder
        # Java takes paths from where it was started.
        self._file = certificates.config(
            tls_server_certPath=f"{folder}/both.pem",
            tls_server_keyPath=f"{folder}/both.key",
            tls_client_trustCertPath=f"{folder}/authority.pem",
            tls_client_authServer="true",
            tls_test_mode_enable="false",
            tls_ha_enable="false",
        )
        self.authority = folder / "authority.pem"
        self.tls = Tls(self._file)
        self.settings = {"tlsConfigFile": str(self._file)}
        """Of our servers."""
        self.java_client = f"-Dtls.enable=true -Dtls.config.file={self._file}"
        self.java_server = f"{self.java_client} -Dtls.server.mode=enforcing"
        """Options of Java's machine."""


@contextmanager
def mixed(secured: Secured | None) -> Iterator[tuple[Group, Member, Member]]:
    """Our controllers, and a broker of each make; ours leads."""
    tls = secured.settings if secured else {}
    controllers = partial(stack.our_controllers, settings={**ADMINISTRATION, **tls})
    access = wire.Access(ROOT.access_key, ROOT.secret_key, secured.authority if secured else None)
    with replicated_group.group("access", 2, controllers, access) as group:
        ours = group.add("ours", {**CHECKED, **tls})
        until("our broker leads", lambda: group.panel.master(NAME) is not None, FAILOVER_SECONDS_MAX)
        java = group.add("Java", {**CHECKED, **JAVA_PROVIDERS}, start=False)
        if secured:
            given = os.environ.get("JAVA_OPT_EXT", "")
            java.server.environment["JAVA_OPT_EXT"] = f"{given} {secured.java_server}"
        group.start(java)
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


async def make_user(member: Member, group: str, tls: Tls | None) -> None:
    """The user `app`, who may send and consume; Java replicates no users, so each broker is asked."""
    await access_suite.create_user(member.port, tls)
    await access_suite.give_rights(member.port, "Topic:orders", f"Group:{group}*", tls=tls)


def check(secured: Secured | None = None) -> list[str]:
    """What a signing client could not do, or another one could."""
    problems: list[str] = []
    with mixed(secured) as (group, ours, java):
        tls, options = (secured.tls, secured.java_client) if secured else (None, "")
        peer = Peer(group.folder, group.servers.name_servers, options)
        asyncio.run(access_suite.create_topic(ours.port, tls))
        for member in (ours, java):
            asyncio.run(make_user(member, "g", tls))
        for turn, leader in enumerate((ours, java, ours), 1):
            if not leads(group, leader):
                hand_over(group, leader)
            text = asyncio.run(peer.signed("k", f"g{turn}", COUNT))
            problems += [f"{leader} leads: {each}" for each in unlike(text, f"consumed {COUNT}")]
            text = asyncio.run(peer.signed("wrong", f"g{turn}", 1))
            problems += [f"{leader} leads, another key: {each}" for each in unlike(text, "refused")]
            if secured:
                problems += [
                    f"{member} serves plain requests while {leader} leads"
                    for member in (ours, java)
                    if serves_plain(member)
                ]
    return problems


def serves_plain(member: Member) -> bool:
    """Whether an administrator is answered without TLS."""
    try:
        with wire.Client(member.port, 5.0, wire.Access(ROOT.access_key, ROOT.secret_key)) as client:
            return client.call(replicated_group.RUNTIME_INFO, {}).code == 0
    except OSError:
        return False


def check_with_tls() -> list[str]:
    """The same with TLS enforcing at all remoting ports, of controllers and name servers, too."""
    with stack.Workspace("access-tls") as folder:
        return check(Secured(folder))


def run(add: Add) -> None:
    """One group with three masters, and one that mqadmin administers."""
    for what, part in (
        ("Java's client signs, whichever make leads the group", check),
        ("the same with TLS enforcing at all remoting ports", check_with_tls),
        ("mqadmin with name servers and controllers that check who administers", access_mqadmin.check),
    ):
        began = time.monotonic()
        problems = part()
        add(what, problems, time.monotonic() - began)
