"""Each cell of the tables of ports in docs/security.md, tried from outside by somebody who is nobody there."""

from __future__ import annotations

import asyncio
import json
import re
import socket
import ssl
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from brokerset_broker.member.dledger import ledger_member
from brokerset_cli.set_acl import administrator_file, settings_file
from brokerset_cli.set_tls import processes_file
from brokerset_client import Message, Producer
from brokerset_client.errors import ClientError
from brokerset_protocol.codes import RequestCode
from brokerset_rig import ledger_brokers, wire
from brokerset_rig.certificates import Certificates
from brokerset_rig.fake_kube import FakeKube
from brokerset_rig.ledger_brokers import patient_config
from brokerset_rig.listening import listening
from brokerset_rig.local_servers import running_name_server
from brokerset_rig.local_set import LocalSet, local_set
from brokerset_rig.operator_parts import operator
from brokerset_rig.outsider import CLOSED, ENDED, SECONDS_MAX, Outsider, outcome
from brokerset_rig.outsider_attempts import KV_ENTRY, PORTS, Target, make_topic, registered_elsewhere
from brokerset_rig.set_certificates import SetCertificates
from brokerset_rig.stack import free_port
from brokerset_rig.waiting import until
from brokerset_runtime.remoting.signing import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE
from brokerset_runtime.tls import ENVIRONMENT_VARIABLE
from brokerset_spec.plan import SECOND_PORT_OFFSET

PAGE: Final = Path(__file__).parents[2] / "docs" / "security.md"
PLAIN, TLS, USERS, CERTIFICATES = SETTINGS = (
    "everything off", "TLS alone", "TLS and users", "TLS that asks for certificates",
)  # fmt: skip
"""Columns of the table, and the settings of a set for each."""

LEDGER, EXTERNAL, OPERATOR = "40911", "9879", "8080 of the operator"
OF_SETS: Final = tuple(port for port in PORTS if port not in (LEDGER, EXTERNAL, OPERATOR))

BODY, PASSWORD = "for readers alone", "key-of-app"
INNER: Final = json.dumps({"accessKey": "inner", "secretKey": "key-of-inner"})
MANIFEST: Final = """
apiVersion: brokerset.io/v1alpha1
kind: BrokerSet
metadata: {name: ports}
spec:
  replicas: 2
  controllers: {replicas: 3}
  config:
    mappedFileSizeCommitLog: 16777216
    maxHashSlotNum: 1000
    maxIndexNum: 4000
    storeStreamEnable: true
"""


# What the page says.


def table(column: str) -> dict[str, dict[str, str]]:
    """The rows of the table that has the column, by their first cells."""
    section = PAGE.read_text().split("\n## Ports\n")[1].split("\n## ")[0]
    for block in re.findall(r"(?:^\|.*\n)+", section, re.M):
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in block.splitlines()]
        if column in cells[0]:
            return {row[0]: dict(zip(cells[0], row, strict=True)) for row in cells[2:]}
    raise AssertionError(f"no table of the section has the column {column!r}")


def said(port: str, setting: str) -> set[str]:
    """The outcomes that a cell names."""
    return set(re.findall(r"\bopen\b|\bclosed\b|\bcode \d+\b", table(setting)[port][setting]))


def test_every_row_and_column_is_tried() -> None:
    """Who adds a port or a setting to the page adds what an outsider tries there."""
    assert list(table("who is checked")) == list(table(PLAIN)) == list(PORTS)
    assert all(tuple(row) == ("port", *SETTINGS) for row in table(PLAIN).values())


def tried(port: str, target: Target, outsider: Outsider) -> set[str]:
    """The outcomes of all that is tried at all addresses of a row."""
    addresses = PORTS[port].addresses(target)
    assert addresses
    return {
        outcome(partial(attempt, outsider, address, target))
        for attempt in PORTS[port].attempts
        for address in addresses
    }


def check(port: str, setting: str, target: Target, *, plain: str) -> None:
    """Try a cell; `plain` is what comes of plain text where there is TLS."""
    if setting == PLAIN:
        assert tried(port, target, Outsider(by_tls=False)) == said(port, setting)
        return
    assert tried(port, target, Outsider(by_tls=False)) == {plain}
    assert tried(port, target, Outsider(by_tls=True)) == said(port, setting)


# Sets that `brokerset up` runs.


@dataclass(frozen=True, slots=True)
class Attacked:
    """A set and what an outsider wants of it."""

    local: LocalSet
    setting: str
    target: Target
    slave: str
    """Remoting port of a slave."""


