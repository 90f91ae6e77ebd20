"""Spark with the network settings of jobs that have executors: who gets in, with real executors."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from brokerset_operator.store_jobs.spark_network import NETWORK_SETTINGS
from brokerset_rig.spark_session import missing_java

pytestmark = pytest.mark.long

SECRET = "of-this-application"
"""On Kubernetes Spark makes one; on a cluster of this machine somebody has to."""

PROGRAM = """
import json, os, sys
from brokerset_spark.jobs.session import open_session

secret, network = sys.argv[1], json.loads(sys.argv[2])
with open_session(workers=2, master="local-cluster[2,1,1024]") as spark:
    context, java = spark.sparkContext, spark.sparkContext._jvm
    pairs = context.parallelize(range(20), 4).map(lambda number: (number % 3, b"x" * (1 << 20)))
    shuffled = pairs.groupByKey(2).mapValues(lambda values: sum(map(len, values))).collect()
    value = context.broadcast(os.urandom(8 << 20))
    read = context.parallelize(range(2), 2).map(lambda _: len(value.value)).collect()
    port = int(context.getConf().get("spark.driver.port"))

    def outsider(**settings):
        conf = java.org.apache.spark.SparkConf(False)
        conf.set("spark.rpc.lookupTimeout", "30s")
        for name, each in settings.items():
            conf.set(name.replace("_", "."), each)
        manager = java.org.apache.spark.SecurityManager
        defaults = [getattr(manager, f"$lessinit$greater$default${number}")() for number in (2, 3)]
        env = java.org.apache.spark.rpc.RpcEnv.create(
            "outsider", "127.0.0.1", 0, conf, manager(conf, *defaults), True
        )
        try:
            env.setupEndpointRef(java.org.apache.spark.rpc.RpcAddress("127.0.0.1", port), "MapOutputTracker")
        except Exception:
            return "refused"
        finally:
            env.shutdown()
        return "let in"

    print(json.dumps({
        "shuffled": sum(size for _, size in shuffled),
        "read": read,
        "who knows the secret": outsider(**network, spark_authenticate_secret=secret),
        "another secret": outsider(**network, spark_authenticate_secret="of-another-one"),
        "no secret": outsider(),
        "the secret, in plain text": outsider(spark_authenticate="true", spark_authenticate_secret=secret),
    }))
"""


def test_executors_work_and_who_does_not_know_the_secret_is_refused() -> None:
    """Blocks larger than a frame pass between executors and the driver. Whoever has not the secret, or does
    not encrypt, gets no endpoint of the driver."""
    problem = missing_java()
    if problem is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(problem)
        pytest.skip(problem)
    settings = {**NETWORK_SETTINGS, "spark.authenticate.secret": SECRET, "spark.executor.memory": "512m"}
    given = " ".join([*(f"--conf {name}={value}" for name, value in settings.items()), "pyspark-shell"])

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, SECRET, json.dumps(dict(NETWORK_SETTINGS))],
        capture_output=True, text=True, timeout=300, check=False,
        env={**os.environ, "PYSPARK_SUBMIT_ARGS": given},
    )  # fmt: skip

    assert done.returncode == 0, done.stderr[-8_000:]
    assert json.loads(done.stdout.splitlines()[-1]) == {
        "shuffled": 20 << 20,
        "read": [8 << 20] * 2,
        "who knows the secret": "let in",
        "another secret": "refused",
        "no secret": "refused",
        "the secret, in plain text": "refused",
    }
