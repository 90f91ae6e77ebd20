"""Leading and following: when changes are applied, when clients are answered, and what a role change does."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from brokerset_broker.store.errors import PutStatus
from brokerset_broker.tables.metadata import records
from brokerset_broker.tables.metadata.metadata_log import MetadataUnreadable
from brokerset_broker.tables.metadata.records import (
    DelayPut,
    GroupsDeleted,
    Kind,
    OffsetsPut,
    OffsetsRemoved,
    ResetsPut,
    SnapshotEnd,
    TopicsDeleted,
    TopicsPut,
)
from brokerset_formats.config import SubscriptionGroupConfig, TopicConfig
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_rig.failing_answers import Answers
from brokerset_rig.metadata_parts import MemoryStore, Replica, copy_records, settle

T = TopicConfig("t", 4, 4)


async def leader(folder: Path, epoch: int = 1, **settings: object) -> Replica:
    """A replica that leads, with everything confirmed."""
    replica = Replica(folder, **settings)  # type: ignore[arg-type]  # by name
    await replica.log.start_following()
    await replica.log.lead(epoch)
    await replica.log.write_snapshot()
    replica.confirm()
    return replica


def kinds(store: MemoryStore) -> list[Kind]:
    return [Kind(record.body[5]) for record in store.metadata if record.body is not None]


def put_topic(replica: Replica, topic: TopicConfig = T) -> asyncio.Task[None]:
    return asyncio.create_task(replica.log.change([topic.topic_name], lambda: [TopicsPut((topic,))]))


async def test_a_told_change_is_applied_when_confirmed(tmp_path: Path) -> None:
    """Neither the table nor the client has it before the log is confirmed behind its record."""

    replica = await leader(tmp_path)
    task = put_topic(replica)
    await settle()
    end = replica.store.max_offset

    replica.confirm(end - 1)
    await settle()
    assert replica.topics.get("t") is None
    assert not task.done()

    replica.confirm(end)
    assert replica.topics.get("t") == T
    await task


async def test_a_follower_applies_nothing_above_the_confirmed_offset(tmp_path: Path) -> None:
    """What it has received is not in its tables until it is confirmed."""

    master, slave = await leader(tmp_path / "a"), Replica(tmp_path / "b")
    await slave.log.start_following()
    task = put_topic(master)
    await settle()
    master.confirm()
    await task
    copy_records(master.store, slave.store)

    slave.confirm(slave.store.max_offset - 1)
    assert slave.topics.get("t") is None
    assert slave.log.status().applied_offset <= slave.store.confirmed_offset

    slave.confirm()
    assert slave.topics.get("t") == T
    assert slave.state() == master.state()


async def test_a_new_master_applies_what_was_not_confirmed(tmp_path: Path) -> None:
    """What is in its log when it begins to lead is history."""

    master, slave = await leader(tmp_path / "a"), Replica(tmp_path / "b")
    await slave.log.start_following()
    task = put_topic(master)
    await settle()
    copy_records(master.store, slave.store)

    await slave.log.lead(2)

    assert slave.topics.get("t") == T
    master.log.stop_leading()
    with pytest.raises(Rejected) as refused:
        await task
    assert refused.value.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert master.topics.get("t") is None


async def test_two_way_commits_of_a_turn_share_a_record(tmp_path: Path) -> None:
    """The answer waits for the confirmation; memory has the offset at once."""

    replica = await leader(tmp_path)
    before = len(replica.store.records)
    told: list[PutStatus] = []
    for queue in range(5):
        replica.offsets.commit("g", "t", queue, 10 + queue)
        replica.log.when_offsets_confirmed(told.append)
    await settle()

    assert replica.offsets.query("g", "t", 3) == 13
    assert kinds(replica.store)[-1:] == [Kind.OFFSETS]
    assert len(replica.store.records) == before + 1
    assert told == []
    replica.confirm()
    assert told == [PutStatus.PUT_OK] * 5
    replica.log.when_offsets_confirmed(told.append)
    assert len(told) == 6


async def test_an_answer_that_fails_ends_no_other(tmp_path: Path) -> None:
    """Neither when its record is confirmed, nor when it will not be, nor when the store refuses it."""

    replica, answers = await leader(tmp_path), Answers()

    async def wait_for(offset: int) -> None:
        replica.offsets.commit("g", "t", 0, offset)
        replica.log.when_offsets_confirmed(answers.fail)
        replica.log.when_offsets_confirmed(answers.take)
        await settle()

    await wait_for(5)
    replica.confirm()
    await wait_for(6)
    replica.end_waiting(PutStatus.FLUSH_SLAVE_TIMEOUT)
    replica.store.refuses = "the disk is full"
    await wait_for(7)
    replica.store.refuses = None
    await wait_for(8)
    replica.log.stop_leading()

    away = PutStatus.SERVICE_NOT_AVAILABLE
    assert answers.given == [PutStatus.PUT_OK, PutStatus.FLUSH_SLAVE_TIMEOUT, away, away]
    assert answers.reported == [f"at {status}" for status in answers.given]


async def test_a_commit_that_repeats_an_unconfirmed_one_waits_for_it(tmp_path: Path) -> None:
    """The same offset again changes nothing, but is not safe either."""

    replica = await leader(tmp_path)
    told: list[PutStatus] = []
    replica.offsets.commit("g", "t", 0, 5)
    replica.log.when_offsets_confirmed(lambda _: None)
    await settle()
    replica.offsets.commit("g", "t", 0, 5)
    replica.log.when_offsets_confirmed(told.append)
    await settle()

    assert told == []
    replica.confirm()
    assert told == [PutStatus.PUT_OK]


async def test_a_change_that_changes_nothing_waits_for_what_it_found(tmp_path: Path) -> None:
    """A group that came into being a moment ago may still be lost, so who asks for it is not answered yet."""

    replica = await leader(tmp_path)
    replica.groups.get_or_create("g")
    config = SubscriptionGroupConfig("g")
    task = asyncio.create_task(
        replica.log.change(["g"], lambda: [] if replica.groups.get("g") == config else [TopicsPut((T,))])
    )
    await settle()

    assert kinds(replica.store)[-1] is Kind.GROUPS
    assert not task.done()
    replica.confirm()
    await task


async def test_quiet_changes_stand_before_a_told_one(tmp_path: Path) -> None:
    """Offsets committed before a topic is deleted have their record before the deletion."""

    replica = await leader(tmp_path)
    replica.groups.get_or_create("g")
    replica.offsets.commit("g", "t", 0, 5)
    replica.delay.levels[3] = 9
    count = len(replica.store.records)
    task = asyncio.create_task(replica.log.change(["t"], lambda: [TopicsDeleted(("t",))]))
    await settle()

    written = kinds(replica.store)[count:]
    assert written == [Kind.GROUPS, Kind.OFFSETS, Kind.DELAY, Kind.TOPICS_DELETED]
    replica.confirm()
    await task
    assert replica.offsets.query("g", "t", 0) is None
    assert [topic for topic, _ in replica.store.forgotten] == ["t"]


async def test_what_a_record_will_overwrite_is_held(tmp_path: Path) -> None:
    """Commits between the record of a deletion or reset and its application count on no replica."""

    replica = await leader(tmp_path)
    for topic in ("t", "u", "v", "w"):
        replica.offsets.commit("g", topic, 0, 5)
    changes = {
        "t": TopicsDeleted(("t",)),
        "u": ResetsPut({"u@g": {0: 1}}),
        "v": OffsetsPut({"v@g": {0: 2}}),
    }
    tasks = [
        asyncio.create_task(replica.log.change([key], lambda change=change: [change]))  # type: ignore[misc]
        for key, change in changes.items()
    ]
    await settle()
    for topic in ("t", "u", "v", "w"):
        assert replica.offsets.commit("g", topic, 0, 9)
    assert "t" in replica.topics.going

    assert [replica.offsets.query("g", topic, 0) for topic in "tuvw"] == [5, 5, 5, 9]
    replica.confirm()
    await asyncio.gather(*tasks)
    assert [replica.offsets.query("g", topic, 0) for topic in "tuvw"] == [None, 1, 2, 9]
    assert not replica.topics.going
    replica.offsets.take_reset("g", "u", 0)
    assert replica.offsets.commit("g", "u", 0, 9)
    assert replica.offsets.query("g", "u", 0) == 9


async def test_changes_of_one_name_take_turns_and_others_do_not_wait(tmp_path: Path) -> None:
    """The second change of a topic is decided on what the first one left."""

    replica = await leader(tmp_path)
    seen: list[TopicConfig | None] = []

    def second() -> list[TopicsPut]:
        seen.append(replica.topics.get("t"))
        return [TopicsPut((TopicConfig("t", 8, 8),))]

    first = put_topic(replica)
    later = asyncio.create_task(replica.log.change(["t"], second))
    other = put_topic(replica, TopicConfig("other"))
    await settle()
    assert seen == []
    replica.confirm()
    await first
    await other
    await settle()
    assert seen == [T]
    replica.confirm()
    await later
    assert replica.topics.get("t") == TopicConfig("t", 8, 8)


async def test_a_change_that_is_not_confirmed_in_time_says_so(tmp_path: Path) -> None:
    """It is no success, and it comes about when it is confirmed after all."""

    replica = await leader(tmp_path)
    task = put_topic(replica)
    await settle()
    replica.end_waiting(PutStatus.FLUSH_SLAVE_TIMEOUT)

    with pytest.raises(Rejected) as refused:
        await task
    assert refused.value.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    assert replica.topics.get("t") is None
    replica.confirm()
    assert replica.topics.get("t") == T


async def test_a_store_that_refuses_changes_nothing(tmp_path: Path) -> None:
    """Told changes are refused, quiet ones are tried again, nothing stays held."""

    replica = await leader(tmp_path)
    replica.store.refuses = "the disk is full"
    replica.offsets.commit("g", "t", 0, 5)
    told: list[PutStatus] = []
    replica.log.when_offsets_confirmed(told.append)
    assert replica.topics.create_retry("g", 1) is None
    with pytest.raises(Rejected):
        await replica.log.change(["t"], lambda: [TopicsDeleted(("t",))])
    await settle()

    assert told == [PutStatus.SERVICE_NOT_AVAILABLE]
    assert not replica.topics.going
    assert not await replica.log.write_snapshot()
    replica.store.refuses = None
    replica.log.flush()
    entry = records.decode(replica.store.records[-1].body or b"")
    assert entry == OffsetsPut({"t@g": {0: 5}})


async def test_a_follower_changes_nothing_by_itself(tmp_path: Path) -> None:
    """Unknown groups are described, not created; commits are ignored; changes are refused."""

    slave = Replica(tmp_path)
    await slave.log.start_following()
    before = slave.state()

    assert slave.groups.get_or_create("g") is not None
    assert slave.topics.create_retry("g", 1) is not None
    assert not slave.offsets.commit("g", "t", 0, 5)
    with pytest.raises(Rejected):
        await slave.log.change(["t"], lambda: [TopicsPut((T,))])

    assert slave.state() == before
    assert slave.store.records == []


async def test_retry_topics_stand_before_what_goes_there(tmp_path: Path) -> None:
    """Their record is written when they come into being, before any message can follow."""

    replica = await leader(tmp_path)
    count = len(replica.store.records)

    assert replica.topics.create_dlq("g") is not None

    entry = records.decode(replica.store.records[count].body or b"")
    assert isinstance(entry, TopicsPut)
    assert entry.if_absent
    assert entry.topics[0].topic_name == "%DLQ%g"


async def test_a_deposed_master_becomes_what_the_next_one_says(tmp_path: Path) -> None:
    """Its optimistic changes stay until the next master's first snapshot, and then are gone."""

    old, new = await leader(tmp_path / "a"), Replica(tmp_path / "b")
    await new.log.start_following()
    copy_records(old.store, new.store)
    old.groups.get_or_create("lost")
    old.offsets.commit("g", "t", 0, 99)
    cut = new.store.max_offset

    await new.log.lead(2)
    new.groups.get_or_create("kept")
    await new.log.write_snapshot()
    old.log.stop_leading()
    old.store.records = [record for record in old.store.records if record.end <= cut]
    old.log.truncated(cut)
    await old.log.start_following()
    assert old.offsets.query("g", "t", 0) == 99
    copy_records(new.store, old.store)
    new.confirm()
    old.confirm()

    assert old.state() == new.state()
    assert old.groups.get("lost") is None
    assert old.groups.get("kept") is not None
    assert old.log.status().exact


