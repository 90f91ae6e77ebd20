"""Which settings of the environment processes of a set are given."""

from __future__ import annotations

import pytest

from brokerset_cli.setting_variables import Kind, variables_of_others


@pytest.mark.parametrize("kind", ["controller", "namesrv"])
def test_settings_of_brokers_are_for_brokers_alone(kind: Kind) -> None:
    """Controllers and name servers would refuse to start with settings that they do not have."""
    variables = {"BROKERSET_SET_authorizationWhitelist", "BROKERSET_SET_flushDiskType"}

    assert variables <= variables_of_others(kind)
    assert not variables & variables_of_others("broker")


def test_what_several_have_all_of_them_get_and_what_nobody_has_nobody_is_spared() -> None:
    """So that a setting which is misspelled is refused with its name, as before."""
    kinds: tuple[Kind, ...] = ("controller", "namesrv", "broker")

    for kind in kinds:
        for name in ("tlsConfigFile", "initAuthenticationUser", "innerClientAuthenticationCredentials"):
            assert f"BROKERSET_SET_{name}" not in variables_of_others(kind)
        assert "BROKERSET_SET_misspelled" not in variables_of_others(kind)
    assert "BROKERSET_SET_raftPeers" in variables_of_others("broker")
