"""The broker as a whole: ports, processes, signals, metrics, and its registration with name servers."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
import uvloop

from brokerset_broker.app import Broker, PortTaken
from brokerset_broker.outside import metrics, name_servers
from brokerset_formats.names import DEFAULT_TOPIC
from brokerset_protocol.bodies.registration import RegisterBrokerBody
from brokerset_protocol.bodies.routes import TopicRouteData
from brokerset_protocol.commands import Command
from brokerset_rig.async_tests import at_end
from brokerset_rig.local_servers import Setup, broker_settings, running_name_server
from brokerset_rig.stack import free_port, free_ports
from brokerset_rig.waiting import until
from brokerset_runtime.program import reasons
from brokerset_runtime.remoting import connect


async def route(port: int, topic: str) -> TopicRouteData | None:
    connection = await connect(f"127.0.0.1:{port}")
    reply = await connection.call(Command(105, {"topic": topic}), 5)
    connection.close()
    await connection.wait_closed()
    return TopicRouteData.from_json(reply.body) if reply.code == 0 else None


async def shown(port: int, topic: str, perm: int = 6) -> TopicRouteData:
    """Wait until a name server shows a topic with a permission."""
    while (  # noqa: ASYNC110  # only an answer can tell
        found := await route(port, topic)
    ) is None or found.queue_datas[0].perm != perm:
        await asyncio.sleep(0.005)
    return found


async def test_a_broker_is_known_to_all_name_servers_and_says_goodbye(setup: Setup, tmp_path: Path) -> None:
    async with running_name_server(tmp_path / "1") as one, running_name_server(tmp_path / "2") as two:
        addresses = f"127.0.0.1:{one.port};127.0.0.1:{two.port}"
        async with setup.pair(namesrv_addr=addresses) as (broker, client):
            await until(lambda: len(broker.registrar.registered) == 2)
            for server in (one, two):
                template = await route(server.port, DEFAULT_TOPIC)
                assert template is not None
                assert template.broker_datas[0].broker_addrs == {0: f"127.0.0.1:{broker.port}"}

            await client.create_topic("new", queues=3)
            found = await shown(one.port, "new")
            await shown(two.port, "new")
            assert found.queue_datas[0].write_queue_nums == 3
            await client.send("made-by-sending")
            await shown(two.port, "made-by-sending")

            assert (await client.call(25, b"brokerPermission=4\n")).code == 0
            await shown(one.port, "new", 4)
        assert await route(one.port, "new") is None
        assert await route(two.port, DEFAULT_TOPIC) is None


async def test_a_broker_changes_its_name_servers_while_it_runs(setup: Setup, tmp_path: Path) -> None:
    """Routes, metrics, /readyz and GET_BROKER_CONFIG follow; a bad value changes nothing."""

    from prometheus_client import generate_latest

    async def configured(client: Any) -> str:
        text: str = (await client.call(26)).body.decode()
        return next(line for line in text.splitlines() if line.startswith("namesrvAddr="))

    def counted(broker: Broker) -> list[tuple[str, str]]:
        text = generate_latest(metrics.registry(broker.metric_sources())).decode()
        samples = [line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#")]
        return [
            (dict(_labels(name))["name_server"], value) for name, value in samples if "name_server" in name
        ]

    nobody = f"127.0.0.1:{free_port()}"
    async with running_name_server(tmp_path / "1") as one, running_name_server(tmp_path / "2") as two:
        first, second = (f"127.0.0.1:{server.port}" for server in (one, two))
        async with setup.pair(namesrv_addr=first, http_port=free_port()) as (broker, client):
            await shown(one.port, DEFAULT_TOPIC, 7)
            await until(lambda: bool(broker.registrar.registered and broker.http_port))
            assert counted(broker) == [(first, "1.0")]

            assert (await client.call(25, f"namesrvAddr={second}\n".encode())).code == 0
            await shown(two.port, DEFAULT_TOPIC, 7)
            await until(lambda: counted(broker) == [(second, "1.0")])
            while await route(one.port, DEFAULT_TOPIC) is not None:  # noqa: ASYNC110  # it tells nobody
                await asyncio.sleep(0.005)
            assert await configured(client) == f"namesrvAddr={second}"
            assert (await readyz(broker))[0] == 200

            refused = await client.call(25, f"traceOn=false\nnamesrvAddr={first};nowhere\n".encode())
            assert (refused.code, refused.remark) == (1, "namesrvAddr: 'nowhere' is not HOST:PORT")
            assert (await client.call(25, b"namesrvAddr=a..b:9876\n")).code == 1
            assert await configured(client) == f"namesrvAddr={second}"
            assert broker.registrar.registered == broker.registrar.addresses == [second]

            assert (await client.call(25, f"namesrvAddr={nobody}\n".encode())).code == 0
            await until(lambda: counted(broker) == [(nobody, "0.0")])
            status, text = await readyz(broker)
            assert (status, "no name server knows this broker" in text) == (503, True)
            assert (await client.call(25, b"namesrvAddr=\n")).code == 0
            await until(lambda: counted(broker) == [])
            assert (await readyz(broker))[0] == 200


async def readyz(broker: Broker) -> tuple[int, str]:
    """Code and text of the answer."""
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.http_port)
    writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
    answer = (await reader.read()).decode()
    writer.close()
    return int(answer.split()[1]), answer


async def test_a_table_too_large_for_a_frame_is_sent_compressed(
    setup: Setup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many topics must not end the broker because their table is larger than a frame may be."""

    monkeypatch.setattr(name_servers, "PLAIN_BYTES_MAX", 2_000)
    sizes: list[int] = []
    plain_to_body = RegisterBrokerBody.to_body

    def note(body: RegisterBrokerBody, *, compressed: bool = False, **rest: Any) -> tuple[bytes, int]:
        made = plain_to_body(body, compressed=compressed, **rest)
        sizes.append(len(made[0]) if compressed else 0)
        return made

    monkeypatch.setattr(RegisterBrokerBody, "to_body", note)

    async with running_name_server(tmp_path / "n") as server:
        address = f"127.0.0.1:{server.port}"
        async with setup.pair(namesrv_addr=address) as (_, client):
            await client.create_topic("t")
            assert [data.write_queue_nums for data in (await shown(server.port, "t")).queue_datas] == [4]
            assert any(0 < size < 2_000 for size in sizes)


