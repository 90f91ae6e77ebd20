"""A whole name server on a loopback port, spoken to like brokers, clients and mqadmin do."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
import zlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import orjson
import pytest

from brokerset_formats import fastjson
from brokerset_formats.config import DataVersion, TopicConfig
from brokerset_namesrv.app import NameServer
from brokerset_namesrv.kv_file import KvFileDamaged
from brokerset_protocol import headers
from brokerset_protocol.bodies.registration import RegisterBrokerBody, TopicConfigTable
from brokerset_protocol.bodies.routes import TopicRouteData
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_rig.local_servers import connected, running_name_server
from brokerset_runtime.remoting import Connection, RemotingServer
from brokerset_spec.namesrv_settings import NamesrvSettings

SECONDS_MAX = 10.0
MASTER = "127.0.0.1:10911"
SLAVE = "127.0.0.1:11911"
TOPICS = ("TBW102", "orders")
NAMESRV_CODES = (
    *range(100, 107),
    205,
    206,
    216,
    217,
    219,
    224,
    304,
    311,
    312,
    313,
    318,
    319,
    322,
    327,
    901,
    904,
)


async def ask(peer: Connection, code: int, ext: dict[str, str] | None = None, body: bytes = b"") -> Command:
    """The answer to one request."""
    return await peer.call(Command(code, ext or {}, body), SECONDS_MAX)


def header(broker_id: int = 0, address: str = MASTER, **more: object) -> dict[str, str]:
    """Header fields of a registration."""
    return headers.RegisterBroker(
        broker_name="broker-a",
        broker_addr=address,
        cluster_name="DefaultCluster",
        ha_server_addr=address + "2",
        broker_id=broker_id,
        **more,  # type: ignore[arg-type]  # names and types of fields
    ).to_ext()


def body_of(names: tuple[str, ...] = TOPICS, counter: int = 1) -> RegisterBrokerBody:
    """A registration of these topics."""
    topics = {name: TopicConfig(name, 4, 4) for name in names}
    return RegisterBrokerBody(TopicConfigTable(DataVersion(counter, 0, 1), topics))


async def register(
    peer: Connection,
    broker_id: int = 0,
    address: str = MASTER,
    names: tuple[str, ...] = TOPICS,
    **more: object,
) -> Command:
    """Register a broker."""
    body = body_of(names).to_json()
    return await ask(peer, RequestCode.REGISTER_BROKER, header(broker_id, address, **more), body)


async def route(peer: Connection, topic: str = "orders") -> Command:
    """Ask for a route."""
    return await ask(peer, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic})


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again until it is so, under a time-out."""
    async with asyncio.timeout(SECONDS_MAX):
        while not await condition():  # noqa: ASYNC110  # only an answer can tell
            await asyncio.sleep(0.005)


def get(server: NameServer, path: str) -> tuple[int, str]:
    """Status and text of an HTTP request."""
    try:
        with urllib.request.urlopen(
            f"http://127.0.0.1:{server.http_port}{path}", timeout=SECONDS_MAX
        ) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


# -- brokers and routes -------------------------------------------------------------------------------------


async def test_a_registered_broker_is_in_the_routes(tmp_path: Path) -> None:
    """Registration over a socket, and the route that a client gets."""

    async with (
        running_name_server(tmp_path) as server,
        connected(server.port) as broker,
        connected(server.port) as client,
    ):
        assert (await route(client)).code == ResponseCode.TOPIC_NOT_EXIST

        assert (await register(broker)).code == ResponseCode.SUCCESS
        slave = await register(broker, 2, SLAVE)

        assert (slave.ext["masterAddr"], slave.ext["haServerAddr"]) == (MASTER, MASTER + "2")
        answer = await route(client)
        found = TopicRouteData.from_json(answer.body)
        assert answer.code == ResponseCode.SUCCESS
        assert found.broker_datas[0].broker_addrs == {0: MASTER, 2: SLAVE}
        assert found.queue_datas[0].write_queue_nums == 4


