"""What the raft engine's refusals mean for who sent a request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from brokerset_protocol import replies
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected
from brokerset_raft.configuration import ConfigurationRefused
from brokerset_raft.engine import NotLeader, OutcomeUnknown, Overloaded

OUTCOME_UNKNOWN: Final = (
    "the controllers did not agree in time; whether the request was carried out is unknown: repeat it,"
    " that does no harm"
)
"""Remark of an answer after which the request may have been carried out or not."""


class TimedOut(Rejected):
    """The outcome is unknown."""

    def __init__(self) -> None:
        super().__init__(ResponseCode.SYSTEM_ERROR, OUTCOME_UNKNOWN)


def not_leader(leader_id: int | None) -> Rejected:
    """The refusal of a controller that does not lead, or not yet: brokers ask for the leader (1005)."""
    who = "none is known" if leader_id is None else f"n{leader_id} does"
    return Rejected(ResponseCode.CONTROLLER_NOT_LEADER, f"this controller does not lead; {who}")


@contextmanager
def refused_by_engine() -> Iterator[None]:
    """Turn the engine's errors into refusals."""
    try:
        yield
    except NotLeader as error:
        raise not_leader(error.leader_id) from error
    except Overloaded as error:
        raise Rejected(ResponseCode.SYSTEM_BUSY, replies.OVERLOADED) from error
    except (OutcomeUnknown, TimeoutError) as error:
        raise TimedOut from error
    except ConfigurationRefused as error:
        raise Rejected(ResponseCode.SYSTEM_ERROR, str(error)) from error
