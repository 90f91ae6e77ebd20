"""The key index: what was put is found, across files, cuts and restarts."""

from __future__ import annotations

import errno
import json
import os
import struct
import tarfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_broker.store.errors import StoreCorrupt, StoreRefused
from brokerset_broker.store.index import IndexService
from brokerset_rig.archives import extract_archive
from brokerset_rig.examples import examples
from brokerset_runtime.clock import ManualClock

FIXTURES = Path(__file__).parents[3] / "peers" / "fixtures"
END = 1 << 62
T0 = 1_700_000_000_000


def service(folder: Path, units: int = 8, clock: ManualClock | None = None) -> IndexService:
    return IndexService(folder / "index", clock=clock or ManualClock(T0), hash_slots=4, indexes_max=units)


def offsets(
    index: IndexService, key: str, begin_ms: int = 0, end_ms: int = END, count: int = 64
) -> list[int]:
    return index.query("T", key, count, begin_ms, end_ms).offsets


def fill(index: IndexService, messages: int) -> None:
    """Messages 0, 100, 200... with their number as id and `even` or `odd` as key, a second apart."""
    for number in range(messages):
        parity = b"odd" if number % 2 else b"even"
        index.put_keys("T", b"id-%d" % number, parity, number * 100, T0 + number * 1000)


@pytest.mark.parametrize(
    ("archive", "broker"), [("classic", "broker-0"), ("controller-mode", "broker-0"), ("dledger", "broker-1")]
)
def test_index_of_a_java_store(archive: str, broker: str, tmp_path: Path) -> None:
    """Every message of a Java store is found by its id and by each of its keys."""
    with tarfile.open(FIXTURES / f"{archive}.tar.xz") as tar:
        wanted = (f"{archive}/{broker}/store/index/", f"{archive}/expected.jsonl")
        extract_archive(tar, tmp_path, [member for member in tar if member.name.startswith(wanted)])
    folder = tmp_path / archive / broker / "store" / "index"
    index = IndexService(folder, clock=ManualClock(), hash_slots=1000, indexes_max=4000)

    assert index.load() is None

    messages = [json.loads(line) for line in (tmp_path / archive / "expected.jsonl").read_text().splitlines()]
    checked = 0
    for message in messages:
        properties = message["properties"]
        time_ms = message["storeTimestamp"]
        for key in [properties.get("UNIQ_KEY"), *properties.get("KEYS", "").split(" ")]:
            if key:
                answer = index.query(message["topic"], key, 64, time_ms - 1000, time_ms + 1000)
                assert message["commitLogOffset"] in answer.offsets
                checked += 1
    assert checked > len(messages)
    index.close()


def test_files_follow_each_other(tmp_path: Path) -> None:
    """A full file is followed by one whose header continues it; queries see all files, newest first."""
    index = service(tmp_path)
    fill(index, 20)

    assert len(index.paths) == 6
    assert offsets(index, "even") == [1800, 1600, 1400, 1200, 1000, 800, 600, 400, 200, 0]
    assert offsets(index, "odd", count=3) == [1900, 1700, 1500]
    assert offsets(index, "id-7") == [700]
    assert offsets(index, "id-20") == []
    assert offsets(index, "even", T0 + 4000, T0 + 9000) == [800, 600, 400]
    assert offsets(index, "even", count=0) == []
    answer = index.query("T", "nothing", 1, 0, END)
    assert (answer.last_timestamp, answer.last_offset) == (T0 + 19_000, 1900)
    index.close()


def test_keys_are_separated_by_single_spaces(tmp_path: Path) -> None:
    """Each non-empty word of KEYS is a key; a message may have neither id nor keys."""
    index = service(tmp_path)

    index.put_keys("T", None, b" a  b ", 0, T0)
    index.put_keys("T", None, None, 100, T0)
    index.put_keys("T", b"", b"", 200, T0)

    assert offsets(index, "a") == offsets(index, "b") == [0]
    assert offsets(index, "") == []
    assert index.end_offset == 0
    index.close()


def test_messages_are_not_put_twice(tmp_path: Path) -> None:
    """Dispatching the log again changes no answer."""
    index = service(tmp_path, units=64)
    fill(index, 10)

    fill(index, 10)

    assert offsets(index, "even") == [800, 600, 400, 200, 0]
    assert offsets(index, "id-9") == [900]
    index.close()


