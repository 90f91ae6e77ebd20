"""Which sets need no complete look."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from brokerset_kube import kinds
from brokerset_kube.kinds import Kind
from brokerset_operator import quiescence
from brokerset_operator.controllers_view import ControllersView
from brokerset_operator.ledger_view import Member
from brokerset_operator.model.certificates import AuthoritySecret, CertificateSecret, OwnCertificates
from brokerset_operator.model.observed import Controllers, Meta, Observed, Operator
from brokerset_operator.observe import Seen
from brokerset_operator.quiescence import (
    COMPLETE_SECONDS,
    COMPLETE_SPREAD,
    SECRETS_SECONDS,
    QuiescentSets,
)
from brokerset_operator.reconcile_queue import Key
from brokerset_protocol.bodies.controllers import GroupState, ReplicaState
from brokerset_runtime.clock import SystemClock

KEY = Key("BrokerSet", "shop", "orders")
ADDRESSES = {0: "10.0.0.1:9878"}
BROKERS = {"orders-0-0": "10.0.0.2:10911"}
SETTINGS = {"orders-0-0": {"minInSyncReplicas": "2"}}
REPLICA = ReplicaState(1, "10.0.0.2:10911", "", 1, None, "alive", max_offset=10, confirm_offset=10)
GROUP = GroupState("c", "orders-0", "u", 1, 2, 1, 1, (1,), 1, (), (), (REPLICA,))
VIEW = ControllersView(Controllers(leader=0, members={0: True}), {"orders-0": GROUP}, ("10.0.0.1:9878",))
WELL: dict[str, Any] = {
    "conditions": [
        {"type": kind, "status": status}
        for kind, status in {"Ready": "True", "ControllersReady": "True", "Degraded": "False"}.items()
    ]
}
VERSION = "77"


class SetClock(SystemClock):
    """Stands at `now` seconds."""

    now = 0.0

    def monotonic(self) -> float:
        return self.now

    def now_ms(self) -> int:
        return int(self.now * 1000)


class Bench:
    """A set that was looked at completely; controllers say `view` and brokers `settings` now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.clock = SetClock()
        self.watching = True
        self.view = VIEW
        self.settings: Mapping[str, Mapping[str, str]] = SETTINGS
        self.kinds: tuple[Kind, ...] = ()
        self.sets = QuiescentSets(
            self.clock, lambda: self.watching, self._kinds, random.Random(1), self._versions
        )
        self.secrets: dict[str, str] = {}
        self.secrets_read = 0
        self.during: Callable[[], None] = lambda: None

        async def observe(addresses: Any, tls: object = None) -> ControllersView:
            assert addresses == ADDRESSES
            self.during()
            return self.view

        async def settings_at(addresses: Any, tls: object = None) -> Mapping[str, Mapping[str, str]]:
            assert addresses == BROKERS
            return self.settings

        monkeypatch.setattr(quiescence, "query_controllers", observe)
        monkeypatch.setattr(quiescence, "settings_at", settings_at)

    async def _kinds(self) -> tuple[Kind, ...]:
        return self.kinds

    async def _versions(self, namespace: str, names: Iterable[str]) -> Mapping[str, str]:
        assert namespace == "shop"
        self.secrets_read += 1
        return {name: self.secrets[name] for name in names if name in self.secrets}

    def observed(
        self, status: Any = WELL, asked: Mapping[int, str] = ADDRESSES, version: str = VERSION, **seen: Any
    ) -> None:
        observed = Observed(
            meta=Meta(name="orders", namespace="shop", uid="u", generation=1),
            manifest=None,
            operator=Operator(image="i"),
            settings=SETTINGS,
            certificates=seen.pop("certificates", None),
            now=0.0,
        )
        live = {"metadata": {"name": "orders", "resourceVersion": VERSION}}
        self.sets.begin(KEY)
        self.during()
        others = {"view": VIEW, **seen}
        self.sets.end(KEY, Seen(observed, live, asked=asked, brokers=BROKERS, **others), status, version)

    def quiescent(self) -> bool:
        return asyncio.run(self.sets.is_quiescent(KEY))


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    return Bench(monkeypatch)


def test_a_set_in_which_all_is_well_needs_no_complete_reconcile(bench: Bench) -> None:
    """Not before its first one; the age of heartbeats is no change."""
    assert not bench.quiescent()
    bench.observed()
    older = replace(GROUP, replicas=(replace(REPLICA, heard_ms_ago=999),))
    bench.view = replace(VIEW, groups={"orders-0": older})

    assert bench.quiescent()
    assert bench.quiescent()


