"""From a manifest to the processes of one machine."""

from __future__ import annotations

import pytest

from brokerset_spec.manifest import default_manifest
from brokerset_spec.plan import LocalPlan, PlanRefused, PortsTaken, PortWishes, move_broker
from brokerset_spec.set_memory import ControllerMemory, GroupMemory, SetMemory

from .planning import DATA, brokers_of, controllers_of, manifest_of, plan_of


def test_the_default_set_is_three_controllers_and_three_brokers_at_rocketmqs_ports() -> None:
    plan = plan_of(default_manifest())

    assert [(p.name, p.address, p.namesrv_address, p.raft_address, p.http_port) for p in plan.processes] == [
        ("controller-0", "127.0.0.1:9878", "127.0.0.1:9876", "127.0.0.1:9877", 8083),
        ("controller-1", "127.0.0.1:9888", "127.0.0.1:9886", "127.0.0.1:9887", 8084),
        ("controller-2", "127.0.0.1:9898", "127.0.0.1:9896", "127.0.0.1:9897", 8085),
        ("brokerset-0-0", "127.0.0.1:10911", "", "", 8080),
        ("brokerset-0-1", "127.0.0.1:10921", "", "", 8081),
        ("brokerset-0-2", "127.0.0.1:10931", "", "", 8082),
    ]
    assert [p.ha_address for p in plan.brokers] == [f"127.0.0.1:{port}" for port in (10912, 10922, 10932)]
    assert sorted(plan.brokers[0].ports) == [8080, 10909, 10911, 10912]
    assert plan.namesrv_address == "127.0.0.1:9876;127.0.0.1:9886;127.0.0.1:9896"
    assert plan.notes == ()


def test_each_process_gets_folders_and_settings_of_its_own() -> None:
    plan = plan_of(manifest_of(groups=2, replicas=3, clusterName="C", config={"fileReservedTime": 5}))

    brokers, controllers = brokers_of(plan), controllers_of(plan)
    assert [p.name for p in plan.brokers] == [f"orders-{g}-{k}" for g in range(2) for k in range(3)]
    assert brokers[4].store_path_root_dir == DATA / "brokers/orders-1-1/store"
    assert (brokers[4].broker_name, brokers[4].broker_cluster_name) == ("orders-1", "C")
    assert (brokers[4].namesrv_addr, brokers[4].controller_addr) == (
        plan.namesrv_address,
        plan.controller_address,
    )
    assert (brokers[4].owner_uid, brokers[4].expected_replicas, brokers[4].file_reserved_time) == ("u1", 3, 5)
    assert all(settings.enable_controller_mode for settings in brokers)
    assert controllers[1].controller_store_path == DATA / "controllers/controller-1/raft"
    assert controllers[1].controller_peers == "n0-127.0.0.1:9878;n1-127.0.0.1:9888;n2-127.0.0.1:9898"
    assert controllers[1].raft_peers == "n0-127.0.0.1:9877;n1-127.0.0.1:9887;n2-127.0.0.1:9897"
    assert not any(settings.raft_join for settings in controllers)
    assert all(p.settings.problems() == [] for p in plan.processes)
    taken = [port for process in plan.processes for port in process.ports]
    assert len(taken) == len(set(taken))


def test_unclean_elections_are_a_setting_of_the_controllers() -> None:
    plan = plan_of(manifest_of(replication={"uncleanElection": True}))

    assert all(settings.enable_elect_unclean_master for settings in controllers_of(plan))


def test_further_processes_take_the_next_free_ports() -> None:
    taken = {9887, 10921, 10929, 8080}

    plan = plan_of(manifest_of(groups=3, replicas=1), is_free=lambda port: port not in taken)

    assert [p.namesrv_address[-4:] for p in plan.controllers] == ["9876", "9896", "9906"]
    assert [(p.port, p.http_port) for p in plan.brokers] == [(10911, 8081), (10941, 8082), (10951, 8083)]


@pytest.mark.parametrize(
    ("port", "wanted_by"),
    [
        (9876, "the name server"),
        (9877, "controller-0"),
        (10911, "broker orders-0-0"),
        (10909, "broker orders-0-0"),
        (10912, "broker orders-0-0"),
    ],
)
def test_a_port_where_clients_look_is_never_replaced_by_another(port: int, wanted_by: str) -> None:
    with pytest.raises(PortsTaken) as caught:
        plan_of(is_free=lambda asked: asked != port)

    assert (caught.value.port, caught.value.wanted_by, caught.value.kept) == (port, wanted_by, False)


