"""Settings that a request may change, and those that it may not."""

from __future__ import annotations

import pytest

from brokerset_namesrv.config_updates import TEXT_SIZE_MAX, changed_settings
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_spec.namesrv_settings import NamesrvSettings

SETTINGS = NamesrvSettings(scan_not_active_broker_interval=777)


def test_values_are_changed_and_the_others_stay() -> None:
    """A properties text as mqadmin sends it changes what it names."""
    changed = changed_settings(SETTINGS, b"# a comment\norderMessageEnable = true\nenableTopicList=false\n")

    assert changed.order_message_enable
    assert not changed.enable_topic_list
    assert changed.scan_not_active_broker_interval == 777


def test_nothing_changes_nothing() -> None:
    """An empty body is allowed, as in Java."""
    assert changed_settings(SETTINGS, b"") == SETTINGS


@pytest.mark.parametrize(
    ("text", "code", "part"),
    [
        (b"kvConfigPath=/etc/passwd", ResponseCode.NO_PERMISSION, "black list"),
        (b"configStorePath=/x\nenableTopicList=false", ResponseCode.NO_PERMISSION, "black list"),
        (b"configBlackList=", ResponseCode.NO_PERMISSION, "black list"),
        (b"rocketmqHome=/x", ResponseCode.NO_PERMISSION, "black list"),
        (b"listenPort=1", ResponseCode.NO_PERMISSION, "listenPort can only be set at the start"),
        (b"enableTopicLists=true", ResponseCode.INVALID_PARAMETER, "did you mean enableTopicList?"),
        (b"enableTopicList=perhaps", ResponseCode.INVALID_PARAMETER, "true or false"),
        (b"waitSecondsForService=-1", ResponseCode.INVALID_PARAMETER, "waitSecondsForService"),
        (b"no assignment", ResponseCode.INVALID_PARAMETER, "name=value"),
        (b"\xff=1", ResponseCode.INVALID_PARAMETER, "UTF-8"),
        (b"#" * (TEXT_SIZE_MAX + 1), ResponseCode.INVALID_PARAMETER, "bytes of settings"),
    ],
)
def test_what_may_not_be_changed_is_named(text: bytes, code: int, part: str) -> None:
    """Forbidden, late, unknown and unreadable settings are refused with their own remarks."""
    with pytest.raises(Rejected) as caught:
        changed_settings(SETTINGS, text)

    assert caught.value.code == code
    assert part in caught.value.remark
