"""Stores of a DLedger whose content is exchanged, and put back; and what is read of their logs."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from brokerset_cli.main import main
from brokerset_cli.output import CommandFailed
from brokerset_cli.takeover import upgrade_acts, upgrade_back, upgrade_exchange, upgrade_files
from brokerset_cli.takeover.host_facts import facts_of, read_facts
from brokerset_cli.takeover.log_compare import compare_digests, compare_logs
from brokerset_cli.takeover.old_store import BACKUP, log_files, read_note, read_old_store
from brokerset_cli.takeover.upgrade_acts import UpgradeActs
from brokerset_cli.takeover.upgrade_dledger import BACK, DONE
from brokerset_cli.takeover.upgrade_exchange import STAMP, exchange, forget_new, new_of, state_of_files
from brokerset_cli.takeover.upgrade_facts import (
    Comparison,
    Exchange,
    Likeness,
    Note,
    Origin,
    StoreSeen,
    World,
)
from brokerset_cli.takeover.upgrade_observation import Where
from brokerset_formats.dledger import BLANK, ENTRY_HEAD
from brokerset_rig.made_stores import Place, message, unpack_fixture, write_log
from brokerset_rig.old_stores import FILE_BYTES, extent, through_crashes, tree

COUNT = 60
LAST = (1, COUNT - 1)


def member(path: Path, *, count: int = COUNT, other_from: int = COUNT) -> list[Place]:
    """A store of a DLedger with so many messages; from `other_from` on they are others of the same size."""
    records = [message(n, body=(b"other" if n >= other_from else b"equal") * 9) for n in range(count)]
    places = write_log(path, records, file_size=FILE_BYTES, entries=True)
    for name in ("config/topics.json", STAMP, "consumequeue/orders/0/units", "checkpoint", "lock"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("{}")
    return places


def migrated(store: Path) -> Path:
    """What the job makes, in small."""
    new = new_of(store)
    write_log(new, [message(n) for n in range(COUNT)], file_size=FILE_BYTES)
    for name in ("config/topics.json", "config/new.json", "consumequeue/orders/0/others", "lock"):
        (new / name).parent.mkdir(parents=True, exist_ok=True)
        (new / name).write_text("new")
    new.with_name(f"{new.name}.brokerset-migration.json").write_text("{}")
    return new


def noted(store: Path) -> Note:
    return upgrade_files.note_of(store, "dledger", "g")


def put_back(store: Path) -> list[str]:
    return upgrade_back._files_back(store, noted(store))


@pytest.mark.parametrize("chosen", [True, False])
def test_content_is_exchanged_through_a_crash_at_every_change_and_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: bool
) -> None:
    """The old one is in the backup, byte for byte; the chosen store has the new one, others `config/`."""
    store = tmp_path / "a"
    member(store)
    before = tree(store)
    new = migrated(store) if chosen else None
    made = tree(new) if new is not None else {"config/topics.json": before["config/topics.json"]}

    crashes = through_crashes(
        lambda: (
            None
            if noted(store).exchange == DONE
            else exchange(store, noted(store), new, chosen=LAST if chosen else None)
        ),
        monkeypatch,
    )
    assert crashes > 5
    assert tree(store) == made
    assert (noted(store).exchange, noted(store).chosen) == (DONE, LAST if chosen else None)
    assert not new_of(store).exists()
    found = read_old_store(store)
    assert (found.problem, found.ledger, bool(found.end)) == ("", "", chosen)
    assert upgrade_files.may_be_store(store)

    upgrade_files.prepare(store, noted(store), empty=not chosen)
    through_crashes(lambda: print(put_back(store)), monkeypatch)
    assert tree(store) == before
    assert read_note(store) is None
    assert chosen == ((store / BACKUP / "exchanged.1").exists())
    exchange(store, noted(store), migrated(store), chosen=LAST)  # now it is the other way round, or again
    assert put_back(store)
    assert tree(store) == before


def test_nothing_is_exchanged_when_a_broker_has_run_since(tmp_path: Path) -> None:
    """What it took would be in the backup only."""
    store = tmp_path / "a"
    member(store)
    seen = state_of_files(store)
    new = migrated(store)
    (store / "dledger-n0" / "data" / f"{FILE_BYTES * 9:020d}").write_bytes(bytes(FILE_BYTES))
    before = tree(store)

    with pytest.raises(CommandFailed, match="have changed while it was read"):
        exchange(store, noted(store), new, chosen=LAST, expected=seen)

    assert tree(store) == before
    assert read_note(store) is None


def test_what_a_broker_left_in_between_is_kept_on_the_way_back(tmp_path: Path) -> None:
    """An old broker that was started on the exchanged store may have taken messages there."""
    store = tmp_path / "a"
    member(store)
    before = tree(store)
    exchange(store, noted(store), migrated(store), chosen=LAST)
    (store / "dledger-n0").mkdir()
    (store / "dledger-n0" / "data").write_text("messages")

    said = put_back(store)

    assert tree(store) == before
    assert (store / BACKUP / "exchanged.1" / "dledger-n0" / "data").read_text() == "messages"
    assert "exchanged.*" in said[0]


def test_the_act_migrates_once_and_goes_on_without_the_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the exchange has begun, the DLedger is no source any more."""
    store, runs = tmp_path / "a", list[tuple[int | None, str]]()
    member(store)
    upgrade_files.write_note(store, replace(noted(store), delay_levels="1s 2s"))

    async def job(path: Path, *, until: int | None, delay_levels: str) -> Path:
        runs.append((until, delay_levels))
        return migrated(path)

    def act() -> None:
        world = World(Origin.DLEDGER, "g", (StoreSeen(read_old_store(store), read_note(store)),))
        acts = UpgradeActs(Where(Origin.DLEDGER, (store,), (), ()), start_with="")
        asyncio.run(acts.carry_out(Exchange(str(store), LAST, 4711), world))

    def dies(*_: object) -> None:
        raise KeyError

    monkeypatch.setattr(upgrade_acts, "migrate", job)
    with monkeypatch.context() as patch:
        patch.setattr(upgrade_exchange, "move", dies)
        with pytest.raises(KeyError):
            act()
    act()

    assert runs == [(4711, "1s 2s")]
    assert noted(store).exchange == DONE


