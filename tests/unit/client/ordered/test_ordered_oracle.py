"""The judge of real runs finds what it is there for."""

from __future__ import annotations

from brokerset_rig.ordered_oracle import (
    Act,
    Verdict,
    judge,
    judge_stored,
    judge_unordered,
    read_act,
    write_act,
)

SENT = {"k": 3}


def run(*acts: str) -> dict[str, int]:
    """Problems by kind; an act is `begin number token`."""
    found = [Act(what, "k", int(number), int(token), "s") for what, number, token in map(str.split, acts)]
    return dict(judge(found, SENT).kinds)


GOOD = ("begin 0 1", "end 0 1", "begin 1 1", "end 1 1", "begin 2 1", "end 2 1")


def test_messages_that_are_handled_in_order_are_no_problem() -> None:
    assert run(*GOOD) == {}


def test_a_message_that_is_never_handled_is_lost() -> None:
    assert run(*GOOD[:4]) == {"lost": 1}


def test_a_message_that_begins_before_the_one_before_is_handled_has_overtaken_it() -> None:
    assert run("begin 0 1", "begin 1 2", "end 1 2", "begin 0 2", "end 0 2", "begin 2 2", "end 2 2") == {
        "overtaken": 1,
        "disorder": 2,
    }


def test_two_messages_of_a_key_that_run_at_once_are_found() -> None:
    assert run("begin 0 1", "begin 1 1", "end 0 1", "end 1 1", "begin 2 1", "end 2 1") == {
        "overtaken": 1,
        "doubled": 1,
    }


def test_a_handling_may_be_repeated_and_late_acts_of_an_old_owner_are_refused_by_the_token() -> None:
    repeated = ("begin 0 1", "begin 0 2", "end 0 2", "end 0 1", "begin 0 3", "end 0 3")
    rest = ("begin 1 3", "end 1 3", "begin 2 3", "end 2 3")
    acts = [read_act("{} k {} {} s".format(*act.split())) for act in (*repeated, *rest)]

    verdict = judge(acts, SENT)

    assert (verdict.problems, verdict.handled, verdict.repeated, verdict.refused) == ([], 3, 1, 1)


def handled(*numbers: int, unconfirmed: tuple[int, ...] = ()) -> Verdict:
    """Of a group without order, in which messages end in this order."""
    acts = [Act(what, "k", number, 1, "s") for number in numbers for what in ("begin", "end")]
    return judge_unordered(acts, SENT, [("k", number) for number in unconfirmed])


def test_where_no_order_is_promised_disorder_and_repetitions_are_counted_and_are_no_problem() -> None:
    verdict = handled(2, 0, 1, 2, 0)

    assert (verdict.problems, verdict.handled, verdict.disordered, verdict.repeated) == ([], 3, 2, 2)
    assert (handled(0, 1, 2).disordered, handled(0, 1, 0, 2).disordered) == (0, 0)


def test_a_confirmed_message_that_is_never_handled_is_lost_whatever_the_order() -> None:
    assert dict(handled(2, 0).kinds) == {"lost": 1}
    assert dict(handled(2, 0, unconfirmed=(0, 2)).kinds) == {"lost": 1}


def test_a_message_whose_send_failed_may_be_handled_or_not() -> None:
    assert handled(2, 0, unconfirmed=(1,)).problems == []
    assert handled(2, 1, 0, unconfirmed=(1,)).problems == []


def test_a_message_that_nobody_sent_is_a_problem_whatever_the_order() -> None:
    assert dict(handled(0, 1, 2, 3).kinds) == {"unknown": 1}


def test_what_is_stored_twice_or_in_disorder_or_not_at_all_is_found() -> None:
    assert judge_stored([[("k", 0), ("k", 1)], [("k", 2)]], SENT).problems == []
    assert dict(judge_stored([[("k", 0), ("k", 1), ("k", 0)]], SENT).kinds) == {
        "stored twice": 1,
        "stored in disorder": 1,
        "not stored": 1,
    }


def test_a_line_is_read_as_it_was_written() -> None:
    act = Act("begin", "p1-3", 7, 12, "c1:99")

    assert read_act(write_act(act)) == act


def test_a_shared_group_may_handle_in_any_order_and_again_but_must_handle_all() -> None:
    acts = [Act("end", "k", number, 1, "s") for number in (2, 0, 2)]
    verdict = judge_unordered([Act("begin", "k", 1, 1, "s"), *acts], SENT)

    assert (verdict.handled, verdict.repeated, dict(verdict.kinds)) == (2, 1, {"lost": 1})
    assert dict(judge_unordered([*acts, Act("end", "x", 0, 1, "s")], SENT).kinds) == {"lost": 1, "unknown": 1}
