"""The operator's plan for DLedger sets against a model of a cluster, as in `test_operator_plan`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import pytest
from tests.property import test_operator_plan as schedules
from tests.property.test_operator_plan import Patches, Schedule, Unsafe, patched

from brokerset_operator.model import names
from brokerset_operator.plan import scaling
from brokerset_operator.plan.facts import GroupFacts
from brokerset_operator.plan.steps import Finding
from brokerset_sim.kubernetes_wanted import NAME

pytestmark = pytest.mark.long

SCHEDULES = 48
VARIANT_SCHEDULES_MAX = 60


@dataclass(slots=True)
class LedgerSchedule(Schedule):
    """A set whose groups elect their leaders themselves."""

    members: int = 3

    @property
    def events(self) -> tuple[Callable[[Schedule], None], ...]:
        """What may happen; volumes are lost by no plan, and a DLedger bears one at a time."""
        return EVENTS

    def make_set(self) -> None:
        """The first manifest."""
        rng = self.rng
        self.members = rng.choice((3, 3, 5))
        self.world.apply_manifest(
            replicas=self.members,
            groups=rng.choice((1, 1, 2)),
            replication={"mode": "dledger"},
            storage={"size": "20Gi", "whenDeleted": "Retain"},
            update={"strategy": rng.choice(("automatic", "automatic", "supervised"))},
        )

    def second(self) -> None:
        """The number of members is checked as well."""
        Schedule.second(self)
        world = self.world
        for name in world.groups:
            claims = [each for each in world.volumes if each.startswith(names.claim_of(f"{name}-"))]
            replicas = world.sets[name]["spec"]["replicas"] if name in world.sets else 0
            if len(claims) > self.members or replicas not in (0, self.members):
                raise Unsafe(f"{name} has {replicas} members with {len(claims)} volumes, not {self.members}")

    def heal(self) -> None:
        """The number of members is put back, as the conditions say."""
        self.world.apply_manifest(replicas=self.members)
        Schedule.heal(self)

    def check_converged(self) -> None:
        """Everything is as the manifest says, and is said to be."""
        world = self.world
        what = f"seed {self.seed}: {world.status.get('conditions')}\n{self.last}"
        wanted = {f"{NAME}-{n}": self.members for n in range(len(world.manifest.broker_names))}
        wanted[names.namesrv_set(NAME)] = 2
        assert {name: found["spec"]["replicas"] for name, found in world.sets.items()} == wanted, what
        pods = {f"{name}-{n}" for name, count in wanted.items() for n in range(count)}
        assert world.pods.keys() == pods, what
        for pod in world.broker_pods():
            template = world.sets[pod.keeper]["spec"]["template"]
            assert pod.hash == template["metadata"]["annotations"][names.HASH_ANNOTATION], what
            assert pod.image == world.image, what
        for name in world.manifest.broker_names:
            group = world.groups[name]
            assert group.master in world.living(group), what
            assert len(group.in_sync) == self.members, what
            assert group.permission == 6, what
        found = {c["type"]: (c["status"], c["reason"]) for c in world.status["conditions"]}
        assert found["Ready"] == ("True", "AsWanted"), what
        assert found["Progressing"] == ("False", "Done"), what
        assert "ScaleRefused" not in found, what
        assert self.last is not None, what
        assert not self.last.actions, what


def _change_members(run: Schedule) -> None:
    """An old API server lets it through. Groups that begin meanwhile would have another number."""
    if run.world.sets.keys() >= set(run.world.manifest.broker_names):
        run.world.apply_manifest(replicas=run.rng.choice((3, 5)))


def _change_groups(run: Schedule) -> None:
    assert isinstance(run, LedgerSchedule)
    if run.world.spec["replicas"] == run.members:
        schedules._change_groups(run)


def _annotate(run: Schedule) -> None:
    rng, group = run.rng, f"{NAME}-{run.rng.randint(0, 1)}"
    name, value = rng.choice(
        (
            (names.SWITCH_OVER, f"{group}/{rng.randint(1, 6)}"),
            (names.SWITCH_OVER, group),
            (names.FENCE, f"{group}/{rng.randint(1, 4)}"),
            (names.DELETE_CLAIMS, "true"),
            (names.DISCARD_GROUP, group),
            (names.DISCARD_GROUP, ""),
            (names.PAUSED, "true"),
            (names.PAUSED, "false"),
        )
    )
    run.world.annotations[name] = value


def _delete_set(run: Schedule) -> None:
    """Somebody deletes the set, whose volumes stay, and applies it again."""
    world = run.world
    groups = world.sets.keys() - {names.namesrv_set(NAME)}
    if groups == set(world.manifest.broker_names):
        world.delete_set()
        run.checker.down.clear()
        for group in world.groups.values():
            group.fault_at = world.now


EVENTS: tuple[Callable[[Schedule], None], ...] = (
    _change_members,
    _change_groups,
    schedules._change_image,
    schedules._change_image,
    schedules._change_config,
    schedules._change_config,
    schedules._change_live_setting,
    schedules._change_storage,
    schedules._crash,
    schedules._evict,
    schedules._lose_node,
    schedules._fall_behind,
    _annotate,
    _annotate,
    _delete_set,
    schedules._stop_operator,
)


@pytest.mark.parametrize("block", range(4))
def test_every_schedule_is_safe_and_converges(block: int) -> None:
    """Whatever happens, nothing unsafe is done, and in peace everything becomes as the manifest says."""
    for seed in range(block, SCHEDULES, 4):
        try:
            LedgerSchedule(seed).run()
        except Exception as error:
            error.add_note(f"schedule {seed}")
            raise


def _members_follow_the_manifest() -> Patches:
    def size(group: GroupFacts) -> Finding[int]:
        yield from ()
        return group.wanted

    return [(scaling, "_size_of_ledger", size)]


VARIANTS: Mapping[str, Callable[[], Patches]] = {
    "the leader is deleted first": schedules._master_first,
    "members are not waited for": schedules._in_sync_not_awaited,
    "all followers are deleted at once": schedules._all_slaves_at_once,
    "the number of members follows the manifest": _members_follow_the_manifest,
}


@pytest.mark.parametrize("name", VARIANTS)
def test_a_broken_plan_is_caught(name: str) -> None:
    """The checker notices each of these bugs."""
    with patched(VARIANTS[name]()):
        assert _caught()


def _caught() -> bool:
    for seed in range(VARIANT_SCHEDULES_MAX):
        try:
            LedgerSchedule(seed).run()
        except Unsafe:
            return True
        except AssertionError:
            continue  # it does not converge either
    return False