async def test_a_master_again_spreads_what_it_alone_knows(tmp_path: Path) -> None:
    """Quiet changes that never got a record are in its next first snapshot, which everybody takes over."""

    master, slave = await leader(tmp_path / "a"), Replica(tmp_path / "b")
    await slave.log.start_following()
    copy_records(master.store, slave.store)
    slave.confirm()
    assert slave.log.status().exact
    master.offsets.commit("g", "t", 0, 7)

    master.log.stop_leading()
    await master.log.lead(2)
    await master.log.write_snapshot()
    copy_records(master.store, slave.store)
    slave.confirm()

    assert slave.offsets.query("g", "t", 0) == 7
    assert slave.state() == master.state()


def on_an_empty_disk(folder: Path, master: Replica) -> Replica:
    """A replica whose log begins where the newest snapshot does: what precedes it was deleted."""
    records_left = [each for each in master.store.records if each.offset >= master.log.keep_from()]
    store = MemoryStore()
    store.records, store.start = records_left, records_left[0].offset
    return Replica(folder, store)


async def test_a_snapshot_has_the_ends_of_queues_that_the_log_has_no_messages_of(tmp_path: Path) -> None:
    """Else a replica on an empty disk would number them from 0 as a master, and consumers miss messages."""

    master = await leader(tmp_path / "a")
    master.store.resting = {"t": {0: 120, 3: 7}, "deleted": {0: 5}}
    await master.log.write_snapshot()
    master.confirm()
    deletion = asyncio.create_task(master.log.change(["deleted"], lambda: [TopicsDeleted(("deleted",))]))
    await settle()
    master.confirm()
    await deletion

    slave = on_an_empty_disk(tmp_path / "b", master)
    await slave.log.start_following()
    slave.confirm()

    assert slave.store.resting == {"t": {0: 120, 3: 7}, "deleted": {0: 5}}
    assert slave.log.status().exact
    assert ("deleted", master.store.metadata[-1].offset) in slave.store.forgotten
    await slave.log.write_stamp()
    assert slave.store.checkpoints == 1