@pytest.fixture(scope="module")
def attacked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Attacked]:
    """A set with the settings of a column, a message and, where they are checked, a user."""
    setting: str = request.param
    folder = tmp_path_factory.mktemp("ports")
    manifest, options = MANIFEST, [] if setting == PLAIN else ["--tls"]
    with pytest.MonkeyPatch.context() as patch:
        for name in (ENVIRONMENT_VARIABLE, ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE):
            patch.delenv(name, raising=False)
        if setting == USERS:
            token = folder / "token"
            token.touch(0o600)
            token.write_text("of-readers")
            manifest += f"    storeStreamTokenFile: {token}\n"
            options.append("--acl")
        with local_set(folder, manifest, *options) as local:
            if setting == USERS:
                user, password = administrator_of(local)
                patch.setenv(ACCESS_KEY_VARIABLE, user)
                patch.setenv(SECRET_KEY_VARIABLE, password)
            if setting != PLAIN:
                patch.setenv(ENVIRONMENT_VARIABLE, str(processes_file(local.data)))
            found = Attacked(local, setting, *target_in(local))
            local("topic", "create", "orders", "--queues", "1")
            local("send", "orders", "--body", BODY)
            patch.setenv("BROKERSET_PASSWORD", PASSWORD)
            local("user", "create", "app")
            if setting == CERTIFICATES:
                ask_for_certificates(found)
            yield found


def administrator_of(local: LocalSet) -> tuple[str, str]:
    """Name and password, as `up --acl` has made them."""
    found = dict(re.findall(r"(?m)^(\w+): (\S+)$", administrator_file(local.data).read_text()))
    return found["accessKey"], found["secretKey"]


def target_in(local: LocalSet) -> tuple[Target, str]:
    """The addresses of a set that is whole, and that of a slave."""
    (group,) = local.until_whole(2)["groups"]
    brokers, controllers = local.processes("broker"), local.processes("controller").values()
    (master,) = (brokers[each["process"]] for each in group["replicas"] if each["role"] == "master")
    (slave,) = (each for each in brokers.values() if each is not master)
    host, _, port = master["address"].rpartition(":")

    def http(processes: Any) -> tuple[str, ...]:
        return tuple(f"{host}:{each['httpPort']}" for each in processes)

    target = Target(
        cluster=local.state()["clusterName"],
        group=group["brokerName"],
        topic="orders",
        body=BODY.encode(),
        password=PASSWORD.encode(),
        remoting=(master["address"], f"{host}:{int(port) - SECOND_PORT_OFFSET}"),
        ha=(master["ha"],),
        slave_id=next(each["brokerId"] for each in group["replicas"] if each["role"] == "slave"),
        broker_http=http(brokers.values()),
        name_servers=tuple(each["namesrv"] for each in controllers),
        raft=tuple(each["raft"] for each in controllers),
        controllers=tuple(each["address"] for each in controllers),
        controller_http=http(controllers),
    )
    return target, slave["address"]


def ask_for_certificates(found: Attacked) -> None:
    """Change the file of the running processes, which read it again, and wait until all have."""
    file = processes_file(found.local.data)
    file.write_text(file.read_text() + "tls.server.need.client.auth=require\n")
    outsider, target = Outsider(by_tls=True), found.target
    waiting = {*target.remoting, found.slave, *target.name_servers, *target.controllers}
    deadline = time.monotonic() + SECONDS_MAX
    while waiting := {a for a in waiting if outcome(partial(make_topic, outsider, a, target)) != CLOSED}:
        assert time.monotonic() < deadline, f"{waiting} ask for no certificates"
        time.sleep(0.1)


for_each_set = pytest.mark.parametrize("attacked", SETTINGS, indirect=True)


@for_each_set
def test_a_set_listens_on_loopback_alone_and_at_no_port_that_is_not_in_the_table(attacked: Attacked) -> None:
    """Unless `--host` says otherwise. Slaves have the ports of masters."""
    target = attacked.target
    known = {address for port in OF_SETS for address in PORTS[port].addresses(target)} | {*target.controllers}
    brokers = attacked.local.processes("broker").values()
    for each in brokers:
        host, _, port = each["address"].rpartition(":")
        known |= {each["address"], f"{host}:{int(port) - SECOND_PORT_OFFSET}", each["ha"]}

    found = set()
    for each in (*brokers, *attacked.local.processes("controller").values()):
        found |= listening(each["pid"])

    assert found == known
    assert {address.rpartition(":")[0] for address in found} == {"127.0.0.1"}


