"""Which names a certificate must have to be a member's, at each kind of port of members; pure.

Names are those that a certificate is for (subjectAltName, RFC 5280 4.2.1.6): DNS names, addresses and URIs.
Its subject does not count: an authority may not have checked what is written there (RFC 6125, 6.4.4).
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from enum import Enum


class MemberPort(Enum):
    """A kind of port that is for members alone."""

    RAFT = "raft"
    """Of controllers."""

    HA = "ha"
    """Of masters, for their slaves."""

    DLEDGER = "dledger"
    """Of brokers that elect their master by themselves."""


def pattern_problem(pattern: str) -> str | None:
    """What is wrong with the text of a name that members may have; None: nothing."""
    stem = pattern.removesuffix("/*") if "://" in pattern else pattern.removeprefix("*.")
    if not stem or "*" in stem or any(character.isspace() for character in stem):
        return "is no name, none that begins with *. and stands for one label, no address, and no URI"
    return None


def has_name(alternatives: Iterable[tuple[str, str]], patterns: Iterable[str]) -> bool:
    """Whether a certificate is for one of the names: `alternatives` as `ssl` gives subjectAltName.

    `*.` stands for one label, as in a certificate, where it may be one as well; `/*` at the end of a URI for
    one segment of its path.
    """
    named = tuple(alternatives)
    return any(_matches(kind, name, pattern) for pattern in patterns for kind, name in named)


def described(alternatives: Iterable[tuple[str, str]]) -> str:
    """The names of a certificate, for the log."""
    return ", ".join(name for _, name in alternatives) or "no name"


def _matches(kind: str, name: str, pattern: str) -> bool:
    match kind:
        case "DNS":
            name, pattern = name.lower(), pattern.lower()
            label, dot, rest = name.partition(".")
            if pattern.startswith("*."):
                return bool(label and dot) and rest == pattern.removeprefix("*.")
            return name == pattern
        case "IP Address":
            try:
                return ipaddress.ip_address(name) == ipaddress.ip_address(pattern)
            except ValueError:
                return False
        case "URI":
            if pattern.endswith("/*"):
                stem, slash, segment = name.rpartition("/")
                return bool(slash and segment) and stem == pattern.removesuffix("/*")
            return name == pattern
    return False
