"""Migrated stores under real brokers: each message is there, found by key and by time, and the broker goes on writing.

Every store is a fixture that Java wrote, migrated by the job; each broker gets a copy of its own. What a broker answers is
compared, byte for byte but for offsets, with what the source's files hold, read by `store_reading`.
"""

from __future__ import annotations

import shutil
import tarfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from brokerset_formats.properties import decode_properties
from brokerset_rig import stack, store_reading, wire
from brokerset_rig.archives import extract_archive
from brokerset_rig.controllers import until
from brokerset_rig.store_reading import Stored
from brokerset_spark.jobs.migrate import MigrateOptions, migrate
from brokerset_spark.jobs.migrate.options import METADATA_TOPIC
from brokerset_spark.jobs.running import LocalRunner

Add = Callable[[str, list[str], float], None]
FIXTURES = stack.PEERS / "fixtures"
SMALL = {
    "mappedFileSizeCommitLog": "1048576",
    "mappedFileSizeConsumeQueue": "6000",
    "maxHashSlotNum": "1000",
    "maxIndexNum": "4000",
    "fileReservedTime": "87600",
    "maxMessageSize": "65536",
}
"""As the fixtures were made, but nothing expires however old they are."""

OUR_SMALL = {**SMALL, "acceptUnservedMessages": "true"}
"""The fixtures have a timer message and an open transaction, which stay in the store."""

JAVA_SMALL = {**SMALL, "mappedFileSizeTimerLog": "102400", "transactionCheckInterval": "600000"}
OWN = "own"
"""Source that is no fixture: a broker of ours writes it."""

SEARCH_TIME, SAMPLES, SERVING_SECONDS_MAX = 29, 40, 90.0
GROWING = (
    "fx-delay",
    "fx-tx",
    "one-delay",
    "one-tx",
    "two-delay",
    "two-tx",
    "SCHEDULE",
    "RMQ_SYS",
    "rmq_sys",
)
"""Topics to which brokers themselves add: what was delayed becomes due, what was half becomes whole."""


@dataclass(frozen=True, slots=True)
class Case:
    """One migration, and which brokers shall take its result."""

    name: str
    store: str
    """Archive and store in it."""

    options: MigrateOptions
    brokers: tuple[str, ...]
    settings: dict[str, str] = field(default_factory=dict)
    core: bool = True


def _cases() -> list[Case]:
    plain = ("Java", "ours")
    small_files = {"mappedFileSizeCommitLog": "262144"}
    return [
        Case("classic to DLedger, divided", "classic/broker-0", MigrateOptions(to="dledger"), ("Java DLedger",)),
        Case(
            "classic to DLedger, pure",
            "classic/broker-0",
            MigrateOptions(to="dledger", rewrite=True),
            ("Java DLedger",),
        ),
        Case("DLedger to CommitLog", "dledger/broker-0", MigrateOptions(to="commitlog"), plain),
        Case("classic to controller mode", "classic/broker-0", MigrateOptions(to="controller"), ("Java group", "our group")),
        Case(
            "classic from the middle, in smaller files",
            "classic/broker-0",
            MigrateOptions(to="commitlog", from_offset=1_500_000, until_offset=2_600_000, file_size=262_144, drop_timers=True),
            plain,
            small_files,
        ),
        Case(
            "classic without its beginning",
            "classic/broker-0",
            MigrateOptions(to="commitlog", from_offset=2_670_000, drop_timers=True),
            plain,
        ),
        Case(
            "our group's, in smaller files",
            OWN,
            MigrateOptions(to="controller", file_size=262_144),
            ("our group", "Java group"),
            small_files,
        ),
        Case("mixed to CommitLog", "dledger-mixed/broker-0", MigrateOptions(to="commitlog"), plain, core=False),
        Case("killed to CommitLog", "killed/broker-0", MigrateOptions(to="commitlog"), plain, core=False),
        Case(
            "DLedger to controller mode, an epoch for each term",
            "dledger/broker-1",
            MigrateOptions(to="controller", epochs="terms"),
            ("Java group", "our group"),
            core=False,
        ),
        Case(
            "controller mode to CommitLog", "controller-mode/broker-0", MigrateOptions(to="commitlog"), plain, core=False
        ),
    ]  # fmt: skip


def run(add: Add, size: str) -> None:
    """All cases, or those of the core."""
    for case in _cases():
        if size == "core" and not case.core:
            continue
        with stack.Workspace("migrated") as folder:
            before = time.monotonic()
            source = _own_source(folder / "own") if case.store == OWN else _unpacked(folder, case.store)
            target = folder / "migrated"
            report = migrate(LocalRunner(), str(source), str(target), case.options)
            problems = [] if report.clean else [str(each) for each in report.findings]
            add(f"{case.name}: migrated", problems, time.monotonic() - before)
            expected = _expected(source, case.options)
            emptied = _emptied(source, case.options)
            for broker in case.brokers:
                _serve(add, case, broker, folder / broker.replace(" ", "-"), target, expected, emptied)


