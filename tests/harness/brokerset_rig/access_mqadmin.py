"""A part of interop suite `access-group`: mqadmin with name servers and controllers that check who administers."""

from __future__ import annotations

import asyncio
import re
from functools import partial

from brokerset_rig import replicated_group, stack, wire
from brokerset_rig.access_suite import ADMINISTRATION, CHECKED, ROOT, Peer
from brokerset_rig.controllers import CLUSTER, until
from brokerset_rig.replicated_group import NAME, Group

LEADS_SECONDS_MAX = 60.0

OF_NAME_SERVERS = (
    ("clusterList", (), rf"{CLUSTER}\s+{NAME}\s+0\s"),
    ("topicList", (), r"(?m)^TBW102$"),
    ("updateKvConfig", ("-s", "space", "-k", "key", "-v", "value"), "kv config to namespace success"),
    ("deleteKvConfig", ("-s", "space", "-k", "key"), "delete kv config from namespace success"),
    ("getNamesrvConfig", (), r"listenPort\s*=\s*\d+"),
    ("wipeWritePerm", ("-b", NAME), rf"wipe write perm of broker\[{NAME}\] in name server\[\S+\] OK"),
    ("addWritePerm", ("-b", NAME), rf"add write perm of broker\[{NAME}\] in name server\[\S+\] OK"),
)  # fmt: skip
"""Command, options, and what it prints when it is served."""

OF_CONTROLLERS = (
    ("getControllerMetaData", (), r"#ControllerLeaderAddress\s+127\.0\.0\.1:\d+"),
    ("getControllerConfig", (), r"controllerDLegerGroup\s+="),
    ("getSyncStateSet", ("-b", NAME), r"#SyncStateSetNums\s+2"),
    ("electMaster", ("-bn", NAME, "-c", CLUSTER, "-b", "2"), "not support unquoted name|#MasterEpoch"),
    ("cleanBrokerMetadata", ("-bn", NAME, "-c", CLUSTER, "-b", "1"), "is still alive"),
)  # fmt: skip
"""The same. mqadmin cannot read the answer of an election, as it is JSON with names that have no quotes."""

SERVED_TO_ALL = frozenset({"getControllerMetaData"})
"""Clients of controllers ask this, too, which sign as nobody that controllers know."""


def check() -> list[str]:
    """What an administrator is refused, and what anybody else is not."""
    controllers = partial(stack.our_controllers, settings=ADMINISTRATION)
    access = wire.Access(ROOT.access_key, ROOT.secret_key)
    with replicated_group.group("access-mqadmin", 2, controllers, access) as group:
        members = [group.add("ours", CHECKED) for _ in range(2)]
        until("a broker leads", lambda: group.panel.master(NAME) is not None, LEADS_SECONDS_MAX)
        group.wait_in_sync(*members)
        return asyncio.run(_answers(group))


async def _answers(group: Group) -> list[str]:
    names = group.servers.name_servers
    administrator = Peer(group.folder / "administrator", names)
    stranger = Peer(group.folder / "stranger", names, signs=False)
    problems = []
    for commands, where in (
        (OF_NAME_SERVERS, ("-n", names)),
        (OF_CONTROLLERS, ("-a", group.servers.addresses.split(";")[0])),
    ):
        for command, options, served in commands:
            text = await stranger.text("mqadmin", command, *where, *options)
            if bool(re.search(served, text)) != (command in SERVED_TO_ALL):
                problems.append(f"{command}, unsigned: {text.strip()[-600:]}")
            text = await administrator.text("mqadmin", command, *where, *options)
            if not re.search(served, text):
                problems.append(f"{command}: {served!r} is not in: {text.strip()[-600:]}")
    return problems
