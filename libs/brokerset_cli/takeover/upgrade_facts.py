"""What an upgrade knows of the world, stores, brokers and controllers, and what it does. Values only."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Final

from pydantic import ConfigDict, TypeAdapter, with_config
from pydantic.alias_generators import to_camel

from brokerset_cli.takeover.adopt_plan import GroupFacts
from brokerset_formats.errors import FormatError
from brokerset_formats.identity import BrokerIdentity

FIRST_EPOCH: Final = 0
"""Epoch of all that was written before the upgrade: controllers give epochs from 1 on."""

PERMISSION_READ: Final = 4
PERMISSION_WRITE: Final = 2


@with_config(ConfigDict(alias_generator=to_camel))
@dataclass(frozen=True, slots=True)
class OldStore:
    """Facts of one store folder; offsets are those of the commit log."""

    path: Path
    locked_by: int | None = None
    """Process that has the store open; 0 when the system does not name it, None when nobody has."""

    clean: bool = False
    """Whether the last broker ended in order (no `abort`)."""

    begin: int = 0
    end: int | None = None
    """Behind the last whole record; None when the log was not read."""

    file_size: int = 0
    """Bytes of one commit log file; 0 without files."""

    epochs: tuple[tuple[int, int], ...] | None = None
    """Epoch and start offset, oldest first; None without the file."""

    identity: BrokerIdentity | None = None
    """The persistent id, which brokers have from 5.1.1 on."""

    release: str = ""
    """What the files say of the release that wrote them last: `4.x`, `5.x`, or empty."""

    ledger: str = ""
    """Name of the folder of its DLedger; empty for a store without one."""

    last: tuple[int, int] | None = None
    """Term and index of the DLedger's last entry, -1 without one; None when the log was not read."""

    until: int | None = None
    """Where entries of older terms follow that a truncation has left; None when there are none."""

    committed: int = 0
    """Offset behind what the DLedger's checkpoint calls committed; 0 when it does not tell."""

    unsupported: tuple[str, ...] = ()
    """Things that a broker of brokerset does not deliver, and this store has."""

    problem: str = ""
    """Why it cannot be taken: no store, several DLedgers, unreadable files."""


@with_config(ConfigDict(alias_generator=to_camel))
@dataclass(frozen=True, slots=True)
class Note:
    """What an upgrade wrote down in a store's backup folder, because the world does not show it later."""

    flow: str
    group: str
    address: str = ""
    """Of the old broker."""

    master: bool = False
    """Whether that broker was the master."""

    members: int = 0
    """Brokers that the group had."""

    permission: int | None = None
    """Permission of this store's broker before it was made read-only, whatever it allowed; None when we
    changed nothing of it."""

    moved: tuple[str, ...] = ()
    """Paths, relative to the store, that lie under the same path in the backup folder."""

    made: tuple[str, ...] = ()
    """Files of the store that were not there before."""

    cut_at: int | None = None
    """Offset at which the log was truncated."""

    leader: str = ""
    """Name of the store whose broker was to lead first when the files were prepared: logs told it then."""

    prepared: bool = False
    """Whether the store waits for, or has, a broker with a persistent id."""

    aside: tuple[str, ...] = ()
    """Folders of old controllers that were renamed; the manifest of the first store has them."""

    exchange: str = ""
    """How far the content of the store of a DLedger was exchanged: not at all, `begun`, `done`, or `back`
    while `--back` undoes it."""

    chosen: tuple[int, int] | None = None
    """Term and index of the last entry of the DLedger whose messages all members get; only this store's
    manifest has it."""

    delay_levels: str = ""
    """`messageDelayLevel` of the old broker."""

    @property
    def changed(self) -> bool:
        """Whether files of the store were changed, or are about to be."""
        return bool(self.prepared or self.moved or self.made or self.cut_at is not None)

    def to_json(self) -> bytes:
        """The manifest's bytes."""
        value = {**_MANIFEST.dump_python(self, mode="json", by_alias=True), "howToPutBack": _HOW_TO_PUT_BACK}
        return (json.dumps(value, indent=1) + "\n").encode()

    @classmethod
    def from_json(cls, data: bytes) -> Note:
        """Read the manifest; FormatError if it is none."""
        try:
            return _MANIFEST.validate_json(data)
        except ValueError as error:
            raise FormatError(f"a manifest of an upgrade without a proper {error}") from None


_MANIFEST: Final = TypeAdapter(Note)
_HOW_TO_PUT_BACK: Final = (
    "run the same command with --back; by hand: stop the broker, delete what is in `made` from the store,"
    " move each of `moved` from this folder to the same path in the store, write each file of `cut` into"
    " the log from the offset on that is its name"
)


class Likeness(StrEnum):
    """How a slave's log stands to its future master's."""

    PREFIX = "prefix"
    """All that the slave has, the master has at the same place."""

    LONGER = "longer"
    """All that the master has, the slave has, and more."""

    APART = "apart"
    """They differ from `common_end` on."""

    NOTHING = "nothing"
    """They have no byte in common, so nothing can be said."""

    UNKNOWN = "unknown"
    """It cannot be seen from here."""


@with_config(ConfigDict(alias_generator=to_camel))
@dataclass(frozen=True, slots=True)
class Comparison:
    """What two logs have in common. Offsets of the commit log."""

    likeness: Likeness
    common_end: int = 0
    """Both are the same up to here; a record begins here."""

    cut_messages: int = 0
    """Whole records of the slave from `common_end` on."""

    cut_bytes: int = 0
    detail: str = ""
    exact: bool = True
    """Whether they were compared byte by byte, up to `common_end` and no further than one of them goes; else
    in blocks, and a part of what lies behind `common_end` may be the same still."""


