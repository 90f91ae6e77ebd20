"""Topics, groups and consumer offsets: what they hold, what they refuse, and their files."""

from __future__ import annotations

import asyncio
import json
import os
import tarfile
from pathlib import Path

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.tables.config_files import ConfigDamaged
from brokerset_broker.tables.groups import GroupManager
from brokerset_broker.tables.offsets import BROKER, OffsetManager
from brokerset_broker.tables.topics import TopicManager
from brokerset_formats.config import SubscriptionGroupConfig, TopicConfig
from brokerset_formats.names import HALF_TOPIC, SYSTEM_GROUPS, TRANSACTION_GROUP
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import ManualClock
from brokerset_spec.broker_settings import BrokerSettings

PEERS = Path(__file__).parents[3] / "peers"


def live(folder: Path, **changes: object) -> LiveSettings:
    return LiveSettings(BrokerSettings(store_path_root_dir=folder, **changes))  # type: ignore[arg-type]  # by name


def loaded_topics(folder: Path, **changes: object) -> TopicManager:
    topics = TopicManager(live(folder, **changes), ManualClock())
    topics.load()
    return topics


# -- topics -----------------------------------------------------------------------------------------------


def test_own_topics_are_java_s(tmp_path: Path) -> None:
    """A new broker has the topics of Java's with their settings, except for those of RocksDB transactions."""
    body = json.loads((PEERS / "golden/wire/broker-21-all-topic-config.json").read_text())["body"]
    golden = json.loads(body)["topicConfigTable"]
    created_later = {"wire", "adm-topic", "%RETRY%adm-group"}
    other_store = {"RMQ_SYS_ROCKSDB_TRANS_HALF_TOPIC", "RMQ_SYS_ROCKSDB_TRANS_OP_HALF_TOPIC"}

    table = loaded_topics(tmp_path).table().to_json()["topicConfigTable"]

    assert table == {name: topic for name, topic in golden.items() if name not in created_later | other_store}


def made_on_send(topics: TopicManager, topic: str, template: str, queues: int) -> TopicConfig | None:
    planned = topics.plan_on_send(topic, template, queues, "peer")
    if planned is not None:
        topics.put(planned)
    return planned


def test_a_send_creates_a_topic_from_the_template(tmp_path: Path) -> None:
    """Queues are what the producer asks for, at most the template's; the inherit bit is not inherited."""
    topics = loaded_topics(tmp_path)
    changed: list[tuple[TopicConfig, ...]] = []
    topics.on_change(changed.append)
    before = topics.data_version.counter

    created = made_on_send(topics, "new", "TBW102", 4)
    wide = made_on_send(topics, "wide", "TBW102", 100)

    assert created == TopicConfig("new", 4, 4, 6)
    assert wide is not None
    assert wide.write_queue_nums == 8
    assert changed == [(created,), (wide,)]
    assert topics.data_version.counter == before + 2


@pytest.mark.parametrize(
    ("topic", "template"),
    [("new", "unknown"), ("new", "SELF_TEST_TOPIC"), ("not a name", "TBW102"), ("", "TBW102")],
)
def test_a_send_creates_nothing_without_a_template_or_a_name(
    tmp_path: Path, topic: str, template: str
) -> None:
    """The template must exist and be inheritable, the name legal."""
    assert made_on_send(loaded_topics(tmp_path), topic, template, 4) is None


def test_automatic_creation_can_be_switched_off_while_running(tmp_path: Path) -> None:
    """The setting is read when a topic is to be created."""
    settings = live(tmp_path)
    topics = TopicManager(settings, ManualClock())
    topics.load()

    settings.update({"autoCreateTopicEnable": "false"})

    assert made_on_send(topics, "new", "TBW102", 4) is None
    assert loaded_topics(tmp_path, auto_create_topic_enable=False).get("TBW102") is None


def test_retry_and_dead_letter_topics(tmp_path: Path) -> None:
    """They are made once, readable and writable; the order flag follows the group's subscriptions."""
    topics = loaded_topics(tmp_path)

    assert topics.create_retry("g", 2) == TopicConfig("%RETRY%g", 2, 2, 6)
    assert topics.create_dlq("g") == TopicConfig("%DLQ%g", 1, 1, 6)
    ordered = topics.create_retry("g", 9, order=True)

    assert ordered == TopicConfig("%RETRY%g", 2, 2, 6, order=True)
    assert topics.get("%RETRY%g") == ordered
    assert topics.create_retry("no group", 1) is None


