"""The controller's settings: peers, ports, and what is wrong with them."""

from __future__ import annotations

import pytest

from brokerset_raft.configuration import MEMBERS_MAX
from brokerset_raft.frames import GROUP_BYTES_MAX
from brokerset_spec import controller_settings
from brokerset_spec.controller_settings import ControllerSettings, parse_peers
from brokerset_spec.setting_fields import setting_fields, value_text

THREE = "n0-a:9878;n1-b:9878;n2-c:9878"


def test_the_defaults_are_valid_and_read_back() -> None:
    """A controller with its name server starts without any setting."""
    assert ControllerSettings().problems() == []
    for item in setting_fields(ControllerSettings).values():
        assert item.parse(value_text(item.default)) == item.default


def test_limits_are_those_of_the_raft_library() -> None:
    """They are repeated here because this layer is below it."""
    assert controller_settings.PEERS_MAX == MEMBERS_MAX
    assert controller_settings.GROUP_BYTES_MAX == GROUP_BYTES_MAX


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("n0-host:1", {0: "host:1"}),
        (" n2-b:20 ; n10-[::1]:30;", {2: "b:20", 10: "[::1]:30"}),
        ("n0-my-host.example-1.com:9878", {0: "my-host.example-1.com:9878"}),
        ("", {}),
    ],
)
def test_peers_are_read_as_rocketmq_writes_them(text: str, found: dict[int, str]) -> None:
    """Numbers, host names with dashes, addresses in brackets."""
    assert parse_peers(text) == found


@pytest.mark.parametrize(
    "text",
    [
        *("host:1", "n0-host", "n0-host:0", "n0-host:65536", "n0-a:1;n0-b:2", "nx-a:1", "n0:a:1", "n0- a:1"),
        ";".join(f"n{i}-h{i}:1" for i in range(MEMBERS_MAX + 1)),
    ],
)
def test_unreadable_peers_are_refused(text: str) -> None:
    """With the entry that is wrong."""
    with pytest.raises(ValueError, match=r"is not n<number>|listed twice|the most there can be"):
        parse_peers(text)


def test_raft_addresses_are_one_port_below_unless_they_are_set() -> None:
    """RocketMQ's settings files work as they are."""
    derived = ControllerSettings(controller_peers=THREE)
    given = ControllerSettings(controller_peers=THREE, raft_peers="n0-x:1;n1-y:2;n2-z:3")

    assert derived.raft_addresses() == {0: "a:9877", 1: "b:9877", 2: "c:9877"}
    assert given.raft_addresses() == {0: "x:1", 1: "y:2", 2: "z:3"}
    assert (derived.problems(), given.problems()) == ([], [])


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"controller_self_id": "0"}, "is not n<number>"),
        ({"controller_self_id": "n5"}, "does not list n5, this node"),
        ({"controller_peers": "n0-a"}, "is not n<number>-<host>:<port>"),
        ({"raft_peers": "n1-a:1"}, "raftPeers=n1-a:1: does not list n0"),
        ({"raft_peers": "n0-a:1;n3-b:1"}, "does not list the same nodes"),
        ({"controller_peers": "n0-a:9878;n1-a:9877"}, "is also the controller address of n1"),
        ({"controller_peers": "n0-a:9878;n1-a:9878"}, "lists an address twice"),
        ({"controller_peers": "n0-a:1"}, "there is no port below 1"),
        ({"http_port": 9878}, "httpPort=9878: is the same as listenPort"),
        ({"http_port": 9876}, "httpPort=9876: is the same as namesrvListenPort"),
        ({"raft_listen_port": 9878}, "raftListenPort=9878: is the same as listenPort"),
        ({"controller_group": ""}, "controllerDLegerGroup: must have 1 to 255 bytes"),
        ({"probe_timeout": 1}, "probeTimeout=1: must be from"),
    ],
)
def test_problems_name_the_setting(change: dict[str, object], problem: str) -> None:
    """In the words of the settings file."""
    problems = ControllerSettings(**change).problems()  # type: ignore[arg-type]  # names and types of settings

    assert any(problem in text for text in problems), problems


def test_without_the_name_server_its_port_is_free() -> None:
    """Its default is not in the way."""
    assert ControllerSettings(enable_name_server=False, http_port=9876).problems() == []
