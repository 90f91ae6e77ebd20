"""Replicas of one group in one query: each message is given once, or the query is refused."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from brokerset_formats.identity import BrokerIdentity
from brokerset_rig.made_stores import message, unpack_fixture, write_log
from brokerset_spark.sources.columns import MESSAGE_COLUMNS, schema_of
from brokerset_spark.sources.messages import MessageReader
from brokerset_spark.sources.options import Replicas, read_message_options
from brokerset_spark.sources.reader import PiecePartition
from brokerset_spark.sources.replicas import ReplicasGiven, StoreReach, decide_replicas
from brokerset_spark.sources.stream import MessageStream

SCHEMA = schema_of(MESSAGE_COLUMNS, ("commitLogOffset", "queueOffset", "topic", "queueId"))
GROUP = ("c", "broker-a")


def rows(paths: str, **options: Any) -> list[tuple[Any, ...]]:
    """What the data source gives, without a JVM."""
    given = {"path": paths, "includeSystemTopics": "true", **options}
    reader = MessageReader(read_message_options("rocketmq-store", given), SCHEMA)
    found: list[tuple[Any, ...]] = []
    for partition in reader.partitions():
        assert isinstance(partition, PiecePartition)
        for batch in reader.read(partition):
            found += [tuple(row.values()) for row in batch.to_pylist()]
    return found


def named(store: Path, broker: str, number: int) -> None:
    (store / "brokerIdentity").write_bytes(BrokerIdentity("c", broker, number).encode())


def test_a_pattern_over_replicas_of_java_gives_each_message_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The guide's own pattern, on a group in controller mode; the warning names both stores and the
    option."""
    root = unpack_fixture(tmp_path, "controller-mode")

    with caplog.at_level(logging.WARNING, "brokerset_spark"):
        found = rows(f"{root}/broker-*/store")

    assert len(found) == len(set(found)) > 0
    assert set(found) >= set(rows(f"{root}/broker-0/store")) or set(found) >= set(
        rows(f"{root}/broker-1/store")
    )
    assert "are replicas of" in caplog.text
    assert all(word in caplog.text for word in ("broker-0/store", "broker-1/store", "replicas=all"))
    both = rows(f"{root}/broker-*/store", replicas="all")
    assert len(both) > len(set(both)) == len(found)
    with pytest.raises(ReplicasGiven, match=r"broker-0/store and .*broker-1/store are replicas"):
        rows(f"{root}/broker-*/store", replicas="fail")


def test_copies_without_identity_are_known_by_their_logs(tmp_path: Path) -> None:
    """Stores of older brokers and of a DLedger carry no names: the same record at the same offset tells."""
    for kind in ("a", "b"):
        write_log(tmp_path / kind, [message(n) for n in range(40)], file_size=4096)
    shutil.rmtree(tmp_path / "b" / "commitlog")
    write_log(tmp_path / "b", [message(n) for n in range(60)], file_size=4096)  # it is further
    other = [message(n, body=b"of another broker") for n in range(30)]
    write_log(tmp_path / "c", other, file_size=4096)
    root = unpack_fixture(tmp_path, "dledger")

    assert len(rows(f"{tmp_path}/a,{tmp_path}/b,{tmp_path}/c")) == 60 + 30
    ledger = rows(f"{root}/broker-*/store")
    assert len(ledger) == len(set(ledger)) > 0


def test_one_name_with_different_logs_is_refused(tmp_path: Path) -> None:
    """Which of them is right nobody knows; other names are other groups, whatever their logs hold."""
    write_log(tmp_path / "a", [message(n) for n in range(40)], file_size=4096)
    write_log(tmp_path / "b", [message(n, flag=9) for n in range(40)], file_size=4096)
    for number, name in enumerate("ab"):
        named(tmp_path / name, "broker-a", number)

    with pytest.raises(ReplicasGiven, match="their logs differ"):
        rows(f"{tmp_path}/a,{tmp_path}/b")
    named(tmp_path / "b", "broker-b", 1)
    assert len(rows(f"{tmp_path}/a,{tmp_path}/b")) == 80


def test_a_stream_of_replicas_without_a_name_is_refused(tmp_path: Path) -> None:
    """Its offsets would belong to one store; which one reaches furthest changes."""
    for name in "ab":
        write_log(tmp_path / name, [message(n) for n in range(40)], file_size=4096)
    options = read_message_options("rocketmq-store", {"path": f"{tmp_path}/a,{tmp_path}/b"})

    with pytest.raises(ReplicasGiven, match="replicas=all"):
        MessageStream(options, SCHEMA).initialOffset()
    stream = MessageStream(options, SCHEMA)
    with pytest.raises(ReplicasGiven):  # begun by an older version
        stream.latestOffset({}, stream.getDefaultReadLimit())


@pytest.mark.parametrize(
    ("mode", "same", "stores", "expected"),
    [
        ("one", True, [("a", 0, 100), ("b", 0, 120)], ["b"]),
        ("one", True, [("a", 0, 120), ("b", 50, 120)], ["a"]),
        ("one", None, [("a", 0, 100), ("b", 0, 0)], ["a"]),  # an empty one has nothing to lose
        ("one", None, [("a", 0, 100), ("b", 200, 300)], "nothing in common"),
        ("one", False, [("a", 0, 100), ("b", 0, 100)], "logs differ"),
        ("fail", True, [("a", 0, 100), ("b", 0, 100)], "are replicas of"),
        ("all", False, [("a", 0, 100), ("b", 0, 100)], ["a", "b"]),
    ],
)
def test_which_replica_is_read(
    mode: Replicas, same: bool | None, stores: list[tuple[str, int, int]], expected: list[str] | str
) -> None:
    """The one that reaches furthest, of equals the one that begins first; never a guess among different
    logs."""
    reaches = [StoreReach(url, GROUP, first, end) for url, first, end in stores]

    if isinstance(expected, str):
        with pytest.raises(ReplicasGiven, match=expected):
            decide_replicas(reaches, lambda one, other: same, mode)
    else:
        assert decide_replicas(reaches, lambda one, other: same, mode)[0] == expected


def test_what_only_another_replica_has_is_said() -> None:
    """The one that is read may have expired more than others."""
    reaches = [StoreReach("a", GROUP, 0, 100), StoreReach("b", GROUP, 50, 120)]

    _, (said,) = decide_replicas(reaches, lambda one, other: True, "one")

    assert "only b is read" in said
    assert "from 0 on, is left out" in said
