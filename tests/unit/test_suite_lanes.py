"""Which interop suites run on a day, and in which lane."""

from __future__ import annotations

import datetime

from brokerset_rig.suite_lanes import ROTATING, ROTATING_A_DAY, lanes, of_the_day

ALWAYS = ["java", "stores", "controllers"]
NEW_YEAR = datetime.date(2027, 1, 1)


def test_every_rotating_suite_has_its_day_before_one_comes_again() -> None:
    days = [NEW_YEAR + datetime.timedelta(days=day) for day in range(len(ROTATING))]

    seen = [name for day in days for name in of_the_day(ROTATING, day)]

    assert {seen.count(name) for name in ROTATING} == {ROTATING_A_DAY}


def test_the_others_run_each_day_in_their_order() -> None:
    today = of_the_day([*ALWAYS, *ROTATING], NEW_YEAR)

    assert today[: len(ALWAYS)] == ALWAYS
    assert len(today) == len(ALWAYS) + ROTATING_A_DAY


def test_every_suite_is_in_one_lane() -> None:
    assert sorted(name for lane in lanes([*ALWAYS, *ROTATING]) for name in lane) == sorted(
        [*ALWAYS, *ROTATING]
    )
