"""The key-value configuration: entries, limits, and the file."""

from __future__ import annotations

import orjson
import pytest

from brokerset_formats.errors import FormatError
from brokerset_namesrv import kv_config
from brokerset_namesrv.kv_config import KvTable, decode


def test_entries_by_namespace_and_key() -> None:
    """What was put is found; what was deleted is not; the namespace stays, as in Java."""
    table = KvTable()

    assert table.put("n", "k", "v") is None
    assert table.put("n", "k", "w") is None
    assert table.get("n", "k") == "w"
    assert table.get("n", "other") is None
    assert table.get("other", "k") is None
    assert table.entry_count == 1
    assert table.delete("n", "k")
    assert not table.delete("n", "k")
    assert not table.delete("other", "k")
    assert table.namespace("n") == {}
    assert table.namespace("other") is None


def test_bodies_of_answers() -> None:
    """A namespace is a KVTable; one that was never used is not there."""
    table = KvTable()
    table.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4")

    assert table.encode_namespace("ORDER_TOPIC_CONFIG") == b'{"table":{"T":"broker-a:4"}}'
    assert table.encode_namespace("x") is None


def test_file_is_javas_and_comes_back() -> None:
    """The file has Java's layout, and reading it gives the same table."""
    table = KvTable()
    table.put("ORDER_TOPIC_CONFIG", "T", "broker-a:4")

    data = table.encode()

    assert orjson.loads(data) == {"configTable": {"ORDER_TOPIC_CONFIG": {"T": "broker-a:4"}}}
    assert decode(b'{"configTable":{"ORDER_TOPIC_CONFIG":{"T":"broker-a:4"}}}').encode() == data
    assert decode(data).encode() == data


def test_empty_namespaces_and_files_survive() -> None:
    """A namespace without entries is kept; a file without a table is empty."""
    assert decode(b'{"configTable":{"n":{}}}').namespace("n") == {}
    assert decode(b"{}").entry_count == 0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b'{"configTable":[]}',
        b'{"configTable":{"n":1}}',
        b'{"configTable":{"n":{"k":[]}}}',
        b"\xff",
    ],
)
def test_a_damaged_file_is_an_error(data: bytes) -> None:
    """Nothing is guessed from a file that cannot be read."""
    with pytest.raises(FormatError):
        decode(data)


def test_limits_refuse_and_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each limit has its own refusal; what is there can still be replaced by something shorter."""
    monkeypatch.setattr(kv_config, "NAMESPACES_MAX", 1)
    monkeypatch.setattr(kv_config, "ENTRIES_MAX", 2)
    monkeypatch.setattr(kv_config, "TOTAL_LENGTH_MAX", 20)
    table = KvTable()

    assert "key has 0" in str(table.put("n", "", "v"))
    assert "namespace has 1025" in str(table.put("n" * 1025, "k", "v"))
    assert "the value has" in str(table.put("n", "k", "v" * 65_537))
    assert table.put("n", "k", "v" * 19) is None
    assert "exceed 20" in str(table.put("n", "l", "v"))
    assert table.put("n", "k", "v") is None
    assert table.put("n", "l", "v") is None
    assert "2 entries" in str(table.put("n", "m", "v"))
    assert "1 namespaces" in str(table.put("o", "m", "v"))
    assert table.namespace("n") == {"k": "v", "l": "v"}
