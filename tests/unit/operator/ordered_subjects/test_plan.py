"""What controllers are asked for a Subject, and what is said of it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.unit.operator.ordered_subjects.states import (
    OPEN_2,
    OPEN_4,
    ROUTE,
    SCALING_TO_4,
    generation,
    observed,
    state,
    wanted,
)

from brokerset_operator.model import claim_reasons
from brokerset_operator.model.verdict import WAIT_SECONDS
from brokerset_operator.ordered_subjects import reasons
from brokerset_operator.ordered_subjects.observed import Create, Observed, Scale
from brokerset_operator.ordered_subjects.plan import (
    PROBLEMS_SHOWN_MAX,
    REFUSED_SECONDS,
    SCALING_SECONDS,
    decide_deletion,
    decide_request,
    judge,
    progress_of,
)
from brokerset_protocol.bodies.ordered import SubjectState
from brokerset_protocol.subject_words import OrderStrategy, PartitionStatus

STRICT = OrderStrategy.STRICT


def test_a_subject_that_is_missing_is_created_as_the_manifest_says() -> None:
    """What the manifest leaves open is left to the controllers, which know where there is least."""
    assert decide_request(observed(None)) == Create("events", STRICT, None, ())
    assert decide_request(
        observed(None, subject="Events", orderStrategy="BestTried", partitions=3, route=["orders-1"])
    ) == Create("Events", OrderStrategy.BEST_TRIED, 3, ("orders-1",))


def test_nothing_is_asked_for_a_subject_that_is_as_wanted() -> None:
    """Also when the manifest leaves open what it has, and whatever the order of the route's groups."""
    for found in (
        observed(OPEN_2),
        observed(OPEN_2, partitions=2),
        observed(OPEN_2, partitions=2, route=["orders-1", "orders-0"]),
        observed(OPEN_4, partitions=4),
    ):
        assert decide_request(found) is None
        verdict = judge(found)
        assert (verdict.ready, verdict.reason, verdict.again_seconds) == (True, claim_reasons.AS_WANTED, None)


def test_another_number_of_partitions_is_a_scale_that_keeps_the_route() -> None:
    """A route that the manifest repeats is not sent: only another one moves partitions."""
    assert decide_request(observed(OPEN_2, partitions=4)) == Scale("events", 2, 4, ())
    assert decide_request(observed(OPEN_2, partitions=4, route=[*ROUTE])) == Scale("events", 2, 4, ())
    assert decide_request(observed(OPEN_4, partitions=3)) == Scale("events", 4, 3, ())


def test_another_route_moves_the_partitions() -> None:
    """With the number that the subject has, unless the manifest says another."""
    assert decide_request(observed(OPEN_2, route=["orders-1"])) == Scale("events", 2, 2, ("orders-1",))
    assert decide_request(observed(OPEN_2, route=["orders-1"], partitions=1)) == Scale(
        "events", 2, 1, ("orders-1",)
    )


def test_a_scale_waits_for_the_one_that_is_under_way() -> None:
    """Then it goes on; the status says what comes next."""
    found = observed(SCALING_TO_4, partitions=3)

    assert decide_request(found) is None
    assert progress_of(found).reason == reasons.NEXT_WAITS
    assert progress_of(found).message.endswith("then come 3 partitions")
    assert judge(found).again_seconds == SCALING_SECONDS
    assert decide_request(replace(found, state=OPEN_4)) == Scale("events", 4, 3, ())


def test_while_it_scales_it_is_said_for_which_broker_groups_partitions_wait() -> None:
    """One whose broker is down is named with what the controllers say of it; the others are not."""
    old = (
        *generation(0, 2, PartitionStatus.SEALED)[:1],
        *generation(0, 2, PartitionStatus.SEALING)[1:],
    )
    new = (
        *generation(1, 4, PartitionStatus.OPEN, first=2)[:2],
        *generation(1, 4, PartitionStatus.PREPARED, first=2)[2:],
    )
    found = observed(state(old, new, problems=("orders-1 has no master",)), partitions=4)

    progress, verdict = progress_of(found), judge(found)

    assert (progress.scaling, progress.reason) == (True, reasons.SEALING)
    assert progress.message == (
        "2 of 4 partitions of generation 1 are open; not yet closed are older ones on orders-1: orders-1 has"
        " no master"
    )
    assert (verdict.ready, verdict.reason) == (False, reasons.PARTITIONS_WAIT)
    assert verdict.message == progress.message


def test_partitions_that_are_about_to_open_are_no_fault_of_a_broker() -> None:
    """All older ones are closed: nobody is named."""
    found = observed(
        state(generation(0, 2, PartitionStatus.SEALED), generation(1, 4, PartitionStatus.PREPARED, first=2))
    )

    assert progress_of(found).reason == reasons.OPENING


