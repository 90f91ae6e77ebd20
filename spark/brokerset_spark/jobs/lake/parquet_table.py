"""A lake of plain Parquet files, with a log of commits of our own beside them.

    TARGET/messages/topic=…/day=…/p0000000007-….parquet   the messages; a file's name begins with its pass
    TARGET/control/00000000000000000007.parquet           the control rows of a pass
    TARGET/commits/00000000000000000007.json              the manifest of a pass
    TARGET/commits/00000000000000000020.checkpoint        all that manifests up to this one come to
    TARGET/commits/begun/00000000000000000008-…           a pass that has begun

A pass writes its manifest last: the files that it adds, the new ends of queues, its control rows. The
manifest is made whole or not at all, and only if there is none of that number: of two passes with one number
the second is refused. So files and offsets cannot disagree. Readers that want each message once read the
files that the manifests name (`frames.read_messages`, or `live_files`). Who reads the folder as it is sees
files of a pass that is on as well, and of one that died until the next commit removes them: files with the
number of a commit that does not name them can never be named by one.
"""

from __future__ import annotations

import base64
import contextlib
import re
import uuid
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Final

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import fs

from brokerset_spark.jobs.lake.commits import (
    CONTROL,
    ONE_AT_A_TIME,
    Commit,
    QueueEnds,
    control_table,
    missing_columns,
)
from brokerset_spark.jobs.lake.files import FILE_SCHEMA, MESSAGES, Layout, WrittenFile
from brokerset_spark.jobs.lake.merging import Piece, groups_of, merged
from brokerset_spark.jobs.lake.ranges import Control, Exported
from brokerset_spark.jobs.lake.storage import Storage, folder_name
from brokerset_spark.jobs.report import JobFailed
from brokerset_spark.json_values import CAMEL, from_value, to_value
from brokerset_spark.topics.offsets import QueueKey

COMMITS: Final = "commits"
BEGUN: Final = "begun"
VERSION: Final = 1
CHECKPOINT_EACH: Final = 20
"""Commits after which a checkpoint is made. Manifests before the last but one are deleted."""

