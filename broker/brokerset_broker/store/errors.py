"""What can go wrong in a message store, sorted by who has to act."""

from __future__ import annotations

from enum import Enum
from pathlib import Path


class PutStatus(Enum):
    """Why a message was not stored, or what is not yet true of a stored one (`PutMessageStatus` of Java)."""

    PUT_OK = "PUT_OK"
    FLUSH_DISK_TIMEOUT = "FLUSH_DISK_TIMEOUT"
    FLUSH_SLAVE_TIMEOUT = "FLUSH_SLAVE_TIMEOUT"
    SLAVE_NOT_AVAILABLE = "SLAVE_NOT_AVAILABLE"
    SERVICE_NOT_AVAILABLE = "SERVICE_NOT_AVAILABLE"
    CREATE_MAPPED_FILE_FAILED = "CREATE_MAPPED_FILE_FAILED"
    MESSAGE_ILLEGAL = "MESSAGE_ILLEGAL"
    PROPERTIES_SIZE_EXCEEDED = "PROPERTIES_SIZE_EXCEEDED"
    OS_PAGE_CACHE_BUSY = "OS_PAGE_CACHE_BUSY"
    LMQ_CONSUME_QUEUE_NUM_EXCEEDED = "LMQ_CONSUME_QUEUE_NUM_EXCEEDED"
    IN_SYNC_REPLICAS_NOT_ENOUGH = "IN_SYNC_REPLICAS_NOT_ENOUGH"
    UNKNOWN_ERROR = "UNKNOWN_ERROR"


class StoreCorrupt(Exception):
    """A file of the store is damaged: stop serving, never guess.

    `path` is the file, `position` the byte in it (-1: the file as a whole), `reason` what is wrong.
    """

    def __init__(self, path: Path, position: int, reason: str) -> None:
        where = f"{path}" if position < 0 else f"{path} at byte {position}"
        super().__init__(f"{where}: {reason}")
        self.path = path
        self.position = position
        self.reason = reason


class StoreRefused(Exception):
    """The store does not take this message now: `status` becomes the answer's code, `reason` its remark."""

    def __init__(self, status: PutStatus, reason: str) -> None:
        super().__init__(f"{status.value}: {reason}")
        self.status = status
        self.reason = reason

    @property
    def is_final(self) -> bool:
        """Whether trying again would not help, for instance after maxMessageSize was made smaller."""
        return self.status in (PutStatus.MESSAGE_ILLEGAL, PutStatus.PROPERTIES_SIZE_EXCEEDED)