async def test_a_snapshot_that_the_disk_has_no_room_for_is_not_taken_over(tmp_path: Path) -> None:
    """The replica knows that it lacks something, until there is room for the next one."""

    master = await leader(tmp_path / "a")
    master.store.resting = {"t": {0: 120}}
    await master.log.write_snapshot()
    master.confirm()
    slave = on_an_empty_disk(tmp_path / "b", master)
    slave.store.refuses = "no room"
    await slave.log.start_following()
    slave.confirm()
    assert not slave.log.status().exact

    slave.store.refuses = None
    await master.log.write_snapshot()
    copy_records(master.store, slave.store)
    slave.confirm()

    assert slave.store.resting == {"t": {0: 120}}
    assert slave.log.status().exact


async def test_a_snapshot_lets_others_go_on_and_loses_nothing(tmp_path: Path) -> None:
    """With changes before, between and behind its chunks; a told one is on its way when it begins."""

    master = await leader(tmp_path / "a")
    for number in range(1_800):
        master.offsets.commit("g", f"t{number}", 0, number)
    pending = put_topic(master)
    await settle()
    snapshot = asyncio.create_task(master.log.write_snapshot())
    turns = 0
    while not snapshot.done():
        master.offsets.commit("g", f"t{turns * 450}", 0, 5_000 + turns)
        master.groups.get_or_create(f"g{turns}")
        if turns == 2:
            master.confirm()
        turns += 1
        await asyncio.sleep(0)
    assert turns > 3
    master.log.flush()
    master.confirm()
    await pending

    first = next(
        index for index, record in enumerate(master.store.records) if record.end > master.log.keep_from()
    )
    late_store = MemoryStore()
    late_store.records = master.store.records[first:]
    late_store.confirmed_offset = late_store.max_offset
    late = Replica(tmp_path / "b", late_store)
    await late.log.start_following()
    assert late.state() == master.state()
    assert late.topics.get("t") == T