def test_a_way_back_that_was_cut_off_is_finished_first(tmp_path: Path) -> None:
    """Forth from there, half of the old content would be taken for the new one."""
    store = tmp_path / "a"
    member(store)
    upgrade_files.write_note(store, replace(noted(store), exchange=BACK))
    options = ["--store", str(store), "--controllers", "127.0.0.1:1", "--group", "g", "--yes"]

    result = CliRunner().invoke(main, ["upgrade", "dledger", *options])

    assert result.exit_code == 1
    assert "`--back` was interrupted" in result.output


def test_a_folder_of_somebody_else_is_not_removed(tmp_path: Path) -> None:
    """It may have the name of the one that the migration makes."""
    store = tmp_path / "a"
    new_of(store).mkdir()

    with pytest.raises(CommandFailed, match="is in the way"):
        forget_new(store)

    assert new_of(store).exists()


# -- logs -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("archive", ["dledger", "dledger-mixed"])
def test_stores_of_java_members_are_read_to_their_end(tmp_path: Path, archive: str) -> None:
    """The end is that of the last message which the Java broker gave out; an old log before it counts."""
    folder = unpack_fixture(tmp_path, archive)
    lines = [json.loads(line) for line in (folder / "expected.jsonl").read_text().splitlines()]
    last = max(lines, key=lambda line: int(line["commitLogOffset"]))

    found = [read_old_store(each) for each in sorted(folder.glob("broker-*/store"))]

    for each in found:
        assert each.problem == ""
        assert each.end is not None
        assert each.end >= last["commitLogOffset"] + last["storeSize"]
        assert each.committed in (0, each.end)
        assert each.last == found[0].last
        assert each.begin == 0


def test_members_are_compared_entry_by_entry(tmp_path: Path) -> None:
    """A log that parts from the other one, or ends before it, is told by its messages."""
    whole, other, short = tmp_path / "a", tmp_path / "b", tmp_path / "c"
    member(whole)
    places = member(other, other_from=40)
    end = member(short, count=30)[-1]

    apart = compare_logs(whole, extent(whole), other, extent(other))

    assert compare_logs(whole, extent(whole), short, extent(short)) == Comparison(
        Likeness.PREFIX, end.offset + len(end.data)
    )
    assert (apart.likeness, apart.cut_messages) == (Likeness.APART, 20)
    assert apart.common_end == places[40].offset - ENTRY_HEAD.size


def test_what_a_truncation_left_behind_the_end_of_a_file_is_no_difference(tmp_path: Path) -> None:
    """Java does not wipe it; a blank says that it means nothing."""
    one, other = tmp_path / "a", tmp_path / "b"
    member(one)
    places = member(other)
    first = log_files(other)[0]
    last = max((each for each in places if each.file == first.path), key=lambda each: each.position)
    with first.path.open("r+b") as file:
        file.seek(last.position + len(last.data) + BLANK.size)
        file.write(b"x")

    assert compare_logs(one, extent(one), other, extent(other)).likeness is Likeness.PREFIX


def test_entries_of_an_older_term_behind_the_end_are_left_out(tmp_path: Path) -> None:
    """They were truncated, and nothing was written over them: terms never fall along a log."""
    store = tmp_path / "a"
    places = member(store)
    with places[-3].file.open("r+b") as file:
        for place in places[-3:]:
            file.seek(place.position - ENTRY_HEAD.size + 16)
            file.write(bytes(8))

    found = read_old_store(store)

    assert found.last == (1, COUNT - 4)
    assert found.end == found.until == places[-3].offset - ENTRY_HEAD.size


def test_another_host_learns_which_entry_was_the_last_and_what_was_exchanged(tmp_path: Path) -> None:
    """By these it chooses, and empties its own stores."""
    one, other = tmp_path / "a", tmp_path / "b"
    member(one)
    member(other, count=30)
    upgrade_files.write_note(one, replace(noted(one), exchange=DONE, chosen=LAST))
    stores = tuple(StoreSeen(read_old_store(each), read_note(each)) for each in (one, other))

    facts = read_facts(facts_of("h", World(Origin.DLEDGER, "g", stores), str(one)))

    assert [each.store.last for each in facts.stores] == [LAST, (1, 29)]
    assert [each.store.ledger for each in facts.stores] == ["dledger-n0"] * 2
    assert facts.stores[0].note == stores[0].note
    found = compare_digests(one, extent(one), extent(other), facts.digests[f"h:{other}"])
    assert found == Comparison(Likeness.PREFIX, extent(other).end)
