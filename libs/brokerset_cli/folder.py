"""The data folder of a local set: whose it is, who runs it, and what runs."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TypeVar

from brokerset_cli.output import camel_json, camel_name, fail
from brokerset_cli.processes import is_alive
from brokerset_runtime.files import FileLock, FileLocked, lock_file, lock_holder, write_atomically
from brokerset_spec.set_memory import CONTROLLER, SetMemory
from brokerset_spec.set_parts import DLEDGER

T = TypeVar("T")

DEFAULT_DATA: Final = Path("brokerset-data")
"""Where a set lives when nobody says otherwise: in the working directory, easy to see and to delete."""

MARKER: Final = "brokerset-folder.json"
"""Says that a folder belongs to a BrokerSet, and to which; nothing is ever deleted in a folder without it."""

MEMORY: Final = "set.json"
"""What the set keeps between two starts: UID, controllers, ports."""

WISH: Final = "wish.json"
"""What a command asks the running `up` for."""

MANIFEST: Final = "manifest.json"
"""The manifest of the last start; `up` runs it again when it is given none."""

STATE: Final = "state.json"
LOCK: Final = "up.lock"

CHANGE_LOCK: Final = "change.lock"
"""Locked by the command that changes which processes the set has, or whose they are: one at a time."""
FORMAT: Final = 1


@dataclass(frozen=True, slots=True)
class ProcessState:
    """One process, as `up` last saw it."""

    name: str
    kind: str
    group: str | None
    address: str
    http_port: int
    folder: str
    log: str
    state: str
    pid: int
    start_ticks: int | None
    restarts: int
    started_ms: int
    node_id: int | None = None
    """Number of a controller."""

    namesrv: str = ""
    """Address of the name server, where it is one or has one in it."""

    raft: str = ""
    """Address where other controllers reach a controller."""

    ha: str = ""
    """Address where slaves reach a broker."""

    ledger: str = ""
    """Address where the other members of its DLedger group reach a broker."""

    @property
    def alive(self) -> bool:
        """Whether this very process runs now."""
        return is_alive(self.pid, self.start_ticks)


@dataclass(frozen=True, slots=True)
class SetState:
    """What `up` runs in a folder."""

    name: str
    cluster_name: str
    phase: str
    """`starting`, `running`, `stopping` or `stopped`."""

    namesrv: str
    """Name servers that all running brokers know, another cluster's first; joined by semicolons."""

    pid: int
    """Process of `up` itself, which watches the others."""

    start_ticks: int | None
    started_ms: int
    processes: tuple[ProcessState, ...]
    controllers: str = ""
    """Controllers that the brokers belong to, joined by semicolons."""

    wish: str = ""
    """The last wish that was read."""

    wish_problem: str = ""
    """Why it was not fulfilled; empty when it was."""

    min_in_sync: int | None = None
    """`minInSyncReplicas` of the manifest; None when the default of each group's size counts."""

    guest: bool = False
    """Whether the brokers belong to controllers that are another cluster's."""

    mode: str = CONTROLLER
    """`spec.replication.mode`."""

    @property
    def is_dledger(self) -> bool:
        """Whether groups elect their leaders by themselves, without controllers."""
        return self.mode == DLEDGER

    @property
    def alive(self) -> bool:
        """Whether `up` runs now."""
        return is_alive(self.pid, self.start_ticks)

    def to_json(self) -> dict[str, Any]:
        """Return the state with camelCase names, as it is stored and as `status --json` shows it."""
        return {"format": FORMAT, **camel_json(self)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> SetState:
        """Read what `to_json` made; raises `KeyError`, `TypeError` or `ValueError` for anything else."""
        if value["format"] != FORMAT:
            raise ValueError(f"format {value['format']} is not {FORMAT}")
        raw = _given(cls, value)
        found = [ProcessState(**_given(ProcessState, item)) for item in raw["processes"]]
        return cls(**{**raw, "processes": tuple(found)})


def _given(made: type[SetState] | type[ProcessState], value: Mapping[str, Any]) -> dict[str, Any]:
    """The values of a dataclass; what was added to it later may be missing in an older file."""
    return {
        field.name: value[camel_name(field.name)]
        for field in dataclasses.fields(made)
        if field.default is dataclasses.MISSING or camel_name(field.name) in value
    }


@dataclass(frozen=True, slots=True)
class Wish:
    """Which controllers and brokers shall run; asked for by a command, fulfilled by `up`."""

    controllers: tuple[int, ...] | None = None
    """Their numbers; None leaves them as they are."""

    brokers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By group: the numbers of its brokers; groups that are not named stay as they are."""

    own_controllers: int | None = None
    """How many controllers a guest is to run next to another cluster's; they form a group together."""

    namesrv_port: int | None = None
    """Port of the first name server in those; 0 takes a free one, None the usual one or one near it."""

    own_name_servers: bool = False
    """Whether brokers that belong to the set's own controllers leave another cluster's name servers."""

    name: str = field(default_factory=lambda: uuid.uuid4().hex)
    """Tells this wish from others in `SetState.wish`."""


class DataFolder:
    """A folder in which a local set keeps everything."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def owner(self) -> str | None:
        """Return the name of the set that the folder belongs to; None when it belongs to none."""
        advice = "restore the file, or use another --data folder"
        return self._read(MARKER, lambda marker: str(marker["brokerSet"]), advice)

    def claim(self, name: str) -> FileLock:
        """Make the folder this set's, and lock it for this process; ends the command when it is not ours."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            owner = self.owner()
            if owner is None and any(self.path.iterdir()):
                fail(
                    f"{self.path} holds files that are not brokerset's",
                    "give an empty or new folder with --data",
                )
            if owner not in (None, name) and not self._never_started():
                fail(
                    f"{self.path} belongs to the BrokerSet {owner!r}, not to {name!r}",
                    f"give another folder with --data, or the manifest of {owner!r} with -f",
                )
            self._check_user()
            if owner is None:
                self._mark(name)
            lock = lock_file(self.path / LOCK)
            if owner not in (None, name):
                self._mark(name)
            return lock
        except FileLocked as error:
            holder = f"process {error.holder_pid}" if error.holder_pid else "another process"
            fail(
                f"{self.path} is in use: `brokerset up` runs there as {holder}",
                f"see `brokerset status --data {self.path}`, or end it: `brokerset down --data {self.path}`",
            )
        except OSError as error:
            fail(
                f"{error.filename or self.path} cannot be used: {error.strerror}",
                "give a folder with --data that you may write to",
            )

    def lock(self) -> FileLock:
        """Keep other commands from changing the set; ends this command when one is about it."""
        try:
            return lock_file(self.path / CHANGE_LOCK)
        except FileLocked as error:
            fail(
                f"another command changes the set in {self.path}: {error}",
                "wait for it, or end it; what only looks (`status`, `adopt --look`) may be given meanwhile",
            )
        except OSError as error:
            fail(
                f"{self.path / CHANGE_LOCK} cannot be locked: {error.strerror}",
                "give a folder with --data that you may write to",
            )

    def _mark(self, name: str) -> None:
        marker = {"brokerSet": name, "format": FORMAT}
        write_atomically(self.path / MARKER, json.dumps(marker).encode() + b"\n")

    def _never_started(self) -> bool:
        """Whether every `up` failed here before anything was planned, so that nothing belongs to its set."""
        return not (self.path / MEMORY).exists() and not (self.path / STATE).exists()

    def _check_user(self) -> None:
        uid = self.path.stat().st_uid
        if uid != os.geteuid():
            fail(
                f"{self.path} belongs to the user with id {uid}, you are {os.geteuid()}",
                "give another folder with --data, or run as that user",
            )

    def running_pid(self) -> int | None:
        """Return the process of the `up` that runs here; None when there is none."""
        lock = self.path / LOCK
        return lock_holder(lock) if lock.exists() else None

    def write_state(self, state: SetState) -> None:
        """Store what runs; whoever reads it sees the old or the new state, never half of one."""
        write_atomically(self.path / STATE, json.dumps(state.to_json(), indent=1).encode() + b"\n")

    def read_state(self) -> SetState | None:
        """Return what `up` stored last; None when it never ran here. Ends the command when it is damaged."""
        return self._read(STATE, SetState.from_json, "delete this file; `up` writes a new one")

    def memory(self) -> SetMemory:
        """Return what the set keeps; a new one with a UID of its own when it keeps nothing yet."""
        advice = "restore this file: the set's brokers are known to their controllers by the UID in it"
        return self._read(MEMORY, SetMemory.from_json, advice) or SetMemory(uid=uuid.uuid4().hex)

    def _read(self, name: str, decode: Callable[[Any], T], advice: str) -> T | None:
        """Read a JSON file; None when there is none. Ends the command when it is damaged."""
        try:
            return decode(json.loads((self.path / name).read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            fail(f"{self.path / name} cannot be read: {error!r}", advice)

    def write_memory(self, memory: SetMemory) -> None:
        """Store what the set keeps."""
        write_atomically(self.path / MEMORY, json.dumps(memory.to_json(), indent=1).encode() + b"\n")

    def write_wish(self, wish: Wish) -> Wish:
        """Store what shall run; `up` must be signalled to read it."""
        write_atomically(self.path / WISH, json.dumps(dataclasses.asdict(wish)).encode() + b"\n")
        return wish

    def read_wish(self) -> Wish | None:
        """Return the last wish; None when there is none that can be read."""
        from pydantic import TypeAdapter, ValidationError

        try:
            return TypeAdapter(Wish).validate_json((self.path / WISH).read_bytes())
        except (OSError, ValidationError):
            return None

    def purge(self) -> None:
        """Delete the folder with all messages; only one that carries brokerset's mark."""
        if self.owner() is None:
            fail(f"{self.path} is not a folder of brokerset, nothing was deleted", "check --data")
        shutil.rmtree(self.path)
