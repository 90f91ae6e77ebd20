"""What bad input, slow peers and full disks get from a real broker process, and that healthy clients do not notice.

The answers are documented in `docs/failure-modes.md`; whoever changes one changes the other.
"""

from __future__ import annotations

import os
import resource
import socket
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerset_rig import stack, wire

TOPIC = "bad-input"


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[stack.Server]:
    (port,) = stack.free_ports(1, below=2)
    with stack.our_broker(tmp_path_factory.mktemp("bad-input"), port, "") as server:
        with wire.Client(port) as client:
            assert send(client, b"the topic exists now").code == 0
        yield server


@pytest.fixture
def client(broker: stack.Server) -> Iterator[wire.Client]:
    with wire.Client(broker.port) as connection:
        yield connection


def send(
    client: wire.Client, body: bytes, topic: str = TOPIC, properties: str = "WAIT\x01true\x02"
) -> wire.Answer:
    return client.call(wire.SEND_V2, wire.send_ext(topic, 0, properties), body)


def assert_serves(port: int) -> None:
    """A new healthy client can send and read what it sent."""
    with wire.Client(port) as healthy:
        sent = send(healthy, b"still serving")
        assert sent.code == 0, sent.remark
        got = healthy.call(
            wire.PULL, wire.pull_ext(TOPIC, int(sent.ext["queueId"]), int(sent.ext["queueOffset"]), count=1)
        )
        assert next(wire.records(got.body)).body == b"still serving"


def closed_by_server(connection: socket.socket, within: float = 5.0) -> bool:
    connection.settimeout(within)
    try:
        while connection.recv(1 << 16):
            pass
    except ConnectionResetError:
        return True
    except TimeoutError:
        return False
    return True


@pytest.mark.parametrize(
    ("topic", "code", "says"),
    [
        ("a b", 29, "illegal characters"),
        ("x" * 128, 29, "longer"),
        ("", 29, "blank"),
        ("SCHEDULE_TOPIC_XXXX", 16, "SCHEDULE_TOPIC_XXXX"),
        ("../../etc/passwd", 29, "illegal characters"),
    ],
)
def test_a_wrong_topic_name_is_refused_with_its_reason(
    client: wire.Client, topic: str, code: int, says: str
) -> None:
    answer = send(client, b"x", topic)

    assert (answer.code, says in (answer.remark or "")) == (code, True), answer.remark


@pytest.mark.parametrize("name", ["../../innocent", "{folder}/innocent", "..", "x" * 3000])
def test_deleting_a_topic_that_is_named_like_a_path_touches_no_other_folder(
    broker: stack.Server, client: wire.Client, name: str
) -> None:
    innocent = broker.folder / "broker-0" / "innocent"
    innocent.mkdir(exist_ok=True)

    client.call(wire.DELETE_TOPIC, {"topic": name.format(folder=innocent.parent)})

    assert innocent.is_dir()
    assert_serves(broker.port)


def test_a_body_above_the_limit_is_refused_and_the_connection_lives(client: wire.Client) -> None:
    """4 MiB is `maxMessageSize`; one byte more is code 13, and the next message goes through."""
    refused = send(client, b"x" * (4 * 1024 * 1024 + 1))
    accepted = send(client, b"x" * (4 * 1024 * 1024))

    assert refused.code == 13
    assert accepted.code == 0, accepted.remark


def test_properties_above_the_limit_are_refused(client: wire.Client) -> None:
    assert send(client, b"x", properties=f"LONG\x01{'p' * 33_000}\x02").code == 13


def test_offsets_far_beyond_the_end_do_not_break_the_figures_of_the_broker(client: wire.Client) -> None:
    """Their sum exceeds 64 bits; whoever asks for the lag of all groups is answered nevertheless."""
    client.call(wire.PULL, wire.pull_ext(TOPIC, 0, 0))
    for queue_id in ("0", "1", "2"):
        ext = {"consumerGroup": "faults", "topic": TOPIC, "queueId": queue_id, "commitOffset": str(2**63 - 1)}
        assert client.call(wire.UPDATE_CONSUMER_OFFSET, ext).code == 0

    answer = client.call(wire.GET_BROKER_CONSUME_STATS, {"isOrder": "false"})

    assert answer.code == 0, answer.remark
    assert b'"totalDiff":-9223372036854775808' in answer.body


def test_an_unknown_request_code_is_named_in_the_answer(client: wire.Client) -> None:
    answer = client.call(31_999, {})

    assert answer.code == 3
    assert "31999" in (answer.remark or "")


