"""`consumerFilter.json`: a file that `ConsumerFilterManager` of Java wrote, and what is done with it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from brokerset_broker.filters.bloom import BloomBits, BloomParameters
from brokerset_broker.filters.filter_data import KEPT_MS, FilterData, FilterFile
from brokerset_formats.errors import FormatError

JAVA_FILE = """{
	"filterDataByTopic":{
		"T":{
			"groupFilterData":{
				"g":{
					"bloomFilterData":{
						"bitNum":216,
						"bitPos":[162,52,132]
					},
					"bornTime":1795745781091,
					"clientVersion":1700000000001,
					"consumerGroup":"g",
					"dead":false,
					"deadTime":0,
					"expression":"a > 5",
					"expressionType":"SQL92",
					"topic":"T"
				},
				"h":{
					"bloomFilterData":{
						"bitNum":216,
						"bitPos":[182,11,194]
					},
					"bornTime":1795745781200,
					"clientVersion":1700000000002,
					"consumerGroup":"h",
					"dead":true,
					"deadTime":1795745781205,
					"expression":"b = 'x\\"ä'",
					"expressionType":"SQL92",
					"topic":"T"
				}
			},
			"topic":"T"
		}
	}
}"""

G = FilterData(
    topic="T",
    group="g",
    expression="a > 5",
    client_version=1700000000001,
    born_ms=1795745781091,
    bloom=BloomBits(216, (162, 52, 132)),
)
H = FilterData(
    topic="T",
    group="h",
    expression="b = 'x\"ä'",
    client_version=1700000000002,
    born_ms=1795745781200,
    dead_ms=1795745781205,
    bloom=BloomBits(216, (182, 11, 194)),
)


def test_a_file_of_java_is_read() -> None:
    """Every field; which group is gone follows from the times."""
    file = FilterFile.decode(JAVA_FILE.encode())

    assert file == FilterFile({"T": {"g": G, "h": H}})
    assert [G.is_dead, H.is_dead] == [False, True]


def test_what_is_written_is_what_java_writes() -> None:
    """The same JSON, with Java's derived field; and the bits are those that Java gave."""
    file = FilterFile({"T": {"g": G, "h": H}, "empty": {}})

    assert json.loads(file.encode()) == json.loads(JAVA_FILE)
    assert FilterFile.decode(file.encode()) == FilterFile({"T": {"g": G, "h": H}})
    for data in (G, H):
        assert BloomParameters.of_settings(20, 64).bits_of(data.group, "T") == data.bloom


def test_java_reads_a_file_only_if_all_bits_fit_its_settings() -> None:
    """One group without bits is enough for Java to ignore all."""
    fitting = FilterFile({"T": {"g": G, "h": H}})
    lacking = FilterFile({"T": {"g": G, "h": replace(H, bloom=None)}})

    assert fitting.fits(BloomParameters.of_settings(20, 64))
    assert not fitting.fits(BloomParameters.of_settings(20, 32))
    assert not lacking.fits(BloomParameters.of_settings(20, 64))


def test_the_shortest_files_are_read() -> None:
    """Null entries are skipped, and what is missing has its default."""
    file = FilterFile.decode(b'{"filterDataByTopic":{"T":{"groupFilterData":{"g":{},"n":null}},"U":null}}')

    assert file.filters == {
        "T": {"g": FilterData(topic="T", group="g", expression="", client_version=0, born_ms=0)}
    }
    assert FilterFile.decode(b"{}") == FilterFile()


@pytest.mark.parametrize(
    "text",
    [
        '{"filterDataByTopic":[]}',
        '{"filterDataByTopic":{"T":{"groupFilterData":{"g":5}}}}',
        '{"filterDataByTopic":{"T":{"groupFilterData":{"g":{"bornTime":"soon"}}}}}',
        '{"filterDataByTopic":{"T":{"groupFilterData":{"g":{"bloomFilterData":{"bitPos":5}}}}}}',
        '{"filterDataByTopic":{"T":{"groupFilterData":{"g":{"bloomFilterData":{"bitPos":["x"]}}}}}}',
    ],
)
def test_another_form_is_an_error(text: str) -> None:
    """Nothing else is raised; the backup is read then."""
    with pytest.raises(FormatError):
        FilterFile.decode(text.encode())


def test_after_a_start_every_group_is_gone_since_thirty_seconds() -> None:
    """But not since before it came; a group that was gone before stays so."""
    assert G.loaded(G.born_ms + 100_000).dead_ms == G.born_ms + 70_000
    assert G.loaded(G.born_ms + 5).dead_ms == G.born_ms
    assert G.loaded(G.born_ms + 5).is_dead
    assert H.loaded(H.born_ms + 100_000) == H


def test_a_group_that_is_gone_for_a_day_is_removed() -> None:
    """Its filter is kept for a restart of the consumer; one that is there is never removed."""
    gone = G.left(G.born_ms + 10)

    assert gone.left(G.born_ms + 99) == gone
    assert not gone.is_expired(G.born_ms + 10 + KEPT_MS - 1)
    assert gone.is_expired(G.born_ms + 10 + KEPT_MS)
    assert gone.is_expired(G.born_ms + 30, kept_ms=20)
    assert not G.is_expired(G.born_ms + 10 * KEPT_MS)
