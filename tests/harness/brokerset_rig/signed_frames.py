"""Frames of clients that sign, drawn at random: right, forged, altered, of users that may not, and spoilt.

Shares no code with the product.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from brokerset_rig.send_frames import Frame, FrameSource, java

PASSWORD: Final = "secret"
LATER_PASSWORD: Final = "ünlike-the-first"
USERS: Final = ("app", "root", "guest", "off", "späher", "nobody")
"""Normal, Super, one that may send to one topic from one address, disabled, without policies, unknown."""

SPOILT_SHARE: Final = 0.1

Fields = dict[str, Any]


def signature(password: str, fields: Mapping[str, Any], body: bytes) -> str:
    """What RocketMQ's clients compute."""
    texts = [
        value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)
        for _, value in sorted(fields.items())
        if value is not None
    ]
    signed = "".join(texts).encode("utf-8", "replace") + body
    return base64.b64encode(hmac.digest(password.encode(), signed, hashlib.sha1)).decode()


@dataclass
class SignedSource(FrameSource):
    """Signs what it draws; `spoils` says whether something may be wrong with a signature."""

    spoils: bool = True

    def administering(self) -> Frame:
        """A change of a user between sends: who is not Super is refused."""
        source = self.source
        wanted = {
            "username": source.choice(("app", "app", "guest")),
            "password": source.choice((PASSWORD, PASSWORD, LATER_PASSWORD)),
            "userStatus": source.choice(("enable", "enable", "disable")),
        }
        ext = {"username": wanted["username"]}
        return self._sent("administering", java, 3002, ext, json.dumps(wanted).encode())

    def plain_or_administering(self) -> Frame:
        """Plain sends, and now and then one of the others, or a change of a user."""
        pick = self.source.random()
        if pick < 0.03:
            return self.administering()
        return self.nearly_plain() if pick < 0.2 else self._binary() if pick < 0.25 else self.plain()

    def completed(self, ext: Mapping[str, Any], body: bytes) -> Fields:
        source = self.source
        if not self.spoils:
            return _signed(ext, body, source.choice(("app", "app", "root")), PASSWORD)
        user = source.choice(("app",) * 8 + ("root",) * 6 + USERS)
        fields = _signed(ext, body, user, PASSWORD if source.random() < 0.95 else LATER_PASSWORD)
        if source.random() < SPOILT_SHARE:
            source.choice(SPOILERS)(fields, source, body)
        names = list(fields)
        if source.random() < 0.3:
            source.shuffle(names)
        return {name: fields[name] for name in names}

    def written(self, text: str) -> str:
        if not self.spoils or self.source.random() > 0.06:
            return text
        name = self.source.choice(("AccessKey", "Signature", "a", "b", "i", "l", "z"))
        pair = json.dumps(name) + ":" + self.source.choice(('"app"', '"t"', '""', "null", "7", '"\\ud800"'))
        begin, _, rest = text.partition('"extFields":{')
        if not rest:
            return text
        if self.source.random() < 0.5:
            return f'{begin}"extFields":{{{pair},{rest}'
        fields, _, behind = rest.partition("}")
        return f'{begin}"extFields":{{{fields},{pair}}}{behind}'


def _signed(ext: Mapping[str, Any], body: bytes, user: str, password: str) -> Fields:
    fields = {**ext, "AccessKey": user}
    return {**fields, "Signature": signature(password, fields, body)}


# -- what may be wrong --------------------------------------------------------------------------------------


def _alter_value(fields: Fields, source: random.Random, _body: bytes) -> None:
    name = source.choice(list(fields))
    fields[name] = source.choice(("", "x", "0", "1", "t", "orders", f"{fields[name]} ", None))


def _alter_signature(fields: Fields, source: random.Random, _body: bytes) -> None:
    text = fields["Signature"]
    at = source.randrange(len(text))
    other = source.choice("Ab0+/= ü")
    fields["Signature"] = source.choice(
        (text[:at] + other + text[at + 1 :], text[:-1], text + "=", text + "\n", text.lower(), "", None)
    )


def _spare_bits(fields: Fields, source: random.Random, _body: bytes) -> None:
    """Other text that base64 reads as the same bytes."""
    letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
    text = fields["Signature"]
    last = letters.index(text[-2]) ^ source.choice((1, 2, 3))
    fields["Signature"] = f"{text[:-2]}{letters[last]}="


def _leave_out(fields: Fields, source: random.Random, _body: bytes) -> None:
    del fields[source.choice(("AccessKey", "Signature"))]


def _other_user(fields: Fields, source: random.Random, _body: bytes) -> None:
    fields["AccessKey"] = source.choice(("root", "app", "App", "app ", "", "\u00fc", None, 7))


def _add_unsigned(fields: Fields, source: random.Random, _body: bytes) -> None:
    name = source.choice(("z", "_UNIQUE_KEY_QUERY", "brokersetForwarded", "brokersetBornHost", "A", "ns"))
    fields[name] = source.choice(("true", "", "10.0.0.9:7"))


def _sign_more(fields: Fields, source: random.Random, body: bytes) -> None:
    """A field that sends do not have, which is signed."""
    fields[source.choice(("z", "_UNIQUE_KEY_QUERY", "B", "SecurityToken"))] = source.choice(("x", "", "ü"))
    del fields["Signature"]
    fields["Signature"] = signature(PASSWORD, fields, body)


def _other_body(fields: Fields, source: random.Random, body: bytes) -> None:
    del fields["Signature"]
    fields["Signature"] = signature(PASSWORD, fields, source.choice((b"", body[:-1], body + b"x")))


def _move_text(fields: Fields, _source: random.Random, _body: bytes) -> None:
    """Text that goes from one value to the next leaves the signature right."""
    if isinstance(fields.get("a"), str) and isinstance(fields.get("b"), str):
        fields["a"], fields["b"] = fields["a"] + fields["b"][:1], fields["b"][1:]


SPOILERS: Final[tuple[Callable[[Fields, random.Random, bytes], None], ...]] = (
    _alter_value,
    _alter_value,
    _alter_signature,
    _spare_bits,
    _leave_out,
    _other_user,
    _add_unsigned,
    _sign_more,
    _other_body,
    _move_text,
)
