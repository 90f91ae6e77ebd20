"""Tables, JSON and errors."""

from __future__ import annotations

import json

import click
import pytest
from click.testing import CliRunner

from brokerset_cli.output import counted, duration, fail, progress, write_json, write_table


def test_a_table_aligns_texts_left_and_numbers_right(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(("name", "count"), [("a", 1), ("long name", 12345)])

    assert capsys.readouterr().out.splitlines() == [
        "NAME        COUNT",
        "a               1",
        "long name  12,345",
    ]


def test_a_number_that_is_not_known_leaves_the_others_at_the_right(
    capsys: pytest.CaptureFixture[str],
) -> None:
    write_table(("count",), [(None,), (12345,)])

    assert capsys.readouterr().out.splitlines() == [" COUNT", "     -", "12,345"]


def test_nothing_is_said_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(("name",), [], empty="There are no topics.")

    assert capsys.readouterr().out == "There are no topics.\n"


def test_what_is_not_known_is_a_dash(capsys: pytest.CaptureFixture[str]) -> None:
    write_table(("a", "b"), [(None, "x")])

    assert capsys.readouterr().out.splitlines()[1] == "-  x"


def test_json_for_scripts_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    write_json({"a": [1, "ü"]})

    line = capsys.readouterr().out
    assert line.count("\n") == 1
    assert json.loads(line) == {"a": [1, "ü"]}


def test_an_error_says_what_to_do_and_ends_with_1() -> None:
    @click.command()
    def command() -> None:
        fail("port 9876 is taken", "choose another one")

    result = CliRunner().invoke(command)

    assert result.exit_code == 1
    assert result.stderr == "Error: port 9876 is taken\nWhat to do: choose another one\n"
    assert result.stdout == ""


def test_progress_is_silent_when_nobody_watches(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("work", 10) as done:
        done(10)

    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.9, "59 s"), (60, "1 min"), (3600, "1 h 0 min"), (90_000, "1 d 1 h")],
)
def test_durations_are_said_in_two_units_at_most(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 queues"), (1, "1 queue"), (2, "2 queues"), (1000, "1,000 queues")]
)
def test_what_is_counted_agrees_with_its_number(count: int, text: str) -> None:
    assert counted(count, "queue") == text
