"""Stores of closed, crashed and running brokers, damaged at random, and what the jobs make of them.

A case is drawn from a number: a store, the state that its broker left it in, and damage. What a job gives out
and what it reports must together be everything that was stored; a message may only be missing without an
error where nothing but a crash, or a broker that is writing, explains it.
"""

from __future__ import annotations

import asyncio
import logging
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Literal

from brokerset_broker.store import MessageStore
from brokerset_formats.hosts import Host
from brokerset_formats.properties import encode_properties
from brokerset_formats.records import MAGIC_V1, decode_record
from brokerset_rig.made_stores import message, write_log
from brokerset_runtime.clock import ManualClock
from brokerset_spark.jobs.export.exporting import export
from brokerset_spark.jobs.export.options import ExportOptions
from brokerset_spark.jobs.inspect import inspect
from brokerset_spark.jobs.migrate import MigrateOptions, migrate
from brokerset_spark.jobs.report import JobFailed, Level, NoInput, Report
from brokerset_spark.jobs.running import LocalRunner
from brokerset_spark.jobs.verify import verify
from brokerset_spark.sources.batches import Filter
from brokerset_spark.sources.columns import DAMAGE, MESSAGE_COLUMNS, arrow_schema, schema_of
from brokerset_spark.sources.options import MessageOptions
from brokerset_spark.sources.plan import open_store, plan_pieces, plan_store
from brokerset_spark.sources.reader import read_piece
from brokerset_spark.stores.tail import Bound
from brokerset_spec.broker_settings import BrokerSettings

State = Literal["closed", "abort", "live"]
STATES: Final[tuple[State, ...]] = ("closed", "abort", "live")
BASES: Final = ("whole", "log", "ledger")
"""A store with everything; its commit log alone; a DLedger's entries alone."""

SEGMENT: Final = 4096
MESSAGES: Final = 70
HEAD_BYTES: Final = 8
"""Size and magic of a record: without them nothing shows that one began there."""

HOST: Final = Host.from_text("10.0.0.1", 54321).encode()
LOG_CODES: Final = (
    "record-magic", "record-size", "record-lengths", "record-offset", "crc-mismatch", "chain-", "blank-", "tail-missing", "file-missing", "file-size", "entry-index",
)  # fmt: skip
"""What `verify` finds where messages themselves are damaged."""

Image = dict[str, bytes]
"""Files of a store by path."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A message of the undamaged store."""

    offset: int
    data: bytes
    body: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class Base:
    """An undamaged store."""

    name: str
    image: Image
    stored: tuple[Stored, ...]

    @property
    def logs(self) -> list[str]:
        """Files of the log, in their order."""
        return sorted(path for path in self.image if path.startswith(("commitlog/", "dledger-n0/data/")))


@dataclass(frozen=True, slots=True)
class Case:
    """What was done to which store."""

    number: int
    base: str
    state: State
    done: tuple[str, ...]
    changed: dict[str, bytes | None] = field(repr=False)
    """Files that differ from the undamaged ones; None: removed."""

    def __str__(self) -> str:
        return f"{self.number} {self.base}/{self.state}: {'; '.join(self.done) or 'nothing'}"


@dataclass(slots=True)
class Given:
    """What one way of reading gave."""

    bodies: dict[int, bytes] = field(default_factory=dict)
    reported: list[tuple[int, int]] = field(default_factory=list)
    """Ranges of the log that were told."""

    error: str = ""
    bound: Bound | None = None


# -- stores -------------------------------------------------------------------------------------------------


def make_bases(folder: Path) -> dict[str, Base]:
    """Write each base once."""
    root = folder / "made"
    _write(root)
    image = {
        str(each.relative_to(root)): each.read_bytes() for each in sorted(root.rglob("*")) if each.is_file()
    }
    image.pop("abort", None)
    image.setdefault("lock", b"lock")
    whole = Base("whole", image, tuple(_stored(image)))
    log = {path: data for path, data in image.items() if path.startswith("commitlog/")}
    places = write_log(
        folder / "ledger", [message(n) for n in range(MESSAGES)], file_size=SEGMENT, entries=True
    )
    files = {f"dledger-n0/data/{each.file.name}": each.file.read_bytes() for each in places}
    entries = tuple(Stored(each.offset, each.data, each.record.body) for each in places)
    return {
        "whole": whole,
        "log": Base("log", {**log, "lock": b"lock"}, whole.stored),
        "ledger": Base("ledger", {**files, "lock": b"lock"}, entries),
    }