@pytest.mark.parametrize("attacked", [PLAIN, TLS], indirect=True)
def test_a_client_follows_a_forged_route_and_sends_there_unless_it_has_tls(
    attacked: Attacked, tmp_path: Path
) -> None:
    """A broker of the outsider sees the message. With TLS the client refuses it, for want of a certificate."""
    by_tls, target = attacked.setting == TLS, attacked.target
    name_server = target.name_servers[0]
    with (
        forged_broker(tmp_path if by_tls else None) as (address, received, refusals),
        registered_elsewhere(Outsider(by_tls), name_server, target, address),
        pytest.raises(ClientError),
    ):
        asyncio.run(send(name_server, b"for the broker alone"))

    assert (b"for the broker alone" in b"".join(received)) == (not by_tls)
    assert ("TLSV1_ALERT_UNKNOWN_CA" in refusals) == by_tls


async def send(name_server: str, body: bytes) -> None:
    """One message, as an application sends it."""
    async with Producer("shop", namesrv=name_server, timeout=2) as producer:
        await producer.send(Message(topic="orders", body=body))


@contextmanager
def forged_broker(certificates: Path | None) -> Iterator[tuple[str, list[bytes], list[str]]]:
    """A port that answers nothing, by TLS if there is a folder; what came, and why handshakes failed."""
    received: list[bytes] = []
    refusals: list[str] = []
    context = None
    if certificates is not None:
        Certificates(certificates, "the outsider's own").issue("forged")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificates / "forged.pem", certificates / "forged.key")

    def receive(connection: socket.socket) -> None:
        connection.settimeout(SECONDS_MAX)
        try:
            with connection if context is None else context.wrap_socket(connection, server_side=True) as link:
                while data := link.recv(1 << 16):
                    received.append(data)
        except ssl.SSLError as error:
            refusals.append(error.reason or "")
        except ConnectionError:
            connection.close()

    def serve(server: socket.socket) -> None:
        with suppress(OSError):  # closed
            while True:
                receive(server.accept()[0])

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        try:
            yield f"127.0.0.1:{server.getsockname()[1]}", received, refusals
        finally:
            server.shutdown(socket.SHUT_RDWR)
    thread.join(SECONDS_MAX)
    assert not thread.is_alive()


@pytest.mark.parametrize("attacked", [USERS], indirect=True)
def test_up_says_what_clients_need_and_only_the_owner_reads_what_is_secret(attacked: Attacked) -> None:
    """The properties of the Java client, whose files are there; how to make users; and no password."""
    data, text = attacked.local.data, attacked.local.said()

    (java,) = re.findall(
        r"(?m)^Clients need TLS: Java ones -Dtls\.enable=true -Dtls\.config\.file=(\S+)$", text
    )
    (tools,) = re.findall(r"(?m)^The administrator of mqadmin \(conf/tools\.yml\): (\S+)$", text)
    assert "Clients need users: brokerset user create NAME; brokerset acl allow NAME RESOURCE" in text
    named = dict(re.findall(r"(?m)^(tls\.[\w.]+)=(.+)$", Path(java).read_text()))
    assert (named["tls.enable"], named["tls.client.authServer"]) == ("true", "true")
    assert Path(named["tls.client.trustCertPath"]).read_bytes().startswith(b"-----BEGIN CERTIFICATE-----")
    assert Path(named["tls.client.certPath"]).read_bytes().startswith(b"-----BEGIN CERTIFICATE-----")
    key = Path(named["tls.client.keyPath"])
    assert b"PRIVATE KEY-----" in key.read_bytes()
    assert {path.parent for path in (Path(java), key)} == {data.absolute() / "tls"}

    secret = [*(data / "tls").glob("*.key"), Path(tools), settings_file(data)]
    assert {path.name for path in secret} == {
        *(
            "authority.key",
            "client-authority.key",
            "client.key",
            "processes.key",
            "tools.yml",
            "settings.json",
        )
    }
    assert {path.name: f"{path.stat().st_mode & 0o777:o}" for path in secret} == {
        path.name: "600" for path in secret
    }
    assert {f"{(data / folder).stat().st_mode & 0o777:o}" for folder in ("tls", "acl")} == {"700"}
    user, password = administrator_of(attacked.local)
    assert user == "admin"
    assert password not in text
    assert password not in (data / "state.json").read_text()


@pytest.mark.parametrize("attacked", [USERS], indirect=True)
def test_who_signs_wrongly_is_refused_and_learns_which_users_there_are(attacked: Attacked) -> None:
    """At a master, and at a slave, which passes requests on to it."""
    outsider = Outsider(by_tls=True)
    for signed, remark in (
        ({}, "username cannot be null."),
        ({"AccessKey": "nobody", "Signature": "x"}, "User:nobody is not found."),
        ({"AccessKey": "app", "Signature": "x"}, "check signature failed."),
    ):
        for address in (*attacked.target.remoting, attacked.slave):
            with outsider.requests(address) as client:
                answer = client.call(RequestCode.SEND_MESSAGE_V2, wire.send_ext("orders", 0, "") | signed)
            assert (answer.code, answer.remark) == (16, remark), address