def test_attributes_change_as_java_s(tmp_path: Path) -> None:
    """Signed keys add and delete; unknown keys, wrong values and immutable ones are refused."""
    topics = loaded_topics(tmp_path)
    config = TopicConfig("t", 4, 4)

    assert topics.update(config, {"+message.type": "FIFO", "+queue.type": "SimpleCQ"})
    assert not topics.update(config, {})
    for kind in ("NORMAL", "DELAY", "TRANSACTION", "MIXED", "PRIORITY", "LITE"):
        assert topics.update(config, {"+message.type": kind})
    assert topics.update(config, {"+lite.topic.expiration": "-1"})
    assert topics.update(config, {"-message.type": "", "-lite.topic.expiration": ""})

    stored = topics.get("t")
    assert stored is not None
    assert dict(stored.attributes) == {"queue.type": "SimpleCQ"}
    for changes in (
        {"+unknown": "1"},
        {"+message.type": "SOMETHING"},
        {"-message.type": ""},
        {"+lite.topic.expiration": "43201"},
        {"-queue.type": ""},
        {"+cleanup.policy": "COMPACTION"},
        {"+reserve.time": "-2"},
        {"plain": "1"},
    ):
        with pytest.raises(Rejected) as refused:
            topics.update(config, changes)
        assert refused.value.code == ResponseCode.INVALID_PARAMETER


def test_topics_have_a_limit(tmp_path: Path) -> None:
    """At the limit nothing is created, while what exists can still be changed."""
    topics = loaded_topics(tmp_path)
    topics.topics_max = len(topics)

    assert made_on_send(topics, "new", "TBW102", 4) is None
    assert topics.create_dlq("g") is None
    with pytest.raises(Rejected):
        topics.update(TopicConfig("new"))
    assert topics.update(TopicConfig("BenchmarkTest", 1, 1))


def test_files_survive_a_restart(tmp_path: Path) -> None:
    """What was persisted is there again, over what a broker creates for itself; deletions too."""
    topics = loaded_topics(tmp_path)
    topics.update(TopicConfig("mine", 3, 3, 6, order=True))
    topics.update(TopicConfig("BenchmarkTest", 2, 2))
    topics.update(TopicConfig("gone"))
    topics.delete("gone")
    topics.persist()

    again = loaded_topics(tmp_path)

    assert again.table() == topics.table()
    assert again.get("gone") is None
    assert (tmp_path / "config/topics.json").read_text().startswith('{\n\t"dataVersion":{\n')


def test_a_damaged_file_is_replaced_by_its_backup_or_stops_the_broker(tmp_path: Path) -> None:
    """Never start with an empty table because a file is unreadable."""
    topics = loaded_topics(tmp_path)
    topics.update(TopicConfig("mine"))
    topics.persist()
    topics.update(TopicConfig("later"))
    topics.persist()
    (tmp_path / "config/topics.json").write_text('{"dataVersion":')

    again = loaded_topics(tmp_path)
    assert again.get("mine") is not None
    (tmp_path / "config/topics.json.bak").write_text("[]")

    with pytest.raises(ConfigDamaged):
        loaded_topics(tmp_path)


# -- groups -----------------------------------------------------------------------------------------------


def test_groups_are_created_when_they_show_up(tmp_path: Path) -> None:
    """Unless the setting forbids it or the name is none; groups of the system always exist."""
    settings = live(tmp_path)
    groups = GroupManager(settings, ManualClock())
    groups.load()

    assert {group.group_name for group in groups} == SYSTEM_GROUPS
    assert groups.get_or_create("g") == SubscriptionGroupConfig("g")
    assert groups.get_or_create("no group") is None
    settings.update({"autoCreateSubscriptionGroup": "false"})
    assert groups.get_or_create("h") is None
    assert groups.get_or_create("CID_RMQ_SYS_X") is not None
    assert groups.get_or_create("g") is not None


def test_groups_persist_with_what_is_forbidden(tmp_path: Path) -> None:
    """The mask of forbidden topics is part of the file, and goes with its group."""
    groups = GroupManager(live(tmp_path), ManualClock())
    groups.load()
    groups.update(SubscriptionGroupConfig("g", retry_max_times=3), {"+priority.factor": "5"})
    groups.forbid_reading("g", "t", True)
    groups.persist()

    again = GroupManager(live(tmp_path), ManualClock())
    again.load()

    assert again.table() == groups.table()
    assert again.is_read_forbidden("g", "t")
    again.forbid_reading("g", "t", False)
    assert not again.is_read_forbidden("g", "t")
    assert again.delete("g")
    assert again.table().forbidden == {}


