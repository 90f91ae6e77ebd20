"""A member goes on with the store of a Java broker: whether its files or the log have the newer metadata."""

from __future__ import annotations

from pathlib import Path

import pytest

from brokerset_broker.member.dledger.ledger_member import trust_java_files
from brokerset_broker.store.ledger_store import LedgerStore
from brokerset_broker.tables.metadata.stamp import Stamp, StampFile
from brokerset_formats.dledger import CurrentTerm
from brokerset_runtime.clock import ManualClock
from brokerset_runtime.disk import RealDisk
from brokerset_spec.broker_settings import BrokerSettings


@pytest.mark.parametrize(
    ("java_led", "before", "trusted"),
    [(True, None, True), (True, Stamp(0), False), (False, None, False)],
    ids=["files of Java's", "files of ours", "our leader wrote into the log"],
)
def test_files_that_java_left_stand_for_the_log(
    tmp_path: Path, java_led: bool, before: Stamp | None, trusted: bool
) -> None:
    """Else an older snapshot in the log would undo what was made under the leader of Java."""
    settings = BrokerSettings(
        store_path_root_dir=tmp_path,
        mapped_file_size_commit_log=65_536,
        max_message_size=20_000,
        enable_dledger_commit_log=True,
        dledger_peers="n0-127.0.0.1:1",
        dledger_self_id="n0",
    )
    store = LedgerStore(settings, ManualClock())
    store.load()
    store.ledger.write_term(CurrentTerm(1))
    if not java_led:
        store.ledger.begin_term(1)
    store.ledger.append_body(1, b"x" * 100)
    store.ledger.commit(store.ledger.end_index)
    for _ in range(3):
        store.committed()
    config = tmp_path / "config"
    config.mkdir()
    stamp = StampFile(RealDisk(config))
    if before is not None:
        stamp.save(before)

    trust_java_files(stamp, store)

    assert stamp.load() == (Stamp(store.max_offset) if trusted else before)
    store.abandon()
