"""The Jobs that are made, compared with a file that people have read; what their pods may and may not do."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.unit.operator.store_jobs.worlds import (
    NIGHT,
    AuditWorld,
    ExportWorld,
    audit_manifest,
    enforcing_set,
    export_manifest,
    migration_manifest,
    observed_migration,
)

from brokerset_operator.model.actions import ApplyObject
from brokerset_operator.resources.pod_parts import USER_ID
from brokerset_operator.store_jobs import labels
from brokerset_operator.store_jobs.job_objects import GRACE_SECONDS, TTL_SECONDS
from brokerset_operator.store_jobs.migration_plan import plan_migration
from brokerset_spec.store_audit_manifest import read_store_audit
from brokerset_spec.store_export_manifest import read_store_export
from brokerset_spec.store_migration_manifest import read_store_migration

FOLDER = Path(__file__).parent / "golden"

FULL = {
    "limits": {"maxBytesPerSecond": "100Mi", "resources": {"limits": {"cpu": "1500m", "memory": "1Gi"}}},
    "report": {"claimName": "audit-reports", "keepRuns": 7},
}


def audit_objects(**spec: Any) -> list[dict[str, Any]]:
    """Everything that a run makes, in its order."""
    world = AuditWorld(
        manifest=read_store_audit(audit_manifest(**spec)),
        spark_role="ClusterRole/system:driver",
        report_is_shared=True,
    )
    world.reconcile(now=NIGHT)
    world.run()
    return [
        dict(action.manifest)
        for plan in world.plans
        for action in plan.actions
        if isinstance(action, ApplyObject)
    ]


def export_objects(**spec: Any) -> list[dict[str, Any]]:
    """Everything that a run makes, in its order."""
    manifest = read_store_export(export_manifest(**spec))
    world = ExportWorld(manifest=manifest, spark_role="ClusterRole/system:driver")
    world.begin()
    return world.made


def enforcing_export_objects(**spec: Any) -> list[dict[str, Any]]:
    """The same of a set that takes TLS alone and checks users."""
    manifest = read_store_export(export_manifest(credentials={"secretName": "lake-credentials"}, **spec))
    world = ExportWorld(manifest=manifest, exported=enforcing_set(), spark_role="ClusterRole/system:driver")
    world.begin()
    return world.made


def migration_objects(**spec: Any) -> list[dict[str, Any]]:
    """What the first round of the copy makes."""
    observed = observed_migration(
        manifest=read_store_migration(migration_manifest(**spec)),
        status={"phase": "Running"},
        spark_role="Role/driver",
    )
    return [dict(each.manifest) for each in plan_migration(observed).actions if isinstance(each, ApplyObject)]


OBJECTS = {
    "audit": lambda: audit_objects(**FULL),
    "migration": lambda: migration_objects(engine="spark", executors={"instances": 2}),
    "export": lambda: export_objects(executors={"instances": 2}),
    "export-enforcing": lambda: enforcing_export_objects(executors={"instances": 2}),
}


@pytest.mark.parametrize("name", sorted(OBJECTS))
def test_all_objects_of_a_job_are_as_written_down(name: str, pytestconfig: pytest.Config) -> None:
    """To the letter; `pytest --rewrite` writes the files again, and the difference is to be reviewed."""
    file = FOLDER / f"{name}.yaml"

    found = yaml.safe_dump_all(json.loads(json.dumps(OBJECTS[name]())), width=120)

    if pytestconfig.getoption("--rewrite"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(found, encoding="utf-8")
    assert found == file.read_text(encoding="utf-8"), "read the difference, then run pytest with --rewrite"


def pods(objects: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each["spec"]["template"]["spec"] for each in objects if each["kind"] == "Job"]


@pytest.mark.parametrize(
    "make",
    [audit_objects, migration_objects, export_objects, enforcing_export_objects],
    ids=["audit", "migration", "export", "enforcing"],
)
def test_pods_of_jobs_satisfy_the_restricted_standard_and_have_no_token(make: Any) -> None:
    """The brokers' user, nothing from the host, nothing of the API."""
    found = pods(make())
    assert found

    for pod in found:
        assert pod["automountServiceAccountToken"] is False
        assert "serviceAccountName" not in pod
        security = pod["securityContext"]
        assert (security["runAsNonRoot"], security["runAsUser"], security["fsGroup"]) == (
            True,
            USER_ID,
            USER_ID,
        )
        assert security["seccompProfile"] == {"type": "RuntimeDefault"}
        assert {key for volume in pod["volumes"] for key in volume} <= {
            "name",
            "persistentVolumeClaim",
            "projected",
            "emptyDir",
        }
        (container,) = pod["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }


def test_a_map_reads_its_brokers_volume_on_its_node_and_cannot_write_it() -> None:
    """Read-only as a volume and as a mount."""
    maps = [pod for pod in pods(audit_objects()) if "affinity" in pod]
    assert len(maps) == 3

    for ordinal, pod in enumerate(maps):
        (volume,) = (each for each in pod["volumes"] if each["name"] == "store")
        assert volume["persistentVolumeClaim"] == {"claimName": f"data-orders-0-{ordinal}", "readOnly": True}
        (mount,) = (each for each in pod["containers"][0]["volumeMounts"] if each["name"] == "store")
        assert mount["readOnly"] is True
        (term,) = pod["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        assert term["topologyKey"] == "kubernetes.io/hostname"
        chosen = {"statefulset.kubernetes.io/pod-name": f"orders-0-{ordinal}"}
        assert term["labelSelector"] == {"matchLabels": chosen}


def test_nothing_of_a_job_looks_like_a_part_of_the_set() -> None:
    """The operator takes what has the set's label for a part of it: it would delete it, or wait for it."""
    for each in audit_objects(engine="spark", executors={"instances": 1}):
        texts = [each["metadata"]["labels"]]
        if each["kind"] == "Job":
            texts.append(each["spec"]["template"]["metadata"]["labels"])
        for found in texts:
            assert "brokerset.io/set" not in found
            assert found[labels.OWNER] == "nightly"


def test_executors_may_have_pods_and_never_touch_claims() -> None:
    """Spark deletes claims by label unless it is told not to; brokers' are in the same namespace."""
    objects = migration_objects(engine="spark", executors={"instances": 2})
    (job,) = (each for each in objects if each["kind"] == "Job")
    pod = job["spec"]["template"]["spec"]
    (arguments,) = (
        each["value"] for each in pod["containers"][0]["env"] if each["name"] == "PYSPARK_SUBMIT_ARGS"
    )
    settings = dict(each.split("=", 1) for each in arguments.split() if "=" in each)

    assert settings["spark.kubernetes.driver.ownPersistentVolumeClaim"] == "false"
    assert settings["spark.kubernetes.driver.service.deleteOnTermination"] == "false"
    assert settings["spark.executor.instances"] == "2"
    for name in ("spark.driver.host", "spark.driver.bindAddress"):
        assert settings[name] == "$(POD_IP)", "executors connect to the address that the driver listens on"
    source = "spark.kubernetes.executor.volumes.persistentVolumeClaim.source"
    assert settings[f"{source}.mount.readOnly"] == "true"
    (binding,) = (each for each in objects if each["kind"] == "RoleBinding")
    assert binding["roleRef"]["name"] == "driver"
    assert binding["subjects"][0]["name"] == pod["serviceAccountName"] == "take-over-migrate-driver"
    names = [each["name"] for each in pod["containers"][0]["env"]]
    assert names.index("POD_IP") < names.index("PYSPARK_SUBMIT_ARGS"), (
        "Kubernetes fills in what stands before"
    )
    (template,) = (each["data"]["executor.yaml"] for each in objects if each["kind"] == "ConfigMap")
    executor = json.loads(template)["spec"]
    assert executor["automountServiceAccountToken"] is False
    assert executor["containers"][0]["securityContext"]["readOnlyRootFilesystem"] is True


def spark_settings(objects: list[dict[str, Any]]) -> dict[str, str]:
    """What the first Job tells Spark; empty when it tells nothing."""
    job = next(each for each in objects if each["kind"] == "Job")
    variables = job["spec"]["template"]["spec"]["containers"][0]["env"]
    said = next((each["value"] for each in variables if each["name"] == "PYSPARK_SUBMIT_ARGS"), "")
    return dict(each.split("=", 1) for each in said.split() if "=" in each)


@pytest.mark.parametrize(
    ("resources", "cores", "asked", "most", "heap", "rest"),
    [
        ({}, "1", "1", None, "512m", "1024m"),
        ({"requests": {"cpu": "500m"}}, "1", "500m", None, "512m", "1024m"),
        ({"limits": {"cpu": "2500m"}}, "3", "2500m", "2500m", "512m", "1024m"),
        ({"requests": {"cpu": 1}, "limits": {"cpu": 4}}, "4", "1", "4", "512m", "1024m"),
        ({"limits": {"memory": "1Gi"}}, "1", "1", None, "512m", "512m"),
        ({"requests": {"memory": "6Gi"}}, "1", "1", None, "2048m", "4096m"),
        ({"requests": {"memory": "3G"}, "limits": {"memory": "3G"}}, "1", "1", None, "953m", "1908m"),
    ],
)
def test_executors_have_the_resources_that_the_manifest_says(
    resources: dict[str, Any], cores: str, asked: str, most: str | None, heap: str, rest: str
) -> None:
    """Java's heap takes a third of the memory; Python processes, which hold the records, have the rest."""
    settings = spark_settings(
        migration_objects(engine="spark", executors={"instances": 2, "resources": resources})
    )

    assert settings["spark.executor.cores"] == cores
    assert settings["spark.kubernetes.executor.request.cores"] == asked
    assert settings.get("spark.kubernetes.executor.limit.cores") == most
    assert (settings["spark.executor.memory"], settings["spark.executor.memoryOverhead"]) == (heap, rest)


@pytest.mark.parametrize("executors", [{}, {"instances": 1}])
def test_the_heap_of_a_driver_fits_its_pod(executors: dict[str, Any]) -> None:
    """Without a limit Java's default of 1 GiB stays, and the pod asks for so much more than without Spark."""
    small = migration_objects(
        engine="spark", executors=executors, limits={"resources": {"limits": {"memory": "1Gi"}}}
    )
    plain = migration_objects(engine="spark", executors=executors)

    assert spark_settings(small)["spark.driver.memory"] == "512m"
    assert "spark.driver.memory" not in spark_settings(plain)
    (pod,) = pods(plain)
    assert pod["containers"][0]["resources"]["requests"]["memory"] == "1536Mi"
    (pod,) = pods(small)
    assert "memory" not in pod["containers"][0]["resources"]["requests"], "a limit is the request as well"


def test_as_many_tasks_run_at_once_as_executors_have_processors() -> None:
    """The rate of all of them together is what the manifest allows."""
    objects = migration_objects(
        engine="spark", executors={"instances": 3, "resources": {"limits": {"cpu": 2}}}
    )

    (job,) = (each for each in objects if each["kind"] == "Job")
    command = job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[command.index("--workers") + 1] == "6"


@pytest.mark.parametrize("make", [audit_objects, migration_objects], ids=["audit", "migration"])
def test_a_job_ends_and_does_not_begin_again_for_findings(make: Any) -> None:
    """Exit code 1 is a result."""
    for each in make():
        if each["kind"] == "Job":
            spec = each["spec"]
            assert spec["backoffLimit"] == 1
            assert spec["activeDeadlineSeconds"] > 0
            assert spec["ttlSecondsAfterFinished"] == TTL_SECONDS
            assert spec["podFailurePolicy"]["rules"][0]["onExitCodes"]["values"] == [1]
            assert spec["template"]["spec"]["restartPolicy"] == "Never"


@pytest.mark.parametrize("make", [audit_objects, migration_objects], ids=["audit", "migration"])
def test_a_pod_ends_by_its_own_deadline_before_its_job_does(make: Any) -> None:
    """Then it stays, with its log; at a Job's deadline Kubernetes deletes the pods that still run."""
    for each in make():
        if each["kind"] == "Job":
            spec = each["spec"]
            own = spec["template"]["spec"]["activeDeadlineSeconds"]
            assert own > 0
            assert spec["activeDeadlineSeconds"] >= own + GRACE_SECONDS + 5
