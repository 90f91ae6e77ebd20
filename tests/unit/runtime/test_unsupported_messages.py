"""What a store has that our brokers do not deliver."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from brokerset_runtime.unsupported_messages import unsupported_in

UNIT = (4711).to_bytes(8, "big") + (200).to_bytes(4, "big") + bytes(8)
FILE_UNITS = 50
HALF = "RMQ_SYS_TRANS_HALF_TOPIC"
REVIVE = "rmq_sys_REVIVE_LOG_c"


def made(store: Path, queues: dict[tuple[str, int], int], offsets: dict[str, dict[str, int]]) -> Path:
    """A store with so many messages in each queue, with zeros behind, of which so many are consumed."""
    for (topic, queue), count in queues.items():
        folder = store / "consumequeue" / topic / str(queue)
        folder.mkdir(parents=True)
        first = count // FILE_UNITS * FILE_UNITS
        data = UNIT * (count - first) + bytes(20) * (FILE_UNITS - (count - first))
        (folder / f"{first * 20:020d}").write_bytes(data)
    (store / "config").mkdir()
    (store / "config" / "consumerOffset.json").write_text(json.dumps({"offsetTable": offsets}))
    groups: object = {"subscriptionGroupTable": {"g_x": {}, "g": {}}}
    (store / "config" / "subscriptionGroup.json").write_text(json.dumps(groups))
    return store


@pytest.mark.parametrize(
    ("queues", "offsets", "expected"),
    [
        ({("orders", 0): 7}, {}, ""),
        ({("rmq_sys_wheel_timer", 0): 1}, {}, ""),
        ({(HALF, 0): 120}, {f"{HALF}@CID_RMQ_SYS_TRANS": {"0": 119}}, ""),
        ({("rmq_sys_REVIVE_LOG_c", 0): 3, ("rmq_sys_REVIVE_LOG_c", 7): 50},
         {"rmq_sys_REVIVE_LOG_c@CID_RMQ_SYS_REVIVE_GROUP": {"0": 3, "7": 49}}, "POP consumers took"),
        ({("rmq_sys_REVIVE_LOG_c", 0): 3}, {"rmq_sys_REVIVE_LOG_c@CID_RMQ_SYS_REVIVE_GROUP": {"0": 3}}, ""),
        ({("%RETRY%g_x_orders", 0): 2, ("orders", 0): 5}, {"%RETRY%g_x_orders@g_x": {"0": 1}}, "POP retries"),
        ({("%RETRY%g+orders", 0): 2, ("orders", 0): 5}, {}, "POP retries (%RETRY%g+orders)"),
        ({("%RETRY%g+orders", 0): 2, ("orders", 0): 5}, {"%RETRY%g+orders@g": {"0": 2}}, ""),
        ({("%RETRY%g_x", 0): 2, ("orders", 0): 5}, {}, ""),
    ],
)  # fmt: skip
def test_what_waits_is_named_and_what_was_consumed_is_not(
    tmp_path: Path,
    queues: dict[tuple[str, int], int],
    offsets: dict[str, dict[str, int]],
    expected: str,
) -> None:
    """POP's notes and retries; transactions, timer messages and ordinary retries of a group are served."""
    found = unsupported_in(made(tmp_path / "a", queues, offsets))

    assert len(found) == bool(expected)
    assert expected in "".join(found)


def test_a_file_that_was_made_ahead_of_its_use_adds_no_messages(tmp_path: Path) -> None:
    """Of a queue, the last file that has a unit tells the end."""
    store = made(tmp_path, {(REVIVE, 0): 40}, {f"{REVIVE}@CID_RMQ_SYS_REVIVE_GROUP": {"0": 40}})
    (store / "consumequeue" / REVIVE / "0" / f"{FILE_UNITS * 20:020d}").write_bytes(bytes(FILE_UNITS * 20))

    assert unsupported_in(store) == ()


def test_what_waits_is_counted(tmp_path: Path) -> None:
    """Messages behind what was consumed, over all queues of the revive topic."""
    queues = {(HALF, 0): 120, ("rmq_sys_REVIVE_LOG_c", 0): 3, ("rmq_sys_REVIVE_LOG_c", 7): 50}
    store = made(tmp_path, queues, {f"{HALF}@CID_RMQ_SYS_TRANS": {"0": 100}})

    assert unsupported_in(store) == (
        "53 check points of messages that POP consumers took, and may not have acknowledged",
    )


def test_a_store_without_anything_has_nothing(tmp_path: Path) -> None:
    """A folder without queues and settings is no failure."""
    assert unsupported_in(tmp_path) == ()