def _unpacked(folder: Path, name: str) -> Path:
    archive, _, store = name.partition("/")
    with tarfile.open(FIXTURES / f"{archive}.tar.xz") as packed:
        extract_archive(packed, folder / "fixture")
    return folder / "fixture" / archive / store / "store"


def _own_source(folder: Path) -> Path:
    """The store of a replica of ours, with records of its metadata in the log, closed in order."""
    with _broker("our group", folder, SMALL) as port:
        until("our group takes messages", lambda: _send(port, "fx-plain", 0), SERVING_SECONDS_MAX)
        with wire.Client(port) as client:
            for number in range(2_000):
                properties = f"KEYS\x01k-{number}\x02UNIQ_KEY\x01{number:032X}\x02TAGS\x01A\x02"
                body = b"%d " % number * 50
                answer = client.call(wire.SEND_V2, wire.send_ext("fx-plain", number % 4, properties), body)
                assert answer.code == 0, answer.remark
            ext = {"topic": "fx-plain", "consumerGroup": "faults", "queueId": "1", "commitOffset": "77"}
            client.call(wire.UPDATE_CONSUMER_OFFSET, ext)
    return folder / "broker-0" / "store"


Expected = dict[tuple[str, int], list[Stored]]


def _expected(source: Path, options: MigrateOptions) -> Expected:
    """The messages of each queue that must be there."""
    start, end = options.from_offset or 0, options.until_offset or 2**63
    found: Expected = defaultdict(list)
    for each in store_reading.read_store(source):
        if start <= each.offset < end and each.record.topic != METADATA_TOPIC:
            found[each.record.topic, each.record.queue_id].append(each)
    return dict(found)


def _emptied(source: Path, options: MigrateOptions) -> dict[tuple[str, int], int]:
    """Queues that lost all messages at their beginning, and the queue offset at which they must go on."""
    found: dict[tuple[str, int], int] = {}
    for each in store_reading.read_store(source):
        queue = (each.record.topic, each.record.queue_id)
        if each.offset < (options.from_offset or 0):
            found[queue] = each.record.queue_offset + 1
        else:
            found.pop(queue, None)
    return found


@contextmanager
def _broker(kind: str, folder: Path, settings: dict[str, str]) -> Iterator[int]:
    """A broker of that kind on `folder/broker-0/store`; gives its port."""
    ports = stack.free_ports(5, below=2)
    with ExitStack() as servers:
        if kind.endswith("group"):
            make = stack.java_controllers if kind.startswith("Java") else stack.our_controllers
            group = servers.enter_context(make(folder / "controllers", ports[1:2], ports[2:3]))
            settings = {**settings, "enableControllerMode": "true", "controllerAddr": group.addresses}
            name_servers = group.name_servers
        else:
            name_servers = servers.enter_context(stack.our_namesrv(folder, ports[2])).address
        if kind == "Java DLedger":
            settings = {
                **settings,
                "enableDLegerCommitLog": "true",
                "dLegerGroup": "broker-a",
                "dLegerSelfId": "n0",
                "dLegerPeers": f"n0-127.0.0.1:{ports[3]}",
            }
        start = stack.java_broker if kind.startswith("Java") else stack.our_broker
        server = servers.enter_context(start(folder, ports[0], name_servers, settings))
        yield server.port


def _serve(
    add: Add,
    case: Case,
    kind: str,
    folder: Path,
    target: Path,
    expected: Expected,
    emptied: dict[tuple[str, int], int],
) -> None:
    before = time.monotonic()
    shutil.copytree(target, folder / "broker-0" / "store")
    settings = {**(JAVA_SMALL if kind.startswith("Java") else OUR_SMALL), **case.settings}
    prefix = f"{case.name}, {kind}"
    with _broker(kind, folder, settings) as port:
        queue = max(expected, key=lambda each: (each[0] in ("fx-plain", "one-plain"), len(expected[each])))
        sent = until(f"{prefix} takes messages", lambda: _send(port, *queue), SERVING_SECONDS_MAX)
        add(f"{prefix}: starts and appends", [], time.monotonic() - before)
        before = time.monotonic()
        problems: list[str] = []
        total = 0
        for (topic, queue_id), messages in sorted(expected.items()):
            found = _compare(port, topic, queue_id, messages)
            problems += found
            total += len(messages)
        with wire.Client(port) as client:
            last = messages_of(client, queue[0], queue[1], sent)
        if [each.record.body for each in last] != [b"appended"]:
            problems.append(f"the message that was appended is not at {sent}: {last}")
        add(f"{prefix}: serves all {total:,} messages", problems[:5], time.monotonic() - before)
        before = time.monotonic()
        add(f"{prefix}: finds messages by key", _by_key(port, expected)[:5], time.monotonic() - before)
        before = time.monotonic()
        add(f"{prefix}: finds messages by time", _by_time(port, expected)[:5], time.monotonic() - before)
        if emptied:
            before = time.monotonic()
            given = {each: _send(port, *each) for each in emptied}
            problems = [
                f"{each} goes on at {given[each]}, not {end}"
                for each, end in emptied.items()
                if given[each] != end
            ]
            add(f"{prefix}: empty queues go on where they were", problems[:5], time.monotonic() - before)