@pytest.mark.parametrize(
    "change",
    [
        {"groups": {"orders-0": replace(GROUP, master_epoch=2)}},
        {"groups": {"orders-0": replace(GROUP, sync_state_set=())}},
        {"groups": {"orders-0": replace(GROUP, fenced=(1,))}},
        {"groups": {"orders-0": replace(GROUP, replicas=(replace(REPLICA, standing="dead"),))}},
        {"groups": {"orders-0": replace(GROUP, replicas=(replace(REPLICA, stuck=True),))}},
        {"groups": {"orders-0": replace(GROUP, replicas=(replace(REPLICA, max_offset=11),))}},
        {"groups": {"orders-0": GROUP, "orders-1": replace(GROUP, broker_name="orders-1")}},
        {"groups": {}},
        {"controllers": Controllers()},
        {"controllers": Controllers(leader=0, members={0: True, 1: False})},
    ],
)
def test_what_controllers_say_anew_asks_for_one(bench: Bench, change: dict[str, Any]) -> None:
    """Masters, in-sync sets, fences, replicas that died, messages whose end the status tells, members."""
    bench.observed()
    bench.view = replace(VIEW, **change)

    assert not bench.quiescent()


def test_a_set_without_controllers_is_quiescent_while_the_members_of_its_dledgers_say_the_same(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    member = Member("orders-0-0", "10.0.0.1:10911", "orders-0", 0, "orders-0-0.orders-0.shop.svc:40911", 1)
    groups = {"orders-0": GROUP}

    async def query_groups(members: Any, tls: object = None) -> Mapping[str, Any]:
        assert members == (member,)
        return groups

    async def no_controllers(addresses: Any, tls: object = None) -> ControllersView:
        assert addresses == {}
        return ControllersView()

    monkeypatch.setattr(quiescence, "query_groups", query_groups)
    monkeypatch.setattr(quiescence, "query_controllers", no_controllers)
    bench.observed(asked={}, members=(member,), view=ControllersView(groups=groups, by_members=True))
    assert bench.quiescent()

    groups = {"orders-0": replace(GROUP, master_id=2)}

    assert not bench.quiescent()


def test_a_setting_that_somebody_changed_at_a_broker_asks_for_one(bench: Bench) -> None:
    """Brokers tell nobody of `mqadmin updateBrokerConfig`, or that they do not answer."""
    bench.observed()
    bench.settings = {"orders-0-0": {"minInSyncReplicas": "1"}}
    assert not bench.quiescent()

    bench.observed()
    bench.settings = {}
    assert not bench.quiescent()


def test_an_event_asks_for_one(bench: Bench) -> None:
    """Before, during the complete look, or while controllers are asked."""
    bench.observed()
    bench.sets.heard(KEY)
    assert not bench.quiescent()

    bench.during = lambda: bench.sets.heard(KEY)
    bench.observed()
    assert not bench.quiescent()

    bench.during = lambda: None
    bench.observed()
    bench.during = bench.sets.all_dirty
    assert not bench.quiescent()


def test_a_gap_of_a_watch_during_a_complete_reconcile_asks_for_another_one(bench: Bench) -> None:
    """What was read before the watch listed again may be gone by then, and nobody tells."""
    bench.during = bench.sets.all_dirty
    bench.observed()
    bench.during = lambda: None

    assert not bench.quiescent()


def test_a_status_that_somebody_else_wrote_asks_for_one(bench: Bench) -> None:
    """The event of the version that was seen may come late; another version is another object."""
    bench.observed()
    bench.sets.saw(KEY, VERSION)
    assert bench.quiescent()
    bench.sets.saw(KEY, "78")
    assert not bench.quiescent()

    bench.during = lambda: bench.sets.saw(KEY, VERSION)
    bench.observed()
    assert bench.quiescent()
    bench.during = lambda: bench.sets.saw(KEY, "78")
    bench.observed()
    assert not bench.quiescent()


def test_the_status_that_the_reconcile_itself_wrote_is_no_news(bench: Bench) -> None:
    """Its event comes afterwards, the one before it may come late; only a third version is another's."""
    bench.during = lambda: bench.sets.saw(KEY, VERSION)
    bench.observed(version="78")
    bench.during = lambda: None
    bench.sets.saw(KEY, "78")
    assert bench.quiescent()

    bench.sets.saw(KEY, "79")
    assert not bench.quiescent()


def test_without_reliable_watches_every_reconcile_is_complete(bench: Bench) -> None:
    """As long as one of them hears nothing."""
    bench.observed()
    bench.watching = False
    assert not bench.quiescent()

    bench.watching = True
    assert bench.quiescent()


def test_a_complete_reconcile_comes_once_in_a_while(bench: Bench) -> None:
    """At the latest after the time that is named, and of many sets not at once."""
    ends = set()
    for _ in range(20):
        bench.clock.now = 0.0
        bench.observed()
        bench.clock.now = COMPLETE_SECONDS * (1 - COMPLETE_SPREAD)
        assert bench.quiescent()
        while bench.quiescent():
            bench.clock.now += 600
        assert bench.clock.now <= COMPLETE_SECONDS + 600
        ends.add(bench.clock.now)

    assert len(ends) > 10


def test_a_kind_that_the_cluster_learns_asks_for_one(bench: Bench) -> None:
    """Who installs Prometheus' operator later gets PodMonitors at the next regular look."""
    bench.observed()
    bench.kinds = (kinds.POD_MONITOR,)

    assert not bench.quiescent()


@pytest.mark.parametrize(
    ("kind", "status"), [("Ready", "False"), ("Degraded", "True"), ("Draining", "True"), ("Ready", None)]
)
def test_a_set_that_is_not_well_is_observed_completely(bench: Bench, kind: str, status: str | None) -> None:
    """Whatever keeps it from being well may change without an event."""
    conditions = [one for one in WELL["conditions"] if one["type"] != kind]
    bench.observed({"conditions": [*conditions, {"type": kind, "status": status}]})

    assert not bench.quiescent()


def test_a_set_without_controllers_to_ask_is_observed_completely(bench: Bench) -> None:
    """There would be nothing to compare."""
    bench.observed(asked={})

    assert not bench.quiescent()


def test_a_set_that_is_gone_leaves_nothing(bench: Bench) -> None:
    """Neither what was known nor a look that was on."""
    bench.observed()
    bench.sets.begin(Key("BrokerSet", "shop", "other"))
    bench.sets.forget(KEY)
    bench.sets.forget(Key("BrokerSet", "shop", "other"))

    assert (bench.sets._quiescent, bench.sets._observing) == ({}, {})


OWN = OwnCertificates(
    authority=AuthoritySecret(version="5", signing=None),
    certificate=CertificateSecret(version="6", shown=None),
)


@pytest.mark.parametrize(
    "now",
    [
        {"orders-authority": "5"},
        {"orders-authority": "5", "orders-certificate": "7"},
        {},
    ],
)
def test_a_secret_that_is_changed_or_deleted_asks_for_one(bench: Bench, now: dict[str, str]) -> None:
    """Secrets are not watched, so their versions are compared, once in `SECRETS_SECONDS`."""
    bench.secrets = {"orders-authority": "5", "orders-certificate": "6"}
    bench.observed(certificates=OWN)
    for _ in range(2):
        bench.clock.now += SECRETS_SECONDS
        assert bench.quiescent()

    bench.secrets = now
    bench.clock.now += SECRETS_SECONDS

    assert not bench.quiescent()


def test_secrets_are_not_read_in_each_regular_reconcile(bench: Bench) -> None:
    """Twelve of them in an hour, with two requests each, would be the most that an idle set asks for."""
    bench.secrets = {"orders-authority": "5", "orders-certificate": "6"}
    bench.observed(certificates=OWN)

    for _ in range(24):
        bench.clock.now += SECRETS_SECONDS / 12
        assert bench.quiescent()

    assert bench.secrets_read == 2


def test_the_time_of_a_renewal_asks_for_one(bench: Bench) -> None:
    """That of the certificate or of the authority, whichever comes first."""
    for tls in (
        {"renewal": "1970-01-01T01:00:00Z", "authority": {"renewal": "1970-01-03T00:00:00Z"}},
        {"renewal": "1970-01-03T00:00:00Z", "authority": {"renewal": "1970-01-01T01:00:00Z"}},
    ):
        bench.clock.now = 0.0
        bench.observed({**WELL, "tls": tls})
        bench.clock.now = 3599.0
        assert bench.quiescent()
        bench.clock.now = 3600.0
        assert not bench.quiescent()
