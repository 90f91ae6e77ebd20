"""Interop suite `secure-set`: the standard Java client and mqadmin at a set of `brokerset up --tls --acl`.

TLS is enforcing, and brokers, controllers and name servers check users and policies. The programs of Java take what
the command prints and writes, as it stands: properties of TLS, and `tools.yml` of mqadmin.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from brokerset_cli.set_acl import FIRST_USER, settings_file
from brokerset_cli.set_tls import processes_file
from brokerset_rig import stack
from brokerset_rig.access_suite import COUNT, Add, Peer, unlike
from brokerset_rig.local_servers import HOST, running_broker, running_name_server
from brokerset_rig.local_set import FREE_PORTS, LocalSet

CLUSTER: Final = "shop"
MANIFEST: Final = f"""
apiVersion: brokerset.io/v1alpha1
kind: BrokerSet
metadata: {{name: secure}}
spec:
  clusterName: {CLUSTER}
  replicas: 2
  controllers: {{replicas: 1}}
  config:
    mappedFileSizeCommitLog: 16777216
    maxHashSlotNum: 1000
    maxIndexNum: 4000
"""
SET_SECONDS_MAX: Final = 120.0

PLAIN: Final = "connect to .* failed|RemotingConnectException|CODE: 16|RemotingSendRequestException"
"""What mqadmin prints when it does not use TLS."""


@dataclass(frozen=True, slots=True)
class Secured:
    """A set that runs, and who comes to it from outside."""

    local: LocalSet
    folder: Path
    options: str
    """Of a Java program, as `up` printed them."""
    credentials: Path
    """The file of mqadmin that `up` printed."""

    @property
    def name_servers(self) -> str:
        found: str = self.local.state()["namesrv"]
        return found

    @property
    def brokers(self) -> list[str]:
        """Addresses of all brokers."""
        return [each["address"] for each in self.local.processes("broker").values()]

    def peer(self, name: str, *, tls: bool = True, signs: bool = True) -> Peer:
        """Programs of Java that run in a folder of this name, mqadmin as administrator if it `signs`."""
        home = self.folder / name
        found = Peer(home, self.name_servers, self.options if tls else "", signs=False)
        if signs:
            shutil.copy(self.credentials, home / "client" / "conf" / "tools.yml")
        return found


@contextmanager
def secured(folder: Path) -> Iterator[Secured]:
    """A set with TLS and users, and what the command said about it."""
    local = LocalSet(folder / "data", SET_SECONDS_MAX)
    manifest = folder / "set.yaml"
    manifest.write_text(MANIFEST)
    try:
        said = local("up", "--detach", "-f", str(manifest), *FREE_PORTS, "--tls", "--acl").stdout
        options = re.search(r"Java ones (-D.*)$", said, re.M)
        credentials = re.search(r"conf/tools\.yml\): (.*)$", said, re.M)
        assert options is not None, said
        assert credentials is not None, said
        yield Secured(local, folder, options[1], Path(credentials[1]))
    finally:
        local.end()


async def administration(found: Secured) -> list[str]:
    """mqadmin makes, changes, shows, copies and deletes users and policies; Java's client gets what they say."""
    root, client = found.peer("administrator"), found.peer("client")
    problems: list[str] = []

    async def admin(command: str, *options: str, wanted: str = "", absent: str = "") -> str:
        text = await root.text("mqadmin", command, "-n", found.name_servers, *options)
        problems.extend(f"{command}: {each}" for each in unlike(text, *([wanted] if wanted else [])))
        if absent and re.search(absent, text):
            problems.append(f"{command}: {absent!r} is in: {text.strip()[-600:]}")
        return text

    async def clients(what: str, secret: str, wanted: str, count: int = 1) -> None:
        text = await client.signed(secret, "g1", count)
        problems.extend(f"client, {what}: {each}" for each in unlike(text, wanted))

    of_set, of_app, acl = ("-c", CLUSTER), ("-u", "app"), ("-s", "User:app")
    await admin("clusterList", wanted=rf"{CLUSTER}\s+\S+\s+0\s")
    await admin("updateTopic", *of_set, "-t", "orders", wanted="create topic to .* success")
    await admin("topicList", wanted=r"(?m)^orders$")

    await admin("createUser", *of_set, *of_app, "-p", "k", wanted="create user to .* success")
    await admin("listUser", *of_set, wanted=r"app\s+k\s+Normal\s+enable")
    refused = r"refused .*User:app has no permission to access Topic:orders from 127\.0\.0\.1"
    await clients("without rights", "k", refused)

    rights = ("-r", "Topic:orders,Group:g*", "-d", "Allow", "-i", "127.0.0.0/8")
    await admin("createAcl", *of_set, *acl, *rights, "-a", "Pub,Sub", wanted="create acl to .* success")
    await admin(
        "listAcl", *of_set, wanted=r"User:app\s+Custom\s+Topic:orders\s+\[Pub, Sub\]\s+\[127.0.0.0/8\]"
    )
    await clients("with rights", "k", f"consumed {COUNT}", COUNT)
    await clients("with another key", "wrong", "refused .*check signature failed")

    only_sub = ("-r", "Topic:orders", "-d", "Allow", "-a", "Sub")
    await admin("updateAcl", *of_set, *acl, *only_sub, wanted="update acl to .* success")
    await admin("getAcl", *of_set, *acl, wanted=r"Topic:orders\s+\[Sub\]")
    await clients("without the right to send", "k", refused)

    await admin("updateUser", *of_set, *of_app, "-s", "disable", wanted="update user to .* success")
    await admin("getUser", *of_set, *of_app, wanted=r"app\s+k\s+Normal\s+disable")
    await clients("disabled", "k", r"refused .*User:app is disabled")

    problems += await copies(found, root)

    await admin("deleteAcl", *of_set, *acl, "-r", "Topic:orders", wanted="delete acl to .* success")
    await admin("getAcl", *of_set, *acl, wanted=r"Group:g\*", absent="Topic:orders")
    await admin("deleteUser", *of_set, *of_app, wanted="delete user to .* success")
    await admin("listUser", *of_set, wanted=r"admin\s", absent=r"app\s+k")
    await admin("listAcl", *of_set, absent="User:app")
    return problems


