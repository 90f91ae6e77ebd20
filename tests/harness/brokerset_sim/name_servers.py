"""What name servers know: the last that brokers told, whatever became of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """What one broker told last."""

    address: str
    is_master: bool
    epoch: int


class NameServers:
    """Routes of all groups."""

    def __init__(self) -> None:
        self._entries: dict[str, dict[str, Entry]] = {}

    def tell(self, group: str, name: str, entry: Entry) -> None:
        """A broker registers; what it said before is forgotten."""
        self._entries.setdefault(group, {})[name] = entry

    def master(self, group: str) -> str | None:
        """Address of the newest master, which may be one no more."""
        entries = self._entries.get(group, {}).values()
        masters = [entry for entry in entries if entry.is_master]
        return max(masters, key=lambda entry: entry.epoch).address if masters else None

    def all(self, group: str) -> list[str]:
        """Addresses of all brokers of a group."""
        return [entry.address for entry in self._entries.get(group, {}).values()]
