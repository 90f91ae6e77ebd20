"""Events of objects enqueue what is to be reconciled."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

from brokerset_kube import kinds
from brokerset_kube.kinds import Kind
from brokerset_operator.enqueueing import Enqueuer
from brokerset_operator.model import names
from brokerset_operator.quiescence import QuiescentSets
from brokerset_operator.reconcile_queue import Key, ReconcileQueue
from brokerset_rig.operator_parts import a_pod
from brokerset_runtime.clock import SystemClock

ORDERS, BILLS = (Key("BrokerSet", "shop", name) for name in ("orders", "bills"))


AHEAD = itertools.count(1)
"""Seconds: two reconciles of one object have a gap between them."""


def live(name: str = "orders", version: str = "1", **spec: Any) -> dict[str, Any]:
    metadata = {"name": name, "namespace": "shop", "uid": name, "generation": 1, "resourceVersion": version}
    return {"metadata": metadata, "spec": spec}


def with_marks(work: Callable[[Enqueuer], None]) -> None:
    """Give `work` an enqueuer with an empty queue."""

    async def nothing(_: Key) -> None:
        return None

    async def no_kinds() -> tuple[Kind, ...]:
        return ()

    async def run() -> None:
        quiescent = QuiescentSets(SystemClock(), lambda: True, no_kinds)
        work(Enqueuer(ReconcileQueue(nothing, workers=1), quiescent, lambda kind: None))

    asyncio.run(run())


def marked(enqueuer: Enqueuer) -> list[Key]:
    """Whose reconcile is due, each once."""
    now = asyncio.get_running_loop().time() + next(AHEAD)
    found = []
    while (key := enqueuer.queue.schedule.take(now)) is not None:
        enqueuer.queue.schedule.succeeded(key, now, None)
        found.append(key)
    return found


def test_what_was_only_listed_is_not_enqueued() -> None:
    """Its event does that, when it is known who shares controllers with whom."""

    def work(enqueuer: Enqueuer) -> None:
        enqueuer.know("BrokerSet", [live(), live("bills", controllers={"ref": {"name": "orders"}})])
        assert marked(enqueuer) == []

        enqueuer.child_event(kinds.POD)("MODIFIED", a_pod("orders-controller-0", "controller"))
        assert marked(enqueuer) == [ORDERS, BILLS]

    with_marks(work)


def test_what_kopf_did_not_tell_is_found_by_comparing() -> None:
    """A set that is new, one that has changed and one that is gone; and nothing else."""

    def work(enqueuer: Enqueuer) -> None:
        for name in ("orders", "bills", "gone"):
            enqueuer.set_or_topic_event("BrokerSet", "ADDED", live(name))
        marked(enqueuer)
        changed = live("bills")
        changed["metadata"]["annotations"] = {names.PAUSED: "true"}
        before = enqueuer.known("BrokerSet")
        enqueuer.set_or_topic_event("BrokerSet", "ADDED", live("younger"))
        marked(enqueuer)

        late = enqueuer.compare("BrokerSet", [live(version="9"), changed, live("new")], before)

        assert late == 3
        assert sorted(key.name for key in marked(enqueuer)) == ["bills", "gone", "new"]
        assert enqueuer.compare("BrokerSet", [live()], frozenset({ORDERS})) == 0

    with_marks(work)


def test_what_is_gone_leaves_nothing() -> None:
    """Neither its event nor its controllers' users are remembered."""

    def work(enqueuer: Enqueuer) -> None:
        enqueuer.set_or_topic_event(
            "BrokerSet", "ADDED", live("bills", controllers={"ref": {"name": "orders"}})
        )
        topic = {"metadata": live("t")["metadata"], "spec": {"brokerSetRef": {"name": "orders"}}}
        enqueuer.set_or_topic_event("Topic", "ADDED", topic)
        assert enqueuer.claims.of_set("shop", "orders") == (Key("Topic", "shop", "t"),)

        enqueuer.gone(BILLS)
        enqueuer.gone(Key("Topic", "shop", "t"))

        assert enqueuer.known("BrokerSet") == enqueuer.known("Topic") == frozenset()
        assert enqueuer.shared.served_by(ORDERS) == ()
        assert enqueuer.claims.of_set("shop", "orders") == ()

    with_marks(work)