@pytest.mark.parametrize(
    "config",
    [
        SubscriptionGroupConfig("no group"),
        SubscriptionGroupConfig("g", retry_queue_nums=-1),
        SubscriptionGroupConfig("g" * 300),
    ],
)
def test_impossible_groups_are_refused(tmp_path: Path, config: SubscriptionGroupConfig) -> None:
    """Bad names and numbers get INVALID_PARAMETER."""
    groups = GroupManager(live(tmp_path), ManualClock())

    with pytest.raises(Rejected) as refused:
        groups.update(config)

    assert refused.value.code == ResponseCode.INVALID_PARAMETER


# -- offsets ----------------------------------------------------------------------------------------------


def new_offsets(folder: Path) -> OffsetManager:
    offsets = OffsetManager(live(folder), ManualClock())
    offsets.load()
    return offsets


def test_offsets_are_kept_by_group_topic_and_queue(tmp_path: Path) -> None:
    """A commit is found again, also a lower one; nonsense is not taken."""
    offsets = new_offsets(tmp_path)

    assert offsets.query("g", "t", 0) is None
    assert offsets.commit("g", "t", 0, 10)
    assert offsets.commit("g", "t", 0, 7)
    assert offsets.query("g", "t", 0) == 7
    assert offsets.query("g", "t", 1) is None
    assert not offsets.commit("g", "t", -1, 7)
    assert not offsets.commit("g", "t", 1, -7)
    assert not offsets.commit("g", "t", 1_000_000, 7)
    assert offsets.topics_of("g") == ["t"]
    assert offsets.groups_of("t") == ["g"]


def test_a_reset_is_given_to_one_pull(tmp_path: Path) -> None:
    """Until a pull takes it, it is what queries see."""
    offsets = new_offsets(tmp_path)
    offsets.commit("g", "t", 0, 10)

    assert offsets.reset("g", "t", 0, 3)
    assert offsets.has_reset("g", "t", 0)
    assert offsets.query("g", "t", 0) == 3
    assert offsets.take_reset("g", "t", 1) is None
    assert offsets.take_reset("g", "t", 0) == 3
    assert offsets.take_reset("g", "t", 0) is None
    assert offsets.query("g", "t", 0) == 3


def test_pulls_of_a_follower_do_not_get_a_reset(tmp_path: Path) -> None:
    """That the reset was taken may have got lost on its way here; the master tells what waits."""
    offsets = new_offsets(tmp_path)
    offsets.put_resets({"t@g": {0: 3}})

    offsets.frozen = True
    told_while_following = offsets.take_reset("g", "t", 0, pulled_from=10)
    offsets.frozen = False

    assert told_while_following is None
    assert offsets.take_reset("g", "t", 0, pulled_from=10) == 3


def test_offsets_go_with_their_topic_or_group(tmp_path: Path) -> None:
    """Also the watched ones and resets; other groups and topics keep theirs."""
    offsets = new_offsets(tmp_path)
    for group in ("g", "h"):
        for topic in ("t", "u"):
            offsets.reset(group, topic, 0, 1)
            offsets.commit_pull(group, topic, 0, 2)

    offsets.forget_topic("t")
    offsets.forget_group("h")

    assert offsets.topics_of("g") == ["u"]
    assert offsets.groups_of("u") == ["g"]
    assert offsets.groups_of("t") == []
    assert offsets.query_pull("g", "u", 0) == 2
    assert offsets.query_pull("h", "u", 0) is None
    assert offsets.take_reset("h", "u", 0) is None
    assert list(offsets.table().offsets) == ["u@g"]


def test_offsets_of_broadcasting_members_show_the_slowest(tmp_path: Path) -> None:
    """The key has a suffix, and such groups are not among those that consume a topic."""
    offsets = new_offsets(tmp_path)
    offsets.broadcast_pulled("g", "t", 0, "one", 9)
    offsets.broadcast_pulled("g", "t", 0, "two", 4)

    offsets.persist()

    assert offsets.table().offsets == {"t@g@broadcast": {0: 4}}
    assert offsets.groups_of("t") == []
    offsets.forget_group("g")
    assert offsets.table().offsets == {}


def test_offsets_have_a_limit(tmp_path: Path) -> None:
    """Commits of one group too many are not taken; known ones go on, and so do transactions."""
    offsets = new_offsets(tmp_path)
    offsets.keys_max = 1
    assert offsets.commit("g", "t", 0, 1)

    assert not offsets.commit("h", "t", 0, 1)
    assert offsets.commit(TRANSACTION_GROUP, HALF_TOPIC, 0, 1, BROKER)
    offsets.keys_max = 2
    assert offsets.commit("g", "t", 1, 1)
    offsets.forget_group("g")
    assert offsets.commit("h", "t", 0, 1)


