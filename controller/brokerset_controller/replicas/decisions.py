"""What a controller answers and proposes: the value that every `decide_*` function returns."""

from __future__ import annotations

from dataclasses import dataclass

from brokerset_controller.replicas.events import Event
from brokerset_controller.replicas.state import (
    ADDRESS_SIZE_MAX,
    BROKER_ID_MAX,
    CHECK_CODE_SIZE_MAX,
    NAME_SIZE_MAX,
    NONCE_SIZE_MAX,
    REPLICAS_MAX,
)
from brokerset_protocol.bodies.codec import JsonBody
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.headers.codec import Header


@dataclass(frozen=True, slots=True)
class Decision:
    """A reply, true at once if there is no event, else once the event is committed and applied."""

    code: int
    remark: str | None = None
    header: Header | None = None
    body: JsonBody | None = None
    event: Event | None = None

    @property
    def accepted(self) -> bool:
        """Whether the request is granted."""
        return self.code == ResponseCode.SUCCESS


def refused(
    code: ResponseCode, remark: str, header: Header | None = None, body: JsonBody | None = None
) -> Decision:
    """A reply that changes nothing; the remark says what is wrong and what to do."""
    return Decision(int(code), remark, header, body)


def invalid(remark: str, header: Header | None = None) -> Decision:
    """The refusal of a request that no state could make right (2005)."""
    return refused(ResponseCode.CONTROLLER_INVALID_REQUEST, remark, header)


_TEXT_LIMITS = {
    "clusterName": NAME_SIZE_MAX,
    "brokerName": NAME_SIZE_MAX,
    "ownerUid": NAME_SIZE_MAX,
    "brokerAddress": ADDRESS_SIZE_MAX,
    "registerCheckCode": CHECK_CODE_SIZE_MAX,
    "nextNonce": NONCE_SIZE_MAX,
}


def missing(**fields: object) -> str | None:
    """Which of the fields, given under their wire names, is absent or empty; None if all are there."""
    for name, value in fields.items():
        if value is None or value == "":
            return f"the header field {name} is missing"
    return None


def beyond_limit(**texts: str | None) -> str | None:
    """Which of the fields, given under their wire names, is too long; None if none is."""
    for name, value in texts.items():
        if value is None:
            continue
        try:
            size = len(value.encode())
        except UnicodeEncodeError:
            return f"the header field {name} is no valid text"
        if size > _TEXT_LIMITS[name]:
            return f"the header field {name} has {size} bytes; the limit is {_TEXT_LIMITS[name]}"
    return None


def bad_counts(broker_id: int, expected_replicas: int | None) -> str | None:
    """What is wrong with an id or a number of replicas; None if nothing is."""
    if not 0 < broker_id <= BROKER_ID_MAX:
        return f"the broker id {broker_id} is not between 1 and {BROKER_ID_MAX}"
    if expected_replicas is not None and not 0 <= expected_replicas <= REPLICAS_MAX:
        return f"expectedReplicas is {expected_replicas}; a group has at most {REPLICAS_MAX} replicas"
    return None
