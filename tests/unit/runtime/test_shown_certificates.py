"""The certificate in a message of a handshake, in both layouts, and in what a stranger makes of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from brokerset_runtime.tls import shown_certificates
from brokerset_runtime.tls.authority import Authority
from brokerset_runtime.tls.shown_certificates import first_certificate, shown_subject


def listed(*certificates: bytes, after: bytes = b"") -> bytes:
    entries = b"".join(len(each).to_bytes(3, "big") + each + after for each in certificates)
    return len(entries).to_bytes(3, "big") + entries


def message(body: bytes) -> bytes:
    return b"\x0b" + len(body).to_bytes(3, "big") + body


@pytest.mark.parametrize("length", [1, 255, 256, 70_000])
def test_the_first_certificate_is_found_in_both_versions(length: int) -> None:
    """TLS 1.3 has a context before the list, and extensions behind each."""
    own, next_one = b"a" * length, b"b" * 300
    assert first_certificate(message(listed(own, next_one))) == own
    assert first_certificate(message(b"\0" + listed(own, next_one, after=b"\0\0"))) == own
    assert first_certificate(message(b"\2cc" + listed(own, after=b"\0\0"))) == own


@pytest.mark.parametrize(
    "data",
    [
        b"", b"\x0b", b"\x0b\0\0\0", message(b"\0"), message(listed()), message(b"\0" + listed()),
        message(b"\xff" * 9),
        message(listed(b"abc")[:-1]), message(b"\0\0\0\x03\xff\xff\xff"), message(b"\0\0\0\x04\0\0\0\x05"),
    ],
)  # fmt: skip
def test_what_has_no_certificate_gives_none(data: bytes) -> None:
    """Lengths that do not fit, lists that are empty, messages that end."""
    assert first_certificate(data) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"\xa0\x03\x02\x01\x02", b"\xa0\x03\x02\x01\x05"),  # a version that X.509 does not have
        (b"\x0c\x08stranger", b"\x03\x08\0tranger"),  # a name that is a string of bits
    ],
)
def test_a_certificate_that_cannot_be_understood_is_unreadable(old: bytes, new: bytes) -> None:
    """Else whoever shows it is refused without a line in the log, and so are others in that second."""
    certificate = Authority.make("x").issue("stranger").certificate
    data = x509.load_pem_x509_certificate(certificate).public_bytes(Encoding.DER)
    assert old in data
    session: Any = SimpleNamespace(
        **{shown_certificates._ATTRIBUTE: message(listed(data.replace(old, new, 1)))}
    )
    assert shown_subject(session) == "unreadable"