def test_big_tables_are_written_on_one_line(tmp_path: Path) -> None:
    """And read again all the same."""
    offsets = new_offsets(tmp_path)
    for number in range(1_500):
        offsets.commit(f"g{number}", "t", 0, number)

    offsets.persist()

    assert (tmp_path / "config/consumerOffset.json").read_bytes().count(b"\n") == 0
    assert new_offsets(tmp_path).table() == offsets.table()


def test_a_clone_starts_where_the_source_is(tmp_path: Path) -> None:
    """All queues of the topic, and of no other."""
    offsets = new_offsets(tmp_path)
    for queue_id in range(3):
        offsets.commit("g", "t", queue_id, queue_id + 1)
    offsets.commit("g", "u", 0, 5)

    offsets.clone("g", "h", "t")

    assert [offsets.query("h", "t", queue_id) for queue_id in range(3)] == [1, 2, 3]
    assert offsets.topics_of("h") == ["t"]


commits = st.lists(
    st.tuples(st.sampled_from("gh"), st.sampled_from("tu"), st.integers(0, 2), st.integers(0, 9)), max_size=40
)


@given(commits)
def test_offsets_agree_with_a_model(sequence: list[tuple[str, str, int, int]]) -> None:
    """The last commit wins, through a file as well."""
    offsets = OffsetManager(live(Path("/nonexistent")), ManualClock())
    model: dict[tuple[str, str, int], int] = {}
    for group, topic, queue_id, offset in sequence:
        offsets.commit(group, topic, queue_id, offset)
        model[group, topic, queue_id] = offset

    other = OffsetManager(live(Path("/nonexistent")), ManualClock())
    other.replace_all(offsets.table())

    for (group, topic, queue_id), offset in model.items():
        assert offsets.query(group, topic, queue_id) == offset
        assert other.query(group, topic, queue_id) == offset
    assert set(other.topics_of("g")) == {topic for group, topic, _ in model if group == "g"}


def test_java_s_own_files_are_read(tmp_path: Path) -> None:
    """Tables that a Java broker wrote, with unquoted queue ids, load as they are."""
    with tarfile.open(PEERS / "fixtures/classic.tar.xz") as archive:
        for name in ("topics", "subscriptionGroup", "consumerOffset"):
            member = archive.extractfile(f"classic/broker-0/store/config/{name}.json")
            assert member is not None
            (tmp_path / "config").mkdir(exist_ok=True)
            (tmp_path / f"config/{name}.json").write_bytes(member.read())

    topics = loaded_topics(tmp_path)
    groups = GroupManager(live(tmp_path), ManualClock())
    groups.load()
    offsets = new_offsets(tmp_path)

    assert topics.get("fx-plain") == TopicConfig("fx-plain", 4, 4)
    assert topics.data_version.counter == 8
    assert groups.get("fx-group") is not None
    assert [offsets.query("fx-group", "fx-plain", queue_id) for queue_id in range(4)] == [750] * 4
    assert offsets.query_pull("fx-delay-group", "fx-delay", 3) == 0


def test_offsets_of_light_groups_are_in_java_s_file_too(tmp_path: Path) -> None:
    """Whichever of the two files was written last counts, whoever wrote it."""
    offsets = OffsetManager(live(tmp_path, enable_lmq=True), ManualClock())
    offsets.commit("%LMQ%g", "%LMQ%a", 0, 7)
    offsets.commit("g", "t", 3, 5)
    asyncio.run(offsets.saved())
    path = tmp_path / "config" / "lmqConsumerOffset.json"

    table = orjson.loads(path.read_bytes())
    assert table["lmqOffsetTable"] == {"%LMQ%a@%LMQ%g": 7}
    assert table["offsetTable"] == {"t@g": {"3": 5}}

    table["lmqOffsetTable"]["%LMQ%a@%LMQ%g"] = 8
    path.write_bytes(orjson.dumps(table))
    os.utime(path, ns=(2**62, 2**62))
    for settings in (live(tmp_path, enable_lmq=True), live(tmp_path)):
        again = OffsetManager(settings, ManualClock())
        again.load()
        assert again.query("%LMQ%g", "%LMQ%a", 0) == 8
        assert again.query("g", "t", 3) == 5
