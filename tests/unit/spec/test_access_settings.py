"""Names and passwords in the settings of name servers and controllers."""

from __future__ import annotations

import pytest

from brokerset_spec.access_settings import administration_problems, administrators
from brokerset_spec.controller_settings import ControllerSettings
from brokerset_spec.namesrv_settings import NamesrvSettings

FIRST = '{"username":"root","password":"first-secret"}'
INNER = '{"accessKey":"broker","secretKey":"two"}'


@pytest.mark.parametrize("kind", [NamesrvSettings, ControllerSettings])
def test_nobody_can_lock_everybody_out(kind: type[NamesrvSettings] | type[ControllerSettings]) -> None:
    """Without a Super user no broker could register: the text says what to set."""
    (problem,) = administration_problems(kind(authentication_enabled=True))
    assert problem in kind(authentication_enabled=True).problems()
    assert "innerClientAuthenticationCredentials" in problem
    assert not administration_problems(
        kind(authentication_enabled=True, inner_client_authentication_credentials=INNER)
    )


def test_administrators_are_the_first_user_and_the_brokers() -> None:
    """By name, with their passwords."""
    settings = NamesrvSettings(init_authentication_user=FIRST, inner_client_authentication_credentials=INNER)
    assert administrators(settings) == {"root": "first-secret", "broker": "two"}


def test_a_text_that_cannot_be_read_is_named_and_not_shown() -> None:
    """Its secret is in no problem."""
    settings = NamesrvSettings(authentication_enabled=True, init_authentication_user='{"password":"hidden"}')
    (problem,) = administration_problems(settings)
    assert problem.startswith("initAuthenticationUser")
    assert "hidden" not in problem
    assert "first-secret" not in repr(NamesrvSettings(init_authentication_user=FIRST))
