"""Interop suite `access`: mqadmin and the standard Java client with a broker of ours that checks users, and with TLS alone."""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from brokerset_acl.signatures import Credentials
from brokerset_protocol.codes import RequestCode
from brokerset_rig import stack
from brokerset_rig.certificates import Certificates
from brokerset_rig.golden import differences
from brokerset_rig.ledger_tls_suite import members_of_both_makes
from brokerset_rig.local_servers import HOST, Client, running_broker, running_name_server
from brokerset_rig.other_clients import NAMES, run_client
from brokerset_rig.waiting import until
from brokerset_runtime.remoting import connect
from brokerset_runtime.tls import Tls

Add = Callable[[str, list[str], float], None]
SECONDS_MAX = 120.0
COUNT = 20
ROOT = Credentials("root", "root-key")

ADMINISTRATION = {
    "authenticationEnabled": "true",
    "initAuthenticationUser": json.dumps({"username": ROOT.access_key, "password": ROOT.secret_key}),
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": ROOT.access_key, "secretKey": ROOT.secret_key}
    ),
}
CHECKED = {**ADMINISTRATION, "authorizationEnabled": "true"}
"""Of controllers and name servers whose users `ROOT` administers, and of brokers there."""


def java_options(certificates: Certificates, name: str) -> str:
    """TLS of a Java client that shows a certificate."""
    values = {
        "enable": "true",
        "test.mode.enable": "false",
        "client.authServer": "true",
        "client.trustCertPath": certificates.folder / "authority.pem",
        "client.certPath": certificates.folder / f"{name}.pem",
        "client.keyPath": certificates.folder / f"{name}.key",
    }
    return " ".join(f"-Dtls.{key}={value}" for key, value in values.items())


class Peer:
    """Programs of Java that run next to the servers of this process, as one user of mqadmin, or as nobody."""

    def __init__(self, folder: Path, namesrv: str, options: str = "", *, signs: bool = True) -> None:
        self._environment = {
            **os.environ, "NAMESRV_ADDR": namesrv, "PEERS_RUN": str(folder), "CLIENT_HEAP": "256m",
            "JAVA_OPT_EXT": options,
        }  # fmt: skip
        self.namesrv = namesrv
        tools = folder / "client" / "conf" / "tools.yml"
        tools.parent.mkdir(parents=True, exist_ok=True)
        if signs:
            tools.write_text(f"accessKey: {ROOT.access_key}\nsecretKey: {ROOT.secret_key}\n")

    async def text(self, program: str, *arguments: str) -> str:
        """What a program prints."""
        process = await asyncio.create_subprocess_exec(
            str(stack.PEERS / "bin" / program), *arguments, env=self._environment,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        )  # fmt: skip
        async with asyncio.timeout(SECONDS_MAX):
            found, _ = await process.communicate()
        return found.decode(errors="replace")

    async def admin(self, command: str, *arguments: str) -> str:
        """What an mqadmin command prints."""
        return await self.text("mqadmin", command, "-n", self.namesrv, "-c", "DefaultCluster", *arguments)

    async def signed(self, secret: str, group: str = "g", count: int = COUNT) -> str:
        """What a producer and a push consumer print that sign as `app`."""
        return await self.text(
            "signed", "topic=orders", f"group={group}", "key=app", f"secret={secret}", f"count={count}"
        )


def unlike(text: str, *wanted: str) -> list[str]:
    """What is not in a text."""
    return [f"{each!r} is not in: {text.strip()[-600:]}" for each in wanted if not re.search(each, text)]


async def users_and_policies(folder: Path) -> list[str]:
    """mqadmin makes a user that may send and consume; the same user with another key may nothing."""
    async with (
        running_name_server(folder / "names") as names,
        running_broker(folder / "broker", **settings(names.port), authorization_enabled=True) as broker,
    ):
        await until(lambda: broker.registrar.registered)
        peer = Peer(folder, f"{HOST}:{names.port}")
        await create_topic(broker.port)
        acl = (
            "-s",
            "User:app",
            "-r",
            "Topic:or*,Group:g*",
            "-a",
            "Pub,Sub",
            "-d",
            "Allow",
            "-i",
            "127.0.0.0/8",
        )
        problems = unlike(await peer.admin("createUser", "-u", "app", "-p", "k"), "create user to .* success")
        problems += unlike(await peer.admin("createAcl", *acl), "create acl to .* success")
        problems += unlike(
            await peer.admin("listUser"), r"app\s+k\s+Normal\s+enable", r"root\s+root-key\s+Super"
        )
        problems += unlike(
            await peer.admin("listAcl"), r"User:app\s+Custom\s+Topic:or\*\s+\[Pub, Sub\]\s+\[127.0.0.0/8\]"
        )
        problems += unlike(await peer.signed("k"), f"consumed {COUNT}")
        problems += unlike(await peer.signed("wrong", count=1), "refused")
        problems += unlike(await peer.admin("deleteUser", "-u", "app"), "delete user to .* success")
        if "app" in broker.access.book.users or broker.access.book.acls:
            problems.append("the user or the policies are there still")
        return problems


