"""What a hand-over changes at a Java broker, written down before it is changed and until it is put back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from brokerset_cli.output import CommandFailed
from brokerset_runtime.files import sync_folder, write_atomically

ADOPTION: Final = "adoption.json"
"""File of the data folder that remembers what the world does not show."""


@dataclass(frozen=True, slots=True)
class Before:
    """Settings of a Java broker as they were before a hand-over."""

    group: str
    address: str
    settings: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Adoption:
    """What one adoption is about: written when our brokers are about to join, gone with the folder."""

    groups: Mapping[str, tuple[int, ...]]
    """By group: the ids of the Java brokers that lived then."""

    replicas: int
    """Brokers of ours for each group."""

    changed: tuple[Before, ...] = ()
    """What has to be put back."""


class Journal:
    """The file; every change is on the disk when a method returns."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ADOPTION

    def read(self) -> Adoption | None:
        """What is remembered; None when there is nothing. Raises `CommandFailed` for a damaged file."""
        try:
            value = json.loads(self._path.read_bytes())
            return Adoption(
                {str(name): tuple(int(n) for n in ids) for name, ids in value["groups"].items()},
                int(value["replicas"]),
                tuple(_before(each) for each in value["changed"]),
            )
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CommandFailed(
                f"{self._path} cannot be read: {error!r}",
                "restore this file: it says which settings of Java brokers have to be put back",
            ) from None

    def begin(self, groups: Mapping[str, tuple[int, ...]], replicas: int) -> Adoption:
        """Remember what the adoption is about, unless that is known already."""
        known = self.read()
        if known is not None:
            return known
        return self._write(Adoption(groups, replicas))

    def remember(self, before: Before) -> None:
        """Remember settings that are about to be changed. What is known of the broker is never replaced:

        it may be read-only by now, and that is not what it was before.
        """
        adoption = self._known()
        if not any(each.address == before.address for each in adoption.changed):
            self._write(Adoption(adoption.groups, adoption.replicas, (*adoption.changed, before)))

    def forget(self, address: str) -> None:
        """The settings of this broker are as they were."""
        adoption = self._known()
        rest = tuple(each for each in adoption.changed if each.address != address)
        self._write(Adoption(adoption.groups, adoption.replicas, rest))

    @property
    def changed(self) -> tuple[Before, ...]:
        """What has to be put back."""
        adoption = self.read()
        return adoption.changed if adoption is not None else ()

    def _known(self) -> Adoption:
        adoption = self.read()
        assert adoption is not None, "an adoption begins before anything is changed"
        return adoption

    def _write(self, adoption: Adoption) -> Adoption:
        write_atomically(self._path, json.dumps(asdict(adoption), indent=1).encode() + b"\n")
        sync_folder(self._path.parent)
        return adoption


def _before(value: Mapping[str, Any]) -> Before:
    settings = {str(name): str(text) for name, text in value["settings"].items()}
    return Before(str(value["group"]), str(value["address"]), settings)