_MANIFEST: Final = re.compile(r"(\d{20})\.json")
_CHECKPOINT: Final = re.compile(r"(\d{20})\.checkpoint")
_DATA: Final = re.compile(r"p(\d{10,})-[0-9a-f]{32}\.parquet")
_MARK: Final = re.compile(r"(\d{20})-([0-9a-f]{32})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a commit changes; a checkpoint, which has the same form, adds all that there is to nothing."""

    __pydantic_config__: ClassVar = CAMEL

    version: int
    number: int
    attempt: str
    """Tells a commit of ours, whose answer was lost, from somebody else's."""
    time: str
    files: tuple[WrittenFile, ...]
    removed: tuple[str, ...] = ()
    ends: tuple[dict[str, Any], ...] = ()
    control: tuple[Control, ...] = ()
    columns: str = ""
    """Columns of the files, as Arrow's IPC in Base64; empty: as before."""


@dataclass(slots=True)
class _State:
    """What all commits so far come to."""

    number: int = 0
    files: dict[str, WrittenFile] = field(default_factory=dict)
    ends: QueueEnds = field(default_factory=QueueEnds)
    schema: pa.Schema = FILE_SCHEMA
    control: tuple[Control, ...] = ()
    """Of the last commit alone."""

    def add(self, manifest: Manifest) -> None:
        self.number = manifest.number
        for path in manifest.removed:
            self.files.pop(path, None)
        self.files |= {each.path: each for each in manifest.files}
        made = QueueEnds.of(manifest.ends)
        if made.exported:
            self.ends = QueueEnds(
                {**self.ends.exported, **made.exported},
                (self.ends.known - made.exported.keys()) | made.known,
            )
        if manifest.columns:
            self.schema = _schema_of(manifest.columns)
        self.control = manifest.control


class ParquetLake:
    """`LakeTable` of plain Parquet files; created by the first pass."""

    def __init__(self, storage: Storage) -> None:
        """Reads the log of commits. OSError if the storage cannot be reached."""
        self._storage = storage
        self._files, self._log = storage.files(COMMITS)
        _, self._messages = storage.files(MESSAGES)
        _, self._control = storage.files(CONTROL)
        self._attempt = uuid.uuid4().hex
        self._begun = 0
        self._begun_again = False
        self._state = self._read()
        self._new_columns: pa.Schema = pa.schema([])
        self._write_control(self._state.number, self._state.control, only_missing=True)

    @property
    def passes(self) -> int:
        """See `LakeTable`."""
        return self._state.number

    def begin(self) -> str:
        """See `LakeTable`. Says in the log that the pass has begun: if it dies, its files are searched."""
        number = self._state.number + 1
        self._begun_again |= number == self._begun  # the files of its first try are nobody's
        self._begun = number
        mark = f"{COMMITS}/{BEGUN}", f"{number:020}-{self._attempt}", b""
        if self._storage.create(*mark) and self._storage.create(*mark):
            raise JobFailed(
                f"the storage of {self._storage.url} replaces files, although it is asked not to "
                "(If-None-Match): of two exports at once one would lose what it commits",
                "use a server that knows conditional requests, or another format",
            )
        return f"p{number:010}-"

    @property
    def schema(self) -> pa.Schema:
        """Columns of the files; older ones may lack the last of them."""
        return self._state.schema

    def live_files(self) -> list[WrittenFile]:
        """The files that the table is made of."""
        return list(self._state.files.values())

    def close(self) -> None:
        """See `LakeTable`; there are none."""

    def exported(self, queues: Iterable[QueueKey]) -> dict[QueueKey, Exported]:
        """See `LakeTable`."""
        there = self._state.ends.exported
        return {queue: there[queue] for queue in queues if queue in there}

    def known_queues(self) -> set[QueueKey]:
        """See `LakeTable`."""
        return set(self._state.ends.known)

    def add_columns(self, columns: Sequence[pa.Field]) -> None:
        """See `LakeTable`; they are written down with the commit."""
        self._new_columns = missing_columns(self._state.schema, columns)

    def commit(self, made: Commit) -> int:
        """See `LakeTable`."""
        ends = self._state.ends.after(made.exported, made.control)
        changed = {*made.exported, *(each.queue for each in made.control if each.queue in ends.exported)}
        schema = pa.schema([*self._state.schema, *self._new_columns])
        manifest = Manifest(
            version=VERSION,
            number=self._state.number + 1,
            attempt=self._attempt,
            time=datetime.now(UTC).isoformat(),
            files=tuple(made.files),
            ends=tuple(QueueEnds({each: ends.exported[each] for each in changed}, ends.known).rows()),
            control=tuple(made.control),
            columns=_columns_text(schema) if self._state.number == 0 or len(self._new_columns) else "",
        )
        self._commit(manifest)
        self._write_control(manifest.number, manifest.control)
        self._clean({(each.topic, each.day) for each in made.files})
        return manifest.number

    def compact(self, target_bytes: int) -> dict[str, Any]:
        """See `LakeTable`; the small files are deleted after the commit."""
        pieces = [Piece(each.path, each.size, each.topic, each.day) for each in self.live_files()]
        groups = groups_of(pieces, target_bytes)
        if not groups:
            return {}
        prefix = self.begin()
        made = []
        for group in groups:
            layout = Layout(self._files, self._messages, group[0].topic, self.schema, prefix=prefix)
            paths = [f"{self._messages}/{each.path}" for each in group]
            made.append(merged(layout, self._files, paths, group[0].day))
        removed = tuple(each.path for group in groups for each in group)
        self._commit(
            Manifest(
                version=VERSION,
                number=self._state.number + 1,
                attempt=self._attempt,
                time=datetime.now(UTC).isoformat(),
                files=tuple(made),
                removed=removed,
            )
        )
        self._clean({(each.topic, each.day) for each in made})
        return {"filesAdded": len(made), "filesRemoved": len(removed)}

    def vacuum(self, hours: int) -> int:
        """See `LakeTable`. There are no versions: all files go that cannot be the table's any more."""
        return self._remove_orphans(self._messages)

    # -- inside -------------------------------------------------------------------------------------------

    def _names(self) -> list[str]:
        found = self._files.get_file_info(fs.FileSelector(self._log, allow_not_found=True))
        return [each.base_name for each in found if each.type is fs.FileType.File]

    def _read(self) -> _State:
        """The newest checkpoint, and the manifests after it. JobFailed if one of those is not there."""
        names = self._names()
        checkpoints = [int(found[1]) for name in names if (found := _CHECKPOINT.fullmatch(name))]
        numbers = sorted(int(found[1]) for name in names if (found := _MANIFEST.fullmatch(name)))
        state = _State()
        if checkpoints:
            state.add(self._load(f"{max(checkpoints):020}.checkpoint"))
        for number in (each for each in numbers if each > state.number):
            if number != state.number + 1:
                raise JobFailed(
                    f"the manifest of commit {state.number + 1} is missing in {self._log}",
                    "bring it back from a backup, or export into another target",
                )
            state.add(self._load(f"{number:020}.json"))
        return state

    def _load(self, name: str) -> Manifest:
        with self._files.open_input_stream(f"{self._log}/{name}") as stream:
            text = stream.read()
        try:
            value = orjson.loads(text)
            if value["version"] == VERSION:
                return from_value(Manifest, value)
        except (KeyError, TypeError, ValueError) as error:
            raise JobFailed(
                f"{self._log}/{name} is damaged: {error!r}",
                "bring it back from a backup, or export into another target",
            ) from error
        raise JobFailed(
            f"{self._log}/{name} has version {value['version']}, this program reads {VERSION}",
            "use the program that wrote it, or a newer one",
        )

    def _commit(self, manifest: Manifest) -> None:
        """Add a manifest to the log. JobFailed if another export was there first: it does not count then."""
        name = f"{manifest.number:020}.json"
        made = self._storage.create(COMMITS, name, orjson.dumps(to_value(manifest)))
        refused = f"pass {manifest.number} was not committed: there is a commit of this number"
        if not made and self._load(name).attempt != self._attempt:
            raise JobFailed(refused, ONE_AT_A_TIME)
        newest = max((int(name[:20]) for name in self._names() if _CHECKPOINT.fullmatch(name)), default=0)
        if newest >= manifest.number:  # this process stood still so long that the log is shorter now
            raise JobFailed(f"{refused} or a later one", ONE_AT_A_TIME)
        self._state.add(manifest)
        self._new_columns = pa.schema([])

    def _clean(self, partitions: Iterable[tuple[str, str]]) -> None:
        """After a commit: make a checkpoint when it is time, and remove what no commit can name any more.

        What goes wrong here is of no harm, and is done by the next commit.
        """
        with contextlib.suppress(OSError):
            self._checkpoint()
            begun = f"{self._log}/{BEGUN}"
            there = self._files.get_file_info(fs.FileSelector(begun, allow_not_found=True))
            marks = [found for each in there if (found := _MARK.fullmatch(each.base_name))]
            ended = [each for each in marks if int(each[1]) <= self._state.number]
            if self._begun_again or any(each[2] != self._attempt for each in ended):
                self._remove_orphans(self._messages)
            else:
                for topic, day in partitions:
                    folder = f"topic={folder_name(topic)}/day={day or '__HIVE_DEFAULT_PARTITION__'}"
                    self._remove_orphans(f"{self._messages}/{folder}")
            self._begun_again = False
            for each in ended:
                # Another pass of this number may go on writing until it is refused: the next commit searches.
                if each[2] == self._attempt or int(each[1]) < self._state.number:
                    self._files.delete_file(f"{begun}/{each[0]}")

    def _remove_orphans(self, folder: str) -> int:
        """Files below a folder whose pass has a commit that does not name them, or is replaced; how many."""
        count = 0
        for each in self._files.get_file_info(fs.FileSelector(folder, recursive=True, allow_not_found=True)):
            found = _DATA.fullmatch(each.base_name)
            is_ours = each.path.startswith(f"{self._messages}/")  # else its name below it is not known
            path = each.path.removeprefix(f"{self._messages}/")
            if found and is_ours and int(found[1]) <= self._state.number and path not in self._state.files:
                self._files.delete_file(each.path)
                count += 1
        return count

    def _checkpoint(self) -> None:
        state = self._state
        if state.number % CHECKPOINT_EACH:
            return
        whole = Manifest(
            version=VERSION,
            number=state.number,
            attempt=self._attempt,
            time=datetime.now(UTC).isoformat(),
            files=tuple(state.files.values()),
            ends=tuple(state.ends.rows()),
            control=state.control,
            columns=_columns_text(state.schema),
        )
        self._storage.create(COMMITS, f"{state.number:020}.checkpoint", orjson.dumps(to_value(whole)))
        oldest = state.number - CHECKPOINT_EACH
        for name in self._names():
            found = _MANIFEST.fullmatch(name) or _CHECKPOINT.fullmatch(name)
            if found and (int(found[1]) < oldest or (int(found[1]) == oldest and name.endswith(".json"))):
                self._files.delete_file(f"{self._log}/{name}")

    def _write_control(self, number: int, rows: Sequence[Control], *, only_missing: bool = False) -> None:
        """The rows of a commit as a file of their own; written again it is the same file."""
        if not rows:
            return
        name = f"{number:020}.parquet"
        if only_missing:
            info = self._files.get_file_info(f"{self._control}/{name}")
            if info.type is fs.FileType.File:
                return
        data = pa.BufferOutputStream()
        pq.write_table(control_table(number, rows), data)
        self._storage.create(CONTROL, name, data.getvalue().to_pybytes())


def _columns_text(schema: pa.Schema) -> str:
    return base64.b64encode(schema.serialize().to_pybytes()).decode()


def _schema_of(text: str) -> pa.Schema:
    return pa.ipc.read_schema(pa.py_buffer(base64.b64decode(text)))