def test_a_restart_changes_nothing(tmp_path: Path) -> None:
    """Files are found again and go on."""
    index = service(tmp_path)
    fill(index, 10)
    index.close()

    again = service(tmp_path)
    assert again.load() is None
    fill(again, 12)

    assert offsets(again, "even") == [1000, 800, 600, 400, 200, 0]
    assert again.end_offset == 1100
    again.close()


def test_after_an_abnormal_exit_newer_files_are_built_again(tmp_path: Path) -> None:
    """Files beyond the checkpoint go, and the service says from where messages have to be put again."""
    index = service(tmp_path)
    fill(index, 20)
    index.close()

    again = service(tmp_path)
    missing_from = again.load(T0 + 9000)

    assert missing_from is not None
    assert missing_from <= 1000
    assert again.end_offset < 1000
    fill(again, 20)
    assert offsets(again, "even") == [1800, 1600, 1400, 1200, 1000, 800, 600, 400, 200, 0]
    again.close()


def test_an_empty_store_has_no_index(tmp_path: Path) -> None:
    """Without a folder there is nothing to load, find, cut, flush or delete."""
    index = service(tmp_path)

    assert index.load() is None
    assert offsets(index, "k") == []
    index.truncate(0)
    index.flush()
    assert index.delete_before(100) == 0
    assert (index.end_offset, index.flushed_timestamp) == (0, 0)
    index.close()
    assert not (tmp_path / "index").exists()


def test_old_files_are_deleted_but_not_the_last(tmp_path: Path) -> None:
    """Files whose messages are all gone are removed from disk."""
    index = service(tmp_path)
    fill(index, 20)
    first = index.paths[0]

    assert index.delete_before(500) == 1
    assert not first.exists()
    assert offsets(index, "id-9") == [900]
    assert index.delete_before(10_000) == 4
    assert len(index.paths) == 1
    index.close()


def test_a_cut_log_cuts_the_index(tmp_path: Path) -> None:
    """After a cut, later messages are forgotten and offsets can be put again with other messages."""
    index = service(tmp_path)
    fill(index, 20)

    index.truncate(650)

    assert offsets(index, "even") == [600, 400, 200, 0]
    assert offsets(index, "id-7") == []
    assert index.end_offset == 600
    index.put_keys("T", b"other", b"even", 700, T0 + 7000)
    assert offsets(index, "even") == [700, 600, 400, 200, 0]
    index.close()
    again = service(tmp_path)
    again.load()
    assert offsets(again, "even") == [700, 600, 400, 200, 0]
    again.truncate(0)
    assert again.paths == []
    again.close()


def test_flush_tells_how_far_the_disk_is(tmp_path: Path) -> None:
    """The checkpoint's time grows with each flush."""
    index = service(tmp_path)
    fill(index, 3)
    assert index.flushed_timestamp == 0

    index.flush()
    assert index.flushed_timestamp == T0 + 2000

    fill(index, 5)
    index.flush()
    index.flush()
    assert index.flushed_timestamp == T0 + 4000
    index.close()