@dataclass(frozen=True, slots=True)
class Extent:
    """Where a log begins and ends."""

    begin: int
    end: int

    @property
    def empty(self) -> bool:
        return self.end <= self.begin


class Origin(StrEnum):
    """Where the stores come from."""

    IDENTITY = "identity"
    """Controller mode of 5.0.0 to 5.1.0, in which a replica is its address."""

    CLASSIC = "classic"
    """Master and slaves by setting, without controllers."""

    DLEDGER = "dledger"
    """A DLedger group, of brokers of either make."""


class Presence(StrEnum):
    """What is at the addresses of the old controllers."""

    GONE = "gone"
    """Nothing listens, or controllers of 5.1.1 or later do."""

    OLD = "old"
    """A controller of before 5.1.1 answers."""

    UNKNOWN = "unknown"
    """Something is there, or may be, that does not answer."""


@dataclass(frozen=True, slots=True)
class StoreSeen:
    """A store as the plan sees it; of another host by the facts that were written there."""

    store: OldStore
    note: Note | None = None
    here: bool = True
    port_open: bool = False
    """Whether something listens at the address that its old broker had."""

    starting: bool = False
    """Whether a process that we started for it lives."""

    claims_id: bool = False
    """Whether its broker has a persistent id or asked for one; seen after the controllers were asked."""

    @property
    def name(self) -> str:
        return str(self.store.path)

    @property
    def locked(self) -> bool:
        return self.store.locked_by is not None

    @property
    def prepared(self) -> bool:
        """Whether it waits for, or has, a broker of the new kind.

        With old epochs it does not, whatever the manifest says: somebody put them back, or `--back` was cut
        off. A broker with a persistent id may have thrown the first epoch away with its files.
        """
        noted = self.note is not None and self.note.prepared
        if not self.store.epochs:
            return noted
        return self.store.epochs[0][0] == FIRST_EPOCH or (noted and self.store.identity is not None)

    @property
    def extent(self) -> Extent | None:
        """Where its log begins and ends; None when it was not read."""
        return None if self.store.end is None else Extent(self.store.begin, self.store.end)


@dataclass(frozen=True, slots=True)
class BrokerSeen:
    """A broker that the name servers name."""

    address: str
    master: bool
    end: int | None = None
    """Of its log; None when it does not answer."""

    permission: int | None = None
    closed: bool = False
    """Whether it turns every send away."""

    store: str = ""
    """Its `storePathRootDir`."""

    local: bool = True
    """Whether its address is one of this machine's."""

    members: int = 0
    """How many members its `dLegerPeers` names."""

    delay_levels: str = ""
    """Its `messageDelayLevel`."""


@dataclass(frozen=True, slots=True)
class World:
    """All that is seen at one moment."""

    flow: Origin
    group: str
    stores: tuple[StoreSeen, ...]
    """Those here first."""

    brokers: tuple[BrokerSeen, ...] = ()
    old_controllers: Presence = Presence.GONE
    old_data: tuple[str, ...] = ()
    """Folders of the old controllers that still lie where they were."""

    controllers_problem: str = ""
    """Why the new controllers cannot be used; empty when they serve."""

    replicas: GroupFacts | None = None
    """What the new controllers say of the group (1006); None when they do not know it."""

    comparisons: Mapping[str, Comparison] = field(default_factory=dict)
    """By the name of a store: how its log stands to the future master's."""

    master_permission: int | None = None
    """Of the old master's new broker, or of the elected master if that is not known (`bearer_of`); None when
    it does not answer."""

    master_closed: bool = False
    """Whether that broker turns every send away."""

    wanted_master: str = ""
    accept_cut: frozenset[str] = frozenset()
    members: int = 0
    """Brokers that the group has, as the person says; 0: as many as were seen."""

    can_start: bool = False
    """Whether we were told how to start a broker."""


# -- what an upgrade does itself, one thing at a time; each may be repeated after a crash in its middle ------


@dataclass(frozen=True, slots=True)
class TakeNote:
    """Write down what only a running broker tells."""

    store: str
    address: str
    master: bool
    members: int
    delay_levels: str = ""


@dataclass(frozen=True, slots=True)
class SetPermission:
    """Change what clients may do at a broker; `was` is written down before."""

    address: str
    value: int
    was: int | None
    """What it allowed before; None when that is written down already."""

    store: str
    """The broker's, whose manifest keeps `was`."""

    closes: bool
    """Whether every send is turned away, too: brokerPermission alone stops few of them. Else that ends."""


@dataclass(frozen=True, slots=True)
class PutAside:
    """Rename a folder of the old controllers."""

    folder: str


@dataclass(frozen=True, slots=True)
class TruncateLog:
    """Truncate a log where it parts from the future master's; what goes is kept."""

    store: str
    offset: int


@dataclass(frozen=True, slots=True)
class Exchange:
    """Move the DLedger and all that belongs to it aside. The store whose messages were chosen gets them as a
    commit log of controller mode, the others are empty."""

    store: str
    chosen: tuple[int, int] | None
    """Term and index of the last entry, for the chosen store; None for the others."""

    until: int | None = None
    """Where what is taken of its log ends; None when all is."""


@dataclass(frozen=True, slots=True)
class Prepare:
    """Move the epochs aside and write the first one."""

    store: str
    empty: bool
    leader: str
    """The store whose broker leads first: which log was longest is not seen any more when brokers run."""


@dataclass(frozen=True, slots=True)
class StartBroker:
    """Start the new broker of a store with the command that was given."""

    store: str


Act = TakeNote | SetPermission | PutAside | TruncateLog | Exchange | Prepare | StartBroker
