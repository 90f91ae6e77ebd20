"""How consumer groups get the messages of a topic, by pulling or by popping, and the file of that.

Source: `MessageRequestModeManager`; file `config/messageRequestMode.json`.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final

from brokerset_broker.tables.config_files import ConfigFile
from brokerset_broker.tables.pop.values import Modes, RequestMode, mode_key, modes_of, parts_of
from brokerset_formats.errors import FormatError
from brokerset_protocol.bodies.metadata import (
    MessageRequestModeTable,
    SetMessageRequestMode,
)
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.errors import Rejected

FILE_NAME: Final = "messageRequestMode.json"

SAVE_PAUSE_SECONDS: Final = 1.0

MODES_MAX: Final = 100_000
"""Pairs of topic and group that a mode is set for; one more is refused."""


class RequestModes:
    """The modes that an administrator has set; what is not set is the broker's default."""

    def __init__(self, folder: Path | None = None) -> None:
        """Without the folder of the configuration they are kept in memory alone."""
        self.modes: dict[str, RequestMode] = {}
        """By `topic@group`; to read."""
        self._file = None if folder is None else ConfigFile(folder / FILE_NAME, self._encoder)

    # -- file ---------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file. Raises `ConfigDamaged`."""
        found = None if self._file is None else self._file.load(_decode)
        if found is not None:
            self.modes = dict(modes_of(found))

    async def saved(self) -> None:
        """Return when every change so far is on the disk. Raises OSError."""
        if self._file is not None:
            await self._file.saved()

    async def run(self) -> None:
        """Write changes down, for as long as this task runs."""
        if self._file is not None:
            await self._file.run(SAVE_PAUSE_SECONDS)

    # -- queries and changes ------------------------------------------------------------------------------

    def get(self, topic: str, group: str) -> RequestMode | None:
        """What was set for the group; None if nothing was."""
        return self.modes.get(mode_key(topic, group))

    def table(self) -> MessageRequestModeTable:
        """Everything, as it is now, as Java shows it."""
        found: dict[str, dict[str, SetMessageRequestMode]] = {}
        for key, mode in self.modes.items():
            topic, group = parts_of(key)
            found.setdefault(topic, {})[group] = SetMessageRequestMode(
                topic, group, mode.mode, mode.share_queues
            )
        return MessageRequestModeTable(found)

    def check_room(self, key: str) -> None:
        """Raise `Rejected` if no further mode can be set."""
        if key not in self.modes and len(self.modes) >= MODES_MAX:
            raise Rejected(
                ResponseCode.SYSTEM_BUSY,
                f"request modes of {MODES_MAX} groups and topics are set already; delete groups first",
            )

    def put(self, modes: Modes) -> None:
        """Set modes; others stay."""
        if any(self.modes.get(key) != mode for key, mode in modes.items()):
            self.modes.update(modes)
            self._touch()

    def take_over(self, modes: Modes) -> None:
        """Have exactly these."""
        if self.modes != modes:
            self.modes = dict(modes)
            self._touch()

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted."""
        self._forget(lambda key: parts_of(key)[0] == topic)

    def forget_group(self, group: str) -> None:
        """The group was deleted."""
        self._forget(lambda key: parts_of(key)[1] == group)

    def _forget(self, gone: Callable[[str], bool]) -> None:
        keys = [key for key in self.modes if gone(key)]
        for key in keys:
            del self.modes[key]
        if keys:
            self._touch()

    def _touch(self) -> None:
        if self._file is not None:
            self._file.touch()

    def _encoder(self) -> Callable[[], bytes]:
        return self.table().to_json


def _decode(data: bytes) -> MessageRequestModeTable:
    try:
        return MessageRequestModeTable.from_json(data)
    except Rejected as error:
        raise FormatError(error.remark or "it cannot be read") from None
