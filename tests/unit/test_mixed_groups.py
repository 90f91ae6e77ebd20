"""Which mixes of makes the interop suite `mixed-groups` runs: two a day, and every one in its turn."""

from __future__ import annotations

import datetime

import pytest

from brokerset_rig.mixed_groups import MIXES, MIXES_A_DAY, chosen

NEW_YEAR = datetime.date(2027, 1, 1)


def test_every_mix_has_a_name_and_a_sentence_of_its_own() -> None:
    assert len({mix.name for mix in MIXES}) == len(MIXES) >= 8
    assert len({mix.proves for mix in MIXES}) == len(MIXES)


def test_every_mix_has_its_day_before_one_comes_again() -> None:
    days = -(-len(MIXES) // MIXES_A_DAY)

    seen = [mix for day in range(days) for mix in chosen("core", [], NEW_YEAR + datetime.timedelta(days=day))]

    assert set(seen[: len(MIXES)]) == set(MIXES)


def test_the_same_day_chooses_the_same_mixes_and_the_next_day_others() -> None:
    today = chosen("core", [], NEW_YEAR)

    assert today == chosen("core", [], NEW_YEAR)
    assert not set(today) & set(chosen("core", [], NEW_YEAR + datetime.timedelta(days=1)))


def test_named_mixes_run_whatever_the_day_and_the_size() -> None:
    names = [MIXES[3].name, MIXES[0].name]

    assert [mix.name for mix in chosen("all", names, NEW_YEAR)] == names
    assert chosen("all", [], NEW_YEAR) == list(MIXES)


def test_a_name_that_there_is_not_is_answered_with_those_that_there_are() -> None:
    with pytest.raises(ValueError, match=r"there is no mix theirs; there are: ours-oj-ours, "):
        chosen("core", ["theirs"], NEW_YEAR)
