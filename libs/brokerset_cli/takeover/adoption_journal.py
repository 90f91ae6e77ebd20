"""What an adoption has to remember: settings of Java brokers to put back, and how far its end has come."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

from pydantic import ConfigDict, TypeAdapter, with_config
from pydantic.alias_generators import to_camel

from brokerset_cli.output import CommandFailed
from brokerset_runtime.files import sync_folder, write_atomically

ADOPTION: Final = "adoption.json"
"""File of the data folder that remembers what the world does not show."""


@with_config(ConfigDict())
@dataclass(frozen=True, slots=True)
class Before:
    """Settings of a Java broker as they were before a switchover."""

    group: str
    address: str
    settings: Mapping[str, str]
    elected_ms: int = 0
    """When an election that relieves this broker was about to be asked for, by the clock of this machine; 0
    when none may be under way. In the file it is `elected_ms`, unlike the other names."""


@with_config(ConfigDict(alias_generator=to_camel))
@dataclass(frozen=True, slots=True)
class Finishing:
    """What was seen when every group was ours: Java's controllers need not answer any more after that."""

    controllers: str
    """Java's, joined by semicolons: the folder forgets them on the way."""

    name_servers: str
    """Likewise."""

    java: Mapping[str, tuple[str, ...]]
    """By group: the addresses of the Java brokers that its controllers know."""

    next_ids: Mapping[str, int]
    """By group: the id that its controllers would give next; ours must not give those before it again."""

    ours: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By group: our ids that Java's controllers are to forget; known when `own` begins."""

    own_since_ms: int = 0
    """When `own` was about to stop our brokers, all of which were in sync; 0 before."""


@with_config(ConfigDict(alias_generator=to_camel))
@dataclass(frozen=True, slots=True)
class AdoptionRecord:
    """What one adoption is about: written when our brokers are about to join, gone with the folder or when
    the set has become an ordinary one."""

    groups: Mapping[str, tuple[int, ...]]
    """By group: the ids of the Java brokers that lived then."""

    replicas: int
    """Brokers of ours for each group."""

    changed: tuple[Before, ...] = ()
    """What has to be put back."""

    finishing: Finishing | None = None
    """None while it was not seen that every group is ours, or when that was given back since."""

    clients_moved: bool = False
    """Whether the person said that all clients use our name servers."""


_FORMAT: Final = TypeAdapter(AdoptionRecord)


class Journal:
    """The file; every change is on the disk when a method returns."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / ADOPTION

    def read(self) -> AdoptionRecord | None:
        """What is remembered; None when there is nothing. Raises `CommandFailed` for a damaged file."""
        try:
            return _FORMAT.validate_json(self._path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            raise CommandFailed(
                f"{self._path} cannot be read: {error}",
                "restore this file: it says which settings of Java brokers have to be put back",
            ) from None

    def begin(self, groups: Mapping[str, tuple[int, ...]], replicas: int) -> AdoptionRecord:
        """Remember what the adoption is about, unless that is known already."""
        known = self.read()
        if known is not None:
            return known
        return self._write(AdoptionRecord(groups, replicas))

    def remember(self, before: Before) -> None:
        """Remember settings that are about to be changed. What is known of the broker is never replaced:

        it may be read-only by now, and that is not what it was before.
        """
        adoption = self._known()
        if not any(each.address == before.address for each in adoption.changed):
            self._write(replace(adoption, changed=(*adoption.changed, before)))

    def elects(self, address: str, elected_ms: int) -> None:
        """Remember that the master at this address is about to be relieved, or with 0 that it is decided."""
        adoption = self._known()
        changed = tuple(
            replace(each, elected_ms=elected_ms) if each.address == address else each
            for each in adoption.changed
        )
        self._write(replace(adoption, changed=changed))

    def forget(self, address: str) -> None:
        """The settings of this broker are as they were."""
        adoption = self._known()
        rest = tuple(each for each in adoption.changed if each.address != address)
        self._write(replace(adoption, changed=rest))

    def finish(self, finishing: Finishing) -> None:
        """Every group was seen to be ours."""
        self._write(replace(self._known(), finishing=finishing))

    def clients_have_moved(self) -> None:
        """The person said so."""
        self._write(replace(self._known(), clients_moved=True))

    def begin_own(self, ours: Mapping[str, tuple[int, ...]]) -> None:
        """Our brokers, with these ids, are in sync and are about to be stopped."""
        adoption = self._known()
        assert adoption.finishing is not None, "it was seen before that every group is ours"
        now_ms = time.time_ns() // 1_000_000
        self._write(replace(adoption, finishing=replace(adoption.finishing, ours=ours, own_since_ms=now_ms)))

    def go_back(self) -> None:
        """Java brokers come back, and clients use Java's name servers: nothing of the end counts any more."""
        adoption = self.read()
        if adoption is not None and (adoption.finishing is not None or adoption.clients_moved):
            self._write(replace(adoption, finishing=None, clients_moved=False))

    def end(self) -> None:
        """Nothing is left to remember."""
        self._path.unlink(missing_ok=True)
        sync_folder(self._path.parent)

    @property
    def changed(self) -> tuple[Before, ...]:
        """What has to be put back."""
        adoption = self.read()
        return adoption.changed if adoption is not None else ()

    @property
    def finishing(self) -> Finishing | None:
        """What was seen when every group was ours; None while that was not seen."""
        adoption = self.read()
        return adoption.finishing if adoption is not None else None

    def _known(self) -> AdoptionRecord:
        adoption = self.read()
        assert adoption is not None, "an adoption begins before anything is changed"
        return adoption

    def _write(self, adoption: AdoptionRecord) -> AdoptionRecord:
        write_atomically(self._path, _FORMAT.dump_json(adoption, by_alias=True, indent=1) + b"\n")
        return adoption