def test_what_controllers_refuse_is_said_in_their_words_and_tried_again() -> None:
    """Whatever was in the way may be gone."""
    verdict = judge(observed(OPEN_2, partitions=4), "events keeps 4096 partitions")

    assert (verdict.ready, verdict.reason) == (False, reasons.REFUSED_BY_CONTROLLERS)
    assert verdict.refusal == verdict.message == "events keeps 4096 partitions"
    assert verdict.again_seconds == REFUSED_SECONDS


def test_a_subject_of_another_order_is_left_alone() -> None:
    """It cannot be changed, and is not what the object stands for: it is not deleted with it either."""
    found = observed(OPEN_2, orderStrategy="BestTried", partitions=4, deletionPolicy="Delete")

    assert decide_request(found) is None
    assert not decide_deletion(found)
    assert judge(found).reason == reasons.ORDER_DIFFERS


def test_a_subject_of_another_set_with_the_same_controllers_is_left_alone() -> None:
    """Names of subjects are the controllers', not the set's."""
    foreign = state(generation(0, 2, PartitionStatus.OPEN, ("bills-0",)), route=("bills-0",))
    found = replace(
        observed(foreign, partitions=4, deletionPolicy="Delete"), foreign_groups=frozenset({"bills-0"})
    )

    assert decide_request(found) is None
    assert not decide_deletion(found)
    assert judge(found).reason == claim_reasons.NAME_TAKEN
    assert "bills-0" in judge(found).message


def test_where_controllers_serve_other_sets_the_route_is_chosen_among_the_own_groups() -> None:
    """Controllers would choose among all; the choice is the same each time, for its answer may be lost."""
    found = replace(
        observed(None),
        set_groups=("orders-0", "orders-1", "orders-2"),
        with_master=frozenset({"orders-0", "orders-2"}),
        foreign_groups=frozenset({"bills-0"}),
    )

    request = decide_request(found)

    assert isinstance(request, Create)
    assert request.route == ("orders-0", "orders-2")
    assert decide_request(found) == request


def test_different_subjects_are_spread_over_the_own_groups() -> None:
    """Not all of them are put on the first two."""
    own = frozenset(f"orders-{number}" for number in range(6))
    routes = set()
    for number in range(40):
        request = decide_request(
            Observed(
                wanted=wanted(subject=f"s{number}"),
                set_groups=tuple(sorted(own)),
                with_master=own,
                foreign_groups=frozenset({"bills-0"}),
            )
        )
        assert isinstance(request, Create)
        assert len(request.route) == 2
        routes.add(request.route)

    assert {group for route in routes for group in route} == own


def test_without_a_master_there_is_nothing_to_choose() -> None:
    """The subject waits; controllers are not asked, for they would choose another set's groups."""
    found = replace(observed(None), with_master=frozenset(), foreign_groups=frozenset({"bills-0"}))

    assert decide_request(found) is None
    assert (judge(found).reason, judge(found).again_seconds) == (claim_reasons.NO_MASTER, WAIT_SECONDS)


def test_a_route_with_a_group_that_the_set_lacks_is_not_asked_for() -> None:
    """The object is deleted all the same, with its subject."""
    found = observed(OPEN_2, route=["orders-7"], deletionPolicy="Delete")

    assert decide_request(found) is None
    assert judge(found).reason == reasons.GROUP_UNKNOWN
    assert decide_deletion(found)


def test_a_subject_on_a_group_that_leaves_the_set_says_what_to_do() -> None:
    """Its messages are there: it is moved by a route, never by itself."""
    found = replace(observed(OPEN_2), set_groups=("orders-0",))

    assert decide_request(found) is None
    assert judge(found).reason == reasons.GROUP_LEAVES
    assert "give spec.route" in judge(found).message


def test_what_keeps_an_open_subject_from_serving_is_said() -> None:
    """In the controllers' words, as many as people read."""
    many = tuple(f"problem {number}" for number in range(PROBLEMS_SHOWN_MAX + 3))
    verdict = judge(observed(replace(OPEN_2, problems=many)))

    assert (verdict.ready, verdict.reason, verdict.again_seconds) == (False, reasons.IMPAIRED, WAIT_SECONDS)
    assert verdict.message.endswith(f"problem {PROBLEMS_SHOWN_MAX - 1}; and 3 more")


@pytest.mark.parametrize(
    ("agreed", "policy", "goes"),
    [
        (OPEN_2, "Delete", True),
        (OPEN_2, "Retain", False),
        (None, "Delete", False),
        (SCALING_TO_4, "Delete", True),
    ],
)
def test_a_subject_is_deleted_only_if_there_is_one_and_the_policy_says_so(
    agreed: SubjectState | None, policy: str, goes: bool
) -> None:
    """Also while it is being scaled."""
    found = replace(observed(None, deletionPolicy=policy), state=agreed)

    assert decide_deletion(found) is goes
