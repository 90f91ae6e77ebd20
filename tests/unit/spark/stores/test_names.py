"""Names of a store that is listed as a whole: answers as of a local folder, and linear work."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_spark.stores.folder import FileFacts, LocalFolder
from brokerset_spark.stores.http_folder import HttpFolder
from brokerset_spark.stores.layout import look
from brokerset_spark.stores.names import NameTree

NAME = st.sampled_from(["a", "b", "c", "00000000000000000000"])
PATHS = st.lists(NAME, min_size=1, max_size=4).map("/".join)


@given(st.sets(PATHS, max_size=12))
def test_answers_are_those_of_a_folder(tmp_path_factory: pytest.TempPathFactory, paths: set[str]) -> None:
    """Each question about files and folders has the answer that a local folder with these files gives."""
    root = tmp_path_factory.mktemp("store")
    files = {path for path in paths if not any(other.startswith(path + "/") for other in paths)}
    for path in files:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    local = LocalFolder(root)
    tree = NameTree(FileFacts(path, 0, 0) for path in files)

    asked = {"", "a", "missing", *(path.rpartition("/")[0] for path in paths)}

    for folder in asked:
        assert tree.folders(folder) == local.folders(folder)
        assert [each.path for each in tree.files(folder)] == [each.path for each in local.files(folder)]


def calls_to_list(queues: int, monkeypatch: pytest.MonkeyPatch) -> int:
    """How many functions, of C and of Python, are called to list a stream with so many queues."""
    names = [
        {"path": f"consumequeue/topic-{number // 8}/{number % 8}/{0:020}", "size": 6_000_000, "mtime": 1}
        for number in range(queues)
    ]

    def ask(self: HttpFolder, request: str, path: str, expected: tuple[int, ...]) -> tuple[int, bytes]:
        if not request.startswith("/files?"):
            raise FileNotFoundError(request)
        return 200, orjson.dumps({"files": names, "next": None})

    monkeypatch.setattr(HttpFolder, "_ask", ask)
    count = [0]

    def note(frame: Any, event: str, argument: Any) -> None:
        count[0] += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(note)
    try:
        facts = look(HttpFolder("http://localhost:1/store"))
    finally:
        sys.setprofile(before)
    assert len(facts.queues) == queues
    return count[0]


def test_a_stream_is_listed_in_time_linear_in_its_queues(monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as many queues are at most a little more than twice the work."""
    few, many = calls_to_list(400, monkeypatch), calls_to_list(800, monkeypatch)

    assert many < 2.2 * few


def test_a_name_is_a_file_or_a_folder_of_one_place_only(tmp_path: Path) -> None:
    """Folders deep below are not told as those of the root, and no prefix of a name counts as its folder."""
    tree = NameTree([FileFacts("index", 1, 0), FileFacts("index-old/a/b", 2, 0)])

    assert tree.folders("") == ["index-old"]
    assert [each.path for each in tree.files("")] == ["index"]
    assert tree.folders("index") == []
