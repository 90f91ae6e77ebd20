"""Which names make a certificate one of a member."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerset_runtime.settings import SettingsError
from brokerset_runtime.tls.config import tls_config
from brokerset_runtime.tls.member_names import MemberPort, described, has_name

POD = "orders-controller-0.orders-controller.shop.svc"


@pytest.mark.parametrize(
    ("kind", "name", "pattern", "matches"),
    [
        ("DNS", POD, POD, True),
        ("DNS", POD.upper(), POD, True),
        ("DNS", POD, "*.orders-controller.shop.svc", True),
        ("DNS", "*.orders-controller.shop.svc", "*.orders-controller.shop.svc", True),
        ("DNS", "*.orders-controller.shop.svc", POD, False),
        ("DNS", "orders-controller.shop.svc", "*.orders-controller.shop.svc", False),
        ("DNS", ".orders-controller.shop.svc", "*.orders-controller.shop.svc", False),
        ("DNS", f"a.{POD}", "*.orders-controller.shop.svc", False),
        ("DNS", "orders-0-0.orders-0.shop.svc", "*.orders-controller.shop.svc", False),
        ("DNS", "10.0.0.1", "10.0.0.1", True),
        ("IP Address", "10.0.0.1", "10.0.0.1", True),
        ("IP Address", "10.0.0.2", "10.0.0.1", False),
        ("IP Address", "0:0:0:0:0:0:0:1", "::1", True),
        ("IP Address", "10.0.0.1", "*.0.0.1", False),
        ("URI", "spiffe://shop/controllers/0", "spiffe://shop/controllers/0", True),
        ("URI", "spiffe://shop/controllers/0", "spiffe://shop/controllers/*", True),
        ("URI", "spiffe://shop/controllers/0/more", "spiffe://shop/controllers/*", False),
        ("URI", "spiffe://shop/controllers/", "spiffe://shop/controllers/*", False),
        ("URI", "spiffe://shop/brokers/0", "spiffe://shop/controllers/*", False),
        ("email", POD, POD, False),
    ],
)
def test_a_name_is_one_of_members_or_not(kind: str, name: str, pattern: str, matches: bool) -> None:
    """One label, one segment, one address; nothing else is a pattern."""
    assert has_name([("DNS", "other"), (kind, name)], ["another", pattern]) is matches


def test_who_has_no_name_has_none_of_them() -> None:
    """Its subject does not count."""
    assert not has_name([], ["*.orders-controller.shop.svc"])
    assert described([]) == "no name"


def test_a_port_has_its_own_names_or_those_of_all() -> None:
    """`tls.members.raft.names` comes before `tls.members.names`."""
    values = {"tls.members.names": "*.b.svc, *.c.svc", "tls.members.raft.names": "*.c.svc"}

    found = tls_config(values, folder=Path("/"), label="here").member_names

    assert found == {
        MemberPort.RAFT: ("*.c.svc",),
        MemberPort.HA: ("*.b.svc", "*.c.svc"),
        MemberPort.DLEDGER: ("*.b.svc", "*.c.svc"),
    }
    assert tls_config({}, folder=Path("/"), label="here").member_names == {}


@pytest.mark.parametrize("name", ["*", "*.", "orders-*.svc", "**.svc", "a b", "spiffe://*/controllers"])
def test_what_is_no_name_is_refused(name: str) -> None:
    """It would stand for nobody, or for more than was meant."""
    with pytest.raises(SettingsError, match=r"tls\.members\.ha\.names: .* is no name"):
        tls_config({"tls.members.ha.names": name}, folder=Path("/"), label="here")