def test_a_failed_flush_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After an error nothing counts as written, and no descriptor is lost."""
    index = service(tmp_path)
    fill(index, 3)
    descriptors = len(os.listdir("/proc/self/fd"))

    def fail(descriptor: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(OSError, match="Input/output"):
            index.flush()
    assert index.flushed_timestamp == 0
    assert len(os.listdir("/proc/self/fd")) == descriptors

    index.flush()
    assert index.flushed_timestamp == T0 + 2000
    index.close()


def test_names_grow_even_if_the_clock_goes_back(tmp_path: Path) -> None:
    """Files are read in the order of their names, so a new name is always the greatest."""
    clock = ManualClock(T0)
    index = service(tmp_path, units=2, clock=clock)
    index.put_keys("T", b"a", None, 0, T0)
    clock_back = ManualClock(T0 - 3_600_000)
    index._clock = clock_back

    index.put_keys("T", b"b", None, 100, T0)
    index.put_keys("T", b"c", None, 200, T0)

    names = [path.name for path in index.paths]
    assert names == sorted(set(names))
    assert {len(name) for name in names} == {17}
    index.close()


def test_files_of_another_size_are_refused(tmp_path: Path) -> None:
    """Changed settings do not make the index unreadable silently."""
    index = service(tmp_path)
    fill(index, 1)
    index.close()

    with pytest.raises(StoreCorrupt, match="maxIndexNum") as caught:
        service(tmp_path, units=9).load()
    assert caught.value.path.parent == tmp_path / "index"


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    """An impossible header, or a chain that a cut cannot undo, stops the store; an empty file is new."""
    index = service(tmp_path, units=64)
    fill(index, 3)
    index.close()
    path = index.folder / sorted(os.listdir(index.folder))[0]
    with path.open("r+b") as file:
        file.seek(40 + 16 + 20 + 16)
        file.write(struct.pack(">i", 9))

    again = service(tmp_path, units=64)
    again.load()
    with pytest.raises(StoreCorrupt, match="damaged"):
        again.truncate(0)
    again.close()
    with path.open("r+b") as file:
        file.seek(36)
        file.write(struct.pack(">i", 65))
    with pytest.raises(StoreCorrupt):
        service(tmp_path, units=64).load()
    path.write_bytes(b"")
    last = service(tmp_path, units=64)
    last.load()
    assert last.end_offset == 0
    last.close()


def test_a_new_file_is_not_touched_before_it_has_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write to a hole on a full disk would end the process: a file without blocks is not kept."""
    index = service(tmp_path)
    fill(index, 3)
    give_blocks = os.posix_fallocate

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    for _ in range(2):
        with pytest.raises(StoreRefused, match="No space left"):
            index.put_keys("T", b"id-3", b"odd", 300, T0 + 3000)
        with pytest.raises(StoreRefused, match="No space left"):
            index.put_batch("T", [(b"id-3", b"odd", 300)], T0 + 3000)
        assert len(index.paths) == 1
        assert [path.name for path in index.folder.iterdir()] == [index.paths[0].name]
    monkeypatch.setattr(os, "posix_fallocate", give_blocks)
    index.put_keys("T", b"id-3", b"odd", 300, T0 + 3000)

    assert offsets(index, "odd") == [300, 100]
    assert offsets(index, "id-3") == [300]


def test_what_another_process_left_in_the_page_cache_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first flush after opening brings files to the disk that a killed process had not flushed."""
    index = service(tmp_path)
    fill(index, 6)
    again = service(tmp_path)
    again.load()
    synced: list[int] = []
    monkeypatch.setattr(os, "fsync", synced.append)

    again.flush()
    again.flush()

    assert len(synced) == len(index.paths) == len(again.paths)


def test_no_room_for_a_new_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A put that needs a file is refused, leaves no half file, and works once there is room."""
    index = service(tmp_path)
    fill(index, 3)

    def fail(descriptor: int, size: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "ftruncate", fail)
        with pytest.raises(StoreRefused, match="No space"):
            fill(index, 8)
    assert len(os.listdir(index.folder)) == 1

    fill(index, 8)

    assert offsets(index, "even") == [600, 400, 200, 0]
    assert offsets(index, "id-3") == [300]
    index.close()


Step = tuple[str, int]


@examples(40)
@given(
    st.lists(
        st.tuples(st.just("put"), st.integers(0, 4))
        | st.tuples(st.sampled_from(["cut", "delete"]), st.integers(0, 30))
        | st.tuples(st.just("restart"), st.just(0)),
        max_size=40,
    )
)
def test_agrees_with_a_dictionary(tmp_path_factory: pytest.TempPathFactory, steps: list[Step]) -> None:
    """Puts, cuts, deletions and restarts in any order leave what a dictionary would hold."""
    folder = tmp_path_factory.mktemp("model")
    index = service(folder, units=5)
    model: list[tuple[str, int]] = []
    offset = deleted_to = 0
    for action, number in steps:
        if action == "put":
            offset += 1
            index.put_keys("T", b"id-%d" % offset, b"k%d" % number, offset, T0 + offset)
            model += [(f"id-{offset}", offset), (f"k{number}", offset)]
        elif action == "cut":
            index.truncate(number)
            model = [entry for entry in model if entry[1] < number]
            offset = max((entry[1] for entry in model), default=0)
        elif action == "delete":
            deleted_to = max(deleted_to, min(number, offset))
            index.delete_before(deleted_to)
        else:
            index.close()
            index = service(folder, units=5)
            index.load()
        for key in {entry[0] for entry in model} | {"none"}:
            expected = [entry[1] for entry in reversed(model) if entry[0] == key]
            found = offsets(index, key)
            assert [value for value in found if value >= deleted_to] == [
                v for v in expected if v >= deleted_to
            ]
            assert set(found) <= set(expected)
    index.close()
