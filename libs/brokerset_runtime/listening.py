"""On which addresses a process listens that is to be reached from everywhere. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

ANY_IPV4: Final = "0.0.0.0"
ANY_IPV6: Final = "::"


def listen_host(bind_address: str, own_ip: str) -> str:
    """Return `bind_address`, or `::` where that is all of IPv4, and the others are told an IPv6 address.

    `own_ip` is what others are told, or a pod's own address; empty when it is not known.
    """
    return ANY_IPV6 if bind_address == ANY_IPV4 and ":" in own_ip else bind_address


def listen_hosts(host: str, port: int) -> str | Sequence[str]:
    """Return what `create_server` is to be given: for `::` it takes IPv6 alone, so IPv4 is named next to it.

    Not with a free port, which would be another one for each.
    """
    return (ANY_IPV6, ANY_IPV4) if host == ANY_IPV6 and port else host
