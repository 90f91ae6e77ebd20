"""A broker that refuses to follow its master: the set tells why, and what to do."""

from __future__ import annotations

from typing import Final

import pytest
from tests.e2e.kubernetes.deployed import Deployed
from tests.e2e.kubernetes.rig import Cluster, say, until

OTHER_EPOCHS: Final = """
from pathlib import Path
from brokerset_formats.epochs import decode_epoch_file, encode_epoch_file, history_of
path = Path("/data/store/epochFileCheckpoint")
known = decode_epoch_file(path.read_bytes()).entries
path.write_bytes(encode_epoch_file(history_of([(known[-1].epoch + 7, known[0].start_offset)])))
"""
"""Makes a store whose epochs its group never had, as that of a volume from another time."""


@pytest.mark.slow
def test_a_broker_that_refuses_to_follow_says_why(cluster: Cluster, namespace: str) -> None:
    """Its epochs are not the master's: conditions and the list of brokers have its name, the reason and the advice."""
    orders = Deployed(cluster, namespace)
    orders.create()
    orders.wait_settled()
    with orders.load(rate=20.0) as load:
        load.goes_on()
        load.finish()
    slave = next(pod for pod in sorted(orders.ids()) if pod != orders.master())
    cluster.execute(slave, namespace, "python", "-c", OTHER_EPOCHS)

    orders.delete_pods(slave, force=True)

    def told() -> str:
        problems = {b.get("pod"): b.get("problem") for b in orders.status["groups"][0]["brokers"]}
        if problems.get(slave):
            return str(problems[slave])
        raise ValueError(f"{problems}, {orders.condition('Degraded')}")

    problem = until("the broker's reason is told", told, 120)
    say(f"{slave}: {problem}")
    message = orders.condition("Degraded")["message"]
    assert slave in message
    assert "not in sync" in message
    assert orders.condition("Ready")["status"] == "False"
