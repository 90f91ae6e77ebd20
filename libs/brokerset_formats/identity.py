"""The identity that a broker keeps in controller mode: text with `#` between its parts.

`brokerIdentity` has cluster, broker name and id. While the id is being claimed, `brokerIdentity-temp` has a
check code as well, so that a broker that dies in between can claim the same id again.
"""

from __future__ import annotations

from dataclasses import dataclass

from brokerset_formats.errors import FormatError

IDENTITY_SIZE_MAX = 4_096
"""Bytes of an identity file; real ones have fewer than a hundred."""

_SEPARATOR = "#"


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