def test_a_set_that_leaves_shared_controllers_is_heard_of_by_those_it_leaves() -> None:
    """They trust its authorities no longer, and may have waited for its pods."""

    def work(enqueuer: Enqueuer) -> None:
        joined = live("bills", controllers={"ref": {"name": "orders"}})
        for each in (live(), live("mails"), joined):
            enqueuer.set_or_topic_event("BrokerSet", "ADDED", each)
        marked(enqueuer)
        moved = live("bills", "2", controllers={"ref": {"name": "mails"}})
        moved["metadata"]["generation"] = 2

        enqueuer.set_or_topic_event("BrokerSet", "MODIFIED", moved)

        assert {key.name for key in marked(enqueuer)} == {"bills", "orders", "mails"}

    with_marks(work)


def test_what_another_object_was_in_the_way_of_is_tried_again_when_that_is_gone() -> None:
    """Whether the older one was a Topic or a Subject."""

    def work(enqueuer: Enqueuer) -> None:
        older = {"metadata": live("t")["metadata"], "spec": {"brokerSetRef": {"name": "orders"}}}
        younger = {
            "metadata": live("s")["metadata"],
            "spec": {"brokerSetRef": {"name": "orders"}, "subject": "t"},
        }
        enqueuer.set_or_topic_event("Topic", "ADDED", older)
        enqueuer.set_or_topic_event("Subject", "ADDED", younger)
        assert enqueuer.claims.others(Key("Subject", "shop", "s")) == (Key("Topic", "shop", "t"),)
        marked(enqueuer)

        enqueuer.set_or_topic_event("Topic", "DELETED", older)

        assert marked(enqueuer) == [Key("Topic", "shop", "t"), Key("Subject", "shop", "s")]
        assert enqueuer.claims.others(Key("Subject", "shop", "s")) == ()

    with_marks(work)


def test_masters_that_change_enqueue_topics_and_subjects_of_their_set() -> None:
    """Both may have waited for one."""

    def work(enqueuer: Enqueuer) -> None:
        for kind in ("Topic", "Subject"):
            spec = {"brokerSetRef": {"name": "orders"}}
            enqueuer.set_or_topic_event(
                kind, "ADDED", {"metadata": live(kind.lower())["metadata"], "spec": spec}
            )
        marked(enqueuer)

        enqueuer.groups_changed("shop", "orders")

        assert sorted(key.kind for key in marked(enqueuer)) == ["Subject", "Topic"]

    with_marks(work)


def test_our_own_writes_enqueue_nothing() -> None:
    """Of a BrokerSet only what people change counts; of what it consists of everything."""

    def work(enqueuer: Enqueuer) -> None:
        enqueuer.set_or_topic_event("BrokerSet", "LISTED", live())
        assert marked(enqueuer) == [ORDERS]

        enqueuer.set_or_topic_event("BrokerSet", "MODIFIED", live(version="2"))
        assert marked(enqueuer) == []

        for kind in (kinds.CONFIG_MAP, kinds.DISRUPTION_BUDGET):
            child = {"metadata": {"name": "x", "namespace": "shop", "labels": {names.SET_LABEL: "orders"}}}
            enqueuer.child_event(kind)("DELETED", child)
            assert marked(enqueuer) == [ORDERS]
        enqueuer.child_event(kinds.CONFIG_MAP)("ADDED", {"metadata": {"name": "y", "namespace": "shop"}})
        assert marked(enqueuer) == []

    with_marks(work)


def test_a_list_after_a_gap_enqueues_everything() -> None:
    """Nobody tells what was deleted meanwhile."""

    def work(enqueuer: Enqueuer) -> None:
        enqueuer.set_or_topic_event("BrokerSet", "LISTED", live())
        marked(enqueuer)
        enqueuer.listed(False)
        assert marked(enqueuer) == []

        enqueuer.listed(True)
        assert marked(enqueuer) == [ORDERS]

    with_marks(work)