async def test_the_route_goes_with_the_connection(tmp_path: Path) -> None:
    """A broker whose connection ends is out of the routes at once, whatever its time-out."""

    async with running_name_server(tmp_path) as server, connected(server.port) as client:
        async with connected(server.port) as broker:
            await register(broker, heartbeat_timeout_millis=3_600_000)
            assert (await route(client)).code == ResponseCode.SUCCESS

        async def gone() -> bool:
            return (await route(client)).code == ResponseCode.TOPIC_NOT_EXIST

        await until(gone)
        _, text = await asyncio.to_thread(get, server, "/metrics")
        assert 'brokerset_namesrv_brokers_left_total{reason="disconnected"} 1.0' in text


async def test_a_silent_broker_expires_and_its_connection_is_closed(tmp_path: Path) -> None:
    """A broker that neither registers nor beats within its own time-out leaves; the others stay."""

    async with (
        running_name_server(tmp_path, scan_not_active_broker_interval=10) as server,
        connected(server.port) as broker,
        connected(server.port) as other,
        connected(server.port) as client,
    ):
        await register(broker, heartbeat_timeout_millis=100)
        await register(other, 2, SLAVE)

        async def gone() -> bool:
            addresses = TopicRouteData.from_json((await route(client)).body).broker_datas[0].broker_addrs
            return addresses == {2: SLAVE}

        await until(gone)
        async with asyncio.timeout(SECONDS_MAX):
            await broker.wait_closed()
        assert other.is_open


async def test_heartbeats_keep_a_broker(tmp_path: Path) -> None:
    """904 and 322 are signs of life: the broker outlives its time-out more than twice."""

    ext = {"clusterName": "DefaultCluster", "brokerAddr": MASTER, "brokerName": "broker-a", "brokerId": "0"}
    async with (
        running_name_server(tmp_path, scan_not_active_broker_interval=10) as server,
        connected(server.port) as broker,
    ):
        await register(broker, heartbeat_timeout_millis=1000)
        loop = asyncio.get_running_loop()
        end = loop.time() + 2.2
        while loop.time() < end:
            assert (await ask(broker, RequestCode.BROKER_HEARTBEAT, ext)).code == ResponseCode.SUCCESS
            version = fastjson.dumps(DataVersion(1, 0, 1).to_json())
            assert (await ask(broker, RequestCode.QUERY_DATA_VERSION, ext, version)).ext["changed"] == "false"
            await asyncio.sleep(0.02)
        assert (await route(broker)).code == ResponseCode.SUCCESS


async def test_data_version_tells_whether_to_register(tmp_path: Path) -> None:
    """322 answers whether the topics differ, and which version is known."""

    ext = {"clusterName": "DefaultCluster", "brokerAddr": MASTER, "brokerName": "broker-a", "brokerId": "0"}
    async with running_name_server(tmp_path) as server, connected(server.port) as broker:
        unknown = await ask(broker, RequestCode.QUERY_DATA_VERSION, ext, b'{"counter":1}')
        await register(broker)
        other = await ask(broker, RequestCode.QUERY_DATA_VERSION, ext, b'{"counter":2,"timestamp":1}')
        broken = await ask(broker, RequestCode.QUERY_DATA_VERSION, ext, b"[")
        slow = await ask(broker, RequestCode.QUERY_DATA_VERSION, ext, b'{{"a":1}:2}')

        assert (unknown.ext["changed"], unknown.body) == ("true", b"")
        assert other.ext["changed"] == "true"
        assert orjson.loads(other.body) == {"counter": 1, "stateVersion": 0, "timestamp": 1}
        assert broken.code == slow.code == ResponseCode.SYSTEM_ERROR


