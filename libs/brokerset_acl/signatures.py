"""Signatures of requests: base64(HMAC-SHA1(secret key, values of the header fields by name, then the body)).

Source: RocketMQ's `AclClientRPCHook`, `AclUtils.combineRequestContent`, `AclSigner`,
`DefaultAuthenticationContextBuilder`. There is no time in it: a request that somebody saw can be sent again.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from brokerset_protocol.commands import Command

ACCESS_KEY: Final = "AccessKey"
"""Header field: who signs."""

SIGNATURE: Final = "Signature"
"""Header field: the signature."""

FORWARDER: Final = "brokersetForwarder"
"""Header field of a request that a broker passed on: who of the brokers signs for that."""

FORWARDER_SIGNATURE: Final = "brokersetForwarderSignature"
"""Header field: the `way_signature` of the broker."""

SIGNING_FIELDS: Final = frozenset({ACCESS_KEY, SIGNATURE, FORWARDER, FORWARDER_SIGNATURE})
"""Header fields that say who signs, and the signatures."""

_UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
_V4_9_3: Final = 399
"""Ordinal of MQVersion: clients up to this one add the field above when they have signed."""

NO_NAME: Final = "username cannot be null."
"""Java's text for a request without `ACCESS_KEY`."""

WRONG_SIGNATURE: Final = "check signature failed."
"""Java's text for a signature that is not the user's."""

Sign = Callable[[Command], None]
"""Adds a signature to a request that is about to be sent."""


@dataclass(frozen=True, slots=True)
class Credentials:
    """What somebody signs with."""

    access_key: str
    secret_key: str = field(repr=False)

    def sign(self, command: Command) -> None:
        """Sign a request; one that is signed already is left as it is."""
        if ACCESS_KEY not in command.ext:
            command.ext[ACCESS_KEY] = self.access_key
            command.ext[SIGNATURE] = signature(self.secret_key, content(command.ext, command.body))


def content(ext: Mapping[str, str], body: bytes, leave_out: frozenset[str] = frozenset()) -> bytes:
    """What is signed: the values of all fields in the order of their names, but for the signature, and the
    body."""
    names = sorted(name for name in ext if name != SIGNATURE and name not in leave_out)
    return "".join([ext[name] for name in names]).encode("utf-8", "replace") + body


def signature(secret_key: str, signed: bytes) -> str:
    """The signature of `signed`, as text."""
    digest = hmac.digest(secret_key.encode("utf-8", "replace"), signed, hashlib.sha1)
    return base64.b64encode(digest).decode()


def is_signed_by(secret_key: str, signed: bytes, claimed: str | None) -> bool:
    """Whether `claimed` is the signature of `signed`; takes as long for a wrong one as for a right one."""
    expected = signature(secret_key, signed)
    return claimed is not None and hmac.compare_digest(expected.encode(), claimed.encode("utf-8", "replace"))


def signing_password(passwords: Sequence[str], signed: bytes, claimed: str | None) -> int | None:
    """The position of the password that made the signature `claimed` of `signed`; None if none did."""
    return next((n for n, each in enumerate(passwords) if is_signed_by(each, signed, claimed)), None)


def way_signature(secret_key: str, command: Command) -> str:
    """The signature of a broker that passes a request on: of the code, all other fields and the body.

    Clients choose most of what is signed, and who reads the network sees it. So that it signs nothing else,
    the lengths of all texts are signed before them, and the hash function is not that of clients' signatures.
    """
    key = secret_key.encode("utf-8", "replace")
    named = sorted(item for item in command.ext.items() if item[0] != FORWARDER_SIGNATURE)
    texts = [text.encode("utf-8", "replace") for item in named for text in item]
    lengths = [command.code, *map(len, texts), len(command.body)]
    signed = b"".join([",".join(map(str, lengths)).encode(), b"\n", *texts, command.body])
    return base64.b64encode(hmac.digest(key, signed, hashlib.sha256)).decode()


def is_way_signed_by(secret_key: str, command: Command) -> bool:
    """Whether the broker with this key has signed that it passed the request on."""
    claimed = command.ext.get(FORWARDER_SIGNATURE, "").encode("utf-8", "replace")
    return hmac.compare_digest(way_signature(secret_key, command).encode(), claimed)


def added_by_old_clients(command: Command) -> frozenset[str]:
    """Fields that the client added when it had signed."""
    return frozenset({_UNIQUE_KEY_QUERY}) if command.version <= _V4_9_3 else frozenset()
