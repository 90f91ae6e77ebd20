"""Checks of what requests carry before anything is decided: sizes, addresses, lists of names.

Fields that end up in the agreed state are checked again by the decisions (`replicas`); these checks are for
what would be kept, copied or searched before that.
"""

from __future__ import annotations

from typing import Final

from brokerset_controller.replicas.state import ADDRESS_SIZE_MAX, NAMES_ASKED_MAX
from brokerset_protocol.bodies.codec import parse
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_spec.setting_fields import PORT_MAX

NONCES_BYTES_MAX: Final = 16 * 1024
"""UTF-8 bytes of the nonces in one header field: 64 tried ones fit several times over."""

BODY_BYTES_MAX: Final = 512 * 1024
"""Bytes of a request's body: the names above at their longest fit."""

SHOWN_MAX: Final = 64
"""Characters of a bad value that a remark repeats."""


def refuse(problem: str) -> Rejected:
    """The refusal of a malformed request."""
    return Rejected(ResponseCode.SYSTEM_ERROR, problem)


def check_size(value: str | None, field: str, limit: int, limit_name: str) -> None:
    """Refuse a text of more than `limit` UTF-8 bytes."""
    size = len(value.encode("utf-8", "surrogatepass")) if value is not None else 0
    if size > limit:
        raise refuse(f"the header field {field} has {size} bytes; {limit_name} is {limit}")


def check_address(value: str | None, field: str) -> str:
    """A `host:port` that must be there."""
    if not value:
        raise refuse(f"the header field {field} is missing; send host:port")
    check_size(value, field, ADDRESS_SIZE_MAX, "ADDRESS_SIZE_MAX")
    host, colon, port = value.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port[:6]) <= PORT_MAX:
        raise refuse(f"the header field {field} is {value[:SHOWN_MAX]!r}; send host:port")
    return value


def check_nonces(value: str | None, field: str) -> None:
    """One nonce or several."""
    check_size(value, field, NONCES_BYTES_MAX, "NONCES_BYTES_MAX")


def check_body(data: bytes) -> bytes:
    """The body if it is not too large to be read."""
    if len(data) > BODY_BYTES_MAX:
        raise refuse(f"the body has {len(data)} bytes; BODY_BYTES_MAX is {BODY_BYTES_MAX}")
    return data


def broker_names(data: bytes) -> tuple[str, ...]:
    """The names in a body that is a JSON array, each once; empty for an empty array."""
    values = parse(check_body(data), "the list of broker names")
    if not isinstance(values, list):
        raise refuse('the body is no JSON array; send names, as ["broker-a"]')
    if len(values) > NAMES_ASKED_MAX:
        raise refuse(f"the body lists {len(values)} names; NAMES_ASKED_MAX is {NAMES_ASKED_MAX}")
    found: dict[str, None] = {}
    for value in values:
        if not isinstance(value, str):
            raise refuse(f"the body lists {str(value)[:SHOWN_MAX]!r}, which is no name")
        found[value] = None
    return tuple(found)