def _write(root: Path) -> None:
    clock = ManualClock()
    settings = BrokerSettings(
        store_path_root_dir=root,
        mapped_file_size_commit_log=SEGMENT,
        mapped_file_size_consume_queue=400,
        max_hash_slot_num=20,
        max_index_num=60,
    )
    store = MessageStore(settings, clock)
    store.load()

    async def work() -> None:
        for number in range(MESSAGES):
            properties = encode_properties({"UNIQ_KEY": f"id-{number:04d}", "KEYS": f"k{number}"})
            body = b"%03d" % number * (10 + number % 40)
            store.append(
                ("Orders", "Bills")[number % 2], number % 3, body, properties, flag=7, sys_flag=0,
                born_timestamp=1_700_000_000_000, born_host=HOST,
            )  # fmt: skip
            clock.advance(1_500)
        await store.checkpoint()
        await store.close()

    asyncio.run(work())


def _stored(image: Image) -> Iterator[Stored]:
    for path in sorted(path for path in image if path.startswith("commitlog/")):
        data, at = image[path], 0
        while int.from_bytes(data[at + 4 : at + 8], "big") == MAGIC_V1:
            size = int.from_bytes(data[at : at + 4], "big")
            record = decode_record(data[at : at + size])
            yield Stored(record.offset, data[at : at + size], record.body)
            at += size


@dataclass(frozen=True, slots=True)
class Places:
    """Folders that hold one store after the other."""

    root: Path
    bases: dict[str, Base]

    def folder(self, base: str, state: State) -> Path:
        """Where the stores of a base and state lie."""
        return self.root / base / state

    @contextmanager
    def with_damage(self, case: Case) -> Iterator[Path]:
        """The damaged store; whole again afterwards."""
        folder, image = self.folder(case.base, case.state), self.bases[case.base].image
        for path, data in case.changed.items():
            _put(folder / path, data)
        try:
            yield folder
        finally:
            for path in case.changed:
                _put(folder / path, image.get(path))


def _put(path: Path, data: bytes | None) -> None:
    if data is None:
        path.unlink(missing_ok=True)
    elif path.exists():  # a file that is held open stays the same one
        path.write_bytes(data)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


