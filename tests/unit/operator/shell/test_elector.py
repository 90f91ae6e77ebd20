from __future__ import annotations

import asyncio
import copy
import random
from collections.abc import Mapping
from typing import Any

import pytest

from brokerset_kube.errors import AlreadyExists, Conflict, NotFound, Request, Unavailable
from brokerset_kube.kinds import Kind
from brokerset_operator.elector import Elector, ElectorSettings, LeaseLost, micro_time
from brokerset_sim.loop import run

REQUEST = Request("update", "leases", "coordination.k8s.io", "system", "brokerset-operator")


class LoopClock:
    """The loop's time, on both clocks; the wall of each machine may be wrong by so many seconds."""

    def __init__(self, wrong_by: float = 0.0) -> None:
        self._wrong_by = wrong_by

    def now_ms(self) -> int:
        return round((1_700_000_000 + self._wrong_by + self.monotonic()) * 1000)

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class FakeLeases:
    """The Lease, as an API server keeps it."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.version = 0
        self.down_for: set[str] = set()
        """Identities that cannot reach the server."""

        self.slow_seconds = 0.0
        self.slow_once: dict[str, float] = {}
        """Seconds that the next request of an identity takes; it reads what is there at the end of them."""

        self.requests = 0

    async def get(self, who: str) -> dict[str, Any]:
        await self._reach(who)
        if self.lease is None:
            raise NotFound(REQUEST, 404, "no lease")
        return copy.deepcopy(self.lease)

    async def create(self, who: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        await self._reach(who)
        if self.lease is not None:
            raise AlreadyExists(REQUEST, 409, "is there")
        return self._store(manifest)

    async def replace(self, who: str, manifest: Mapping[str, Any]) -> dict[str, Any]:
        await self._reach(who)
        if self.lease is None:
            raise NotFound(REQUEST, 404, "no lease")
        if manifest["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Conflict(REQUEST, 409, "has changed")
        return self._store(manifest)

    async def _reach(self, who: str) -> None:
        self.requests += 1
        if slow := self.slow_once.pop(who, self.slow_seconds):
            await asyncio.sleep(slow)
        if who in self.down_for:
            raise Unavailable(REQUEST, "cannot be reached")

    def _store(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        self.version += 1
        self.lease = copy.deepcopy(dict(manifest))
        self.lease["metadata"]["resourceVersion"] = str(self.version)
        return copy.deepcopy(self.lease)

    @property
    def holder(self) -> str | None:
        return None if self.lease is None else self.lease["spec"]["holderIdentity"]


class LeaseClient:
    """One operator's way to the Lease."""

    def __init__(self, leases: FakeLeases, who: str) -> None:
        self._leases = leases
        self._who = who

    async def get(self, kind: Kind, name: str, namespace: str | None = None) -> dict[str, Any]:
        return await self._leases.get(self._who)

    async def create(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        return await self._leases.create(self._who, manifest)

    async def replace(self, manifest: Mapping[str, Any]) -> dict[str, Any]:
        return await self._leases.replace(self._who, manifest)


class Candidate:
    """An operator that does nothing but lead."""

    def __init__(self, leases: FakeLeases, who: str, wrong_by: float = 0.0) -> None:
        settings = ElectorSettings(namespace="system", identity=who)
        self.clock = LoopClock(wrong_by)
        self.elector = Elector(LeaseClient(leases, who), settings, self.clock, randomness=random.Random(who))
        self.led: list[tuple[float, float]] = []
        self.done = asyncio.Event()
        self.task = asyncio.create_task(self.elector.run(self.lead), name=who)

    async def lead(self) -> None:
        since = asyncio.get_running_loop().time()
        try:
            await self.done.wait()
        finally:
            self.led.append((since, asyncio.get_running_loop().time()))

    async def end(self) -> None:
        self.task.cancel()
        await asyncio.wait([self.task])


async def until_leads(candidate: Candidate, step: float) -> None:
    while not candidate.elector.leads:  # noqa: ASYNC110  # virtual time
        await asyncio.sleep(step)


def now() -> float:
    return asyncio.get_running_loop().time()


def test_one_leads_and_the_other_stands_by() -> None:
    """Of two operators one leads, for as long as it renews."""

    async def work() -> None:
        leases = FakeLeases()
        a = Candidate(leases, "a")
        await asyncio.sleep(1)
        b = Candidate(leases, "b")
        await asyncio.sleep(600)

        assert (a.elector.leads, b.elector.leads) == (True, False)
        assert b.elector.holder == "a"
        assert leases.lease is not None
        assert leases.lease["spec"]["leaseTransitions"] == 0
        await a.end()
        await b.end()

    run(work())


def test_who_ends_in_order_gives_the_lease_back() -> None:
    """The standby leads within its pause when the leader was told to stop."""

    async def work() -> None:
        leases = FakeLeases()
        a = Candidate(leases, "a")
        await asyncio.sleep(1)
        b = Candidate(leases, "b")
        await asyncio.sleep(10)
        a.done.set()
        await a.task
        ended = now()
        await until_leads(b, 0.1)

        assert now() - ended < 3
        assert leases.lease is not None
        assert leases.lease["spec"]["leaseTransitions"] == 1
        await b.end()

    run(work())


@pytest.mark.parametrize("wrong_by", [-3600.0, 0.0, 3600.0])
def test_a_dead_leader_is_followed_after_the_lease_whatever_the_clocks_say(wrong_by: float) -> None:
    """A standby takes over when the Lease did not change for 15 s of its own clock."""

    async def work() -> None:
        leases = FakeLeases()
        a = Candidate(leases, "a")
        await asyncio.sleep(1)
        b = Candidate(leases, "b", wrong_by)
        await asyncio.sleep(30)
        leases.down_for.add("a")
        died = now()
        while not b.elector.leads:
            await asyncio.sleep(0.05)
            assert not (a.elector.leads and b.elector.leads)

        assert 12 <= now() - died <= 18
        with pytest.raises(LeaseLost):
            await a.task
        await b.end()

    run(work())


def test_who_cannot_renew_stops_before_another_one_may_lead() -> None:
    """The leader ends its work 10 s after the last renewal, 5 s before anybody else takes the Lease."""

    async def work() -> None:
        leases = FakeLeases()
        a = Candidate(leases, "a")
        await asyncio.sleep(1)
        b = Candidate(leases, "b")
        await asyncio.sleep(20)
        leases.down_for.add("a")
        with pytest.raises(LeaseLost, match="was not renewed for 10 s"):
            await a.task
        stopped = now()
        await until_leads(b, 0.05)

        assert a.led[0][1] <= stopped
        assert now() - stopped >= 2.9
        await b.end()

    run(work())


def test_a_short_interruption_changes_nothing() -> None:
    """An API server that is away for 8 s costs no leadership."""

    async def work() -> None:
        leases = FakeLeases()
        a = Candidate(leases, "a")
        await asyncio.sleep(20)
        leases.down_for.add("a")
        await asyncio.sleep(7)
        leases.down_for.clear()
        await asyncio.sleep(20)

        assert a.elector.leads
        assert len(a.led) == 0
        await a.end()

    run(work())


def test_an_answer_that_comes_too_late_counts_from_when_it_was_asked() -> None:
    """A renewal is as old as its request: a leader whose requests hang leads no longer than it may."""

    async def work() -> None:
        leases = FakeLeases()
        a = Candidate(leases, "a")
        await asyncio.sleep(20)
        leases.slow_seconds = 60
        hangs = now()
        with pytest.raises(LeaseLost):
            await a.task

        assert now() - hangs <= 10

    run(work())


def test_a_lease_that_was_read_slowly_is_as_young_as_the_answer() -> None:
    """The leader may have renewed right before a late answer, so others wait from then on."""

    async def work() -> None:
        leases = FakeLeases()
        a = Candidate(leases, "a")
        await asyncio.sleep(1)
        b = Candidate(leases, "b")
        await asyncio.sleep(20)
        leases.slow_once["b"] = 9.0
        while "b" in leases.slow_once:  # noqa: ASYNC110  # virtual time
            await asyncio.sleep(0.01)
        await asyncio.sleep(8.5)
        version = leases.version
        while leases.version == version:  # noqa: ASYNC110  # virtual time
            await asyncio.sleep(0.01)
        leases.down_for.add("a")
        while not b.elector.leads:
            await asyncio.sleep(0.05)
            assert not (a.elector.leads and b.elector.leads)

        assert not a.elector.leads
        await asyncio.wait([a.task])
        assert isinstance(a.task.exception(), LeaseLost)
        await b.end()

    run(work())


def test_a_request_on_a_dead_connection_costs_no_leadership() -> None:
    """One renewal that hangs is given up while there is still time for another one."""

    async def work() -> None:
        leases = FakeLeases()
        a = Candidate(leases, "a")
        await asyncio.sleep(20)
        leases.slow_once["a"] = 3600.0
        await asyncio.sleep(30)

        assert a.elector.leads
        assert len(a.led) == 0
        await a.end()

    run(work())


def test_a_lease_that_somebody_deletes_is_made_again() -> None:
    """`kubectl delete lease` costs no leadership while nobody else was quicker."""

    async def work() -> None:
        leases = FakeLeases()
        a = Candidate(leases, "a")
        await asyncio.sleep(20)
        leases.lease = None
        await asyncio.sleep(20)

        assert a.elector.leads
        assert len(a.led) == 0
        assert leases.holder == "a"
        await a.end()

    run(work())


def test_a_leader_that_was_held_up_knows_that_it_leads_no_more() -> None:
    """`leads` goes by the clock, not by whether the renewing task had its turn."""

    async def work() -> None:
        leases = FakeLeases()
        a = Candidate(leases, "a")
        await asyncio.sleep(5)
        assert a.elector.leads

        real, jump = a.clock.monotonic, 20.0
        a.clock.monotonic = lambda: real() + jump  # type: ignore[method-assign]  # as a machine that slept

        assert not a.elector.leads
        await a.end()

    run(work())


def test_a_lease_taken_by_somebody_else_ends_the_leader_at_once() -> None:
    """Who finds another holder in the Lease stops, though its time is not over."""

    async def work() -> None:
        leases = FakeLeases()
        a = Candidate(leases, "a")
        await asyncio.sleep(5)
        assert leases.lease is not None
        stolen = copy.deepcopy(leases.lease)
        stolen["spec"]["holderIdentity"] = "thief"
        leases._store(stolen)
        with pytest.raises(LeaseLost, match="thief has taken"):
            await a.task

    run(work())


def test_what_the_leader_does_may_fail_and_the_lease_is_given_back() -> None:
    """An error of the work ends the elector with that error, and another one may lead."""

    async def work() -> None:
        leases = FakeLeases()

        async def broken() -> None:
            raise ValueError("broken")

        elector = Elector(
            LeaseClient(leases, "a"),
            ElectorSettings(namespace="system", identity="a"),
            LoopClock(),
            randomness=random.Random(1),
        )
        with pytest.raises(ExceptionGroup):
            await elector.run(broken)

        assert leases.holder == ""

    run(work())


def test_a_leader_costs_one_request_for_each_renewal() -> None:
    """Nobody else writes the Lease, so the leader does not read it before it writes."""

    async def work() -> None:
        leases = FakeLeases()
        a = Candidate(leases, "a")
        await asyncio.sleep(1)
        before = leases.requests
        await asyncio.sleep(60)

        assert 28 <= leases.requests - before <= 31
        await a.end()

    run(work())


def test_many_candidates_never_lead_two_at_a_time() -> None:
    """Whatever interruptions hit whom, there is never a moment with two leaders."""

    async def work() -> None:
        choose = random.Random(7)
        leases = FakeLeases()
        names = ["a", "b", "c"]
        candidates = {name: Candidate(leases, name, choose.uniform(-100, 100)) for name in names}
        for _ in range(2000):
            await asyncio.sleep(choose.uniform(0.1, 1.0))
            if choose.random() < 0.05:
                leases.down_for = {name for name in names if choose.random() < 0.4}
            for name, candidate in list(candidates.items()):
                if candidate.task.done():
                    assert isinstance(candidate.task.exception(), LeaseLost)
                    candidates[name] = Candidate(leases, name, choose.uniform(-100, 100))
            assert sum(candidate.elector.leads for candidate in candidates.values()) <= 1
        for candidate in candidates.values():
            await candidate.end()

    run(work())


def test_times_that_cannot_work_are_refused() -> None:
    """The lease must outlast the renewal, and that the pause."""
    assert ElectorSettings(namespace="n", identity="i").problems() == []
    assert ElectorSettings(namespace="n", identity="i", renew_seconds=20).problems()


def test_moments_are_spelled_as_the_api_wants_them() -> None:
    """MicroTime has six digits and a Z."""
    assert micro_time(1_700_000_000_123) == "2023-11-14T22:13:20.123000Z"
