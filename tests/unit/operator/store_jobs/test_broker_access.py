"""How jobs reach brokers that take TLS alone and check users: where secrets are, and where they are not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.operator.store_jobs.worlds import (
    TRUST,
    ExportWorld,
    enforcing_set,
    export_manifest,
)

from brokerset_operator.access_users import secret
from brokerset_operator.store_jobs import reasons
from brokerset_operator.store_jobs.broker_access import (
    CONFIG_FILE,
    SIGNING_VARIABLES,
    TLS_VARIABLE,
    config_data,
)
from brokerset_runtime.remoting.signing import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE
from brokerset_runtime.tls import ENVIRONMENT_VARIABLE, Tls
from brokerset_runtime.tls.authority import Authority
from brokerset_spec.manifest import ManifestError
from brokerset_spec.store_export_manifest import read_store_export

CREDENTIALS = {"secretName": "lake-credentials"}


def begun(**spec: Any) -> ExportWorld:
    """A run of an export with two executors from a set that takes TLS alone and checks users."""
    manifest = read_store_export(export_manifest(credentials=CREDENTIALS, executors={"instances": 2}, **spec))
    world = ExportWorld(manifest=manifest, exported=enforcing_set(), spark_role="ClusterRole/driver")
    world.begin()
    return world


def pod_specs(world: ExportWorld) -> list[dict[str, Any]]:
    """Of the driver, and of executors."""
    job = world.observed.jobs[world.job]
    template = world.observed.maps[f"{world.job}-driver"]["data"]["executor.yaml"]
    return [job["spec"]["template"]["spec"], json.loads(template)["spec"]]


def test_driver_and_executors_connect_in_the_same_way() -> None:
    """Both have the Secret's entries by reference, and both files in one folder that follows a renewal."""
    world = begun()

    for spec in pod_specs(world):
        (container,) = spec["containers"]
        variables = {each["name"]: each for each in container["env"]}
        assert variables[ENVIRONMENT_VARIABLE]["value"] == f"/etc/brokerset-trust/{CONFIG_FILE}"
        for name, key in ((ACCESS_KEY_VARIABLE, "accessKey"), (SECRET_KEY_VARIABLE, "secretKey")):
            wanted = {"secretKeyRef": {"name": "lake-credentials", "key": key}}
            assert variables[name] == {"name": name, "valueFrom": wanted}
        (mount,) = [each for each in container["volumeMounts"] if each["name"] == "broker-trust"]
        assert mount == {"name": "broker-trust", "mountPath": "/etc/brokerset-trust", "readOnly": True}
        (volume,) = [each for each in spec["volumes"] if each["name"] == "broker-trust"]
        sources = {
            each["configMap"]["name"]: each["configMap"]["items"] for each in volume["projected"]["sources"]
        }
        assert sources == {
            "orders-authorities": [{"key": "ca.crt", "path": "ca.crt"}],
            f"{world.job}-trust": [{"key": CONFIG_FILE, "path": CONFIG_FILE}],
        }
    assert world.made[-1]["kind"] == "Job", "what its pods mount is there before it"


def test_the_secret_is_named_and_nothing_else_of_it_is_anywhere() -> None:
    """Not in the command, not in Spark's settings, no label and no annotation: references alone name it."""
    world = begun()

    for made in world.made:
        for spec in pod_specs(world):
            for each in (*spec["containers"][0].get("command", ()), *_values(spec)):
                assert "lake-credentials" not in each
        assert "lake-credentials" not in json.dumps(made["metadata"])


def _values(spec: dict[str, Any]) -> list[str]:
    return [each["value"] for each in spec["containers"][0]["env"] if "value" in each]


def test_names_are_those_of_the_programs_and_of_the_secret_of_a_user() -> None:
    """The pure part has them by itself, as it may import no module that opens files."""
    assert TLS_VARIABLE == ENVIRONMENT_VARIABLE
    assert SIGNING_VARIABLES == {
        ACCESS_KEY_VARIABLE: secret.ACCESS_KEY,
        SECRET_KEY_VARIABLE: secret.SECRET_KEY,
    }


def test_a_program_understands_the_file_and_trusts_an_authority_below_a_root(tmp_path: Path) -> None:
    """Names of servers are checked, and all connections use TLS, as those of the set's pods do."""
    (tmp_path / "ca.crt").write_bytes(Authority.make("orders").certificate)
    (file,) = config_data(TRUST).items()
    (tmp_path / file[0]).write_text(file[1])

    tls = Tls(tmp_path / file[0])

    assert tls.client is not None
    assert tls.client.check_hostname
    assert tls.server_name == "orders-namesrv.shop.svc"
    assert tls.client.verify_flags & tls.client.verify_flags.VERIFY_X509_PARTIAL_CHAIN
    assert tls.server is None


