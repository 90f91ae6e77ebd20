"""Log lines."""

from __future__ import annotations

import json

import pytest
import structlog

from brokerset_runtime.logs import configure_logs


def test_json_lines_have_time_level_and_event_first(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info", json=True)

    structlog.get_logger().info("became master", epoch=3, peer=b"x")

    line = capsys.readouterr().err
    assert list(json.loads(line)) == ["timestamp", "level", "event", "epoch", "peer"]
    assert json.loads(line)["epoch"] == 3
    assert line.endswith("}\n")


def test_lines_for_people_are_one_short_line(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info", json=False)

    structlog.get_logger().warning("disk is full", path="/a b", ratio=91)

    line = capsys.readouterr().err
    assert line.count("\n") == 1
    assert line[12:] == " WARNING disk is full  path='/a b' ratio=91\n"


@pytest.mark.parametrize("as_json", [True, False])
def test_an_exception_is_shown_with_its_trace(as_json: bool, capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("info", json=as_json)

    try:
        raise ValueError("broken")
    except ValueError:
        structlog.get_logger().exception("task ended")

    assert "ValueError: broken" in capsys.readouterr().err


def test_lines_below_the_level_are_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    configure_logs("warning")

    structlog.get_logger().info("nothing special")

    assert capsys.readouterr().err == ""


def test_an_unknown_level_is_an_error() -> None:
    with pytest.raises(ValueError, match="'loud' is none of debug, info, warning, error"):
        configure_logs("loud")