def _send(port: int, topic: str, queue_id: int) -> int | None:
    """Queue offset of a message that was stored; None while the broker does not take any."""
    with wire.Client(port, 10.0) as client:
        answer = client.call(wire.SEND_V2, wire.send_ext(topic, queue_id, "WAIT\x01true\x02"), b"appended")
    return None if answer.code else int(answer.ext["queueOffset"])


def messages_of(client: wire.Client, topic: str, queue_id: int, first: int) -> list[Stored]:
    """What one pull from a queue offset brings."""
    answer = client.call(wire.PULL, wire.pull_ext(topic, queue_id, first))
    found = []
    position = 0
    while answer.code == 0 and position < len(answer.body):
        each = store_reading.stored_at(answer.body, position)
        found.append(each)
        position += each.size
    return found


def _compare(port: int, topic: str, queue_id: int, messages: list[Stored]) -> list[str]:
    """What a broker gives out of a queue that the source does not have, or has otherwise."""
    problems = []
    number = messages[0].record.queue_offset
    got: dict[int, Stored] = {}
    with wire.Client(port) as client:
        ext = {"topic": topic, "queueId": str(queue_id)}
        first = int(client.call(wire.MIN_OFFSET, ext).ext["offset"])
        if first != number:
            problems.append(f"{topic}/{queue_id} begins at {first} instead of {number}")
        while number <= messages[-1].record.queue_offset:
            pulled = messages_of(client, topic, queue_id, number)
            if not pulled:
                break
            got.update((each.record.queue_offset, each) for each in pulled)
            number = pulled[-1].record.queue_offset + 1
        end = int(client.call(wire.MAX_OFFSET, ext).ext["offset"])
    more = end - messages[-1].record.queue_offset - 1
    if more < 0 or (more > 1 and not topic.startswith(GROWING)):
        problems.append(f"{topic}/{queue_id} ends at {end}, {more} behind the last message")
    for each in messages:
        found = got.get(each.record.queue_offset)
        if found is None or found.content != each.content:
            problems.append(f"{topic}/{queue_id} {each.record.queue_offset}: {found} instead of {each}")
    return problems


def _sample(expected: Expected) -> list[Stored]:
    every = [each for messages in expected.values() for each in messages]
    return every[:: max(1, len(every) // SAMPLES)]


def _by_key(port: int, expected: Expected) -> list[str]:
    problems = []
    with wire.Client(port) as client:
        for each in _sample(expected):
            properties = dict(decode_properties(each.record.properties))
            for key in (properties.get("UNIQ_KEY"), *properties.get("KEYS", "").split()):
                if not key:
                    continue
                ext = {"topic": each.record.topic, "key": key, "maxNum": "64", "beginTimestamp": "0",
                       "endTimestamp": str(2**62)}  # fmt: skip
                answer = client.call(wire.QUERY_MESSAGE, ext)
                found = []
                position = 0
                while answer.code == 0 and position < len(answer.body):
                    found.append(store_reading.stored_at(answer.body, position))
                    position += found[-1].size
                if each.content not in [one.content for one in found] and len(found) < 64:
                    problems.append(
                        f"{each.record.topic} {key}: {answer.code} {answer.remark}, {len(found)} found"
                    )
    return problems


def _by_time(port: int, expected: Expected) -> list[str]:
    problems = []
    with wire.Client(port) as client:
        for each in _sample(expected):
            record = each.record
            messages = expected[record.topic, record.queue_id]
            want = next(m for m in messages if m.record.store_timestamp >= record.store_timestamp)
            ext = {
                "topic": record.topic,
                "queueId": str(record.queue_id),
                "timestamp": str(record.store_timestamp),
            }
            answer = client.call(SEARCH_TIME, ext)
            if answer.code or int(answer.ext["offset"]) != want.record.queue_offset:
                problems.append(
                    f"{record.topic}/{record.queue_id} at {record.store_timestamp}: {answer.code} {answer.ext} instead"
                    f" of {want.record.queue_offset}"
                )
    return problems