def test_an_export_without_a_user_of_a_set_that_checks_them_makes_no_job() -> None:
    """The condition says what is to be named, and which rights the user needs; with it the run begins."""
    world = ExportWorld(exported=enforcing_set())
    world.reconcile(now=world.observed.created + 86_400)
    world.reconcile()

    status, reason, message = world.condition(reasons.READY)
    assert (status, reason) == ("False", reasons.NO_CREDENTIALS)
    assert "credentials.secretName" in message
    assert "Sub on Group:TOOLS_CONSUMER" in message
    assert not world.made

    world.reconcile(manifest=read_store_export(export_manifest(credentials=CREDENTIALS)))
    world.reconcile()
    assert world.observed.jobs


def test_an_export_without_a_certificate_of_a_set_that_requires_one_makes_no_job() -> None:
    """The condition says what is to be named; with it driver and executors have it, too."""
    asking = replace(enforcing_set(), requires_certificates=True)
    signing = read_store_export(export_manifest(credentials=CREDENTIALS))
    world = ExportWorld(manifest=signing, exported=asking, spark_role="ClusterRole/driver")
    world.reconcile(now=world.observed.created + 86_400)
    world.reconcile()
    status, reason, message = world.condition(reasons.READY)
    assert (status, reason) == ("False", reasons.NO_CREDENTIALS)
    assert "credentials.certificateSecretName" in message
    assert not world.made

    given = {**CREDENTIALS, "certificateSecretName": "lake-tls"}
    world.reconcile(
        manifest=read_store_export(export_manifest(credentials=given, executors={"instances": 2}))
    )
    world.reconcile()

    data = world.observed.maps[f"{world.job}-trust"]["data"][CONFIG_FILE]
    assert "tls.client.certPath=client.crt\ntls.client.keyPath=client.key\n" in data
    for spec in pod_specs(world):
        (volume,) = [each for each in spec["volumes"] if each["name"] == "broker-trust"]
        (secret_source,) = [each["secret"] for each in volume["projected"]["sources"] if "secret" in each]
        assert secret_source["name"] == "lake-tls"
        assert {each["key"]: each["path"] for each in secret_source["items"]} == {
            "tls.crt": "client.crt",
            "tls.key": "client.key",
        }


def test_credentials_that_name_nobody_are_refused() -> None:
    """The message says what there is to name."""
    with pytest.raises(ManifestError, match="give secretName, certificateSecretName, or both"):
        read_store_export(export_manifest(credentials={}))


def test_a_program_shows_the_certificate_of_the_file(tmp_path: Path) -> None:
    """The file of keys names files next to it, as the volume has them."""
    pair = Authority.make("clients").issue("lake")
    (tmp_path / "ca.crt").write_bytes(Authority.make("orders").certificate)
    (tmp_path / "client.crt").write_bytes(pair.certificate)
    (tmp_path / "client.key").write_bytes(pair.key)
    (file,) = config_data(TRUST, shows_certificate=True).items()
    (tmp_path / file[0]).write_text(file[1])

    assert Tls(tmp_path / file[0]).client is not None


def test_a_set_with_controllers_of_another_one_is_trusted_with_that_one(tmp_path: Path) -> None:
    """Name servers are that one's; authorities of both are in the ConfigMap of the run, and mounted."""
    both = "".join(Authority.make(name).certificate.decode() for name in ("core", "orders"))
    joined = replace(enforcing_set(), trust=replace(TRUST, together=both))
    manifest = read_store_export(export_manifest(credentials=CREDENTIALS, executors={"instances": 2}))
    world = ExportWorld(manifest=manifest, exported=joined, spark_role="ClusterRole/driver")
    world.begin()

    data = world.observed.maps[f"{world.job}-trust"]["data"]
    for spec in pod_specs(world):
        (volume,) = [each for each in spec["volumes"] if each["name"] == "broker-trust"]
        mounted = [
            item["path"] for each in volume["projected"]["sources"] for item in each["configMap"]["items"]
        ]
        assert mounted == ["ca.crt", CONFIG_FILE, "authorities.crt"]
    (tmp_path / "ca.crt").write_bytes(Authority.make("orders").certificate)
    for name, text in data.items():
        (tmp_path / name).write_text(text)
    tls = Tls(tmp_path / CONFIG_FILE)
    assert tls.client is not None
    assert tls.client.cert_store_stats()["x509_ca"] == 2


def test_what_connects_is_gone_with_the_run() -> None:
    """The ConfigMap of a run is no longer there when the run has ended; the Job stays for its log."""
    world = begun()
    name = f"{world.job}-trust"
    assert name in world.observed.maps

    world.finish(world.job, "Error: no", code=2)
    world.fail(world.job)
    world.reconcile()
    world.reconcile()

    assert world.observed.jobs
    assert not world.observed.maps