@pytest.mark.parametrize("harm", ["no end", "lost chunk", "wrong checksum"])
async def test_a_snapshot_that_is_not_whole_counts_for_nothing(tmp_path: Path, harm: str) -> None:
    """The one before it is restored, and what follows it is replayed."""

    master = await leader(tmp_path / "a")
    task = put_topic(master)
    await settle()
    master.confirm()
    await task
    good = master.log.keep_from()
    await master.log.write_snapshot()
    end = master.store.records[-1]
    chunk = master.store.records[-2]
    if harm == "no end":
        master.store.records.pop()
    elif harm == "lost chunk":
        master.store.damage(chunk.offset, records.encode(DelayPut({}))[0][1])
    else:
        entry = records.decode(end.body or b"")
        assert isinstance(entry, SnapshotEnd)
        wrong = SnapshotEnd(entry.begin, entry.replay_from, entry.chunks, entry.entries, 1)
        master.store.damage(end.offset, records.encode(wrong)[0][1])
    store = MemoryStore()
    store.records = list(master.store.records)
    store.confirmed_offset = store.max_offset

    late = Replica(tmp_path / "b", store)
    await late.log.start_following()

    assert late.state() == master.state()
    assert late.log.keep_from() == good


async def test_after_a_start_files_and_later_records_count(tmp_path: Path) -> None:
    """The stamp says where to go on; files that are younger than it do no harm."""

    replica = await leader(tmp_path)
    replica.offsets.commit("g", "t", 0, 5)
    replica.log.flush()
    replica.confirm()
    await replica.log.write_stamp()
    stamped = replica.log.status().applied_offset
    task = put_topic(replica)
    replica.offsets.commit("g", "t", 0, 6)
    await settle()
    replica.confirm()
    await task
    await replica.offsets.saved()

    again = Replica(tmp_path, replica.store)
    assert again.log.status().applied_offset == stamped
    assert again.topics.get("t") is None
    await again.log.start_following()

    assert again.state() == replica.state()
    assert again.log.keep_from() == replica.log.keep_from()


