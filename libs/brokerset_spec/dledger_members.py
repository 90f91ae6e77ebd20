"""What the broker, its operator and the plan of a set agree on about the members of a DLedger group.

Apart from `dledger_mode`, whose rules of a manifest a broker has no use for: they load all of pydantic.
"""

from __future__ import annotations

from typing import Final

IN_SYNC_BYTES: Final = 4 * 1024 * 1024
"""A follower that lacks at most so much of the leader's log counts as in sync: under load all lack some."""


def member_id(number: int) -> str:
    """Id of a broker in its DLedger group, by the number of its process."""
    return f"n{number}"
