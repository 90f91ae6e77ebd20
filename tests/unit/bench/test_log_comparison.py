"""The demo's comparison of logs sees one wrong byte, wherever it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerset_bench.log_comparison import CHUNK_BYTES, digest, first_difference

FILE_BYTES = CHUNK_BYTES + 1000


def _log(folder: Path, name: str, content: bytes, first: int = 0) -> Path:
    log = folder / name
    log.mkdir()
    for start in range(0, len(content), FILE_BYTES):
        (log / f"{first + start:020d}").write_bytes(
            content[start : start + FILE_BYTES].ljust(FILE_BYTES, b"\0")
        )
    return log


CONTENT = bytes(range(256)) * (3 * FILE_BYTES // 256)


def test_equal_logs_have_one_digest_whatever_lies_behind_the_end(tmp_path: Path) -> None:
    end = len(CONTENT) - 500
    one = _log(tmp_path, "one", CONTENT)
    two = _log(tmp_path, "two", CONTENT[:end] + b"x" * 500)

    assert digest(one, 100, end) == digest(two, 100, end)
    assert digest(one, 100, end) != digest(two, 100, end + 1)
    assert first_difference([one, two], 100, end) == end


@pytest.mark.parametrize("at", [0, 1, CHUNK_BYTES, FILE_BYTES - 1, FILE_BYTES, 2 * FILE_BYTES + 77])
def test_the_first_byte_that_differs_is_found(tmp_path: Path, at: int) -> None:
    other = bytearray(CONTENT)
    other[at] ^= 1
    logs = [
        _log(tmp_path, "a", CONTENT),
        _log(tmp_path, "b", CONTENT),
        _log(tmp_path, "c", bytes(other)),
    ]

    assert digest(logs[0], 0, len(CONTENT)) != digest(logs[2], 0, len(CONTENT))
    assert first_difference(logs, 0, len(CONTENT)) == at


def test_a_log_that_begins_later_is_compared_from_there(tmp_path: Path) -> None:
    one = _log(tmp_path, "one", CONTENT)
    late = _log(tmp_path, "late", CONTENT[FILE_BYTES:], FILE_BYTES)

    assert digest(one, FILE_BYTES, len(CONTENT)) == digest(late, FILE_BYTES, len(CONTENT))
    with pytest.raises(ValueError, match="has nothing at offset 0"):
        digest(late, 0, len(CONTENT))
