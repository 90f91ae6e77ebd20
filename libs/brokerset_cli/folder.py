"""The data folder of a local set: whose it is, who runs it, and what runs."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import uuid
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from brokerset_cli.output import fail
from brokerset_cli.processes import is_alive
from brokerset_runtime.files import FileLock, FileLocked, lock_file, lock_holder, write_atomically
from brokerset_spec.set_memory import SetMemory

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
    """Address of the name server in a controller."""

    raft: str = ""
    """Address where other controllers reach a controller."""

    ha: str = ""
    """Address where slaves reach a broker."""

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
    """The last wish that was looked at."""

    wish_problem: str = ""
    """Why it was not fulfilled; empty when it was."""

    min_in_sync: int | None = None
    """`minInSyncReplicas` of the manifest; None when the default of each group's size counts."""

    guest: bool = False
    """Whether the brokers belong to controllers that are another cluster's."""

    @property
    def alive(self) -> bool:
        """Whether `up` runs now."""
        return is_alive(self.pid, self.start_ticks)

    def to_json(self) -> dict[str, Any]:
        """Return the state with camelCase names, as it is stored and as `status --json` shows it."""
        return {"format": FORMAT, **_camel(dataclasses.asdict(self))}

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
        field.name: value[_camel_name(field.name)]
        for field in dataclasses.fields(made)
        if field.default is dataclasses.MISSING or _camel_name(field.name) in value
    }


@dataclass(frozen=True, slots=True)
class Wish:
    """Which controllers and brokers shall run; asked for by a command, fulfilled by `up`."""

    name: str
    """Tells this wish from others in `SetState.wish`."""

    controllers: tuple[int, ...] | None = None
    """Their numbers; None leaves them as they are."""

    brokers: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """By group: the numbers of its brokers; groups that are not named stay as they are."""

    own_controllers: int | None = None
    """How many controllers a guest is to run beside another cluster's; they form a group together."""

    namesrv_port: int | None = None
    """Port of the first name server in those; 0 takes a free one, None the usual one or one near it."""

    own_name_servers: bool = False
    """Whether brokers that belong to the set's own controllers leave another cluster's name servers."""


def _number(value: Any) -> int | None:
    return None if value is None else int(value)


def _camel_name(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(part.title() for part in rest)


def _camel(value: Any) -> Any:
    if isinstance(value, dict):
        return {_camel_name(key): _camel(item) for key, item in value.items()}
    return [_camel(item) for item in value] if isinstance(value, list | tuple) else value


class DataFolder:
    """A folder in which a local set keeps everything."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()

    def owner(self) -> str | None:
        """Return the name of the set that the folder belongs to; None when it belongs to none."""
        try:
            marker = json.loads((self.path / MARKER).read_bytes())
            return str(marker["brokerSet"])
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            fail(
                f"{self.path / MARKER} cannot be read: {error}",
                "restore the file, or use another --data folder",
            )

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

    def hold(self) -> FileLock:
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
        try:
            return SetState.from_json(json.loads((self.path / STATE).read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, KeyError, TypeError) as error:
            fail(f"{self.path / STATE} cannot be read: {error!r}", "delete this file; `up` writes a new one")

    def memory(self) -> SetMemory:
        """Return what the set keeps; a new one with a UID of its own when it keeps nothing yet."""
        try:
            return SetMemory.from_json(json.loads((self.path / MEMORY).read_bytes()))
        except FileNotFoundError:
            return SetMemory(uid=uuid.uuid4().hex)
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            fail(
                f"{self.path / MEMORY} cannot be read: {error!r}",
                "restore this file: the set's brokers are known to their controllers by the UID in it",
            )

    def write_memory(self, memory: SetMemory) -> None:
        """Store what the set keeps."""
        write_atomically(self.path / MEMORY, json.dumps(memory.to_json(), indent=1).encode() + b"\n")

    def write_wish(
        self,
        controllers: Collection[int] | None = None,
        brokers: Mapping[str, Collection[int]] | None = None,
        *,
        own_controllers: int | None = None,
        namesrv_port: int | None = None,
        own_name_servers: bool = False,
    ) -> Wish:
        """Store which controllers and brokers shall run; `up` must be told to look at it."""
        wish = Wish(
            uuid.uuid4().hex,
            None if controllers is None else tuple(sorted(controllers)),
            {group: tuple(sorted(numbers)) for group, numbers in (brokers or {}).items()},
            own_controllers,
            namesrv_port,
            own_name_servers,
        )
        write_atomically(self.path / WISH, json.dumps(dataclasses.asdict(wish)).encode() + b"\n")
        return wish

    def read_wish(self) -> Wish | None:
        """Return the last wish; None when there is none that can be read."""
        try:
            value = json.loads((self.path / WISH).read_bytes())
            controllers = value["controllers"]
            return Wish(
                str(value["name"]),
                None if controllers is None else tuple(int(n) for n in controllers),
                {str(g): tuple(int(n) for n in numbers) for g, numbers in value["brokers"].items()},
                _number(value.get("own_controllers")),
                _number(value.get("namesrv_port")),
                bool(value.get("own_name_servers")),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def purge(self) -> None:
        """Delete the folder with all messages; only one that carries brokerset's mark."""
        if self.owner() is None:
            fail(f"{self.path} is not a folder of brokerset, nothing was deleted", "check --data")
        shutil.rmtree(self.path)
