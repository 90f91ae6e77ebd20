"""Controllers and name servers that check who administers: a real set, its own programs, and an outsider."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from brokerset_acl.server_rules import CONTROLLER_RULES, NAMESRV_RULES
from brokerset_acl.signatures import Credentials
from brokerset_client import Message
from brokerset_client.instance import ClientInstance
from brokerset_client.ordered import OrderedClient
from brokerset_protocol.codes import RequestCode
from brokerset_rig import stack, wire
from brokerset_rig.controllers import loads, until
from brokerset_rig.local_set import LocalSet, local_set

pytestmark = pytest.mark.long

MANIFEST = """
apiVersion: brokerset.io/v1alpha1
kind: BrokerSet
metadata: {name: orders}
spec:
  replicas: 2
  controllers: {replicas: 1}
  config: {authorizationEnabled: true, authenticationEnabled: true, mappedFileSizeCommitLog: 16777216}
"""
OF_SERVERS = {
    "BROKERSET_SET_authenticationEnabled": "true",
    "BROKERSET_SET_initAuthenticationUser": json.dumps({"username": "root", "password": "root-password"}),
    "BROKERSET_SET_innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": "broker", "secretKey": "broker-password"}
    ),
}
ENVIRONMENT = {**OF_SERVERS, "BROKERSET_ACCESS_KEY": "root", "BROKERSET_SECRET_KEY": "root-password"}
ROOT = wire.Access("root", "root-password")
NO_PERMISSION = 16
NOT_SUPPORTED = 3


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSet]:
    """A controller with a name server, and a group of two; the environment has an administrator."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ENVIRONMENT.items():
            patch.setenv(name, value)
        with local_set(tmp_path_factory.mktemp("administration"), MANIFEST) as started:
            started.until_healthy()
            yield started


