"""`brokerset user …` and `brokerset acl …` against a broker of this process that checks requests."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from brokerset_cli.access import acl, user
from brokerset_rig.local_servers import HOST, running_broker, running_name_server
from brokerset_rig.waiting import until

PLAIN_ACL = """
globalWhiteRemoteAddresses: ["10.10.*.*"]
accounts:
  - accessKey: old
    secretKey: old-secret
    defaultTopicPerm: SUB
    topicPerms: ["orders=PUB|SUB"]
  - accessKey: app
    secretKey: another
"""


async def test_users_and_policies_by_commands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are made, shown without passwords, changed and removed; files of ACL 1.0 are carried over."""
    settings = {
        "authentication_enabled": True,
        "authorization_enabled": True,
        "init_authentication_user": json.dumps({"username": "root", "password": "root-key"}),
    }
    monkeypatch.setenv("BROKERSET_ACCESS_KEY", "root")
    monkeypatch.setenv("BROKERSET_SECRET_KEY", "root-key")
    async with (
        running_name_server(tmp_path / "names") as names,
        running_broker(
            tmp_path / "broker", namesrv_addr=f"{HOST}:{names.port}", broker_ip1=HOST, **settings
        ) as broker,
    ):
        await until(lambda: broker.registrar.registered)
        namesrv = ("--namesrv", f"{HOST}:{names.port}")

        async def run(command: click.Command, *arguments: str, **environment: str) -> Result:
            runner = CliRunner(env={**environment})
            return await asyncio.to_thread(runner.invoke, command, [*arguments, *namesrv])

        done = await run(user, "create", "app", BROKERSET_PASSWORD="app-key")
        assert (done.exit_code, "brokerset acl allow app" in done.output) == (0, True), done.output
        assert (
            await run(acl, "allow", "app", "Topic:or*", "--action", "pub", "--from", "10.0.0.0/8")
        ).exit_code == 0
        assert (await run(acl, "deny", "app", "Topic:orders", "--action", "All")).exit_code == 0
        wrong = await run(acl, "allow", "app", "orders", "--action", "pub")
        assert (wrong.exit_code, "is no resource" in wrong.output) == (2, True)
        rows = json.loads((await run(acl, "list", "app", "--json")).output)
        assert [(row["resource"], row["decision"], row["actions"], row["from"]) for row in rows] == [
            ("Topic:or*", "Allow", ["Pub"], ["10.0.0.0/8"]),
            ("Topic:orders", "Deny", ["All"], []),
        ]
        listed = await run(user, "list")
        assert "app" in listed.output
        assert "key" not in listed.output

        assert (await run(user, "password", "app", BROKERSET_PASSWORD="second")).exit_code == 0
        assert broker.access.book.users["app"].password == "second"

        done = await run(user, "password", "app", "--keep-former", "24h", BROKERSET_PASSWORD="third")
        assert "The former one is accepted until" in done.output
        former = broker.access.book.users["app"].former
        assert former is not None
        assert (former.password, former.until_ms > time.time() * 1_000 + 86_000_000) == ("second", True)
        listed = await run(user, "list")
        assert "not seen" in listed.output
        assert "second" not in listed.output
        rows = {row["name"]: row for row in json.loads((await run(user, "list", "--json")).output)}
        assert rows["app"]["formerUntil"] == former.until_ms
        assert "formerUntil" not in rows["root"]
        wrong = await run(user, "password", "app", "--keep-former", "31d", BROKERSET_PASSWORD="x")
        assert (wrong.exit_code, "0 to 30d" in wrong.output) == (2, True)
        same = await run(user, "password", "app", BROKERSET_PASSWORD="third")
        assert (same.exit_code, broker.access.book.users["app"].former) == (0, None)
        same = await run(user, "password", "app", "--keep-former", "1h", BROKERSET_PASSWORD="third")
        assert "warning" in same.output, "there is none to be kept"
        await run(user, "password", "app", "--keep-former", "1h", BROKERSET_PASSWORD="second")
        assert broker.access.book.users["app"].former is not None
        assert (await run(user, "drop-former", "app")).exit_code == 0
        assert broker.access.book.users["app"].former is None

        assert (await run(user, "disable", "app")).exit_code == 0
        assert broker.access.book.users["app"].status == "disable"
        assert (await run(user, "enable", "app")).exit_code == 0
        assert (await run(acl, "remove", "app", "Topic:orders")).exit_code == 0
        assert "Topic:orders" not in (await run(acl, "list")).output

        file = tmp_path / "plain_acl.yml"
        file.write_text(PLAIN_ACL)
        dry = await run(acl, "import", str(file), "--dry-run")
        assert "would create old (Normal) with 2 rules" in dry.output
        assert "old-secret" not in dry.output
        imported = await run(acl, "import", str(file))
        assert "1 user made: old" in imported.output
        assert broker.access.book.users["app"].password == "second", "who is there stays"
        assert len(broker.access.book.acls["User:old"].custom) == 1

        assert (await run(user, "delete", "app", "--yes")).exit_code == 0
        assert "app" not in broker.access.book.users
        refused = await run(user, "list", BROKERSET_ACCESS_KEY="nobody")
        assert refused.exit_code == 1
        assert "User:nobody is not found" in refused.output