@pytest.mark.parametrize("stamp", [None, b"{", b'{"appliedOffset":7,"epoch":1,"crc":5}'])
async def test_without_a_stamp_the_newest_snapshot_counts(tmp_path: Path, stamp: bytes | None) -> None:
    """A damaged or lost stamp is as none, and what the files say is replaced."""

    replica = await leader(tmp_path)
    replica.offsets.commit("g", "t", 0, 5)
    replica.log.flush()
    replica.confirm()
    await replica.log.close()
    path = tmp_path / "config/brokersetMetadata.json"
    path.unlink() if stamp is None else path.write_bytes(stamp)
    replica.offsets.commit("lost", "t", 0, 5)
    await replica.offsets.saved()

    again = Replica(tmp_path, replica.store)
    await again.log.start_following()

    assert again.offsets.query("g", "t", 0) == 5
    assert again.offsets.query("lost", "t", 0) is None
    assert again.log.status().exact


async def test_a_cut_below_what_was_applied_restores_a_snapshot(tmp_path: Path) -> None:
    """After an unclean election what is cut off is not in the tables any more, also after a restart."""

    replica = await leader(tmp_path)
    cut = replica.store.max_offset
    task = put_topic(replica)
    await settle()
    replica.confirm()
    await task
    await replica.log.write_stamp()
    replica.log.stop_leading()
    await replica.log.start_following()
    replica.store.records = [record for record in replica.store.records if record.end <= cut]
    replica.store.confirmed_offset = cut

    replica.log.truncated(cut)
    await settle()

    assert replica.topics.get("t") is None
    assert replica.log.status().applied_offset == cut
    assert replica.log.status().exact
    assert f'"appliedOffset":{cut},' in (tmp_path / "config/brokersetMetadata.json").read_text()


async def test_an_unknown_version_stops_applying_and_forbids_leading(tmp_path: Path) -> None:
    """The problem is named, and what lies before it stays applied."""

    replica = await leader(tmp_path)
    replica.log.stop_leading()
    replica.store.append(Kind.DELAY, records.HEAD.pack(b"BSM1", 7, 9, 0, 2) + b"{}")
    replica.confirm()

    assert "version 7" in (replica.log.status().problem or "")
    with pytest.raises(MetadataUnreadable, match="version 7"):
        await replica.log.lead(2)


async def test_a_record_of_an_unknown_kind_is_passed_over(tmp_path: Path) -> None:
    """What follows it is applied."""

    replica = await leader(tmp_path)
    replica.log.stop_leading()
    replica.store.append(Kind.DELAY, records.HEAD.pack(b"BSM1", 1, 200, 0, 2) + b"{}")
    replica.store.append(*records.encode(DelayPut({4: 4}))[0])
    replica.confirm()

    assert replica.delay.levels == {4: 4}
    assert replica.log.status().problem is None