async def test_a_name_server_that_comes_late_or_again_is_told(setup: Setup, tmp_path: Path) -> None:
    port = free_port()
    async with setup.broker(namesrv_addr=f"127.0.0.1:{port}") as broker:
        await asyncio.sleep(0.1)
        assert broker.registrar.registered == []
        for attempt in range(2):
            async with running_name_server(tmp_path / str(attempt), port=port):
                await until(lambda: len(broker.registrar.registered) == 1)
                assert await route(port, DEFAULT_TOPIC) is not None
            await until(lambda: not broker.registrar.registered)


async def test_small_answers_leave_without_a_delay(setup: Setup) -> None:
    """Whatever the loop is, what the broker accepts has TCP_NODELAY: an answer behind another one would wait
    40 ms for the client's acknowledgement otherwise."""
    async with setup.broker() as broker:
        connection = await connect(f"127.0.0.1:{broker.port}")
        await until(lambda: broker.connection_count() == 1)
        assert broker._server is not None

        [accepted] = broker._server.connections.values()
        transport = accepted._transport
        assert transport is not None
        option = transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

        assert option == 1
        connection.close()
        await connection.wait_closed()


async def test_a_taken_port_is_told_before_the_store_is_touched(setup: Setup) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(PortTaken, match=f"cannot listen on 127.0.0.1:{port}"):
            async with setup.broker(listen_port=port):
                pass
    assert not setup.folder.exists()


async def test_the_second_listener_serves_the_same(setup: Setup) -> None:
    (port,) = free_ports(1, below=2)
    async with setup.broker(listen_port=port) as broker:
        assert (broker.port, broker.vip_port) == (port, port - 2)
        connection = await connect(f"127.0.0.1:{port - 2}")
        assert (await connection.call(Command(21), 5)).code == 0
        connection.close()
        await connection.wait_closed()


async def test_a_store_in_use_is_left_alone(setup: Setup, tmp_path: Path) -> None:
    """The second process ends with one clear line and code 1; the first goes on."""

    arguments = [
        "--httpPort",
        "0",
        "--storePathRootDir",
        str(tmp_path / "store"),
        "--bindAddress",
        "127.0.0.1",
    ]

    first = await Process.start(*arguments, "--listenPort", str(free_port()))
    second = await Process.start(*arguments, "--listenPort", str(free_port()), wait=False)
    assert await second.ended() == 1
    assert len(second.failures()) == 1
    assert f"process {first.pid} has this store open" in second.failures()[0]
    first.signal(signal.SIGTERM)
    assert await first.ended() == 0


