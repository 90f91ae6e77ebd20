"""Which files of queues a list calls sealed: readers never fetch those again."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerset_broker.outside.store_stream.files import Bounds, StoreFiles
from brokerset_broker.store import MessageStore
from brokerset_formats.queue_units import QueueUnit
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

UNIT = QueueUnit(4711, 200, 0).encode()
ROOM = bytes(180)


@pytest.mark.parametrize(
    ("contents", "sealed"),
    [
        ([UNIT + ROOM], [False]),
        ([UNIT * 10, UNIT + ROOM], [True, False]),
        ([UNIT * 8 + bytes(40), bytes(200)], [False, False]),
        ([UNIT * 10, UNIT * 8 + bytes(40), bytes(200)], [True, False, False]),
        ([bytes(200)], [False]),
    ],
)
def test_a_file_that_was_made_ahead_does_not_seal_the_one_before_it(
    tmp_path: Path, contents: list[bytes], sealed: list[bool]
) -> None:
    folder = tmp_path / "consumequeue" / "T" / "0"
    folder.mkdir(parents=True)
    for number, content in enumerate(contents):
        (folder / f"{number * 200:020d}").write_bytes(content)
    settings = BrokerSettings(store_path_root_dir=tmp_path)
    files = StoreFiles(MessageStore(settings, ManualClock()), settings)

    listed, _ = files.listed(("consumequeue",), (), Bounds(0, 0, ()))

    assert [each.sealed for each in listed] == sealed