_HOLDER: Final = """
import fcntl, sys
held = []
for path in sys.argv[1:]:
    file = open(path, "r+b")
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    held.append(file)
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def laid_out(root: Path) -> Iterator[Places]:
    """Every base in every state; of the running ones another process holds the lock, as a broker does."""
    places = Places(root, make_bases(root))
    for base in BASES:
        for state in STATES:
            folder = places.folder(base, state)
            for path, data in places.bases[base].image.items():
                _put(folder / path, data)
            if state != "closed":
                (folder / "abort").touch()
    locks = [str(places.folder(base, "live") / "lock") for base in BASES]
    with ExitStack() as ending:
        holder = subprocess.Popen(
            [sys.executable, "-c", _HOLDER, *locks], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        ending.callback(holder.communicate, b"", 30)
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n", "the lock could not be taken"
        yield places


# -- damage -------------------------------------------------------------------------------------------------


def draw_case(bases: dict[str, Base], number: int, state: State) -> Case:
    """The case of a number; the same store and damage for each state."""
    draw = random.Random(number)
    base = bases[draw.choice(("whole", "whole", "log", "ledger"))]
    image: dict[str, bytes | None] = dict(base.image)
    done: list[str] = []
    for _ in range(draw.choice((1, 1, 1, 2, 3))):
        if draw.random() < 0.97:
            done.append(draw.choice(_DAMAGES)(draw, base, image))
    if base.name == "whole" and draw.random() < 0.2:
        done.append(_other_file(draw, base, image))
    if state == "live" and draw.random() < 0.5:
        done.append(_being_written(draw, base, image))
    changed = {path: data for path, data in image.items() if data != base.image.get(path)}
    return Case(number, base.name, state, tuple(done), changed)


Damage = Callable[[random.Random, Base, "dict[str, bytes | None]"], str]


def _log_file(draw: random.Random, base: Base, image: dict[str, bytes | None]) -> str:
    """Any file of the log, the newest as often as all others."""
    there = [path for path in base.logs if image[path] is not None] or base.logs[-1:]
    return there[-1] if draw.random() < 0.5 else draw.choice(there)


def _edit(image: dict[str, bytes | None], path: str, at: int, data: bytes) -> None:
    old = image[path] or b""
    image[path] = (old[:at] + data + old[at + len(data) :])[: max(len(old), 1)]


def _bit(draw: random.Random, base: Base, image: dict[str, bytes | None]) -> str:
    path = _log_file(draw, base, image)
    data = image[path] or b"\0"
    used = len(data.rstrip(b"\0")) or 1
    at = draw.randrange(used)
    _edit(image, path, at, bytes([data[at] ^ 1 << draw.randrange(8)]))
    return f"a bit of {path} at {at}"


def _bytes(draw: random.Random, base: Base, image: dict[str, bytes | None]) -> str:
    path = _log_file(draw, base, image)
    size = draw.choice((1, 4, 40, 200, 512, 1024))
    at = draw.randrange(0, SEGMENT - size, 1 if size < 512 else 512)
    zeros = draw.random() < 0.5
    _edit(image, path, at, bytes(size) if zeros else draw.randbytes(size))
    return f"{size} {'zeros' if zeros else 'random bytes'} in {path} at {at}"


def _first_record(draw: random.Random, base: Base, image: dict[str, bytes | None]) -> str:
    path = _log_file(draw, base, image)
    inside = next(each for each in base.stored if each.offset >= int(path[-20:]))
    _edit(image, path, 0, bytes(inside.end - int(path[-20:])))
    return f"the first record of {path} is zeros"


def _record(draw: random.Random, base: Base, image: dict[str, bytes | None]) -> str:
    """The last record, or any, is lost as a whole, or from some byte on."""
    one = base.stored[-1] if draw.random() < 0.5 else draw.choice(base.stored)
    path = next(each for each in reversed(base.logs) if int(each[-20:]) <= one.offset)
    cut = draw.choice((0, draw.randrange(len(one.data))))
    _edit(image, path, one.offset - int(path[-20:]) + cut, bytes(len(one.data) - cut))
    return f"the record at {one.offset} is zeros from its byte {cut} on"


def _tail(draw: random.Random, base: Base, image: dict[str, bytes | None]) -> str:
    path = base.logs[-1]
    at = draw.randrange(SEGMENT)
    _edit(image, path, at, bytes(SEGMENT - at))
    return f"{path} is zeros from {at} on"


def _random_file(draw: random.Random, base: Base, image: dict[str, bytes | None]) -> str:
    path = _log_file(draw, base, image)
    image[path] = draw.randbytes(SEGMENT)
    return f"{path} is random"


def _random_log(draw: random.Random, base: Base, image: dict[str, bytes | None]) -> str:
    for path in base.logs:
        image[path] = draw.randbytes(SEGMENT)
    return "all of the log is random"


def _missing(draw: random.Random, base: Base, image: dict[str, bytes | None]) -> str:
    path = draw.choice(base.logs[1:])
    image[path] = None
    return f"{path} is missing"


def _short(draw: random.Random, base: Base, image: dict[str, bytes | None]) -> str:
    path = _log_file(draw, base, image)
    image[path] = (image[path] or b"")[: draw.randrange(1, SEGMENT)]
    return f"{path} is cut to {len(image[path] or b'')} bytes"


_DAMAGES: Final[tuple[Damage, ...]] = (
    _bit, _bit, _bit, _bit, _bytes, _bytes, _first_record, _record, _record, _tail, _random_file, _random_log,
    _missing, _short,
)  # fmt: skip


def _other_file(draw: random.Random, base: Base, image: dict[str, bytes | None]) -> str:
    """A bit of a queue, or of the checkpoint; or one of these files is missing."""
    others = [path for path in base.image if path.startswith(("consumequeue/", "checkpoint"))]
    path = draw.choice(others)
    if draw.random() < 0.4:
        image[path] = None
        return f"{path} is missing"
    data = image[path] or b"\0"
    at = draw.randrange(len(data))
    _edit(image, path, at, bytes([data[at] ^ 1 << draw.randrange(8)]))
    return f"a bit of {path} at {at}"


def _being_written(draw: random.Random, base: Base, image: dict[str, bytes | None]) -> str:
    """The first part of one more record, as a reader may see it while it is appended."""
    last, path = base.stored[-1], base.logs[-1]
    at = last.end - int(path[-20:])
    head = 48 if base.name == "ledger" else 0
    part = bytearray(last.data[: draw.randrange(1, len(last.data))])
    part[28:36] = (last.end + head).to_bytes(8, "big")[: len(part[28:36])]
    if (
        image[path] is not None
        and len(image[path] or b"") == SEGMENT
        and at + len(part) <= SEGMENT
        and not head
    ):
        _edit(image, path, at, bytes(part))
    return f"{len(part)} bytes of one more record"


# -- reading ------------------------------------------------------------------------------------------------


def read_messages(folder: Path, *, skip: bool) -> Given:
    """What the data source gives, read without Spark: its own planning, kernels and batches."""
    names = ["commitLogOffset", "storeSize", "body"]
    columns = [*MESSAGE_COLUMNS, DAMAGE] if skip else MESSAGE_COLUMNS
    schema = arrow_schema(schema_of(columns, [*names, "damage"] if skip else names))
    options = MessageOptions(
        paths=(str(folder),), wanted=Filter(system_topics=True), verify_crc=True,
        on_corrupt="skip" if skip else "fail", damage_rows=skip, fail_on_data_loss=not skip, drop_cache=False,
        split_size=random.Random(str(folder)).choice((3000, 5000, 1 << 20)),
    )  # fmt: skip
    given = Given()
    try:
        store, facts = open_store(str(folder))
    except FileNotFoundError as error:
        given.error = str(error)
        return given
    try:
        plan = plan_store(store, facts, options)
        given.bound = plan.bound
        for piece in plan_pieces(store, plan, options):
            for batch in read_piece(piece, options, schema):
                for row in batch.to_pylist():
                    if row.get("damage"):
                        given.reported.append(
                            (row["commitLogOffset"], row["commitLogOffset"] + row["storeSize"])
                        )
                    else:
                        given.bodies[row["commitLogOffset"]] = row["body"]
    except ValueError as error:
        given.error = str(error)
    finally:
        store.close()
    return given


def run_job(job: Callable[[], Report]) -> tuple[int, Report | None, str]:
    """Exit code, report, and what was said, as the command line has them."""
    try:
        report = job()
    except NoInput as error:
        return 3, None, str(error)
    except (JobFailed, ValueError) as error:
        return 2, None, str(error)
    return report.exit_code, report, "; ".join(f"{each.code}: {each.text}" for each in report.findings)


# -- judging ------------------------------------------------------------------------------------------------


def intact(base: Base, case: Case, one: Stored) -> bool:
    """Whether a message is in the damaged store as it was."""
    path = next(each for each in reversed(base.logs) if int(each[-20:]) <= one.offset)
    data = case.changed.get(path, base.image[path])
    at = one.offset - int(path[-20:])
    head = 48 if base.name == "ledger" else 0
    same = (
        data is not None
        and data[at - head : at + len(one.data)] == base.image[path][at - head : at + len(one.data)]
    )
    return same


def silent(base: Base, case: Case, given: Given, told: list[tuple[int, int]]) -> list[str]:
    """What is wrong with a reading that ended without an error."""
    missing = [each for each in base.stored if each.offset not in given.bodies]
    if not missing:
        return []
    first, found = missing[0], []
    if [each for each in base.stored if each.offset >= first.offset] != missing:
        return [f"the message at {first.offset} is missing without an error, and later ones are given"]
    bound = given.bound.offset if given.bound is not None else 2**63
    for each in missing:
        held = each.offset >= bound and (case.state == "live" or bool(given.bound and given.bound.held_back))
        if intact(base, case, each) and not held:
            found.append(f"the whole message at {each.offset} is missing without an error")
    if case.state == "live":
        if len([each for each in missing if intact(base, case, each)]) > 1:
            found.append(f"{len(missing)} messages from {first.offset} on are not given of a running store")
        return found[:3]
    told = [*told, *([(bound, 2**63)] if given.bound is not None and given.bound.held_back else [])]
    path = next(each for each in reversed(base.logs) if int(each[-20:]) <= first.offset)
    data = case.changed.get(path, base.image[path]) or b""
    rest = data[first.offset - int(path[-20:]) :]
    for each in missing:
        if any(begin < each.end and each.offset < end for begin, end in told):
            continue
        if rest.strip(b"\0"):
            found.append(f"nothing is said about the message at {each.offset}")
    if case.state == "abort":
        return found[:3]
    if base.name == "whole" and not any(path.startswith(("cons", "check")) for path in case.changed):
        found.append(f"{len(missing)} messages from {first.offset} on are missing, and queues know them")
    head = 48 if base.name == "ledger" else 0
    place = data[max(first.offset - head - int(path[-20:]), 0) :][:4]
    if place.strip(b"\0") and base.name != "whole" and _says_its_place(base, data, path, first):
        found.append(f"the damaged record at {first.offset} of a closed store is taken for its end")
    return found[:3]


def _says_its_place(base: Base, data: bytes, path: str, one: Stored) -> bool:
    at = one.offset - int(path[-20:])
    return int.from_bytes(data[at + 28 : at + 36], "big") == one.offset and base.name != "ledger"


def bodies_right(base: Base, given: Given) -> list[str]:
    """Nothing is given that was not stored, with the body that it had."""
    known = {each.offset: each.body for each in base.stored}
    wrong = [offset for offset, body in given.bodies.items() if known.get(offset) != body]
    return [f"what is given for {wrong[0]} was not stored so"] if wrong else []


def state_of(given: Given) -> list[tuple[int, int]]:
    """Ranges that a reading names next to damage: what a crash tore or took, and what is held back."""
    bound, found = given.bound, list(given.reported)
    if bound is None:
        return found
    if bound.lost is not None:
        found.append((bound.lost.begin, 2**63))
    if bound.end is not None and bound.end.debris:  # `judge_jobs` sees that `export` says it
        found.append((bound.end.offset, 2**63))
    if bound.end is not None and bound.end.holes and bound.end.holes[-1].end == bound.end.offset:
        found.append((bound.end.holes[-1].begin, 2**63))  # the end itself is damaged
    if bound.held_back or bound.state == "live":
        found.append((bound.offset, 2**63))
    return found


def judge_reading(places: Places, case: Case) -> tuple[list[str], Given]:
    """What is wrong with what the data source does of a case: as it is, and when damage is to be passed
    over."""
    base = places.bases[case.base]
    with places.with_damage(case) as folder:
        given = read_messages(folder, skip=False)
        if not given.error:
            return [*bodies_right(base, given), *silent(base, case, given, state_of(given))], given
        if not case.changed:
            return [f"an undamaged store is refused: {given.error}"], given
        around = read_messages(folder, skip=True)
    if around.error:
        return ([] if around.bound is None else [f"passing over damage fails: {around.error}"]), given
    found = bodies_right(base, around)
    told = state_of(around)
    for each in base.stored:
        named = any(begin < each.end and each.offset < end for begin, end in told)
        if each.offset not in around.bodies and not named:
            removed = each.offset < int(_first_there(base, case)[-20:])
            if (
                not removed
                and (intact(base, case, each) or case.state == "closed")
                and not _gone(base, case, each)
            ):
                found.append(
                    f"the message at {each.offset} is neither given nor reported: {given.error[:200]}"
                )
    return found[:3], given


def _gone(base: Base, case: Case, one: Stored) -> bool:
    """Whether a log without queues tells nothing of a message at its end: of its size and magic a part is there
    at most, and zeros behind it."""
    path = next(each for each in reversed(base.logs) if int(each[-20:]) <= one.offset)
    data = case.changed.get(path, base.image[path]) or b""
    at = one.offset - int(path[-20:]) - (48 if base.name == "ledger" else 0)
    return base.name != "whole" and path == base.logs[-1] and not data[at + HEAD_BYTES - 1 :].strip(b"\0")


def _first_there(base: Base, case: Case) -> str:
    there = [path for path in base.logs if case.changed.get(path, b"") is not None]
    return there[0] if there else base.logs[-1]


def judge_jobs(places: Places, case: Case, given: Given, folder_of_targets: Path) -> list[str]:
    """What is wrong with what export, verify, inspect and migrate do of a case, as far as they differ from
    the data source."""
    base, runner, found = places.bases[case.base], LocalRunner(), []
    shutil.rmtree(folder_of_targets, ignore_errors=True)
    folder_of_targets.mkdir(parents=True)
    target = folder_of_targets / "migrated"
    with places.with_damage(case) as folder:
        url = str(folder)
        exported, report, said = run_job(
            lambda: export(runner, url, folder_of_targets / "out", ExportOptions(system_topics=True))
        )
        if (exported == 0) != (not given.error):
            found.append(
                f"export ends with {exported} ({said[:150]}), the data source with {given.error[:150]!r}"
            )
        if exported == 0 and report is not None and report.counters["messages"] != len(given.bodies):
            found.append(
                f"export gives {report.counters['messages']} messages instead of {len(given.bodies)}"
            )
        end = given.bound.end if given.bound is not None else None
        if (
            report is not None
            and end is not None
            and end.debris
            and "finding.torn-tail" not in report.counters
        ):
            found.append(f"export says nothing about what lies behind the end, at {end.offset}")
        verified, report, _ = run_job(lambda: verify(runner, url))
        errors = [each for each in report.findings if each.level is Level.ERROR] if report else []
        of_log = [each for each in errors if each.code.startswith(LOG_CODES)]
        if exported == 0 and of_log and case.state != "live":
            found.append(f"export publishes what verify rejects: {of_log[0].code} {of_log[0].text}")
        if exported and not verified and given.bound is not None:
            found.append(f"verify finds nothing wrong where export ends with {exported}: {said[:150]}")
        inspected, _, said = run_job(lambda: inspect(runner, url))
        milder = {"crc-mismatch", *({"file-size"} if case.state == "live" else ())}  # `inspect` checks no CRC
        if not inspected and not {each.code for each in of_log} <= milder:
            found.append(f"inspect ends with 0 where verify finds {of_log[0].code}: {said[:150]}")
        options = MigrateOptions(to="commitlog", take_uncommitted=True)
        migrated, report, said = run_job(lambda: migrate(runner, url, str(target), options))
    if case.state == "live" and migrated != 3:
        found.append(f"a running store is migrated: {migrated} {said[:100]}")
    if migrated == 0 and report is not None:
        again, checked, wrong = run_job(lambda: verify(runner, str(target)))
        known_wrong = {each.code for each in errors}
        worse = {each.code for each in (checked.findings if checked else []) if each.level is Level.ERROR}
        if again and (not worse or worse - known_wrong or any(each.startswith(LOG_CODES) for each in worse)):
            found.append(f"verify rejects what migrate published: {wrong[:200]}")
        kept = report.counters["recordsKept"]
        warned = {each.code for each in report.findings}
        if kept != len(base.stored) - _gone_first(base, case):
            known = read_messages(target, skip=False)
            known.bound = None
            shifted = replace(case, state="abort") if case.state == "abort" else case
            told = [(0, 2**63)] if warned & {"torn-tail", "tail-missing"} else []
            if case.base != "ledger":
                found += [f"migrate: {each}" for each in silent(base, shifted, known, told)]
    return found


def _gone_first(base: Base, case: Case) -> int:
    first = int(_first_there(base, case)[-20:])
    return len([each for each in base.stored if each.offset < first])


def quiet_logs() -> None:
    """Warnings of the data source are part of what is judged elsewhere."""
    logging.getLogger("brokerset_spark").setLevel(logging.CRITICAL)
