"""Stores as an upgrade reads, compares, cuts, prepares and puts them back."""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from brokerset_cli.output import CommandFailed
from brokerset_cli.takeover import host_facts, upgrade_files
from brokerset_cli.takeover.log_compare import compare_digests, compare_logs, digests
from brokerset_cli.takeover.old_store import read_old_store
from brokerset_cli.takeover.upgrade_facts import Comparison, Likeness, Note, Origin, StoreSeen, World
from brokerset_formats.errors import FormatError
from brokerset_rig.made_stores import unpack_fixture
from brokerset_rig.old_stores import (
    COUNT,
    FILE_BYTES,
    HOLD,
    end_of,
    extent,
    made,
    tree,
)

# -- reading ----------------------------------------------------------------------------------------------


def test_a_store_tells_its_log_epochs_and_release_and_is_not_changed(tmp_path: Path) -> None:
    """Everything is read; nothing is written, not even a lock."""
    places = made(tmp_path / "a")
    before = tree(tmp_path / "a")

    found = read_old_store(tmp_path / "a")

    assert (found.begin, found.end) == (0, end_of(places))
    assert found.epochs == ((1, 0), (4, 300))
    assert (found.release, found.clean, found.file_size, found.problem) == ("4.x", True, FILE_BYTES, "")
    assert found.locked_by is None
    assert tree(tmp_path / "a") == before


def test_empty_files_made_in_advance_and_torn_records_are_not_the_end(tmp_path: Path) -> None:
    """The end lies behind the last whole record, whatever follows."""
    places = made(tmp_path / "a")
    last = places[-1].file
    (last.parent / f"{int(last.name) + FILE_BYTES:020d}").write_bytes(bytes(FILE_BYTES))
    with last.open("r+b") as stream:
        stream.seek(places[-1].position + 90)
        stream.write(b"torn")

    assert read_old_store(tmp_path / "a").end == places[-1].offset


