"""The files next to `storePathBrokerIdentity`: replaced whole, and synced before anything depends on them."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import structlog

from brokerset_broker.member.membership.registration import LOST_BOOT, FilesRead
from brokerset_formats.errors import FormatError
from brokerset_formats.identity import BrokerIdentity, StartRecord
from brokerset_runtime.disk import Disk, replace_file

log = structlog.get_logger(__name__)

TEMP_SUFFIX: Final = "-temp"
START_SUFFIX: Final = "-start"


class IdentityDamaged(Exception):
    """An identity or start file cannot be read: who the broker is must not be guessed. `ways_out` helps."""

    def __init__(self, name: str, reason: str, ways_out: str) -> None:
        super().__init__(f"{name}: {reason}; {ways_out}")
        self.name = name
        self.reason = reason
        self.ways_out = ways_out


class IdentityFolder:
    """Reads and replaces the three files. All methods block; `OSError` for what the system refuses."""

    def __init__(self, disk: Disk, name: str = "brokerIdentity") -> None:
        self._disk = disk
        self.name = name
        self.temp_name = name + TEMP_SUFFIX
        self.start_name = name + START_SUFFIX

    def read(self) -> FilesRead:
        """What the files say. Raises `IdentityDamaged`; an unreadable temporary file is dropped.

        What a killed process renamed can be read though a power failure may still take it, so names are made
        durable before anybody acts on them: a claim that was granted and then forgotten would burn its id.
        """
        self._disk.sync_folder()
        identity = self._read_identity()
        start = self._read_start()
        if start is not None and identity is None:
            raise IdentityDamaged(
                self.name,
                f"is missing, though {self.start_name} shows that this folder has had an identity",
                f"restore it, or delete {self.start_name} too: the broker then becomes a new replica, and "
                "its old id should be cleaned at the controllers",
            )
        return FilesRead(identity, self._read_temp(), start)

    def write_temp(self, identity: BrokerIdentity) -> None:
        """Keep a claim with its check code."""
        replace_file(self._disk, self.temp_name, identity.encode())

    def write_identity(self, identity: BrokerIdentity) -> None:
        """Keep the identity."""
        replace_file(self._disk, self.name, identity.encode())

    def write_start(self, record: StartRecord) -> None:
        """Keep the start record."""
        replace_file(self._disk, self.start_name, record.encode())

    def note_loss(self) -> bool:
        """Keep that the log may lack something until a master is known, whatever becomes of this process.

        False if the start file is damaged: then this broker does not register before somebody has mended it.
        """
        try:
            start = self._read_start()
        except IdentityDamaged:
            return False
        if start is not None and start.boot_id != LOST_BOOT:
            self.write_start(replace(start, boot_id=LOST_BOOT))
        return True

    def delete_temp(self) -> None:
        """Drop the claim; it may be gone."""
        self._disk.delete(self.temp_name)
        self._disk.sync_folder()

    def _read_identity(self) -> BrokerIdentity | None:
        data = self._read(self.name)
        if data is None:
            return None
        try:
            identity = BrokerIdentity.decode(data)
            if identity.check_code:
                raise FormatError("it has a check code, as only the temporary file has")
            return identity
        except FormatError as error:
            raise IdentityDamaged(
                self.name,
                str(error),
                "write cluster#brokerName#id into it (the controllers know the id by this broker's address), "
                "or empty the folder to join as a new replica",
            ) from error

    def _read_start(self) -> StartRecord | None:
        data = self._read(self.start_name)
        if data is None:
            return None
        try:
            return StartRecord.decode(data)
        except FormatError as error:
            raise IdentityDamaged(
                self.start_name,
                str(error),
                "restore it from the newest copy, or have the controllers clean this broker's id and empty "
                "the folder to join as a new replica",
            ) from error

    def _read_temp(self) -> BrokerIdentity | None:
        data = self._read(self.temp_name)
        if data is None:
            return None
        try:
            identity = BrokerIdentity.decode(data)
            if not identity.check_code:
                raise FormatError("it has no check code")
            return identity
        except FormatError as error:
            log.warning(
                "unreadable temporary identity is dropped: an id that it may have claimed stays unused",
                file=self.temp_name,
                reason=str(error),
            )
            return None

    def _read(self, name: str) -> bytes | None:
        try:
            return self._disk.read(name)
        except FileNotFoundError:
            return None