@pytest.fixture
def nobody_around(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a user in the environment, which processes would sign as, and without settings in it."""
    for name in ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)


def ports(running: LocalSet) -> tuple[int, int]:
    """Of the controller and of its name server."""
    (controller,) = running.processes("controller").values()
    return int(controller["address"].rpartition(":")[2]), int(controller["namesrv"].rpartition(":")[2])


@pytest.mark.parametrize(
    ("access", "reason"),
    [
        (None, "username cannot be null."),
        (wire.Access("mallory", "m"), "User:mallory is not found."),
        (wire.Access("root", "wrong"), "check signature failed."),
        (wire.Access("broker", "root-password"), "check signature failed."),
    ],
    ids=["unsigned", "unknown", "another password", "somebody else's password"],
)
def test_an_outsider_is_refused_whatever_is_not_for_clients(
    running: LocalSet, access: wire.Access | None, reason: str
) -> None:
    """Every code that is served, at the controller and at the name server, with the reason and what to do."""
    refused = set()
    for port, rules in zip(ports(running), (CONTROLLER_RULES, NAMESRV_RULES), strict=True):
        open_codes = rules.open_to_all(authorizes=False)
        with wire.Client(port, access=access) as client:
            for code in RequestCode:
                if code in open_codes:
                    continue
                answer = client.call(code, {"brokerName": "orders-0", "topic": "t"})
                assert answer.code in (NO_PERMISSION, NOT_SUPPORTED), (code, answer)
                if answer.code == NO_PERMISSION:
                    refused.add(code)
                    assert answer.remark is not None
                    assert answer.remark.startswith(reason)
                    assert "initAuthenticationUser" in answer.remark

    assert {
        RequestCode.REGISTER_BROKER, RequestCode.UNREGISTER_BROKER, RequestCode.PUT_KV_CONFIG,
        RequestCode.WIPE_WRITE_PERM_OF_BROKER, RequestCode.CONTROLLER_ELECT_MASTER,
        RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET, RequestCode.CONTROLLER_REGISTER_BROKER,
        RequestCode.BROKER_HEARTBEAT, RequestCode.CLEAN_BROKER_DATA, RequestCode.BROKERSET_CHANGE_MEMBERS,
        RequestCode.BROKERSET_CREATE_SUBJECT,
    } <= refused  # fmt: skip


def test_a_client_finds_its_broker_whoever_signs(running: LocalSet) -> None:
    """Clients sign everything with names that only brokers know."""
    running("topic", "create", "found")
    _, name_server = ports(running)
    for access in (None, wire.Access("app", "k")):
        with wire.Client(name_server, access=access) as client:
            answer = client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "found"})
            assert answer.code == 0, answer


def test_brokers_sign_as_their_settings_say(tmp_path: Path, nobody_around: None) -> None:
    """Without a user in the environment; with wrong credentials, or none, no broker gets into the routes."""
    names = ("right", "none", "wrong")
    places = stack.free_ports(1 + len(names), below=2)
    name_server = stack.our_namesrv(tmp_path / "names", places[0])
    name_server.environment.update(OF_SERVERS)
    inner = "innerClientAuthenticationCredentials"
    credentials = {
        "right": {inner: OF_SERVERS[f"BROKERSET_SET_{inner}"]},
        "none": {},
        "wrong": {inner: json.dumps({"accessKey": "broker", "secretKey": "guessed"})},
    }
    with ExitStack() as running:
        running.enter_context(name_server)
        for name, port in zip(names, places[1:], strict=True):
            settings = {"brokerName": name, **credentials[name]}
            running.enter_context(stack.our_broker(tmp_path / name, port, name_server.address, settings))
        seen = until("the right broker is registered", lambda: brokers(name_server.port), 30)
        denied = until("the others are refused", lambda: denials(name_server.log) >= 2, 30)
    assert seen == {"right"}
    assert denied


def brokers(port: int) -> set[str]:
    """Names of the brokers that a name server knows."""
    with wire.Client(port, access=ROOT) as client:
        answer = client.call(RequestCode.GET_BROKER_CLUSTER_INFO, {})
    return set(loads(answer.body)["brokerAddrTable"])


def denials(log: Path) -> int:
    """Lines of refusals."""
    return log.read_text().count('"request denied"')


async def test_who_may_send_and_consume_uses_an_ordered_subject_and_creates_none(running: LocalSet) -> None:
    """A client of ordered subjects signs as a user of the brokers alone; what it names must be there."""
    running("subject", "create", "orders", "--partitions", "1")
    running("user", "create", "app", stdin="app-key\napp-key\n")
    running("acl", "allow", "app", "Topic:*", "Group:*", "--action", "Pub", "--action", "Sub")
    controller, name_server = ports(running)
    credentials = Credentials("app", "app-key")
    async with ClientInstance(f"127.0.0.1:{name_server}", credentials=credentials) as instance:
        client = OrderedClient(instance=instance)
        async with client, client.producer() as producer:
            await producer.send(Message(topic="orders", body=b"first"), key="k")
            with pytest.raises(Exception, match="unborn"):
                await producer.send(Message(topic="unborn", body=b"x"), key="k")
    output = running("consume", "orders", "--ordered", "--group", "g", "--count", "1").stdout
    assert "first" in output
    with wire.Client(controller) as outsider:
        asked = {"subject": "unborn", "create": "true"}
        assert outsider.call(RequestCode.BROKERSET_SUBJECT_ROUTE, asked).code != 0
    assert "unborn" not in running("subject", "list").stdout


def test_settings_are_changed_by_administrators_and_never_who_they_are(running: LocalSet) -> None:
    """The names and passwords in force stay in force, and in no answer."""
    controller, name_server = ports(running)
    for port, code, change in (
        (name_server, RequestCode.UPDATE_NAMESRV_CONFIG, b"enableTopicList=true"),
        (controller, RequestCode.UPDATE_CONTROLLER_CONFIG, b"requestTimeout=3000"),
    ):
        with wire.Client(port, access=ROOT) as client:
            answer = client.call(code, {}, change)
            assert answer.code == 0, answer
            for late in (b"authenticationEnabled=false", b"initAuthenticationUser=x"):
                answer = client.call(code, {}, late)
                assert answer.code == NO_PERMISSION
                assert "only be set at the start" in str(answer.remark)


def test_a_set_without_a_user_in_its_environment_gets_ready_and_its_controller_signs_for_brokers(
    tmp_path: Path, nobody_around: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its probes sign as its brokers do; no broker refuses what it hears of a new master."""
    for name, value in OF_SERVERS.items():
        monkeypatch.setenv(name, value)
    with local_set(tmp_path, MANIFEST) as started:  # it is up when all its processes are ready
        for name, value in ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        started.until_healthy()
        started("switchover", "orders-0")
        logs = {name: broker["log"] for name, broker in started.processes("broker").items()}
        denied = [name for name, path in logs.items() if denials(Path(path))]
    assert not denied


def test_an_altered_request_of_an_administrator_is_refused(running: LocalSet) -> None:
    """One value is another one than was signed; what was there before is still there."""
    _, name_server = ports(running)
    entry = {"namespace": "tests", "key": "k", "value": "as signed"}
    signed = ROOT.sign(entry, b"")
    with wire.Client(name_server) as client:
        assert client.call(RequestCode.PUT_KV_CONFIG, signed).code == 0
        assert client.call(RequestCode.PUT_KV_CONFIG, {**signed, "value": "altered"}).code == NO_PERMISSION
        found = client.call(RequestCode.GET_KV_CONFIG, {"namespace": "tests", "key": "k"})
    assert found.ext["value"] == "as signed"


def test_brokers_hear_of_a_new_master_at_once_and_messages_come_through(running: LocalSet) -> None:
    """The controller signs what it asks of brokers, which check it, too."""
    running("topic", "create", "after")
    done = running("switchover", "orders-0")
    assert "is master now" in done.stdout
    running("send", "after", "--body", "hello")
    assert "hello" in running("consume", "after", "--group", "g", "--count", "1").stdout


def test_the_password_is_in_no_log_and_no_answer(running: LocalSet) -> None:
    """Neither in files of the set nor in what `getControllerConfig` and `getNamesrvConfig` show."""
    codes = (RequestCode.GET_CONTROLLER_CONFIG, RequestCode.GET_NAMESRV_CONFIG)
    for port, code in zip(ports(running), codes, strict=True):
        with wire.Client(port, access=ROOT) as client:
            answer = client.call(code, {})
            assert answer.code == 0
            assert b"-password" not in answer.body
    logs = [path for path in (running.data / "logs").iterdir() if path.suffix == ".log"]
    assert logs
    assert not [path for path in logs if "-password" in path.read_text()]
