"""Who reaches Spark's ports in pods of a job with executors: each row of the table in docs/security.md."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import pytest
from tests.unit.operator.store_jobs.test_job_objects import (
    export_objects,
    migration_objects,
    spark_settings,
)

from brokerset_operator.store_jobs import labels
from brokerset_operator.store_jobs.spark_network import BLOCKS_PORT, DRIVER_PORT, NETWORK_SETTINGS
from brokerset_rig.network_policies import Outside, Pod, allowed

PAGE: Final = Path(__file__).parents[4] / "docs" / "security.md"

SPARK_LABELS: Final = {"spark-role": "executor", "spark-exec-id": "1", "spark-app-selector": "spark-4f"}
"""Some of those that Spark adds to what the template says."""


def of_job(run: int, *, owner: str = "lake", step: str = labels.LAKE, namespace: str = "shop") -> Pod:
    """A pod of a run of a StoreExport."""
    return Pod(namespace, labels.labels(labels.EXPORT, owner, run=run, step=step))


def made() -> tuple[list[dict[str, Any]], Pod, Pod]:
    """Policies of a run, its driver, and an executor."""
    objects = export_objects(executors={"instances": 2})
    policies = [each for each in objects if each["kind"] == "NetworkPolicy"]
    driver = next(each for each in objects if each["kind"] == "Job")["spec"]["template"]["metadata"]["labels"]
    template = next(each["data"] for each in objects if "executor.yaml" in each.get("data", {}))
    executor = json.loads(template["executor.yaml"])["metadata"]["labels"]
    return policies, Pod("shop", driver), Pod("shop", {**executor, **SPARK_LABELS})


POLICIES, DRIVER, EXECUTOR = made()
RUN: Final = int(DRIVER.labels[labels.RUN])

SOURCES: Final[Mapping[str, tuple[Pod | Outside, ...]]] = {
    "driver and executors of the same Job": (DRIVER, EXECUTOR),
    "other jobs on store files": (
        of_job(RUN + 1),
        of_job(RUN, owner="other"),
        of_job(RUN, step=labels.REDUCE),
        of_job(RUN, namespace="elsewhere"),
    ),
    "pods of sets, the operator, other pods": (
        Pod("shop", {"brokerset.io/set": "orders", "app.kubernetes.io/component": "broker"}),
        Pod("brokerset-system", {"app.kubernetes.io/name": "brokerset"}),
        Pod("shop", {"app": "checkout"}),
    ),
    "outside the cluster": (Outside("203.0.113.7"),),
}
"""Who connects, for each row of the table."""


def rows() -> dict[str, dict[str, str]]:
    """Rows of the page's table, by who connects."""
    block = PAGE.read_text().split("\n#### Spark's driver and executors\n")[1].split("\n#")[0]
    head, _, *found = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*$", block, re.M)
    ]
    return {row[0]: dict(zip(head[1:], row[1:], strict=True)) for row in found}


def test_the_page_says_who_connects_to_which_port() -> None:
    """Each row has somebody who tries, and the head has the ports."""
    assert list(rows()) == list(SOURCES)
    assert all(row.keys() == {f"{DRIVER_PORT}, {BLOCKS_PORT}", "others"} for row in rows().values())


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("target", [DRIVER, EXECUTOR], ids=["driver", "executor"])
def test_only_pods_of_the_same_job_reach_sparks_ports(source: str, target: Pod) -> None:
    """And nobody reaches any other port of these pods."""
    expected = rows()[source]

    for one in SOURCES[source]:
        for port in (DRIVER_PORT, BLOCKS_PORT):
            assert allowed(one, target, port, POLICIES) is (expected["7078, 7079"] == "yes"), one
        assert allowed(one, target, 4040, POLICIES) is (expected["others"] == "yes"), one


def test_the_policy_is_there_before_the_job_and_goes_with_its_owner() -> None:
    """It selects nothing but the job's pods."""
    objects = export_objects(executors={"instances": 2})
    kinds = [each["kind"] for each in objects]

    assert kinds.index("NetworkPolicy") < kinds.index("Job")
    (policy,) = POLICIES
    assert [each["kind"] for each in policy["metadata"]["ownerReferences"]] == ["StoreExport"]
    assert allowed(Pod("shop"), of_job(RUN + 1), DRIVER_PORT, POLICIES), "those of another run have their own"


@pytest.mark.parametrize(
    "objects",
    [export_objects, lambda **more: migration_objects(engine="spark", **more)],
    ids=["export", "migration"],
)
def test_spark_authenticates_and_encrypts_wherever_it_has_executors(objects: Any) -> None:
    """No secret is in what the operator writes: Spark makes it."""
    with_executors, alone = objects(executors={"instances": 2}), objects()

    assert spark_settings(with_executors).items() >= NETWORK_SETTINGS.items()
    assert "spark.authenticate.secret" not in json.dumps(with_executors)
    assert not [each for each in alone if each["kind"] == "NetworkPolicy"], (
        "such a driver listens on loopback"
    )