def test_one_port_is_never_planned_twice() -> None:
    with pytest.raises(PortsTaken):
        plan_of(wishes=PortWishes(namesrv=10911, broker=10911))


def test_no_port_beyond_the_last_is_planned() -> None:
    with pytest.raises(PortsTaken):
        plan_of(manifest_of(groups=3), wishes=PortWishes(broker=65_530))


def test_the_next_start_takes_the_ports_of_the_last_one() -> None:
    first = plan_of(manifest_of(replicas=2), wishes=PortWishes(namesrv=20000, broker=21000, http=22000))

    again = plan_of(manifest_of(replicas=2), memory=first.memory)

    assert again == first


def test_a_broker_whose_port_is_taken_gets_another_and_a_controller_never_does() -> None:
    memory = plan_of(manifest_of(replicas=2)).memory

    moved = plan_of(manifest_of(replicas=2), memory=memory, is_free=lambda port: port != 10911)
    with pytest.raises(PortsTaken) as caught:
        plan_of(memory=memory, is_free=lambda port: port != 9887)

    assert [p.port for p in moved.brokers] == [10931, 10921]
    assert (caught.value.port, caught.value.wanted_by, caught.value.kept) == (9887, "controller-1", True)


@pytest.mark.parametrize(
    ("wishes", "host", "says"),
    [
        (PortWishes(namesrv=9900), "127.0.0.1", "first name server of this data folder has 9876, not 9900"),
        (PortWishes(), "127.0.0.2", "by the address 127.0.0.1, not 127.0.0.2"),
    ],
)
def test_controllers_do_not_move(wishes: PortWishes, host: str, says: str) -> None:
    """The others know them by their addresses; brokers may move."""
    memory = plan_of().memory

    with pytest.raises(PlanRefused) as caught:
        plan_of(memory=memory, wishes=wishes, host=host)

    assert says in caught.value.reason
    assert plan_of(memory=memory, wishes=PortWishes(broker=30000)).brokers[0].port == 30000


def test_the_number_of_controllers_is_what_it_was_whatever_the_manifest_says_and_that_is_noted() -> None:
    memory = plan_of().memory

    plan = plan_of(manifest_of(controllers={"replicas": 5}), memory=memory)

    assert len(plan.controllers) == 3
    assert any("brokerset controller scale 5" in note for note in plan.notes)


def test_added_controllers_wait_to_be_added_and_get_numbers_and_ports_of_their_own() -> None:
    before = plan_of()

    plan = plan_of(memory=before.memory.with_controllers((0, 1, 2, 3)))
    settings = controllers_of(plan)[3]

    assert (settings.controller_self_id, settings.raft_join) == ("n3", True)
    assert "n3-127.0.0.1:9908" in settings.controller_peers
    assert settings.problems() == []
    assert plan.controllers[:3] == before.controllers
    assert brokers_of(plan)[0].controller_addr.endswith(";127.0.0.1:9908")
    assert plan.memory.with_controllers((0, 1, 2)).next_controller_id == 4


def test_a_controller_that_lost_its_data_stays_out_and_when_all_have_they_start_anew() -> None:
    memory = plan_of().memory.with_started((0, 1, 2)).with_controllers((0, 1, 2, 3)).with_started((3,))

    some = plan_of(memory=memory, with_data={0, 2, 3})
    none = plan_of(memory=memory, with_data=())

    assert [p.node_id for p in some.controllers] == [0, 2, 3]
    assert any("controller-1 has lost its data" in note for note in some.notes)
    assert [(p.node_id, p.port) for p in none.controllers] == [(0, 9878), (1, 9888), (2, 9898)]
    assert none.memory.uid == "u1"
    assert not any(each.started or each.joins for each in none.memory.controllers)


def test_controllers_that_start_anew_keep_the_name_servers_port_and_it_is_said_what_to_do() -> None:
    memory = plan_of(wishes=PortWishes(24000, 24200, 24400)).memory.with_started((0, 1, 2))

    plan = plan_of(memory=memory, with_data=())

    assert plan.namesrv_address == "127.0.0.1:24000;127.0.0.1:24010;127.0.0.1:24020"
    assert any("`brokerset controller rebuild`" in note for note in plan.notes)


