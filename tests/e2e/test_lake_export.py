"""The lake export of a whole BrokerSet, pass after pass, while masters are killed: the table equals the topic."""

from __future__ import annotations

import os
import signal
from collections import Counter
from pathlib import Path

import pytest

from brokerset_rig.lake_tables import FORMATS, LakeAt
from brokerset_rig.local_set import Sending, local_set
from brokerset_rig.ordered_run import MANIFEST, master_of
from brokerset_spark.jobs.lake.exporting import LakeOptions, export_pass
from brokerset_spark.jobs.report import JobFailed
from brokerset_spark.jobs.running import LocalRunner
from brokerset_spark.topics.client_thread import client_of

PASSES = 8


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("kind", FORMATS)
def test_the_table_equals_the_topic_while_masters_are_killed(tmp_path: Path, kind: str) -> None:
    """Each message that was acknowledged is in the table, and each (broker, queue, offset) is there once."""
    lake = LakeAt.make(kind, str(tmp_path / "lake"), tmp_path)
    with local_set(tmp_path, MANIFEST) as local:
        local.until_healthy()
        local("topic", "create", "letters", "--queues", "4")
        name_servers = str(local.state()["namesrv"])
        options = LakeOptions(
            name_servers=name_servers, topics=("letters",), messages_per_task=100, **lake.options()
        )
        failures = []

        def export() -> int:
            try:
                return export_pass(LocalRunner(2), options).messages
            except JobFailed as error:
                failures.append(str(error))
                return 0

        with Sending(local, "letters", pause=0.002, at_least=50) as sending:
            for number in range(PASSES):
                if number in (2, 5):
                    view = local.until(lambda each: bool(master_of(each, "orders-0")), "a master")
                    os.kill(local.processes("broker")[master_of(view, "orders-0")]["pid"], signal.SIGKILL)
                export()
        local.until_healthy()
        while export():
            pass
        client_of(name_servers).close()

    rows = lake.rows()
    places = Counter((each["brokerName"], each["queueId"], each["queueOffset"]) for each in rows)
    bodies = {each["body"].decode() for each in rows}
    assert set(places.values()) == {1}
    assert set(sending.acknowledged) <= bodies
    assert {each["event"] for each in lake.rows("control")} <= {"queue-added", "queue-gone"}
    for broker, queue in {place[:2] for place in places}:
        offsets = [at for name, number, at in places if (name, number) == (broker, queue)]
        assert sorted(offsets) == list(range(len(offsets)))
