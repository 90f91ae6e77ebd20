"""Which names and ranges of the store stream mean what."""

from __future__ import annotations

import pytest

from brokerset_broker.outside.store_stream.names import Kind, split_path, wanted
from brokerset_broker.outside.store_stream.ranges import Part, wanted_part

LOG = "commitlog/00000000000000000000"


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        (LOG, Kind.LOG),
        ("consumequeue/a%2Db/0/00000000000000006000", Kind.QUEUE),
        ("consumequeue/%25RETRY%25g/12/00000000000000000000", Kind.QUEUE),
        ("index/20260101000000000", Kind.INDEX),
        ("checkpoint", Kind.SMALL),
        ("epochFileCheckpoint.bak", Kind.SMALL),
        ("config/topics.json", Kind.SMALL),
        ("config/consumerOffset.json.bak", Kind.SMALL),
    ],
)
def test_the_files_of_a_store_have_names(path: str, kind: Kind) -> None:
    """Log, queues, index and the named small files are served."""
    parts = split_path(path)

    assert parts is not None
    found = wanted(parts)
    assert found is not None
    assert found.kind is kind


@pytest.mark.parametrize(
    "path",
    [
        "", "/", ".", "..", "lock", "%6cock", "abort/", "/abort", "brokerIdentity-temp",
        "brokerIdentity-start", "removal", "checkpoint.tmp", "commitlog", "commitlog/1", f"{LOG}/x",
        f"{LOG}%00", f"./{LOG}", "commitlog/%2e%2e", "commitlog/..%2Flock",
        "consumequeue/../0/00000000000000000000", "consumequeue/a%2Fb/0/00000000000000000000",
        "consumequeue/a/00/00000000000000000000", "consumequeue/a/-1/00000000000000000000", "index/1",
        "config/plain_acl.yml", "config/delayOffset.json.tmp", "%ff", "%",
        "consumequeue//0/00000000000000000000", "commitlog/００００００００００００００００００００",
        "x" * 5_000,
    ],
)  # fmt: skip
def test_everything_else_has_none(path: str) -> None:
    """Other names, and other spellings of good ones, lead nowhere."""
    parts = split_path(path)

    assert parts is None or wanted(parts) is None


@pytest.mark.parametrize(
    ("header", "part"),
    [
        (None, Part(0, 100, True)),
        ("bytes=0-", Part(0, 100, False)),
        ("bytes=10-19", Part(10, 20, False)),
        ("bytes=99-99", Part(99, 100, False)),
        ("bytes=90-500", Part(90, 100, False)),
        ("bytes=-7", Part(93, 100, False)),
        ("bytes=-700", Part(0, 100, False)),
        ("bytes=100-", None),
        ("bytes=100-200", None),
        ("bytes=-0", None),
        ("bytes=20-10", Part(0, 100, True)),
        ("bytes=-", Part(0, 100, True)),
        ("bytes=1-2,5-6", Part(0, 100, True)),
        ("bytes=a-b", Part(0, 100, True)),
        ("items=1-2", Part(0, 100, True)),
        ("bytes=" + "9" * 40 + "-", Part(0, 100, True)),
    ],
)
def test_a_range_is_what_the_rfc_says(header: str | None, part: Part | None) -> None:
    """First and last byte, the last n bytes, clipped to what there is; nonsense means the whole."""
    assert wanted_part(header, None, '"tag"', 100) == part


def test_if_range_needs_the_same_tag() -> None:
    """Another tag, a weak one and a date bring the whole, also where the range alone would be refused."""
    assert wanted_part("bytes=1-2", '"tag"', '"tag"', 100) == Part(1, 3, False)
    for other in ('"other"', 'W/"tag"', "Sun, 22 Nov 2026 07:24:46 GMT"):
        assert wanted_part("bytes=500-", other, '"tag"', 100) == Part(0, 100, True)


def test_an_empty_file_has_no_range() -> None:
    """Of nothing there is the whole, and no part."""
    assert wanted_part(None, None, '""', 0) == Part(0, 0, True)
    assert wanted_part("bytes=0-", None, '""', 0) is None
    assert wanted_part("bytes=-5", None, '""', 0) is None
