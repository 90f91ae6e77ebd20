"""How often a damaged log is repaired."""

from __future__ import annotations

from brokerset_broker.member.ha.repairs import REPAIRS_AT_ONE_PLACE_MAX, REPAIRS_MAX, REPAIRS_SECONDS, Repairs


def test_the_same_place_is_repaired_a_few_times_only() -> None:
    """Under one master; another one may have it right, and after an hour it is tried again."""
    repairs = Repairs()
    for now in range(REPAIRS_AT_ONE_PLACE_MAX):
        assert repairs.refusal(4, 100, now) == ""
        repairs.made(4, 100, now)

    assert "its own copy is damaged" in repairs.refusal(4, 100, 10.0)
    assert repairs.refusal(4, 200, 10.0) == ""
    assert repairs.refusal(5, 100, 10.0) == ""
    assert repairs.refusal(4, 100, REPAIRS_SECONDS + 5) == ""
    assert repairs.count == REPAIRS_AT_ONE_PLACE_MAX


def test_a_disk_that_damages_everything_is_left() -> None:
    """So many repairs in an hour are enough, wherever they are."""
    repairs = Repairs()
    for number in range(REPAIRS_MAX):
        assert repairs.refusal(4, 100 * number, number) == ""
        repairs.made(4, 100 * number, number)

    assert "not to be trusted" in repairs.refusal(4, 10_000, REPAIRS_MAX)
    assert repairs.refusal(4, 10_000, REPAIRS_SECONDS + 0.5) == ""