@pytest.mark.parametrize(
    ("name", "ext", "code"),
    [
        ("a transaction of nobody", "TRAN_MSG\x01true\x02UNIQ_KEY\x01k\x02", 13),
        ("a transaction with a delay", "TRAN_MSG\x01true\x02PGROUP\x01g\x02DELAY\x013\x02", 13),
        ("a light queue", "INNER_MULTI_DISPATCH\x01%LMQ%a\x02", 13),
        ("a lite topic", "__LITE_TOPIC\x01child\x02", 13),
    ],
)
def test_what_is_not_served_yet_is_refused_and_not_stored(
    client: wire.Client, name: str, ext: str, code: int
) -> None:
    """A message that needs a later feature must never become a plain one."""
    before = [
        client.call(wire.MAX_OFFSET, {"topic": TOPIC, "queueId": str(q)}).ext["offset"] for q in range(4)
    ]

    answer = send(client, b"x", properties=ext)

    after = [
        client.call(wire.MAX_OFFSET, {"topic": TOPIC, "queueId": str(q)}).ext["offset"] for q in range(4)
    ]
    assert (answer.code, before) == (code, after), answer.remark
    assert answer.remark


@pytest.mark.parametrize(
    "data",
    [
        struct.pack(">I", 0x7FFFFFFF) + b"{}",
        struct.pack(">I", 0) + b"rest",
        struct.pack(">II", 12, 0xFFFFFF) + b"{}......",
        struct.pack(">II", 10, 6) + b"{oops}",
        struct.pack(">II", 6, 9 << 24 | 2) + b"{}",
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    ],
    ids=["huge", "empty", "header-longer-than-frame", "no-json", "unknown-serialization", "http", "tls"],
)
def test_unreadable_bytes_close_that_connection_only(broker: stack.Server, data: bytes) -> None:
    with socket.create_connection(("127.0.0.1", broker.port), 5) as connection:
        connection.sendall(data)

        assert closed_by_server(connection)
    assert_serves(broker.port)


def test_half_a_frame_and_a_lost_connection_leave_nothing_behind(broker: stack.Server) -> None:
    whole = wire.frame(wire.SEND_V2, wire.send_ext(TOPIC, 0, ""), b"y" * 2000)
    for cut in (1, 4, 7, 100, len(whole) - 1):
        with socket.create_connection(("127.0.0.1", broker.port), 5) as connection:
            connection.sendall(whole[:cut])

    assert_serves(broker.port)


def test_a_frame_sent_byte_by_byte_is_answered(broker: stack.Server) -> None:
    whole = wire.frame(wire.MAX_OFFSET, {"topic": TOPIC, "queueId": "0"}, opaque=1)
    with wire.Client(broker.port) as client:
        for i in range(len(whole)):
            client.socket.sendall(whole[i : i + 1])

        assert client.read().code == 0


def test_header_bombs_are_refused(broker: stack.Server) -> None:
    """A header above its limit, and one of deep nesting, close the connection; many fields are only many fields."""
    deep = b'{"code":30,"extFields":' + b"[" * 200_000 + b"]" * 200_000 + b"}"
    wide = b'{"code":30,"extFields":{' + b",".join(b'"%d":"x"' % i for i in range(80_000)) + b"}}"
    for header in (deep, wide):
        with socket.create_connection(("127.0.0.1", broker.port), 5) as connection:
            connection.sendall(struct.pack(">II", 4 + len(header), len(header)) + header)

            assert closed_by_server(connection)
    assert_serves(broker.port)


def test_a_slow_reader_bounds_its_own_memory_only(broker: stack.Server) -> None:
    """A client that asks for 2 GiB of answers and reads none is not served further, and others are."""
    with wire.Client(broker.port) as writer:
        for _ in range(64):
            assert send(writer, b"z" * 100_000, "slow-reader").code == 0
        queue = next(
            q
            for q in range(4)
            if writer.call(wire.MAX_OFFSET, {"topic": "slow-reader", "queueId": str(q)}).ext["offset"] != "0"
        )
    before = anonymous_bytes(broker.pid)
    with socket.create_connection(("127.0.0.1", broker.port), 5) as slow:
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        slow.settimeout(0.5)
        request = wire.frame(wire.PULL, wire.pull_ext("slow-reader", queue, 0))
        try:
            for _ in range(10_000):
                slow.sendall(request)
        except TimeoutError:
            pass  # the broker has stopped reading from us, which is the point

        assert_serves(broker.port)
        assert anonymous_bytes(broker.pid) - before < 64 * 1024 * 1024
    assert_serves(broker.port)