def test_the_http_of_an_added_controller_is_looked_for_where_the_others_have_theirs() -> None:
    memory = plan_of(manifest_of(replicas=1), wishes=PortWishes(http=24400)).memory

    added = plan_of(manifest_of(replicas=1), memory=memory.with_controllers((0, 1, 2, 3))).controllers[-1]

    assert added.http_port == 24404


@pytest.mark.parametrize("wishes", [PortWishes(65_534), PortWishes(broker=65_535, namesrv=65_536)])
def test_ports_beyond_the_last_are_refused_before_anybody_looks_at_them(wishes: PortWishes) -> None:
    with pytest.raises(PlanRefused, match="the last one is 65535"):
        plan_of(wishes=wishes)


def test_a_controller_that_never_served_starts_without_data() -> None:
    memory = plan_of().memory.with_started((0, 1))

    assert len(plan_of(memory=memory, with_data={0, 1}).controllers) == 3


def test_a_moved_broker_keeps_everything_but_its_port() -> None:
    plan = move_broker(plan_of(manifest_of(replicas=2)), "orders-0-1", 30000)

    assert [
        (p.port, p.address, s.listen_port) for p, s in zip(plan.brokers, brokers_of(plan), strict=True)
    ] == [
        (10911, "127.0.0.1:10911", 10911),
        (30000, "127.0.0.1:30000", 30000),
    ]
    assert plan.memory.broker_ports["orders-0-1"] == 30000
    assert plan.brokers[1].ha_address == "127.0.0.1:30001"


def test_all_interfaces_are_reached_through_loopback() -> None:
    plan = plan_of(host="0.0.0.0")

    assert (brokers_of(plan)[0].bind_address, brokers_of(plan)[0].broker_ip1) == ("0.0.0.0", "127.0.0.1")
    assert controllers_of(plan)[0].bind_address == "0.0.0.0"
    assert plan.controllers[0].address == "127.0.0.1:9878"


def test_what_has_less_effect_than_somebody_may_think_is_said() -> None:
    manifest = manifest_of(
        replicas=2,
        controllers={"replicas": 4, "storage": {"size": "2Gi"}, "resources": {"limits": {"cpu": 1}}},
        advertise="podIP",
        update={"strategy": "supervised"},
        monitoring={"podMonitor": True},
        podTemplate={"resources": {}},
    )

    notes = plan_of(manifest).notes

    assert [note.split(":")[0] for note in notes] == [
        "spec.controllers.replicas", "spec.controllers.resources",
        "spec.storage", "spec.advertise", "spec.update", "spec.monitoring", "spec.podTemplate",
    ]  # fmt: skip


def test_brokers_learn_how_their_group_acknowledges() -> None:
    every = brokers_of(plan_of(manifest_of(replicas=3)))
    master = brokers_of(plan_of(manifest_of(replicas=2, replication={"acknowledge": "master"})))
    three = brokers_of(plan_of(manifest_of(replicas=3, replication={"minInSyncReplicas": 3})))

    assert {(s.all_ack_in_sync_state_set, s.min_in_sync_replicas) for s in every} == {(True, 2)}
    assert {(s.all_ack_in_sync_state_set, s.min_in_sync_replicas) for s in master} == {(False, 1)}
    assert {s.min_in_sync_replicas for s in three} == {3}
    assert {s.ha_listen_port for s in every} == {0}


