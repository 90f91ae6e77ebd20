"""What can go wrong on the wire, sorted by who has to act."""

from __future__ import annotations


class RemoteProtocolError(Exception):
    """The peer sent bytes that are no frame or no header: close its connection, count it."""


class LocalProtocolError(Exception):
    """We were about to send something that the peer cannot read: a bug of ours."""


class Rejected(Exception):
    """The request was understood and cannot be served: `code` and `remark` become the reply.

    `code` is a `ResponseCode`; `remark` is for a person and says what to do next.
    """

    def __init__(self, code: int, remark: str) -> None:
        super().__init__(f"{code}: {remark}")
        self.code = code
        self.remark = remark
