"""Who may connect to Spark's driver and executors of a job, and what is on the wire between them.

Two bounds, each for itself: Spark lets in who knows the secret of the application, and a NetworkPolicy lets
in pods of the same Job, where the network of the cluster enforces policies.

Spark makes the secret when the driver starts, another one for each pod of the Job, and gives it to executors
in the environment of their pods (`_SPARK_AUTH_SECRET`): who may read pods of the namespace reads it. A file
from a Secret would hide it there, but takes a right that the operator does without: to make Secrets. Source:
Spark's page on security, and `SecurityManager` and `BasicExecutorFeatureStep` of 4.3.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from brokerset_operator.resources.set_facts import NewObject
from brokerset_operator.store_jobs.job_parts import JobFacts, labels_of, metadata_of

DRIVER_PORT: Final = 7078
"""Where executors register with the driver and are given tasks."""

BLOCKS_PORT: Final = 7079
"""Of the driver and of executors: results, broadcast values and what is shuffled."""

NETWORK_SETTINGS: Final[Mapping[str, str]] = {
    "spark.authenticate": "true",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.authEngineVersion": "2",  # 1, the default, takes a key that no function derived
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",  # AES/CTR, the default, lets others alter what passes
    "spark.network.crypto.saslFallback": "false",  # else who authenticates by SASL goes on in plain text
}
"""Driver and executors have the same image, so nobody needs what older versions of Spark speak."""


def network_policy(facts: JobFacts, name: str) -> NewObject:
    """The ports are for pods of the same Job, driver and executors; nobody else reaches these pods."""
    same_job = {"podSelector": {"matchLabels": labels_of(facts)}}
    ports = [{"port": port, "protocol": "TCP"} for port in (DRIVER_PORT, BLOCKS_PORT)]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata_of(facts, name),
        "spec": {
            **same_job,
            "policyTypes": ["Ingress"],
            "ingress": [{"from": [same_job], "ports": ports}],
        },
    }