@pytest.mark.parametrize(
    ("kept", "wanted", "numbers"),
    [
        (None, 3, (0, 1, 2)),
        (GroupMemory((0,), 1), 3, (0, 1, 2)),
        (GroupMemory((1, 3), 3), 5, (0, 1, 2, 3, 4)),
        (GroupMemory((0, 2), 3), 3, (0, 2)),
        (GroupMemory((0, 1, 2), 3), 1, (0, 1, 2)),
    ],
    ids=["new", "grown-manifest", "gaps-are-filled", "scaled-meanwhile", "smaller-manifest"],
)
def test_a_group_keeps_its_brokers_unless_the_manifest_asks_for_more_than_before(
    kept: GroupMemory | None, wanted: int, numbers: tuple[int, ...]
) -> None:
    """To leave a broker out at a start would leave its group with one copy less, in an order by chance."""
    memory = SetMemory("u", groups={"orders-0": kept} if kept else {}, log_file_bytes=1 << 28)

    plan = plan_of(manifest_of(replicas=wanted), memory=memory)

    assert [p.name for p in plan.brokers] == [f"orders-0-{n}" for n in numbers]
    assert plan.memory.groups == {"orders-0": GroupMemory(numbers, wanted)}
    assert {s.expected_replicas for s in brokers_of(plan)} == {len(numbers)}
    scale = [note for note in plan.notes if f"brokerset scale orders-0 --replicas {wanted}" in note]
    assert bool(scale) == (len(numbers) != wanted)


def test_a_broker_that_is_added_while_others_run_gets_a_port_beside_theirs() -> None:
    memory = plan_of(wishes=PortWishes(broker=21000)).memory.with_brokers("orders-0", (1, 2))
    less = plan_of(memory=memory)

    more = plan_of(memory=less.memory.with_brokers("orders-0", (0, 1, 2, 3)))

    assert [p.port for p in less.brokers] == [21010, 21020]
    assert [p.port for p in more.brokers] == [21030, 21010, 21020, 21040]


def test_a_folder_keeps_the_size_of_its_log_files() -> None:
    """All replicas need the same one, and a store with files of another size does not open."""
    big = {"maxMessageSize": 300 * 1024 * 1024}
    given = {"mappedFileSizeCommitLog": 16 * 1024 * 1024}
    new = plan_of()

    def size(plan: LocalPlan) -> int:
        (found,) = {s.mapped_file_size_commit_log for s in brokers_of(plan)}
        return found

    older = {key: value for key, value in new.memory.to_json().items() if key != "logFileBytes"}
    assert size(new) == 256 * 1024 * 1024
    assert size(plan_of(manifest_of(config=big))) == 1024 * 1024 * 1024
    assert size(plan_of(manifest_of(config=given))) == given["mappedFileSizeCommitLog"]
    assert size(plan_of(memory=plan_of(manifest_of(config=given)).memory)) == given["mappedFileSizeCommitLog"]
    assert size(plan_of(memory=SetMemory.from_json(older))) == 1024 * 1024 * 1024
    assert plan_of(manifest_of(config=big)).brokers[0].settings.problems() == []


def test_a_memory_of_an_older_version_is_read() -> None:
    value = plan_of().memory.to_json()
    del value["groups"], value["logFileBytes"]

    found = SetMemory.from_json(value)

    assert (found.groups, found.log_file_bytes) == ({}, 1024 * 1024 * 1024)
    assert SetMemory.from_json({**value, "brokerPorts": {}}).log_file_bytes == 0


def test_what_is_remembered_reads_back_as_it_was_written() -> None:
    memory = plan_of().memory.with_started((1,))

    assert SetMemory.from_json(memory.to_json()) == memory
    with pytest.raises(ValueError, match="format 9"):
        SetMemory.from_json({**memory.to_json(), "format": 9})


def test_a_number_is_never_given_to_two_controllers() -> None:
    memory = SetMemory(uid="u", controllers=(ControllerMemory(0),), next_controller_id=5)

    assert memory.with_controllers((0, 5)).with_controllers((0,)).next_controller_id == 6


def test_another_sets_controllers_are_refused_on_one_machine() -> None:
    """They are served on Kubernetes; here the set would run without any."""
    with pytest.raises(
        PlanRefused, match=r"spec\.controllers\.ref: on one machine a set cannot use"
    ) as caught:
        plan_of(manifest_of(controllers={"ref": {"name": "other"}}))

    assert caught.value.advice == "leave controllers out of the manifest: this set then runs its own"


def test_an_image_is_noted_to_have_no_effect_on_one_machine() -> None:
    notes = plan_of(manifest_of(image="registry.example.com/brokerset:0.1.0")).notes

    assert "spec.image: on one machine the installed programs run, in no container" in notes


def test_it_is_remembered_where_the_set_listened() -> None:
    everywhere = plan_of(host="0.0.0.0").memory

    assert (everywhere.listen_host, everywhere.host) == ("0.0.0.0", "127.0.0.1")
