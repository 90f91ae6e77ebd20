"""Which timer messages take the short way, and that it stores what the long way stores."""

from __future__ import annotations

import pytest

from brokerset_broker.requests.plain_timers import encoded, plain_timer
from brokerset_formats.properties import decode_properties, encode_properties

USUAL = {"KEYS": "a", "UNIQ_KEY": "K", "WAIT": "true", "TAGS": "A"}


def text(**changes: str) -> str:
    return encode_properties({**USUAL, **changes}).decode()


@pytest.mark.parametrize("name", ["TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS"])
def test_what_the_standard_client_sends_takes_it(name: str) -> None:
    """Wherever the property stands; with whatever an application adds."""
    pair = {name: "1700000000000"}

    assert plain_timer(text(**pair)) == pair
    assert plain_timer(text(**pair, anything="else")) == pair
    assert plain_timer(encode_properties({**pair, **USUAL}).decode()) == pair


@pytest.mark.parametrize(
    "properties",
    [
        text(),
        text(TIMER_DELAY_MS="-5"),
        text(TIMER_DELAY_MS="+5"),
        text(TIMER_DELAY_MS="5 "),
        text(TIMER_DELAY_MS="٣"),
        text() + "TIMER_DELAY_MS\x01\x02",
        text(XTIMER_DELAY_MS="5"),
        text(TIMER_DELAY_MSX="5"),
        text(a="TIMER_DELAY_MS", TIMER_DELAY_MS="5"),
        text(TIMER_DELAY_MS="5", TIMER_DELIVER_MS="6"),
        text(TIMER_DELAY_MS="5") + "TIMER_DELAY_MS\x016\x02",
        text(TIMER_DELAY_MS="5", DELAY="3"),
        text(TIMER_DELAY_MS="5", TIMER_OUT_MS="6"),
        text(TIMER_DELAY_MS="5", TIMER_DEL_UNIQKEY="x"),
        text(TIMER_DELAY_MS="5", TRAN_MSG="true"),
        text(TIMER_DELAY_MS="5", REAL_TOPIC="t"),
        text(TIMER_DELAY_MS="5", CLUSTER="c"),
        text(TIMER_DELAY_MS="5", _SYS_MSG_PRIORITY_="1"),
        text(TIMER_DELAY_MS="5", UNIQ_KEY=""),
        text(TIMER_DELAY_MS="5") + "UNIQ_KEY\x01other\x02",
        text(TIMER_DELAY_MS="5", UNIQ_KEY="", XUNIQ_KEY="K"),
        "UNIQ_KEY\x01",
    ],
)
def test_everything_else_takes_the_long_way(properties: str) -> None:
    assert plain_timer(properties) is None


def test_what_the_broker_adds_is_as_the_codec_has_it() -> None:
    """What has no value is left out."""
    changes = {"TIMER_OUT_MS": "5000", "REAL_TOPIC": "T", "REAL_QID": "3"}

    assert encoded({**changes, "gone": None}).encode() == encode_properties(changes)
    assert decode_properties(encoded(changes).encode()) == changes
