"""What the settings classes promise: documented, in range, under RocketMQ's names, cheap to load."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest

from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.namesrv_settings import NamesrvSettings
from brokerset_spec.setting_fields import address_problems, setting_fields, unknown_name

CLASSES = [BrokerSettings, NamesrvSettings]


@pytest.mark.parametrize("settings_class", CLASSES)
def test_the_defaults_are_valid(settings_class: type[Any]) -> None:
    assert settings_class().problems() == []


@pytest.mark.parametrize("settings_class", CLASSES)
def test_a_default_written_as_text_reads_back_as_the_same_value(settings_class: type[Any]) -> None:
    from brokerset_spec.setting_fields import value_text

    for item in setting_fields(settings_class).values():
        assert item.parse(value_text(item.default)) == item.default


@pytest.mark.parametrize(
    ("name", "outside"),
    [
        ("broker_ip1", "brokerIP1"),
        ("check_crc_on_recover", "checkCRCOnRecover"),
        ("mapped_file_size_commit_log", "mappedFileSizeCommitLog"),
        ("store_path_root_dir", "storePathRootDir"),
    ],
)
def test_names_outside_are_rocketmqs(name: str, outside: str) -> None:
    assert setting_fields(BrokerSettings)[outside].name == name


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"listen_port": 70_000}, "listenPort=70000: must be from 0 to 65535"),
        ({"broker_name": "a b"}, "brokerName=a b: must be 1 to 127 letters, digits, _, -, % or |"),
        ({"broker_role": "SLAVE"}, "brokerRole=SLAVE: must be ASYNC_MASTER"),
        ({"namesrv_addr": "here;127.0.0.1:9876"}, "namesrvAddr: 'here' is not HOST:PORT"),
        ({"namesrv_addr": "a..b:9876"}, "namesrvAddr: 'a..b:9876' is not HOST:PORT"),
        ({"namesrv_addr": f"{'x' * 64}:1"}, f"namesrvAddr: '{'x' * 64}:1' is not HOST:PORT"),
        ({"namesrv_addr": "a\0b:1"}, "namesrvAddr: 'a\\x00b:1' is not HOST:PORT"),
        ({"namesrv_addr": "[]:1"}, "namesrvAddr: '[]:1' is not HOST:PORT"),
        ({"http_port": 10911}, "httpPort=10911: is the same as listenPort"),
        (
            {"message_delay_level": "1s 5x"},
            "messageDelayLevel: '5x' is not a number followed by s, m, h or d",
        ),
        (
            {"authorization_enabled": True},
            "authorizationEnabled=true: needs authenticationEnabled=true, or nobody has a name",
        ),
        (
            {"authentication_enabled": True, "refuse_signed_requests": True},
            "refuseSignedRequests=true: not together with authenticationEnabled=true",
        ),
        (
            {"init_authentication_user": '{"username":"u","password":" "}'},
            "initAuthenticationUser: is no JSON object with texts username and password",
        ),
        (
            {
                "init_authentication_user": '{"username":"u","password":"one"}',
                "inner_client_authentication_credentials": '{"accessKey":"u","secretKey":"two"}',
            },
            "initAuthenticationUser and innerClientAuthenticationCredentials: one user, two passwords",
        ),
        (
            {"inner_client_authentication_credentials": "secret"},
            "innerClientAuthenticationCredentials: is no JSON object with texts accessKey and secretKey",
        ),
        (
            {
                "authentication_enabled": True,
                "enable_controller_mode": True,
                "controller_addr": "127.0.0.1:9878",
            },
            "innerClientAuthenticationCredentials is empty: brokers of a group need it with "
            "authenticationEnabled=true, the same for all",
        ),
        (
            {"authentication_whitelist": "10,all"},
            "authenticationWhitelist=10,all: must be request codes, separated by commas",
        ),
        ({"delete_when": "04;25"}, "deleteWhen: '25' is not an hour from 00 to 23"),
        (
            {"enable_controller_mode": True},
            "controllerAddr is empty: enableControllerMode=true needs at least one HOST:PORT",
        ),
        ({"controller_addr": "c0"}, "controllerAddr: 'c0' is not HOST:PORT"),
        (
            {"broker_heartbeat_interval": 1_500},
            "controllerHeartBeatTimeoutMills=2000: must be at least twice brokerHeartbeatInterval=1500",
        ),
        ({"owner_uid": "a#b"}, "ownerUid=a#b: must be at most 255 characters without #"),
        ({"broker_ip1": ""}, "brokerIP1 is empty: give the address under which clients reach this broker"),
    ],
)
def test_a_wrong_value_is_named(change: dict[str, Any], problem: str) -> None:
    assert BrokerSettings(**change).problems() == [problem]


def test_a_message_must_fit_into_a_file() -> None:
    settings = BrokerSettings(mapped_file_size_commit_log=1_048_576)

    assert [text.split("=")[0] for text in settings.problems()] == ["maxMessageSize"]


@pytest.mark.parametrize("name", ["flushdisktype", "flushDiskTyp", "flush_disk_type", "FlushDiskType"])
def test_a_name_that_is_nearly_right_is_recognised(name: str) -> None:
    assert unknown_name(BrokerSettings, name) == f"{name} is not a setting; did you mean flushDiskType?"


def test_a_name_that_is_like_no_other_gets_no_suggestion() -> None:
    assert unknown_name(BrokerSettings, "colour") == "colour is not a setting"


@pytest.mark.parametrize("address", ["a:0", "a:65536", ":9876", "a:", "a:١", "a"])
def test_an_address_needs_a_host_and_a_port(address: str) -> None:
    assert address_problems(f"127.0.0.1:9876;{address}") == [f"{address!r} is not HOST:PORT"]


def test_loading_the_settings_of_a_broker_loads_neither_pydantic_nor_yaml() -> None:
    """A broker reads its settings first; what they load, every start pays for."""
    code = (
        "import sys, brokerset_spec.broker_settings, brokerset_runtime.settings, brokerset_runtime.clock, "
        "brokerset_runtime.logs, brokerset_runtime.http; "
        "slow = {'pydantic', 'yaml', 'aiohttp', 'rich', 'prometheus_client', 'click'}; "
        "print(*sorted(slow & set(sys.modules)))"
    )

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert loaded.stdout.split() == []
