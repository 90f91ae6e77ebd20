"""The routing table agrees with a naive model that keeps flat rows and searches them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import given
from hypothesis import strategies as st

from brokerset_formats.config import DataVersion
from brokerset_namesrv.registrations import Refused, Registration
from brokerset_namesrv.routes import RouteTable
from brokerset_protocol.bodies.routes import QueueData, TopicRouteData
from brokerset_rig.examples import examples
from brokerset_spec.namesrv_settings import NamesrvSettings

CLUSTER = "c"
TOPICS = ("t1", "t2", "t3")
NAMES = ("a", "b")
ADDRESSES = ("h1:1", "h2:1", "h3:1")
CONNECTIONS = ("x", "y")


@dataclass(frozen=True)
class Row:
    name: str
    id: int
    address: str
    version: tuple[int, int]
    connection: str
    deadline: int
    timeout: int


@dataclass
class Model:
    """Brokers as rows, permissions by (topic, broker name)."""

    rows: list[Row] = field(default_factory=list)
    perms: dict[tuple[str, str], int] = field(default_factory=dict)
    acting: dict[str, bool] = field(default_factory=dict)

    def ids(self, name: str) -> dict[int, str]:
        return {row.id: row.address for row in self.rows if row.name == name}

    def drop(self, gone: list[Row]) -> None:
        for row in gone:
            self.rows.remove(row)
            ids = self.ids(row.name)
            for key in [key for key in self.perms if key[1] == row.name]:
                if not ids:
                    del self.perms[key]
                elif self.acting[row.name] and 0 not in ids:
                    self.perms[key] &= ~2

    def register(self, entry: Registration, connection: str, now: int) -> str:
        name, number, address = entry.broker_name, entry.broker_id, entry.address
        new_version = (entry.data_version.counter, entry.data_version.state_version)
        holders = [row for row in self.rows if (row.name, row.id) == (name, number)]
        own = [row for row in self.rows if row.address == address]
        if holders and holders[0].address != address and holders[0].version[1] > new_version[1]:
            self.drop(own)
            return "ignored"
        if not holders and len(entry.topics) == 1:
            return "refused"
        self.drop([row for row in own if row.name != name])
        changed = not holders or not any(r.name == name and r.version == new_version for r in own)
        self.rows = [
            row for row in self.rows if row.name != name or (row.address != address and row.id != number)
        ]
        timeout = entry.heartbeat_timeout_ms or 120_000
        self.rows.append(Row(name, number, address, new_version, connection, now + timeout, timeout))
        self.acting[name] = entry.acting_master is True
        prime = number != 0 and entry.acting_master is not None and number == min(self.ids(name))
        if number == 0 or prime:
            for topic, config in entry.topics.items():
                if changed or (topic, name) not in self.perms:
                    read_only = prime and self.acting[name]
                    self.perms[topic, name] = config.perm & ~2 if read_only else config.perm
        return "taken"

    def route(self, topic: str) -> tuple[dict[str, int], dict[str, dict[int, str]]]:
        perms = {name: perm for (held, name), perm in self.perms.items() if held == topic}
        return perms, {name: self.ids(name) for name in perms}


@st.composite
def registrations(draw: st.DrawFn) -> Registration:
    """Few names, ids and addresses, so that they collide often."""
    name = draw(st.sampled_from(NAMES))
    perms = draw(st.dictionaries(st.sampled_from(TOPICS), st.sampled_from([4, 6])))
    return Registration(
        cluster=CLUSTER,
        broker_name=name,
        broker_id=draw(st.integers(0, 2)),
        address=draw(st.sampled_from(ADDRESSES)),
        ha_address="h:2",
        topics={topic: QueueData(name, 4, 4, perm) for topic, perm in perms.items()},
        data_version=DataVersion(draw(st.integers(1, 2)), draw(st.integers(0, 2)), 7),
        heartbeat_timeout_ms=draw(st.sampled_from([None, 10, 100])),
        acting_master=draw(st.sampled_from([None, False, True])),
    )


register_steps = st.tuples(st.just("register"), registrations(), st.sampled_from(CONNECTIONS))

other_steps = st.one_of(
    st.tuples(st.just("unregister"), st.sampled_from(NAMES), st.sampled_from(ADDRESSES)),
    st.tuples(st.just("close"), st.sampled_from(CONNECTIONS), st.none()),
    st.tuples(st.just("pass"), st.integers(1, 60), st.none()),
    st.tuples(st.just("touch"), st.sampled_from(ADDRESSES), st.none()),
    st.tuples(st.just("wipe"), st.sampled_from(NAMES), st.none()),
    st.tuples(st.just("add"), st.sampled_from(NAMES), st.none()),
    st.tuples(st.just("delete"), st.sampled_from(TOPICS), st.none()),
)

steps = st.booleans().flatmap(lambda register: register_steps if register else other_steps)


def run_step(table: RouteTable, model: Model, step: tuple[str, object, object], now: int) -> int:
    """Do one step on both; returns the time afterwards."""
    what, first, second = step
    if what == "register":
        assert isinstance(first, Registration)
        expected = model.register(first, str(second), now)
        result = table.register(first, now, second)
        if isinstance(result, Refused):
            assert expected == "refused"
        else:
            assert expected == ("ignored" if result.ignored else "taken")
    elif what == "unregister":
        gone = [row for row in model.rows if (row.name, row.address) == (first, second)]
        model.drop(gone)
        removed = table.unregister(CLUSTER, str(first), str(second)).removed
        assert {removal.address for removal in removed} == {row.address for row in gone}
    elif what == "close":
        gone = [row for row in model.rows if row.connection == first]
        model.drop(gone)
        removed = table.connection_closed(str(first)).removed
        assert {removal.address for removal in removed} == {row.address for row in gone}
    elif what == "pass":
        assert isinstance(first, int)
        now += first
        model.drop([row for row in model.rows if row.deadline < now])
        table.expire(now)
    elif what == "touch":
        model.rows = [
            replace(row, deadline=now + row.timeout) if row.address == first else row for row in model.rows
        ]
        table.touch(CLUSTER, str(first), now)
    elif what == "delete":
        model.perms = {key: perm for key, perm in model.perms.items() if key[0] != first}
        table.delete_topic(str(first))
    else:
        held = [key for key in model.perms if key[1] == first]
        for key in held:
            model.perms[key] = model.perms[key] & ~2 if what == "wipe" else 6
        change = table.wipe_write_permission if what == "wipe" else table.add_write_permission
        assert change(str(first)) == len(held)
    return now


def check(table: RouteTable, model: Model) -> None:
    """Everything that can be asked gives the same answer; kept bytes are those that would be made now."""
    assert table.broker_count == len(model.rows)
    assert table.group_count == len({row.name for row in model.rows})
    assert table.topics() == sorted({topic for topic, _ in model.perms})
    for name in NAMES:
        assert table.member_addresses(name) == model.ids(name)
    for topic in TOPICS:
        perms, addresses = model.route(topic)
        route = table.route(topic)
        if not perms:
            assert route is None
            assert table.encoded_route(topic) is None
            continue
        assert route is not None
        assert {data.broker_name: data.perm for data in route.queue_datas} == perms
        assert {data.broker_name: data.broker_addrs for data in route.broker_datas} == addresses
        assert TopicRouteData.from_json(table.encoded_route(topic) or b"") == route


@examples(300)
@given(st.lists(steps, min_size=8, max_size=40))
def test_table_and_model_agree_after_every_step(script: list[tuple[str, object, object]]) -> None:
    """Whatever brokers do, the table answers like rows that are searched."""
    table, model, now = RouteTable(NamesrvSettings()), Model(), 0

    for step in script:
        now = run_step(table, model, step, now)
        check(table, model)

    for connection in CONNECTIONS:
        table.connection_closed(connection)
    assert table.broker_count == table.group_count == table.topic_count == 0