async def test_all_forms_of_registration_are_read(tmp_path: Path) -> None:
    """Plain, compressed, with unquoted keys, before 3.0.11, with a binary header, without a body."""

    async with running_name_server(tmp_path) as server, connected(server.port) as broker:
        compressed, crc = body_of(("a", "b")).to_body(compressed=True)
        bare = orjson.dumps(body_of(("e", "f"), 2).topic_config.to_object())
        unquoted = (
            b'{"topicConfigSerializeWrapper":'
            + orjson.dumps(body_of(("c", "d"), 3).topic_config.to_object()).replace(
                b'"topicQueueMappingDetailMap":{}', b'"topicQueueMappingDetailMap":{0:{1:"x"}}'
            )
            + b"}"
        )
        code = RequestCode.REGISTER_BROKER
        old = Command(code, header(), bare, version=36)

        answers = [
            await ask(broker, code, header(compressed=True, body_crc32=crc), compressed),
            await ask(broker, code, header(body_crc32=zlib.crc32(unquoted) & 0x7FFFFFFF), unquoted),
            await broker.call(old, SECONDS_MAX),
            await broker.call(
                Command(code, header(), body_of(("g", "h"), 4).to_json(), binary=True), SECONDS_MAX
            ),
            await ask(broker, code, header()),
        ]

        assert [answer.code for answer in answers] == [0] * 5
        listed = await ask(broker, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        assert orjson.loads(listed.body) == {"topicList": list("abcdefgh")}


async def test_bad_registrations_are_refused_with_a_reason_and_harm_nobody(tmp_path: Path) -> None:
    """Damaged, malformed and impossible registrations change nothing; the connection lives on."""

    async with running_name_server(tmp_path) as server, connected(server.port) as broker:
        code = RequestCode.REGISTER_BROKER
        good = body_of().to_json()
        nameless = header()
        del nameless["brokerName"]
        bad = [
            (header(body_crc32=7), good, "crc32 not match"),
            (header(), b"{", "cannot be read"),
            (header(), b"[]", "cannot be read"),
            (header(), good.replace(b'"perm":6', b'"perm":"all"'), "perm"),
            (header(compressed=True), good, "cannot be read"),
            (header(compressed=True), zlib.compress(b"\x7f\xff\xff\xff"), "cannot be read"),
            (nameless, good, "brokerName"),
            (header() | {"brokerId": "one"}, good, "brokerId"),
            (header(-1), good, "register broker failed: brokerId -1"),
            (header(address="here"), good, "register broker failed: brokerAddr"),
            (header(), body_of(("one",)).to_json(), "register broker failed: broker-a has not"),
        ]
        for ext, body, part in bad:
            answer = await ask(broker, code, ext, body)
            assert answer.code == ResponseCode.SYSTEM_ERROR
            assert part in str(answer.remark)
        assert server.table.group_count == 0
        assert (await register(broker)).code == ResponseCode.SUCCESS


async def test_a_stale_master_is_answered_with_success_and_ignored(tmp_path: Path) -> None:
    """Code 0 and no fields as in Java; the remark says what happened."""

    newer = RegisterBrokerBody(
        TopicConfigTable(DataVersion(1, 5, 1), body_of().topic_config.topics)
    ).to_json()
    async with (
        running_name_server(tmp_path) as server,
        connected(server.port) as new,
        connected(server.port) as old,
    ):
        assert (await ask(new, RequestCode.REGISTER_BROKER, header(0, SLAVE), newer)).code == 0

        answer = await register(old)

        assert (answer.code, answer.ext) == (ResponseCode.SUCCESS, {})
        assert "held by " + SLAVE in str(answer.remark)
        assert server.table.member_addresses("broker-a") == {0: SLAVE}


async def test_no_request_makes_a_handler_fail(tmp_path: Path) -> None:
    """Missing fields and garbage bodies get an answer or a refusal that names the field, for every code."""

    served = sorted(set(NAMESRV_CODES))
    bodies = [b"", b"{}", b"[]", b"null", b"\xff\x00", b'{"queueDatas":7}', b"x" * 100_000]
    exts: list[dict[str, str]] = [{}, {"topic": "", "brokerName": "", "brokerId": "", "namespace": "\x00"}]
    async with running_name_server(tmp_path) as server, connected(server.port) as peer:
        for code in served:
            for ext in exts:
                for body in bodies:
                    answer = await ask(peer, code, ext, body)
                    assert "Error: " not in str(answer.remark), (code, answer.remark)
        assert peer.is_open
        assert server.table.group_count == server.table.topic_count == 0


async def test_requests_of_administrators_about_topics(tmp_path: Path) -> None:
    """205, 327, 217, 216, 311 to 313 and 104 do what they say."""

    ext = {"clusterName": "DefaultCluster", "brokerAddr": MASTER, "brokerName": "broker-a", "brokerId": "0"}
    async with running_name_server(tmp_path) as server, connected(server.port) as peer:
        await register(peer)
        wiped = await ask(peer, RequestCode.WIPE_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
        read_only = TopicRouteData.from_json((await route(peer)).body)
        added = await ask(peer, RequestCode.ADD_WRITE_PERM_OF_BROKER, {"brokerName": "broker-a"})
        single = b'{"queueDatas":[{"brokerName":"%s","perm":6,"readQueueNums":1,"writeQueueNums":1}]}'
        code = RequestCode.REGISTER_TOPIC_IN_NAMESRV
        taken = await ask(peer, code, {"topic": "single"}, single % b"broker-a")
        ignored = await ask(peer, code, {"topic": "other"}, single % b"broker-x")
        deleted = await ask(peer, RequestCode.DELETE_TOPIC_IN_NAMESRV, {"topic": "orders"})
        lists = [
            orjson.loads((await ask(peer, number)).body)["topicList"]
            for number in (
                RequestCode.GET_UNIT_TOPIC_LIST,
                RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST,
                RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST,
            )
        ]
        left = await ask(peer, RequestCode.UNREGISTER_BROKER, ext)

        assert wiped.ext == {"wipeTopicCount": "2"}
        assert [data.perm for data in read_only.queue_datas] == [4]
        assert added.ext == {"addTopicCount": "2"}
        assert (taken.code, taken.remark) == (0, None)
        assert (ignored.code, "broker-x" in str(ignored.remark)) == (0, True)
        assert deleted.code == left.code == 0
        assert lists == [[], [], []]
        assert server.table.broker_count == server.table.topic_count == 0


async def test_brokers_hear_of_a_new_smallest_id(tmp_path: Path) -> None:
    """905 goes to who is left when the smallest id leaves, and to the others when a smaller one comes."""

    heard: asyncio.Queue[dict[str, str]] = asyncio.Queue()

    def hear(_: Connection, command: Command) -> None:
        heard.put_nowait(command.ext)

    slave = RemotingServer({RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE: hear})
    address = f"127.0.0.1:{await slave.listen('127.0.0.1', 0)}"
    try:
        async with (
            running_name_server(tmp_path, notify_min_broker_id_changed=True) as server,
            connected(server.port) as second,
        ):
            async with connected(server.port) as first:
                await register(first, enable_acting_master=True)
                await register(second, 2, address, enable_acting_master=True)
            async with asyncio.timeout(SECONDS_MAX):
                lost = await heard.get()
            await register(second, 0, MASTER, enable_acting_master=True)
            async with asyncio.timeout(SECONDS_MAX):
                back = await heard.get()
    finally:
        await slave.close()
    assert lost == {
        "minBrokerId": "2",
        "brokerName": "broker-a",
        "minBrokerAddr": address,
        "offlineBrokerAddr": MASTER,
    }
    assert back == {
        "minBrokerId": "0",
        "brokerName": "broker-a",
        "minBrokerAddr": MASTER,
        "haBrokerAddr": MASTER + "2",
    }


async def test_a_broker_that_cannot_be_told_is_counted_and_stops_nothing(tmp_path: Path) -> None:
    """Nobody listens at the address; the name server goes on."""

    async with (
        running_name_server(tmp_path, notify_min_broker_id_changed=True) as server,
        connected(server.port) as second,
    ):
        async with connected(server.port) as first:
            await register(first, enable_acting_master=True)
            await register(second, 2, "127.0.0.1:1", enable_acting_master=True)

        async def dropped() -> bool:
            _, text = await asyncio.to_thread(get, server, "/metrics")
            return "brokerset_namesrv_notices_dropped_total 1.0" in text

        await until(dropped)
        assert (await route(second)).code == ResponseCode.SUCCESS


# -- key-value configuration and settings -------------------------------------------------------------------


async def test_key_value_configuration_survives_a_restart_and_reaches_routes(tmp_path: Path) -> None:
    """What was acknowledged is in the file; order configurations show in routes and registrations."""

    entry = {"namespace": "ORDER_TOPIC_CONFIG", "key": "orders"}
    async with (
        running_name_server(tmp_path, order_message_enable=True) as server,
        connected(server.port) as peer,
    ):
        await register(peer)
        assert b"orderTopicConf" not in (await route(peer)).body
        writes = [
            ask(peer, RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": f"k{number}", "value": "v"})
            for number in range(50)
        ]
        answers = await asyncio.gather(
            *writes, ask(peer, RequestCode.PUT_KV_CONFIG, {**entry, "value": "broker-a:4"})
        )
        assert {answer.code for answer in answers} == {0}
        assert b'"orderTopicConf":"broker-a:4"' in (await route(peer)).body
        assert orjson.loads((await register(peer)).body) == {"table": {"orders": "broker-a:4"}}
        assert (await ask(peer, RequestCode.GET_KV_CONFIG, entry)).ext == {"value": "broker-a:4"}
        refused = await ask(peer, RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "", "value": "v"})
        assert (refused.code, "key has 0" in str(refused.remark)) == (ResponseCode.INVALID_PARAMETER, True)
    async with running_name_server(tmp_path) as server, connected(server.port) as peer:
        kept = await ask(peer, RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "n"})
        assert orjson.loads(kept.body) == {"table": {f"k{number}": "v" for number in range(50)}}
        assert (await ask(peer, RequestCode.DELETE_KV_CONFIG, entry)).code == 0
        unknown = await ask(peer, RequestCode.GET_KVLIST_BY_NAMESPACE, {"namespace": "x"})
        assert (unknown.code, unknown.remark) == (22, "No config item, Namespace: x")
    async with running_name_server(tmp_path) as server, connected(server.port) as peer:
        missing = await ask(peer, RequestCode.GET_KV_CONFIG, entry)
        assert missing.code == ResponseCode.QUERY_NOT_FOUND
        assert (await ask(peer, RequestCode.GET_KVLIST_BY_NAMESPACE, entry)).body == b'{"table":{}}'


async def test_an_entry_that_cannot_be_written_is_not_acknowledged(tmp_path: Path) -> None:
    """The answer says what to repair; afterwards the same request succeeds."""

    file = tmp_path / "sub" / "kvConfig.json"
    async with (
        running_name_server(tmp_path, kv_config_path=file) as server,
        connected(server.port) as peer,
    ):
        (tmp_path / "sub").write_text("a file where the tmp_path should be")
        entry = {"namespace": "n", "key": "k", "value": "v"}

        failed = await ask(peer, RequestCode.PUT_KV_CONFIG, entry)

        assert failed.code == ResponseCode.SYSTEM_ERROR
        assert "not on the name server's disk" in str(failed.remark)
        (tmp_path / "sub").unlink()
        assert (await ask(peer, RequestCode.PUT_KV_CONFIG, entry)).code == ResponseCode.SUCCESS
        assert orjson.loads(file.read_bytes()) == {"configTable": {"n": {"k": "v"}}}


def test_a_damaged_file_stops_the_start(tmp_path: Path) -> None:
    """The name server does not begin with an empty table where there should be one."""
    (tmp_path / "kv.json").write_bytes(b"{broken")
    server = NameServer(NamesrvSettings(kv_config_path=tmp_path / "kv.json"))

    with pytest.raises(KvFileDamaged, match="move it away"):
        asyncio.run(server.start("127.0.0.1", 0))


async def test_settings_can_be_read_and_changed(tmp_path: Path) -> None:
    """318 takes effect at once, 319 shows it; what may not be changed is refused."""

    async with running_name_server(tmp_path) as server, connected(server.port) as peer:
        await register(peer)
        code = RequestCode.UPDATE_NAMESRV_CONFIG
        changed = await ask(peer, code, {}, b"enableAllTopicList=false\nenableTopicList=false")
        forbidden = await ask(peer, code, {}, b"kvConfigPath=/tmp/elsewhere")
        text = (await ask(peer, RequestCode.GET_NAMESRV_CONFIG)).body.decode()
        refused = [
            await ask(peer, RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER),
            await ask(peer, RequestCode.GET_TOPICS_BY_CLUSTER, {"cluster": "DefaultCluster"}),
            await ask(peer, RequestCode.GET_UNIT_TOPIC_LIST),
        ]

        assert changed.code == 0
        assert (forbidden.code, forbidden.remark) == (16, "Can not update config in black list.")
        assert "enableAllTopicList=false\n" in text
        assert "listenPort=9876\n" in text
        assert [(answer.code, answer.remark) for answer in refused] == [(1, "disable")] * 3


# -- the process --------------------------------------------------------------------------------------------


async def test_routes_wait_for_brokers_if_the_settings_say_so(tmp_path: Path) -> None:
    """Neither routes nor readiness before brokers had time to register; then both."""

    async with (
        running_name_server(tmp_path, need_wait_for_service=True, wait_seconds_for_service=3600) as server,
        connected(server.port) as peer,
    ):
        await register(peer)
        answer = await route(peer)
        assert (answer.code, answer.remark) == (1, "name server not ready")
        assert await asyncio.to_thread(get, server, "/readyz") == (503, "name server not ready\n")
        await ask(peer, RequestCode.UPDATE_NAMESRV_CONFIG, {}, b"needWaitForService=false")
        assert (await route(peer)).code == 0
        assert await asyncio.to_thread(get, server, "/readyz") == (200, "ok\n")
        assert await asyncio.to_thread(get, server, "/healthz") == (200, "ok\n")
        _, text = await asyncio.to_thread(get, server, "/metrics")
        assert "brokerset_namesrv_brokers 1.0" in text
        assert 'brokerset_namesrv_routes_total{result="found"} 1.0' in text


async def test_two_name_servers_fit_into_one_process(tmp_path: Path) -> None:
    """Nothing is shared between them, metrics included."""

    async with running_name_server(tmp_path / "1") as one, running_name_server(tmp_path / "2") as two:
        async with connected(one.port) as first, connected(two.port) as second:
            await register(first)
            assert (await route(first)).code == ResponseCode.SUCCESS
            assert (await route(second)).code == ResponseCode.TOPIC_NOT_EXIST
        for server in (one, two):
            assert (await asyncio.to_thread(get, server, "/metrics"))[0] == 200


async def test_a_taken_port_is_an_error_that_leaves_nothing_open(tmp_path: Path) -> None:
    """The start fails, and what was opened before is closed."""

    async with running_name_server(tmp_path) as server:
        other = NameServer(NamesrvSettings(kv_config_path=tmp_path / "kv.json"))
        with pytest.raises(OSError, match="address already in use"):
            await other.start("127.0.0.1", server.port)
        await other.close()