def test_a_running_broker_is_seen_by_its_lock(tmp_path: Path) -> None:
    """The lock that Java's brokers take (fcntl, first byte) names their process; asking does not take it."""
    made(tmp_path / "a")
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "a" / "lock")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert holder.stdin is not None
    assert holder.stdout is not None
    holder.stdout.readline()
    try:
        assert read_old_store(tmp_path / "a", read_log=False).locked_by == holder.pid
        with pytest.raises(CommandFailed, match="is locked by process"):
            upgrade_files.prepare(tmp_path / "a", Note("classic", "g"), empty=False)
        assert read_old_store(tmp_path / "a", read_log=False).epochs == ((1, 0), (4, 300))
    finally:
        holder.stdin.close()
        holder.stdout.close()
        holder.wait(10)
    with (tmp_path / "a" / "lock").open("r+b") as stream:
        fcntl.lockf(stream, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        assert read_old_store(tmp_path / "a", read_log=False).problem == ""


@pytest.mark.parametrize(
    ("break_it", "words"),
    [
        (lambda path: [(path / f"dledger-n{n}").mkdir() for n in (0, 1)], "several DLedgers"),
        (lambda path: (path / "commitlog" / ("0" * 20)).write_bytes(b"short"), "different sizes"),
        (lambda path: (path / "commitlog" / f"{FILE_BYTES:020d}").unlink(), "does not follow"),
        (lambda path: (path / "epochFileCheckpoint").write_bytes(b"2\n3\n1-0\n"), None),
        (lambda path: [each.write_bytes(b"x") for each in path.glob("epoch*")], "cannot be read"),
    ],
)
def test_what_cannot_be_taken_is_named(
    tmp_path: Path, break_it: Callable[[Path], object], words: str | None
) -> None:
    """A damaged epoch file is read from its backup, as brokers do; without one the store is refused."""
    made(tmp_path / "a")
    break_it(tmp_path / "a")

    found = read_old_store(tmp_path / "a")

    assert words in found.problem if words else found.epochs == ((1, 0),)


def test_a_commit_log_in_another_folder_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    """Queues without a log tell it: such a store is refused, with what to move."""
    made(tmp_path / "a")
    (tmp_path / "a" / "commitlog").rename(tmp_path / "elsewhere")

    assert "has queues, and no commit log" in read_old_store(tmp_path / "a").problem
    (tmp_path / "a" / "consumequeue").rename(tmp_path / "queues")
    found = read_old_store(tmp_path / "a")
    assert (found.problem, found.end) == ("", 0)


@pytest.mark.parametrize("archive", ["classic", "controller-mode", "killed"])
def test_stores_of_java_brokers_are_read_to_their_end(tmp_path: Path, archive: str) -> None:
    """The end is that of the last message which the Java broker itself gave out."""
    folder = unpack_fixture(tmp_path, archive)
    lines = [json.loads(line) for line in (folder / "expected.jsonl").read_text().splitlines()]
    last = max(int(line["commitLogOffset"]) for line in lines)

    found = read_old_store(folder / "broker-0" / "store")

    assert found.problem == ""
    assert found.release == "5.x"
    assert found.end is not None
    assert found.end > last
    assert (found.epochs is not None) == (archive == "controller-mode")
    assert found.clean == (archive != "killed")


# -- comparing --------------------------------------------------------------------------------------------


def test_logs_are_compared_byte_by_byte(tmp_path: Path) -> None:
    """Equal, shorter, longer, different from a message on: with the offset and the number of messages."""
    whole = made(tmp_path / "whole")
    made(tmp_path / "short", count=40)
    apart = made(tmp_path / "apart", other_from=45)
    at = apart[45].offset

    def compared(master: str, slave: str) -> Comparison:
        return compare_logs(
            tmp_path / master, extent(tmp_path / master), tmp_path / slave, extent(tmp_path / slave)
        )

    assert compared("whole", "whole").likeness is Likeness.PREFIX
    assert compared("whole", "short").likeness is Likeness.PREFIX
    longer = compared("short", "whole")
    assert (longer.likeness, longer.common_end, longer.cut_messages) == (
        Likeness.LONGER,
        whole[40].offset,
        COUNT - 40,
    )
    other = compared("whole", "apart")
    assert (other.likeness, other.common_end, other.cut_messages) == (Likeness.APART, at, COUNT - 45)
    assert other.cut_bytes == end_of(apart) - at


def test_a_slave_that_lost_its_first_files_is_a_beginning_still_and_an_older_one_is_nothing(
    tmp_path: Path,
) -> None:
    """Files that retention deleted are not missed; a log that ends before its master's begins is refused."""
    made(tmp_path / "whole")
    made(tmp_path / "late")
    (tmp_path / "late" / "commitlog" / ("0" * 20)).unlink()
    made(tmp_path / "old", count=10)

    late = compare_logs(
        tmp_path / "whole", extent(tmp_path / "whole"), tmp_path / "late", extent(tmp_path / "late")
    )
    old = compare_logs(
        tmp_path / "late", extent(tmp_path / "late"), tmp_path / "old", extent(tmp_path / "old")
    )

    assert late.likeness is Likeness.PREFIX
    assert old.likeness is Likeness.NOTHING


def test_digests_say_the_same_as_bytes(tmp_path: Path) -> None:
    """A store on another host is compared by its digests: equal, shorter, longer, different."""
    made(tmp_path / "whole")
    made(tmp_path / "short", count=41)
    made(tmp_path / "apart", other_from=45)
    whole = tmp_path / "whole"

    def compared(master: Path, slave: str) -> Likeness:
        theirs = extent(tmp_path / slave)
        return compare_digests(master, extent(master), theirs, digests(tmp_path / slave, theirs)).likeness

    assert compared(whole, "whole") is Likeness.PREFIX
    assert compared(whole, "short") is Likeness.PREFIX
    assert compared(whole, "apart") is Likeness.APART
    assert compared(tmp_path / "short", "whole") is Likeness.LONGER


def test_the_block_with_the_masters_end_is_not_taken_for_compared(tmp_path: Path) -> None:
    """A longer slave that differs there only: digests do not tell it; the other way round they do."""
    short, other = tmp_path / "short", tmp_path / "other"
    made(short, count=41)
    places = made(other, other_from=40)
    block = places[40].offset // FILE_BYTES * FILE_BYTES
    mine, theirs = extent(short), extent(other)

    in_blocks = compare_digests(short, mine, theirs, digests(other, theirs))
    here = compare_logs(short, mine, other, theirs)
    turned = compare_digests(other, theirs, mine, digests(short, mine))

    assert (in_blocks.likeness, in_blocks.common_end, in_blocks.exact) == (Likeness.LONGER, block, False)
    assert f"is what lies between 0 and {block:,}" in in_blocks.detail
    assert here.likeness is Likeness.APART
    assert (turned.likeness, turned.exact) == (Likeness.APART, False)


def test_a_block_without_a_digest_is_not_taken_for_equal(tmp_path: Path) -> None:
    """Facts that lack one in the middle say nothing."""
    made(tmp_path / "a")
    theirs = extent(tmp_path / "a")
    known = digests(tmp_path / "a", theirs)
    del known[FILE_BYTES]

    assert compare_digests(tmp_path / "a", theirs, theirs, known).likeness is Likeness.UNKNOWN


def test_the_host_that_has_the_bytes_counts_what_would_be_cut(tmp_path: Path) -> None:
    """Another host knows the block only; here it is the record in which that begins, and how many go."""
    made(tmp_path / "whole")
    places = made(tmp_path / "apart", other_from=45)
    theirs = extent(tmp_path / "apart")
    found = compare_digests(
        tmp_path / "whole", extent(tmp_path / "whole"), theirs, digests(tmp_path / "apart", theirs)
    )
    leader = StoreSeen(read_old_store(tmp_path / "whole"))
    there = StoreSeen(
        replace(read_old_store(tmp_path / "apart"), path=Path(f"h2:{tmp_path / 'apart'}")), here=False
    )
    seen = World(Origin.IDENTITY, "g", (leader, there), comparisons={there.name: found})
    facts = host_facts.read_facts(host_facts.facts_of("h1", seen, leader.name))
    slave = StoreSeen(read_old_store(tmp_path / "apart"))

    here = host_facts.comparisons_with(facts.stores[0], (slave, facts.stores[0]), (facts,), "h2")[slave.name]

    assert found.cut_messages == 0
    assert not here.exact
    assert here.common_end in [each.offset for each in places]
    assert here.common_end <= found.common_end
    behind = [each for each in places if each.offset >= here.common_end]
    assert (here.cut_messages, here.cut_bytes) == (len(behind), end_of(places) - here.common_end)


def test_facts_survive_the_way_to_another_host(tmp_path: Path) -> None:
    """What one host writes is what the other reads, and what the master's host found counts there."""
    made(tmp_path / "whole")
    made(tmp_path / "short", count=41)
    master = StoreSeen(read_old_store(tmp_path / "whole"), Note("identity", "g", "10.0.0.1:10911", True, 2))
    slave = StoreSeen(read_old_store(tmp_path / "short"))
    slave_facts = host_facts.read_facts(host_facts.facts_of("h2", World(Origin.IDENTITY, "g", (slave,)), ""))
    there = slave_facts.stores[0]
    found = host_facts.comparisons_with(master, (master, there), (slave_facts,), "h1")
    seen = World(Origin.IDENTITY, "g", (master, there), comparisons=found)
    master_facts = host_facts.read_facts(host_facts.facts_of("h1", seen, master.name))
    leader = master_facts.stores[0]
    back = host_facts.comparisons_with(leader, (slave, leader), (master_facts,), "h2")
    grown = StoreSeen(read_old_store(tmp_path / "whole"))

    assert (there.name, there.here) == (f"h2:{tmp_path / 'short'}", False)
    assert found[there.name].likeness is Likeness.PREFIX
    assert leader.note == master.note
    assert leader.store.epochs == ((1, 0), (4, 300))
    assert back[slave.name].likeness is Likeness.PREFIX
    assert host_facts.comparisons_with(leader, (grown, leader), (master_facts,), "h2") == {}
    with pytest.raises(FormatError, match="version 9"):
        host_facts.read_facts(b'{"version":9}')
