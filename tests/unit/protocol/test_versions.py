"""What a version number says about its sender."""

from __future__ import annotations

import pytest

from brokerset_protocol.codes import Language
from brokerset_protocol.commands import PROTOCOL_VERSION
from brokerset_protocol.versions import is_address_based, release_text


@pytest.mark.parametrize(
    ("version", "text"),
    [
        (213, "4.0.0"),
        (399, "4.9.3"),
        (407, "4.9.7"),
        (413, "5.0.0"),
        (432, "5.1.0-SNAPSHOT"),
        (433, "5.1.0"),
        (435, "5.1.1"),
        (441, "5.1.4"),
        (453, "5.2.0"),
        (479, "5.3.3"),
        (493, "5.4.0"),
        (PROTOCOL_VERSION, "5.5.0"),
        (611, "5.9.9"),
    ],
)
def test_numbers_are_those_of_rocketmq(version: int, text: str) -> None:
    """Each release has the ordinal that `MQVersion` gives it, after its snapshot's."""
    assert release_text(version) == text


@pytest.mark.parametrize("version", [-1, 0, 37, 211, 612, 2**31 - 1])
def test_other_numbers_tell_no_release(version: int) -> None:
    """Older ones, the one for "higher", and those that nobody sends."""
    assert release_text(version) == "unknown"


@pytest.mark.parametrize(
    ("language", "version", "old"),
    [
        (Language.JAVA, 413, True),
        (Language.JAVA, 433, True),
        (Language.JAVA, 434, True),
        (Language.JAVA, 435, False),
        (Language.JAVA, 513, False),
        (Language.JAVA, 0, False),
        (Language.CPP, 433, False),
        (Language.PYTHON, 433, False),
    ],
)
def test_java_before_5_1_1_knows_addresses(language: int, version: int, old: bool) -> None:
    """A peer without a version, as Java's controllers are, and one of another language may be of any age."""
    assert is_address_based(language, version) is old