@pytest.mark.parametrize("port", OF_SETS)
@for_each_set
def test_an_outsider_gets_what_the_page_says_at_a_port_of_a_set(attacked: Attacked, port: str) -> None:
    """No more, and no less: what is open is used."""
    in_plain_text = ENDED if port in ("10912", "9877") or port.startswith("8080") else "code 16"

    check(port, attacked.setting, attacked.target, plain=in_plain_text)


# DLedger, name servers for clients outside, and the operator.


@asynccontextmanager
async def leader_of_ledger(folder: Path, setting: str) -> AsyncIterator[Target]:
    """The leader of a DLedger with the settings of a column; the message is in its log."""
    settings: dict[str, Any] = {}
    if setting != PLAIN:
        asked = {} if setting == CERTIFICATES else {"tls_server_need_client_auth": "none"}
        settings["tls_config_file"] = SetCertificates(folder / "tls").member(**asked).file
    if setting == USERS:
        settings |= {
            "authentication_enabled": True,
            "authorization_enabled": True,
            "inner_client_authentication_credentials": INNER,
        }
    async with ledger_brokers.group(folder / "group", **settings) as members:
        leader = await members.leader()
        leader.store.append(
            "orders", 0, BODY.encode(), b"", flag=0, sys_flag=0, born_timestamp=1, born_host=bytes(8)
        )
        await until(lambda: leader.store.queue_max("orders", 0) == 1)
        known = leader.settings
        address = known.dledger_addresses()[known.dledger_self_id]
        yield Target(group=known.broker_name, body=BODY.encode(), ledger=(address,))


@pytest.mark.parametrize("setting", SETTINGS)
async def test_an_outsider_gets_what_the_page_says_at_a_port_of_a_dledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, setting: str
) -> None:
    """The log, and the leader, with everything off."""
    monkeypatch.setattr(ledger_member, "node_config", patient_config)
    async with leader_of_ledger(tmp_path, setting) as target:
        await asyncio.to_thread(check, LEDGER, setting, target, plain="code 16")


@pytest.mark.parametrize("setting", SETTINGS)
async def test_an_outsider_gets_what_the_page_says_at_a_port_for_clients_outside(
    tmp_path: Path, setting: str
) -> None:
    """Reads, and nothing that changes anything, whatever the settings."""
    namespace, key, value = KV_ENTRY
    entries = tmp_path / "entries.json"
    entries.write_text(json.dumps({"configTable": {namespace: {key: value}}}))
    addresses = tmp_path / "outside.json"
    addresses.write_text("{}")
    settings: dict[str, Any] = {
        "kv_config_path": entries,
        "external_listen_port": free_port(),
        "external_addresses_path": addresses,
    }
    if setting != PLAIN:
        asked = {} if setting == CERTIFICATES else {"tls_server_need_client_auth": "none"}
        settings["tls_config_file"] = SetCertificates(tmp_path / "tls").member(**asked).file
    if setting == USERS:
        settings |= {
            "authentication_enabled": True,
            "authorization_enabled": True,
            "inner_client_authentication_credentials": INNER,
        }
    async with running_name_server(tmp_path, **settings) as server:
        target = Target(group="orders-0", external=(f"127.0.0.1:{server.external_port}",))
        await asyncio.to_thread(check, EXTERNAL, setting, target, plain="code 16")


@pytest.mark.parametrize("setting", SETTINGS)
async def test_an_outsider_gets_what_the_page_says_at_the_port_of_the_operator(
    tmp_path: Path, setting: str
) -> None:
    """Metrics and health: nobody is asked who reads them."""
    settings: dict[str, Any] = {"http_port": free_port(), "bind_address": "127.0.0.1"}
    if setting != PLAIN:
        asks = {"tls_server_need_client_auth": "require", "tls_server_trustCertPath": "authority.pem"}
        more = asks if setting == CERTIFICATES else {}
        settings["tls_config_file"] = Certificates(tmp_path).config("operator", **more)
    async with FakeKube() as kube, operator(kube, **settings) as one:
        await until(lambda: one.process.http_port)
        target = Target(operator_http=(f"127.0.0.1:{one.process.http_port}",))
        await asyncio.to_thread(check, OPERATOR, setting, target, plain=ENDED)
