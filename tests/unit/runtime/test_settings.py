"""Settings from files, the environment and the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerset_runtime.settings import (
    SettingsError,
    from_arguments,
    from_properties,
    load_settings,
    settings_text,
)
from brokerset_spec.broker_settings import BrokerSettings


def test_later_sources_win(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("listenPort = 10921\n# note\n! note\n\nstorePathRootDir=/data\nfileReservedTime=48\n")

    settings = load_settings(
        BrokerSettings,
        file=file,
        environment={
            "BROKERSET_SET_listenPort": "10931",
            "BROKERSET_SET_brokerIP1": "10.0.0.1",
            "HOME": "/root",
        },
        overrides={"listenPort": "10941"},
    )

    assert settings == BrokerSettings(
        listen_port=10941, broker_ip1="10.0.0.1", store_path_root_dir=Path("/data"), file_reserved_time=48
    )


def test_the_file_that_rocketmq_ships_is_read(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text(
        "brokerClusterName = DefaultCluster\nbrokerName = broker-a\nbrokerId = 0\ndeleteWhen = 04\n"
        "fileReservedTime = 48\nbrokerRole = ASYNC_MASTER\nflushDiskType = ASYNC_FLUSH\n"
    )

    assert load_settings(BrokerSettings, file=file).file_reserved_time == 48


def test_all_problems_are_reported_together_with_their_source(tmp_path: Path) -> None:
    file = tmp_path / "broker.conf"
    file.write_text("listenPort=abc\ncolour=red\n")

    with pytest.raises(SettingsError) as caught:
        load_settings(
            BrokerSettings,
            file=file,
            environment={"BROKERSET_SET_traceOn": "yes"},
            overrides={"listenport": "1"},
        )

    assert caught.value.problems == [
        f"{file}: listenPort='abc': expected a whole number from 0 to 65535",
        f"{file}: colour is not a setting",
        "environment: traceOn='yes': expected true or false",
        "command line: listenport is not a setting; did you mean listenPort?",
    ]


def test_values_that_parse_are_still_checked_and_their_source_is_named() -> None:
    with pytest.raises(SettingsError) as caught:
        load_settings(BrokerSettings, environment={"BROKERSET_SET_listenPort": "70000"})

    assert caught.value.problems == ["environment: listenPort=70000: must be from 0 to 65535"]


@pytest.mark.parametrize("text", ["-1", "+5", "1_000", "1e3", "٣", "0x10", " ", "9" * 40])
def test_only_plain_numbers_in_range_are_numbers(text: str) -> None:
    try:
        accepted = load_settings(BrokerSettings, overrides={"fileReservedTime": text}).file_reserved_time
    except SettingsError:
        accepted = None

    assert accepted == (5 if text == "+5" else None)


def test_settings_written_as_text_read_back_as_the_same() -> None:
    settings = BrokerSettings(
        broker_name="b", trace_on=False, store_path_commit_log=Path("/a b/c"), namesrv_addr="a:1;b:2"
    )

    assert load_settings(BrokerSettings, overrides=from_properties(settings_text(settings))) == settings


def test_lines_that_are_no_settings_are_all_named() -> None:
    with pytest.raises(SettingsError) as caught:
        from_properties("a=1\nnonsense\n=2\n", label="x.conf")

    assert caught.value.problems == [
        "x.conf: line 2: 'nonsense' is not name=value",
        "x.conf: line 3: '=2' is not name=value",
    ]


def test_arguments_are_settings_too() -> None:
    assert from_arguments(["listenPort=1", "brokerName = x"]) == {"listenPort": "1", "brokerName": "x"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [(None, "cannot be read"), (b"\xff\xfe", "is not UTF-8 at byte 0"), (b"#" * 1_100_000, "is larger than")],
)
def test_a_file_that_is_no_settings_file_is_named(tmp_path: Path, content: bytes | None, reason: str) -> None:
    file = tmp_path / "broker.conf"
    if content is not None:
        file.write_bytes(content)

    with pytest.raises(SettingsError) as caught:
        load_settings(BrokerSettings, file=file)

    assert str(file) in caught.value.problems[0]
    assert reason in caught.value.problems[0]