async def other_makes(folder: Path) -> list[str]:
    """The clients of C++ and Node do what they do without users, as a user who may; with another key they do nothing.

    They have no TLS: servers are permissive, and speak TLS with each other and with who administers.
    """
    file = Certificates(folder / "certificates").config(tls_server_mode="permissive")
    async with (
        running_name_server(folder / "names", tls_config_file=file) as names,
        running_broker(
            folder / "broker", **settings(names.port), authorization_enabled=True, tls_config_file=file
        ) as broker,
    ):
        await until(lambda: broker.registrar.registered)
        await create_topic(broker.port, Tls(file))
        await create_user(broker.port)
        problems: list[str] = []
        for make, name in NAMES.items():
            await give_rights(broker.port, "Topic:orders", f"Group:{make}-*")
            namesrv = f"{HOST}:{names.port}"
            got = await asyncio.to_thread(run_client, make, folder, namesrv, "orders", **keys("k"))
            problems += [f"{name}: {each}" for each in differences(f"client-{make}", got)]
            got = await asyncio.to_thread(run_client, make, folder, namesrv, "orders", **keys("wrong"))
            if got.get("ok") or got.get("consumed") or got.get("sync") or got.get("sent"):
                problems.append(f"{name} with another key: {got}")
        return problems


async def tls_alone(folder: Path) -> list[str]:
    """Servers that take TLS with certificates alone: the Java client gets through with one, and not without."""
    certificates = Certificates(folder / "certificates")
    certificates.issue("app")
    file = certificates.config(
        tls_server_need_client_auth="require", tls_server_trustCertPath="authority.pem",
        tls_client_certPath="both.pem", tls_client_keyPath="both.key",
    )  # fmt: skip
    async with (
        running_name_server(folder / "names", tls_config_file=file) as names,
        running_broker(folder / "broker", **settings(names.port), tls_config_file=file) as broker,
    ):
        await until(lambda: broker.registrar.registered)
        await create_topic(broker.port, Tls(file))
        await create_user(broker.port, Tls(file))
        namesrv = f"{HOST}:{names.port}"
        with_tls = Peer(folder, namesrv, java_options(certificates, "app"))
        problems = unlike(await with_tls.signed("k"), f"consumed {COUNT}")
        return problems + unlike(await Peer(folder, namesrv).signed("k", count=1), "refused")


def settings(namesrv_port: int) -> dict[str, object]:
    """Of a broker that asks for signatures, and knows root; app is known where nobody makes it."""
    return {
        "namesrv_addr": f"{HOST}:{namesrv_port}",
        "broker_ip1": HOST,
        "broker_cluster_name": "DefaultCluster",
        "authentication_enabled": True,
        "init_authentication_user": json.dumps({"username": "root", "password": "root-key"}),
    }


def keys(secret: str) -> dict[str, str]:
    """What makes a client sign as `app`."""
    return {"ACCESS_KEY": "app", "SECRET_KEY": secret}


@asynccontextmanager
async def as_root(port: int, tls: Tls | None = None) -> AsyncIterator[Client]:
    """A client of the broker that may do everything."""
    connection = await connect(f"{HOST}:{port}", sign=ROOT.sign, tls=tls)
    try:
        yield Client(connection)
    finally:
        connection.close()
        await connection.wait_closed()


async def create_topic(port: int, tls: Tls | None = None) -> None:
    """Create the topic."""
    async with as_root(port, tls) as client:
        await client.create_topic("orders")


async def create_user(port: int, tls: Tls | None = None) -> None:
    """Create the user `app`."""
    async with as_root(port, tls) as client:
        body = json.dumps({"password": "k"}).encode()
        assert (await client.call(RequestCode.AUTH_CREATE_USER, body, username="app")).code == 0


async def give_rights(port: int, *resources: str, tls: Tls | None = None) -> None:
    """Let `app` send and consume."""
    entries = [{"resource": each, "actions": ["Pub", "Sub"], "decision": "Allow"} for each in resources]
    body = json.dumps({"subject": "User:app", "policies": [{"entries": entries}]}).encode()
    async with as_root(port, tls) as client:
        found = await client.call(RequestCode.AUTH_CREATE_ACL, body, subject="User:app")
        assert found.code == 0, found


def suite(add: Add) -> None:
    """Users and policies, then TLS."""
    for what, check in (
        ("mqadmin and Java's client with users and policies", users_and_policies),
        ("clients of C++ and Node that sign, without TLS at permissive servers", other_makes),
        ("Java's client with TLS and certificates", tls_alone),
        ("a DLedger of Java and of ours, with TLS among its members", members_of_both_makes),
    ):
        with stack.Workspace("access") as folder:
            began = time.monotonic()
            problems = asyncio.run(check(folder))
            add(what, problems, time.monotonic() - began)