async def test_tasks_write_what_is_quiet(tmp_path: Path) -> None:
    """Offsets after 0.2 s, delay progress after 1 s, an ordered group's retry topic by way of the log."""

    replica = await leader(tmp_path, flush_consumer_offset_interval=50)
    task = asyncio.create_task(replica.log.run())
    replica.topics.create_retry("g", 1)
    replica.topics.create_retry("g", 1, order=True)
    replica.offsets.commit("g", "t", 0, 5)
    replica.delay.levels[1] = 3
    while not {Kind.OFFSETS, Kind.DELAY} <= set(kinds(replica.store)):  # tells nobody
        await asyncio.sleep(0.02)
        replica.confirm()
    retry = replica.topics.get("%RETRY%g")
    assert retry is not None
    assert retry.order
    while not (tmp_path / "config/brokersetMetadata.json").exists():  # noqa: ASYNC110  # tells nobody
        await asyncio.sleep(0.02)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_retention_keeps_the_newest_confirmed_snapshot(tmp_path: Path) -> None:
    """Without one, what files lack stays; a newer one counts when its end is confirmed."""

    replica = Replica(tmp_path)
    await replica.log.start_following()
    await replica.log.lead(1)
    assert replica.log.keep_from() == 0
    replica.store.append_message()
    replica.confirm()
    await replica.log.write_stamp()
    assert replica.log.keep_from() == replica.store.max_offset
    first = replica.store.max_offset
    await replica.log.write_snapshot()
    replica.confirm()
    assert replica.log.keep_from() == first
    replica.store.append_message()
    second = replica.store.max_offset
    await replica.log.write_snapshot()
    assert replica.log.keep_from() == first
    replica.confirm()
    assert replica.log.keep_from() == second


async def test_unchanged_entries_are_left_alone(tmp_path: Path) -> None:
    """Taking over the state that is there changes no data version and tells no listener."""

    replica = await leader(tmp_path)
    replica.groups.get_or_create("g")
    replica.offsets.commit("g", "t", 0, 5)
    told: list[object] = []
    replica.topics.on_change(told.append)
    versions = [manager.data_version for manager in (replica.topics, replica.groups)]

    replica.tables.take_over(replica.state())

    assert [manager.data_version for manager in (replica.topics, replica.groups)] == versions
    assert told == []


async def test_a_group_can_go_with_or_without_its_offsets(tmp_path: Path) -> None:
    """Without, its offsets stay on every replica."""

    replica = await leader(tmp_path)
    for group in ("g", "h"):
        replica.groups.get_or_create(group)
        replica.offsets.commit(group, "t", 0, 5)
    tasks = [
        asyncio.create_task(replica.log.change(["g"], lambda: [GroupsDeleted(("g",))])),
        asyncio.create_task(
            replica.log.change(["h"], lambda: [GroupsDeleted(("h",)), OffsetsRemoved(("h",))])
        ),
    ]
    await settle()
    replica.confirm()
    await asyncio.gather(*tasks)

    assert [replica.groups.get(group) for group in ("g", "h")] == [None, None]
    assert [replica.offsets.query(group, "t", 0) for group in ("g", "h")] == [5, None]


async def test_what_is_being_deleted_does_not_come_into_being_meanwhile(tmp_path: Path) -> None:
    """Else a group would be in the log behind its deletion, and gone from the leader's memory."""

    replica = await leader(tmp_path)
    tasks = [
        asyncio.create_task(replica.log.change(["g"], lambda: [GroupsDeleted(("g",))])),
        asyncio.create_task(replica.log.change(["t"], lambda: [TopicsDeleted(("%RETRY%g",))])),
    ]
    await settle()
    count = len(replica.store.records)

    assert replica.groups.get_or_create("g") == SubscriptionGroupConfig("g")
    assert replica.topics.create_retry("g", 1) is None
    await settle()

    assert replica.groups.get("g") is None
    assert len(replica.store.records) == count
    replica.confirm()
    await asyncio.gather(*tasks)
    assert replica.topics.create_retry("g", 1) is not None
    assert replica.groups.get_or_create("g") is replica.groups.get("g")


async def test_a_reset_is_told_once_by_whoever_leads(tmp_path: Path) -> None:
    """Followers know of resets that wait for a pull, and of those that a consumer was told."""

    master, slave = await leader(tmp_path / "a"), Replica(tmp_path / "b")
    await slave.log.start_following()
    changes = [ResetsPut({"t@g": {0: 3, 1: 4}})]
    task = asyncio.create_task(master.log.change(["t@g"], lambda: changes))
    await settle()
    master.confirm()
    await task
    assert master.offsets.take_reset("g", "t", 0) == 3
    master.offsets.commit("g", "t", 0, 8)
    master.log.flush()
    copy_records(master.store, slave.store)
    slave.confirm()

    assert slave.state() == master.state()
    await slave.log.lead(2)
    assert slave.offsets.take_reset("g", "t", 0) is None
    assert slave.offsets.query("g", "t", 0) == 8
    assert slave.offsets.take_reset("g", "t", 1) == 4
