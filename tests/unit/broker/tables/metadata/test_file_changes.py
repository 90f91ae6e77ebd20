"""Changes of the tables without controllers: in the tables at once, answered when they are on the disk."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from brokerset_acl.users import User
from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.store.errors import PutStatus
from brokerset_broker.tables.access import FILE_NAME, AccessTable
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.metadata.records import AccessPut, OffsetsPut, TopicsDeleted, TopicsPut
from brokerset_broker.tables.metadata.standalone import FileChanges
from brokerset_broker.tables.offsets import OffsetManager
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.config import TopicConfig
from brokerset_protocol.errors import Rejected
from brokerset_rig.metadata_parts import file_changes
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

NEW = TopicConfig("new", 4, 4)


class Place:
    def __init__(self, folder: Path) -> None:
        live, clock = LiveSettings(BrokerSettings(store_path_root_dir=folder)), ManualClock()
        self.folder = folder
        self.topics = TopicManager(live, clock)
        self.offsets = OffsetManager(live, clock)
        self.access = AccessTable(folder / "config")
        groups = GroupManager(live, clock)
        self.changes: FileChanges = file_changes(self.topics, groups, self.offsets, self.access)

    @property
    def file(self) -> str:
        path = self.folder / "config" / "topics.json"
        return path.read_text() if path.exists() else ""


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


async def test_a_change_is_answered_when_its_file_is_written(place: Place) -> None:
    """Until then a new topic is unsaved, so that no send in it is acknowledged."""

    change = asyncio.create_task(place.changes.change(["new"], lambda: [TopicsPut((NEW,))]))
    await asyncio.sleep(0)
    assert place.topics.get("new") == NEW
    assert "new" in place.topics.unsaved
    await change

    assert place.topics.unsaved == {}
    assert '"new"' in place.file
    await place.changes.change(["new"], lambda: [TopicsDeleted(("new",))])
    assert '"new"' not in place.file


async def test_who_is_gone_before_the_file_is_written_leaves_no_topic_unsaved_for_ever(place: Place) -> None:
    """The next one who asks for the topic waits for the file and finds it saved."""

    first = asyncio.create_task(place.changes.change(["new"], lambda: [TopicsPut((NEW,))]))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert "new" in place.topics.unsaved

    await place.changes.change(["new"], lambda: [])

    assert place.topics.unsaved == {}
    assert '"new"' in place.file


async def test_a_user_that_is_there_is_answered_when_it_is_on_the_disk(place: Place) -> None:
    """Whoever asks for the same again, since the first one left or the disk refused, waits for the file."""
    user = AccessPut({"u": User("u", "k")}, {})
    first = asyncio.create_task(place.changes.change(["access"], lambda: [user]))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)

    await place.changes.change(["access"], lambda: [])

    file = place.folder / "config" / FILE_NAME
    assert '"u"' in file.read_text()
    assert file.stat().st_mode & 0o777 == 0o600


async def test_a_disk_that_refuses_is_told(place: Place) -> None:
    """The client tries again elsewhere; the topic stays unsaved."""

    (place.folder / "config").write_text("a file where a folder should be")

    with pytest.raises(Rejected, match="cannot be written down") as refused:
        await place.changes.change(["new"], lambda: [TopicsPut((NEW,))])

    assert refused.value.code == 14
    assert "new" in place.topics.unsaved


async def test_offsets_are_safe_enough_at_once_and_set_ones_on_the_disk(place: Place) -> None:
    """Commits are written every few seconds, as Java does; what an administrator sets is written first."""

    told: list[PutStatus] = []
    place.changes.when_offsets_confirmed(told.append)
    assert told == [PutStatus.PUT_OK]

    await place.changes.change([], lambda: [OffsetsPut({"t@g": {0: 7}})])

    assert "t@g" in (place.folder / "config" / "consumerOffset.json").read_text()
    assert place.changes.answer_ext() == {}