async def copies(found: Secured, root: Peer) -> list[str]:
    """mqadmin copies a user and its policies to a broker that is not of the set, with the set's certificates."""
    data = found.local.data
    given = json.loads(settings_file(data).read_bytes())
    source = found.brokers[0]
    async with (
        running_name_server(found.folder / "names", tls_config_file=processes_file(data)) as names,
        running_broker(
            found.folder / "other",
            namesrv_addr=f"{HOST}:{names.port}",
            broker_ip1=HOST,
            authentication_enabled=True,
            authorization_enabled=True,
            init_authentication_user=given[FIRST_USER],
            tls_config_file=processes_file(data),
        ) as other,
    ):
        ways = ("-n", found.name_servers, "-f", source, "-t", f"{HOST}:{other.port}")
        text = await root.text("mqadmin", "copyUser", *ways, "-u", "app")
        problems = unlike(text, f"copy user of app from {source} to .* success")
        text = await root.text("mqadmin", "copyAcl", *ways, "-s", "User:app")
        problems += unlike(text, f"copy acl of User:app from {source} to .* success")
        book = other.access.book
        if "app" not in book.users or "User:app" not in book.acls:
            problems.append(
                f"the other broker has the users {list(book.users)} and policies of {list(book.acls)}"
            )
        return problems


async def refusals(found: Secured) -> list[str]:
    """Without TLS, or without a signature, mqadmin and Java's client get nothing."""
    problems: list[str] = []
    plain, unsigned = found.peer("plain", tls=False), found.peer("unsigned", signs=False)
    for command in ("clusterList", "topicList"):
        for peer, wanted in ((plain, PLAIN), (unsigned, "CODE: 16")):
            text = await peer.text("mqadmin", command, "-n", found.name_servers)
            problems += [f"{command}: {each}" for each in unlike(text, wanted)]
    for broker in found.brokers:
        text = await plain.text("mqadmin", "brokerStatus", "-n", found.name_servers, "-b", broker)
        problems += [f"brokerStatus of {broker}: {each}" for each in unlike(text, PLAIN)]
    return problems + unlike(await plain.signed("k", count=1), "refused")


def run(add: Add) -> None:
    """One set, and both parts of the suite."""
    with stack.Workspace("secure-set") as folder, secured(folder) as found:
        for what, part in (
            ("mqadmin administers users by TLS, and Java's client gets what they may", administration),
            ("Java's programs without TLS, or without a signature", refusals),
        ):
            began = time.monotonic()
            problems = asyncio.run(part(found))
            add(what, problems, time.monotonic() - began)