class Process:
    """`python -m brokerset_broker` with its log lines."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process
        self.pid = process.pid
        self.lines: list[str] = []
        self._reader = asyncio.create_task(self._read())
        at_end(self._kill)

    @classmethod
    async def start(cls, *arguments: str, wait: bool = True) -> Process:
        process = cls(
            await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "brokerset_broker",
                *arguments,
                "--logFormat",
                "json",
                stderr=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
            )
        )
        if wait:
            try:
                async with asyncio.timeout(20):
                    await until(lambda: any("broker listens" in line for line in process.lines))
            except TimeoutError:
                process.signal(signal.SIGKILL)
                await process.ended()
                raise AssertionError("".join(process.lines)) from None
        return process

    async def _read(self) -> None:
        assert self._process.stderr is not None
        async for line in self._process.stderr:
            self.lines.append(line.decode())

    def failures(self) -> list[str]:
        return [line for line in self.lines if '"level":"error"' in line]

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def _kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()

    async def ended(self) -> int:
        try:
            async with asyncio.timeout(20):
                await self._process.wait()
        except TimeoutError:
            self._process.kill()
            raise
        await self._reader
        return self._process.returncode or 0


async def test_a_process_serves_until_a_signal_and_keeps_what_it_took(tmp_path: Path) -> None:
    store = tmp_path / "store"
    settings = tmp_path / "broker.conf"
    port = free_port()
    settings.write_text(f"brokerName=b\nlistenPort={port}\nhttpPort=0\nstorePathRootDir={store}\n")

    for attempt, number in enumerate((signal.SIGTERM, signal.SIGINT)):
        process = await Process.start("-c", str(settings), "--bindAddress", "127.0.0.1")
        connection = await connect(f"127.0.0.1:{port}")
        ext = {
            "a": "g",
            "b": "t",
            "c": "TBW102",
            "d": "1",
            "e": "0",
            "f": "0",
            "g": "0",
            "h": "0",
            "i": "",
        }
        reply = await connection.call(Command(310, ext, b"x"), 5)
        assert (reply.code, reply.ext["queueOffset"]) == (0, str(attempt))
        process.signal(number)
        assert await process.ended() == 0
        assert not process.failures()
        assert not (store / "abort").exists()
        await connection.wait_closed()


async def test_wrong_settings_are_all_named_at_once(tmp_path: Path) -> None:
    process = await Process.start("--flushDiskType", "NEVER", "--listenPort", "99999", wait=False)
    assert await process.ended() == 2
    assert len(process.failures()) == 2


async def test_metrics_show_what_happened(setup: Setup) -> None:
    """Names and labels are RocketMQ 5's."""

    from prometheus_client import generate_latest

    async with setup.pair() as (broker, client):
        await client.create_topic("t")
        for _ in range(3):
            await client.send("t", bytes(2000))
        await client.send("t", properties={"DELAY": "5"})
        await client.heartbeat("g", "t")
        await client.pull("t", 0, group="g", sysFlag=5, commitOffset=1)
        text = generate_latest(metrics.registry(broker.metric_sources())).decode()

        common = 'cluster="DefaultCluster",node_id="broker-a",node_type="broker"'
        samples = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        parsed = {tuple(sorted(_labels(name))): float(value) for name, value in samples.items()}
        assert common.split(",")[0] in text

        def value(name: str, **labels: str) -> float:
            labels |= {"cluster": "DefaultCluster", "node_id": "broker-a", "node_type": "broker"}
            return parsed[tuple(sorted([("", name), *labels.items()]))]

        sent = {"topic": "t", "is_system": "false"}
        assert value("rocketmq_messages_in_total", message_type="normal", **sent) == 3
        assert value("rocketmq_messages_in_total", message_type="delay", **sent) == 1
        assert value("rocketmq_throughput_in_total", message_type="normal", **sent) > 6000
        assert value("rocketmq_message_size_bucket", message_type="normal", le="1024", **sent) == 0
        assert value("rocketmq_message_size_bucket", message_type="normal", le="4096", **sent) == 3
        assert value("rocketmq_messages_out_total", consumer_group="g", **sent) == 3
        lag = {"consumer_group": "g", "topic": "t", "is_retry": "false", "is_system": "false"}
        assert value("rocketmq_consumer_lag_messages", **lag) == 2
        assert value("rocketmq_consumer_inflight_messages", **lag) == 2
        assert value("rocketmq_consumer_lag_latency", **lag) >= 0
        assert value("rocketmq_broker_permission") == 6
        assert value("rocketmq_processor_watermark", processor="send") == 0
        assert value("rocketmq_processor_watermark", processor="reply") == 0
        disk = {"storage_type": "local", "storage_medium": "disk"}
        assert value("rocketmq_storage_size", **disk) == broker.store.max_offset
        assert value("rocketmq_storage_message_reserve_time", **disk) >= 0
        connected = {"consumer_group": "g", "language": "python", "version": "479"}
        connected |= {"consume_mode": "push", "protocol_type": "remoting", "is_system": "false"}
        assert value("rocketmq_consumer_connections", **connected) == 1


def _labels(sample: str) -> list[tuple[str, str]]:
    name, _, rest = sample.partition("{")
    found = [("", name)]
    for pair in filter(None, rest.rstrip("}").split(",")):
        key, _, value = pair.partition("=")
        found.append((key, value.strip('"')))
    return found


def test_a_part_that_fails_ends_the_broker(setup: Setup) -> None:
    """Nothing is served half: the process ends with the reason, and a supervisor starts it again."""

    async def main(port: int) -> None:
        broker = Broker(broker_settings(setup.folder, http_port=port))
        await broker.start()
        try:
            await broker.run()
        finally:
            await broker.close()

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(BaseExceptionGroup) as failed:
            uvloop.run(main(port))
    assert "HTTP port" in reasons(failed.value)[0]
