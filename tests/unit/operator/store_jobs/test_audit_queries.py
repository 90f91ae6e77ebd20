"""What is done when a comparison cannot name what differs: replicas are asked, twice at most."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from tests.unit.operator.store_jobs.worlds import NIGHT, AuditWorld, error, replica, summary

from brokerset_operator.store_jobs import labels, reasons
from brokerset_operator.store_jobs.observed import AuditedSet
from brokerset_operator.store_jobs.runs import GIVEN_UP_SECONDS

RUN = int(NIGHT // 60)
LIST = [[0, 16_777_216]]
SHOW = [[4096, 300]]


def wants(*pods: str, lists: Any = (), shows: Any = ()) -> str:
    """What a comparison says that found a difference, and wants to know more."""
    said = json.loads(summary(error("bytes", store="", file="", offset=0)))
    said["further"] = [
        {"url": f"/stores/{pod}/store", "bound": 70_000, "lists": list(lists), "shows": list(shows)}
        for pod in pods
    ]
    return json.dumps(said)


def named() -> str:
    """What a comparison says that names the record."""
    return summary(error("bytes", offset=4096))


def compared(message: str, **more: Any) -> AuditWorld:
    """The first comparison has said this."""
    world = AuditWorld(**more)
    world.reconcile(now=NIGHT)
    world.map_all()
    for name in world.names(labels.REDUCE):
        world.finish(name, message, code=1)
    world.reconcile()
    return world


def answer(world: AuditWorld, number: int, pods: int = 2) -> None:
    """All that are asked answer, and the next comparison is on."""
    world.reconcile()
    assert len(world.names(labels.query_step(number))) == pods
    for name in world.names(labels.query_step(number)):
        world.finish(name, result='{"lookVersion":1}')
    world.reconcile()
    world.reconcile()
    world.reconcile()


def command(world: AuditWorld, name: str) -> list[str]:
    job: Any = world.observed.jobs[name]
    found: list[str] = job["spec"]["template"]["spec"]["containers"][0]["command"][3:]
    return found


def test_replicas_that_differ_are_asked_for_records_and_then_for_the_first_that_differs() -> None:
    """Each next to its broker, its volume read-only; then the comparison is made again, with the answers."""
    world = compared(wants("orders-0-0", "orders-0-1", lists=LIST))
    assert world.observed.status["workflow"]["run"]["step"] == "look"  # type: ignore[index]

    world.reconcile()
    first = f"nightly-{RUN}-0-1-look-1"
    assert world.names(labels.query_step(1)) == [f"nightly-{RUN}-0-0-look-1", first]
    asked = command(world, first)
    assert asked[:5] == ["audit", "look", "/stores/orders-0-1/store", "--bound", "70000"]
    assert "--list=0:16777216" in asked
    pod: Any = world.observed.jobs[first]
    assert pod["metadata"]["labels"][labels.AUDITED_POD] == "orders-0-1", "it gives way to its broker"
    (claim,) = (v for v in pod["spec"]["template"]["spec"]["volumes"] if v["name"] == "store")
    assert claim["persistentVolumeClaim"]["readOnly"] is True

    answer(world, 1)
    second = f"nightly-{RUN}-0-reduce-1"
    assert second in world.names(labels.REDUCE)
    assert command(world, second).count("--look") == 2

    world.finish(second, wants("orders-0-0", "orders-0-1", shows=SHOW), code=1)
    world.reconcile()
    world.reconcile()
    assert "--show=4096:300" in command(world, f"nightly-{RUN}-0-0-look-2")
    answer(world, 2)
    third = f"nightly-{RUN}-0-reduce-2"
    assert command(world, third).count("--look") == 4, "with the answers of both rounds"
    world.finish(third, named(), code=1)
    world.reconcile()

    last: Any = world.observed.status["lastRun"]
    assert (last["result"], last["errors"]) == (reasons.FOUND, 1)
    assert "message" not in last
    assert "at 4096" in world.condition("AuditPassed")[2]
    world.reconcile()
    assert not world.observed.maps, "answers go with the maps when the run is over"


def test_maps_and_answers_of_a_comparison_are_files_of_one_folder() -> None:
    """Every file that its command names is in the projected volume, and no other."""
    world = compared(wants("orders-0-0", "orders-0-1", lists=LIST))
    answer(world, 1)
    name = f"nightly-{RUN}-0-reduce-1"
    job: Any = world.observed.jobs[name]

    (volume,) = (v for v in job["spec"]["template"]["spec"]["volumes"] if v["name"] == "maps")

    sources = [each["configMap"] for each in volume["projected"]["sources"]]
    paths = {item["path"] for each in sources for item in each["items"]}
    assert paths == {
        each.removeprefix("/maps/") for each in command(world, name) if each.startswith("/maps/")
    }
    assert {each["name"] for each in sources} == set(world.observed.maps)


def test_a_run_without_differences_asks_nobody() -> None:
    world = compared(summary())

    assert world.observed.status["lastRun"]["result"] == reasons.PASSED  # type: ignore[index]
    assert not any("look" in name for name in world.observed.jobs)


def test_questions_end_after_two_rounds_whatever_a_comparison_wants() -> None:
    world = compared(wants("orders-0-0", "orders-0-1", lists=LIST))
    answer(world, 1)
    world.finish(f"nightly-{RUN}-0-reduce-1", wants("orders-0-0", "orders-0-1", shows=SHOW), code=1)
    world.reconcile()
    answer(world, 2)
    world.finish(f"nightly-{RUN}-0-reduce-2", wants("orders-0-0", "orders-0-1", shows=[[1, 1]]), code=1)

    world.reconcile()

    assert world.observed.status["lastRun"]["result"] == reasons.FOUND  # type: ignore[index]


def test_who_does_not_answer_is_named_and_the_run_ends_with_what_is_known() -> None:
    """The Job of one fails: the comparison is made with the answer of the other, and not asked again."""
    world = compared(wants("orders-0-0", "orders-0-1", lists=LIST))
    world.reconcile()
    world.finish(f"nightly-{RUN}-0-0-look-1", result="{}")
    world.fail(f"nightly-{RUN}-0-1-look-1", message="the store is gone")
    world.reconcile()
    world.reconcile()
    world.reconcile()
    again = f"nightly-{RUN}-0-reduce-1"
    assert command(world, again).count("--look") == 1
    world.finish(again, wants("orders-0-0", "orders-0-1", lists=LIST), code=1)

    world.reconcile()

    last: Any = world.observed.status["lastRun"]
    assert last["result"] == reasons.FOUND
    assert "orders-0-1 did not answer" in last["message"]
    assert "the store is gone" in last["message"]


def test_when_nobody_answers_the_first_comparison_stands() -> None:
    world = compared(wants("orders-0-0", "orders-0-1", lists=LIST))
    world.reconcile()
    for number in range(2):
        world.fail(f"nightly-{RUN}-0-{number}-look-1")

    for _ in range(3):
        world.reconcile()

    assert world.observed.status["lastRun"]["result"] == reasons.FOUND  # type: ignore[index]
    assert world.names(labels.REDUCE) == [f"nightly-{RUN}-0-reduce"]


def test_a_broker_that_does_not_run_is_waited_for_ten_minutes() -> None:
    """As for a map: it is a roll, most often."""
    world = compared(wants("orders-0-0", "orders-0-1", lists=LIST))
    audited = world.observed.audited
    assert audited is not None
    away = replace(audited, replicas=(replica(0), replica(1, running=False), replica(2)))
    world.reconcile(audited=away)
    world.finish(f"nightly-{RUN}-0-0-look-1", result="{}")
    world.reconcile(now=NIGHT + GIVEN_UP_SECONDS - 10)
    assert world.observed.status["phase"] == "Running"

    world.reconcile(now=NIGHT + GIVEN_UP_SECONDS + 10)
    world.reconcile()
    world.reconcile()
    world.finish(f"nightly-{RUN}-0-reduce-1", summary(error("bytes")), code=1)
    world.reconcile()

    assert "orders-0-1 did not answer: its broker does not run" in world.observed.status["lastRun"]["message"]  # type: ignore[index]


def test_only_the_group_that_differs_is_asked_and_compared_again() -> None:
    both = AuditedSet(
        name="orders",
        uid="5e7",
        replicas=tuple(replica(ordinal, index) for index in range(2) for ordinal in range(2)),
    )
    world = AuditWorld(audited=both)
    world.reconcile(now=NIGHT)
    world.map_all()
    world.finish(f"nightly-{RUN}-0-reduce", summary())
    world.finish(f"nightly-{RUN}-1-reduce", wants("orders-1-0", "orders-1-1", lists=LIST), code=1)
    world.reconcile()

    answer(world, 1)

    assert world.names(labels.REDUCE) == [
        f"nightly-{RUN}-0-reduce",
        f"nightly-{RUN}-1-reduce",
        f"nightly-{RUN}-1-reduce-1",
    ]
    world.finish(f"nightly-{RUN}-1-reduce-1", named(), code=1)
    world.reconcile()
    assert world.observed.status["lastRun"]["errors"] == 1  # type: ignore[index]


def test_a_request_that_makes_no_sense_is_not_carried_out() -> None:
    """Another store, numbers that are none: nobody is asked, and the run ends."""
    for url, lists in (("/etc", LIST), ("/stores/orders-0-0/store", [["a", 2], [1], [-1, 5], 3, [True, 2]])):
        said = json.loads(summary(error("bytes")))
        said["further"] = [{"url": url, "bound": 1, "lists": lists, "shows": "x"}]

        world = compared(json.dumps(said))

        assert world.observed.status["lastRun"]["result"] == reasons.FOUND  # type: ignore[index]


def test_an_operator_that_comes_later_goes_on_with_the_questions() -> None:
    """All it knows is the status: the next plan of it makes no Job twice."""
    world = compared(wants("orders-0-0", "orders-0-1", lists=LIST))
    world.reconcile()
    before = dict(world.observed.jobs)
    world.observed = replace(world.observed, status=json.loads(json.dumps(dict(world.observed.status))))

    plan = world.reconcile()

    assert plan.actions == ()
    assert dict(world.observed.jobs) == before


def test_the_longest_names_of_jobs_are_names() -> None:
    """Kubernetes allows 63 characters, which is why a StoreAudit's name has 30 at most."""
    world = compared(wants("orders-0-0", lists=LIST))
    world.reconcile()

    (name,) = world.names(labels.query_step(1))

    assert len(name) - len("nightly") + 30 + len("255") - 1 <= 63
