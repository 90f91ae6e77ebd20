"""What a name server or a controller signs, and for whom."""

from __future__ import annotations

from brokerset_acl.signatures import ACCESS_KEY
from brokerset_namesrv.administration import server_sign
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_spec.namesrv_settings import NamesrvSettings

INNER = '{"accessKey":"broker","secretKey":"of-brokers"}'


def test_a_server_that_checks_nobody_signs_nothing() -> None:
    """Anybody could register with it, and would get requests that brokers take for their own."""
    assert server_sign(NamesrvSettings(inner_client_authentication_credentials=INNER)) is None


def test_a_server_that_checks_signs_as_brokers_do() -> None:
    """With the credentials that they have all."""
    settings = NamesrvSettings(authentication_enabled=True, inner_client_authentication_credentials=INNER)
    sign = server_sign(settings)
    assert sign is not None
    command = Command(RequestCode.NOTIFY_BROKER_ROLE_CHANGED)

    sign(command)

    assert command.ext[ACCESS_KEY] == "broker"
