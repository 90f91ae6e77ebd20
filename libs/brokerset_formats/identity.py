"""The identity that a broker keeps in controller mode: text with `#` between its parts.

`brokerIdentity` has cluster, broker name and id. While the id is being claimed, `brokerIdentity-temp` has a
check code as well, so that a broker that dies in between can claim the same id again. Ours alone is
`brokerIdentity-start`: which starts of the broker the controllers know of.
"""

from __future__ import annotations

import re

from brokerset_formats.errors import FormatError
from brokerset_formats.hashing import crc31
from brokerset_formats.lazy_dataclasses import dataclass

IDENTITY_SIZE_MAX = 4_096
"""Bytes of an identity file; real ones have fewer than a hundred."""

TRIED_NONCES_MAX = 64
"""Starts of unknown fate that are kept; then the newest nonce is used again instead of drawing another."""

_SEPARATOR = "#"
_START_VERSION = "1"
_NONCE = re.compile(r"[0-9A-Za-z-]{1,64}")
_BOOT_ID = re.compile(r"[0-9A-Za-z-]{0,64}")
_NUMBER_DIGITS_MAX = 18


@dataclass(frozen=True, slots=True)
class BrokerIdentity:
    """Who a broker is to its controllers. `check_code` is empty once the id has been granted."""

    cluster_name: str
    broker_name: str
    broker_id: int
    check_code: str = ""

    def encode(self) -> bytes:
        """The file's bytes, without a line end; FormatError for names that could not be read back."""
        for name in (self.cluster_name, self.broker_name):
            if not name or name != name.strip() or _SEPARATOR in name:
                raise FormatError(
                    f"{name!r} cannot be part of a broker identity: empty, or with # or outer space"
                )
        if self.broker_id < 0 or self.check_code != self.check_code.strip() or _SEPARATOR in self.check_code:
            raise FormatError(
                f"id {self.broker_id} or check code {self.check_code!r} cannot be part of an identity"
            )
        parts = [self.cluster_name, self.broker_name, str(self.broker_id)]
        if self.check_code:
            parts.append(self.check_code)
        return _SEPARATOR.join(parts).encode()

    @classmethod
    def decode(cls, data: bytes) -> BrokerIdentity:
        """Read either file."""
        if len(data) > IDENTITY_SIZE_MAX:
            raise FormatError(f"a broker identity of {len(data)} bytes")
        try:
            parts = data.decode().strip().split(_SEPARATOR)
        except UnicodeDecodeError as error:
            raise FormatError("a broker identity that is not UTF-8", error.start) from error
        if len(parts) not in (3, 4) or not all(part.strip() == part and part for part in parts):
            raise FormatError(f"{data[:100]!r} is not cluster#broker#id")
        if not (parts[2].isascii() and parts[2].isdigit() and len(parts[2]) < 19):
            raise FormatError(f"broker id {parts[2][:60]!r} is no number")
        return cls(parts[0], parts[1], int(parts[2]), parts[3] if len(parts) == 4 else "")


@dataclass(frozen=True, slots=True)
class StartRecord:
    """Which starts of a broker its controllers know of, and what they said that must not be forgotten."""

    last_nonce: str | None = None
    """Nonce of the newest start that was committed; None before the first."""

    next_nonce: str | None = None
    """Nonce of the start that is being registered; None once that has succeeded."""

    tried_nonces: tuple[str, ...] = ()
    """Nonces of later starts than the last one whose fate the broker never learned, oldest first."""

    check_code: str = ""
    """The code that claimed the id; empty for an identity that another program made."""

    next_broker_id: int = 0
    """Highest next id of the group that a controller ever told."""

    group_epoch: int = 0
    """Highest master epoch of the group that a controller ever told."""

    boot_id: str = ""
    """Boot of the host in which the log was last known to have lost nothing."""

    def encode(self) -> bytes:
        """The file's bytes, without a line end; FormatError for values that could not be read back."""
        problem = self._problem()
        if problem:
            raise FormatError(f"{problem} cannot be part of a start file")
        text = _SEPARATOR.join(
            (
                _START_VERSION,
                self.last_nonce or "",
                self.next_nonce or "",
                ",".join(self.tried_nonces),
                self.check_code,
                str(self.next_broker_id),
                str(self.group_epoch),
                self.boot_id,
            )
        ).encode()
        return b"%s#%d" % (text, crc31(text))

    @classmethod
    def decode(cls, data: bytes) -> StartRecord:
        """Read the file. FormatError if it is of another version, truncated or changed."""
        if len(data) > IDENTITY_SIZE_MAX:
            raise FormatError(f"a start file of {len(data)} bytes")
        body, separator, checksum = data.strip().rpartition(b"#")
        if not separator or checksum != b"%d" % crc31(body):
            raise FormatError(f"{data[:100]!r} does not end with its checksum")
        try:
            parts = body.decode().split(_SEPARATOR)
        except UnicodeDecodeError as error:
            raise FormatError("a start file that is not UTF-8", error.start) from error
        if len(parts) != 8 or parts[0] != _START_VERSION:
            raise FormatError(f"{data[:100]!r} is no start file of version {_START_VERSION}")
        _, last_nonce, next_nonce, tried, check_code, next_broker_id, group_epoch, boot_id = parts
        for number in (next_broker_id, group_epoch):
            if not (number.isascii() and number.isdigit() and len(number) <= _NUMBER_DIGITS_MAX):
                raise FormatError(f"{number[:60]!r} in a start file is no number")
        record = cls(
            last_nonce or None,
            next_nonce or None,
            tuple(tried.split(",")) if tried else (),
            check_code,
            int(next_broker_id),
            int(group_epoch),
            boot_id,
        )
        problem = record._problem()
        if problem:
            raise FormatError(f"{problem} in a start file")
        return record

    def _problem(self) -> str | None:
        """What is wrong with the values."""
        for nonce in (self.last_nonce, self.next_nonce, *self.tried_nonces):
            if nonce is not None and not _NONCE.fullmatch(nonce):
                return f"nonce {nonce[:100]!r}"
        if len(self.tried_nonces) > TRIED_NONCES_MAX:
            return f"{len(self.tried_nonces)} tried nonces"
        if self.check_code != self.check_code.strip() or _SEPARATOR in self.check_code:
            return f"check code {self.check_code[:100]!r}"
        if not _BOOT_ID.fullmatch(self.boot_id):
            return f"boot id {self.boot_id[:100]!r}"
        if min(self.next_broker_id, self.group_epoch) < 0:
            return "a negative number"
        return None
