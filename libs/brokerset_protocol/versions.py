"""What the version number of a command says about its sender (Java: `MQVersion`)."""

from __future__ import annotations

from typing import Final

from brokerset_protocol.codes import VERSION_5_1_1, Language

_FIRST: Final = 212
"""4.0.0-SNAPSHOT; from here to 5.9.9 each release has two numbers, its snapshot's and its own."""

_LAST: Final = 611


def release_text(version: int) -> str:
    """The release as people write it: `5.1.0`, `4.9.7-SNAPSHOT`; `unknown` for numbers that tell none.

    Java's controllers announce no version: 0.
    """
    if not _FIRST <= version <= _LAST:
        return "unknown"
    number, is_release = divmod(version - _FIRST, 2)
    text = f"{4 + number // 100}.{number // 10 % 10}.{number % 10}"
    return text if is_release else f"{text}-SNAPSHOT"


def is_address_based(language: int, version: int) -> bool:
    """Whether a Java peer that says this is known by its address in controller mode: RocketMQ 5.0 and 5.1.0.

    False for peers that announce no version, and for other languages, which count their own.
    """
    return language == Language.JAVA and 0 < version < VERSION_5_1_1