def test_five_thousand_idle_connections_cost_little(broker: stack.Server) -> None:
    """They stay open, each costs less than 20 KiB, and others are served as before."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    if hard < 5_500:
        pytest.fail(f"this machine allows {hard} open files for a process; 5,500 are needed")
    before = anonymous_bytes(broker.pid)
    idle: list[socket.socket] = []
    try:
        for _ in range(5_000):
            idle.append(socket.create_connection(("127.0.0.1", broker.port), 10))
        assert_serves(broker.port)
        grown = anonymous_bytes(broker.pid) - before

        assert grown / 5_000 < 20 * 1024
        idle[0].sendall(wire.frame(wire.MAX_OFFSET, {"topic": TOPIC, "queueId": "0"}))
        idle[0].settimeout(5)
        assert idle[0].recv(4)
    finally:
        for connection in idle:
            connection.close()
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert_serves(broker.port)


def anonymous_bytes(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon:"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", str(folder)], capture_output=True, text=True
    )
    if mounted.returncode != 0:
        pytest.fail(f"a tmpfs of 24 MiB is needed for this test, and mount says: {mounted.stderr.strip()}")
    yield folder
    for _ in range(50):
        if subprocess.run(["umount", str(folder)], capture_output=True).returncode == 0:
            return
        time.sleep(0.1)


def test_a_full_disk_refuses_sends_and_keeps_serving_reads(small_disk: Path) -> None:
    """No crash, no bus error: code 14 with the reason; what was acknowledged is readable; sends go on when there is room."""
    (port,) = stack.free_ports(1, below=2)
    settings = {"mappedFileSizeCommitLog": str(4 * 1024 * 1024), "maxMessageSize": str(1024 * 1024), "mappedFileSizeConsumeQueue": "60000",
                "maxHashSlotNum": "1000", "maxIndexNum": "20000", "flushDiskType": "SYNC_FLUSH",
                "diskMaxUsedSpaceRatio": "95", "diskSpaceCleanForciblyRatio": "85", "diskSpaceWarningLevelRatio": "90"}  # fmt: skip
    ballast = small_disk / "ballast"
    ballast.write_bytes(b"b" * (8 * 1024 * 1024))
    acked: list[tuple[int, int, bytes]] = []
    with stack.our_broker(small_disk, port, "", settings) as server, wire.Client(port, 20) as client:
        refused = None
        for number in range(3000):
            body = f"{number}".encode().ljust(10_000, b".")
            answer = send(client, body, "disk")
            if answer.code != 0:
                refused = answer
                break
            acked.append((int(answer.ext["queueId"]), int(answer.ext["queueOffset"]), body))

        assert refused is not None
        assert refused.code == 14, refused
        assert "disk" in (refused.remark or "").lower() or "space" in (refused.remark or "").lower()
        for queue_id, queue_offset, body in acked[-50:]:
            got = client.call(wire.PULL, wire.pull_ext("disk", queue_id, queue_offset, count=1))
            assert next(wire.records(got.body)).body == body
        ballast.unlink()
        deadline = time.monotonic() + 60
        while (answer := send(client, b"again", "disk")).code != 0:
            assert time.monotonic() < deadline, answer.remark
            time.sleep(0.2)
        assert server.stop() == 0


def test_requests_in_flight_of_one_connection_are_bounded(broker: stack.Server) -> None:
    """Held pulls above the limit are answered SYSTEM_BUSY at once, and others are served."""
    with socket.create_connection(("127.0.0.1", broker.port), 10) as connection:
        answers: list[int] = []
        done = threading.Event()

        def read() -> None:
            data = b""
            while not done.is_set():
                chunk = connection.recv(1 << 18)
                if not chunk:
                    return
                data += chunk
                while len(data) >= 4 and len(data) >= 4 + int.from_bytes(data[:4], "big"):
                    end = 4 + int.from_bytes(data[:4], "big")
                    answers.append(2 if b'"code":2,' in data[:end] else 0)
                    data = data[end:]
                    if 2 in answers:
                        done.set()

        reader = threading.Thread(target=read)
        reader.start()
        request = wire.frame(wire.PULL, wire.pull_ext(TOPIC, 3, 1 << 30, suspend_ms=15_000))
        held = wire.frame(
            wire.PULL,
            {**wire.pull_ext(TOPIC, 3, 0, suspend_ms=15_000), "queueOffset": current_end(broker.port, 3)},
        )
        connection.sendall(request)
        for _ in range(10):
            connection.sendall(held * 1000)

        assert done.wait(15)
        reader.join(5)
    assert_serves(broker.port)


def current_end(port: int, queue_id: int) -> str:
    with wire.Client(port) as client:
        return client.call(wire.MAX_OFFSET, {"topic": TOPIC, "queueId": str(queue_id)}).ext["offset"]


def test_a_busy_port_is_an_error_that_names_it(broker: stack.Server, tmp_path: Path) -> None:
    second = stack.our_broker(tmp_path, broker.port, "")

    done = subprocess.run(second.command, capture_output=True, text=True, timeout=30, env=dict(os.environ))

    assert done.returncode == 1
    assert str(broker.port) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_store_in_use_is_an_error_that_names_it(broker: stack.Server) -> None:
    (port,) = stack.free_ports(1, below=2)
    conf = broker.folder / "second.conf"
    conf.write_text((broker.folder / "broker.conf").read_text().replace(str(broker.port), str(port)))
    command = [*broker.command[:-1], str(conf)]

    done = subprocess.run(command, capture_output=True, text=True, timeout=30, env=dict(os.environ))

    assert done.returncode == 1
    assert str(broker.folder / "broker-0" / "store") in done.stderr
    assert "Traceback" not in done.stderr
