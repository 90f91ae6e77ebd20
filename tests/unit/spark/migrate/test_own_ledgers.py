"""DLedgers of brokerset: what their brokers write besides messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerset_rig.made_stores import message, write_log
from brokerset_rig.store_reading import queue_problems, read_store
from brokerset_spark.jobs.migrate import MigrateOptions, migrate
from brokerset_spark.jobs.migrate.options import Target
from brokerset_spark.jobs.running import LocalRunner

TERM_TOPIC = "rmq_sys_BROKERSET_TERM"
ROLLED_BACK = 3 << 2

pytestmark = pytest.mark.long


@pytest.mark.parametrize("to", ["commitlog", "dledger"])
@pytest.mark.parametrize("count", [0, 40])
def test_records_that_began_terms_come_along_and_are_in_no_queue(
    tmp_path: Path, to: Target, count: int
) -> None:
    """All have the same queue offset, and brokers pass over them: also where there is nothing else."""
    source, target = tmp_path / "source", tmp_path / "target"
    term = {"topic": TERM_TOPIC, "queue_id": 0, "queue_offset": 0, "sys_flag": ROLLED_BACK}
    records = [message(number, topic="t", queue_id=0, queue_offset=number) for number in range(count)]
    between = [message(0, **term), *records[:9], message(0, **term), *records[9:]]
    write_log(source, between, entries=True)
    (source / "config").mkdir()
    (source / "config" / "topics.json").write_bytes(b'{"topicConfigTable":{"t":{"topicName":"t"}}}')
    (source / "config" / "brokersetMetadata.json").write_bytes(b'{"appliedOffset":100000,"epoch":2,"crc":0}')
    options = MigrateOptions(to=to, rewrite=True, take_uncommitted=True, index_slots=16, index_units=64)

    report = migrate(LocalRunner(), str(source), str(target), options)

    assert report.clean
    kept = [each.record for each in read_store(target)]
    assert [each.body for each in kept if each.topic == "t"] == [each.body for each in records]
    assert [each.topic for each in kept].count(TERM_TOPIC) == 2
    (problem,) = queue_problems(target)
    assert problem.startswith("2 messages are in no queue")
    assert not (target / "consumequeue" / TERM_TOPIC).exists()
