"""The export on a real Spark whose tasks fail, and from a real broker's stream."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import uvloop

from brokerset_broker.app import Broker
from brokerset_rig.replica_stores import Log, write_replica
from brokerset_rig.spark_session import missing_java
from brokerset_rig.stack import free_port
from brokerset_spark.jobs.export.exporting import export
from brokerset_spark.jobs.export.options import ExportOptions
from brokerset_spark.jobs.running import LocalRunner
from brokerset_spec.broker_settings import BrokerSettings

pytestmark = pytest.mark.long

FLAKY = """
import os
from pathlib import Path

from brokerset_spark.jobs.export import writing


def write_range(row):
    '''The first attempt of each task fails when its files are complete, every second one by a kill.'''
    results = list(writing.write_range(row))
    marker = Path(os.environ["FLAKY"]) / str(row["task"])
    if not marker.exists():
        marker.touch()
        if row["task"] % 2:
            os._exit(1)
        raise OSError("the disk is gone")
    yield from results
"""

DRIVER = """
import sys
from pathlib import Path

from brokerset_spark.jobs.export import exporting
from brokerset_spark.jobs.export.options import ExportOptions
from brokerset_spark.jobs.running import SparkRunner
from brokerset_spark.jobs.session import open_session

exporting.TASK = "flaky_export:write_range"
with open_session(workers=2) as spark:
    options = ExportOptions(split_size=65_536)
    report = exporting.export(SparkRunner(spark), sys.argv[1], Path(sys.argv[2]), options)
print(report.to_json().decode())
"""


@pytest.mark.timeout(300)
def test_tasks_that_spark_repeats_write_each_message_once(tmp_path: Path) -> None:
    """Attempts that fail, or whose process dies, after writing everything leave nothing in the export."""
    problem = missing_java()
    if problem is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(problem)
        pytest.skip(problem)
    log = Log()
    log.fill(700)
    store = write_replica(tmp_path / "store", log, confirmed=log.end)
    target = tmp_path / "export"
    (tmp_path / "flaky_export.py").write_text(FLAKY)
    (tmp_path / "driver.py").write_text(DRIVER)
    (tmp_path / "failed").mkdir()

    done = subprocess.run(
        [sys.executable, str(tmp_path / "driver.py"), str(store), str(target)],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")]),
            "FLAKY": str(tmp_path / "failed"),
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )

    assert done.returncode == 0, done.stderr[-3_000:]
    report = json.loads(done.stdout[done.stdout.index("{") :])
    assert report["counters"]["tasks"] == len(list((tmp_path / "failed").iterdir())) > 2
    rows = pq.read_table(target, columns=["commitLogOffset"]).to_pylist()
    assert sorted(row["commitLogOffset"] for row in rows) == log.starts
    written = {str(path.relative_to(target)) for path in target.rglob("*.parquet")}
    assert written == {each["path"] for each in json.loads((target / "_manifest.json").read_text())["files"]}
    assert not (tmp_path / "export.brokerset-staging").exists()


def test_a_running_brokers_messages_are_exported_through_its_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Confirmed messages, and no others, come through a token and a rate; the next export adds the rest."""
    monkeypatch.setenv("BROKERSET_STORE_TOKEN", "secret")
    (tmp_path / "token").write_text("secret")
    settings = BrokerSettings(
        store_path_root_dir=tmp_path / "store", bind_address="127.0.0.1", listen_port=0,
        http_port=free_port(),
        mapped_file_size_commit_log=256 * 1024, max_message_size=65_536, max_hash_slot_num=1_000,
        max_index_num=4_000, store_stream_enable=True, store_stream_token_file=tmp_path / "token",
        max_store_streams=1, broker_name="broker-s",
    )  # fmt: skip
    target = tmp_path / "export"

    def append(broker: Broker, count: int) -> list[int]:
        return [
            broker.store.append(
                "orders",
                0,
                b"%d" % number * 300,
                b"",
                flag=0,
                sys_flag=0,
                born_timestamp=1,
                born_host=bytes(8),
            ).offset
            for number in range(count)
        ]

    def exported(url: str, since: Path | None) -> list[int]:
        export(LocalRunner(), url, target, ExportOptions(split_size=100_000), since_manifest=since)
        return sorted(
            row["commitLogOffset"] for row in pq.read_table(target, columns=["commitLogOffset"]).to_pylist()
        )

    async def main() -> None:
        broker = Broker(settings)
        await broker.start()
        running = asyncio.create_task(broker.run())
        try:
            while not broker.http_port:  # noqa: ASYNC110  # a broker tells nobody
                await asyncio.sleep(0.005)
            url = f"http://127.0.0.1:{broker.http_port}/store"
            offsets = append(broker, 900)
            broker.store.confirmation.replicated = True
            broker.store.confirmation.load(offsets[600])

            assert await asyncio.to_thread(exported, url, None) == offsets[:600]

            offsets += append(broker, 100)
            broker.store.confirmation.load(broker.store.max_offset)
            manifest = target / "_manifest.json"
            assert json.loads(manifest.read_text())["store"]["brokerName"] == "broker-s"
            assert await asyncio.to_thread(exported, url, manifest) == offsets
        finally:
            await broker.close()
            await running

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as loop:
        loop.run(main())
