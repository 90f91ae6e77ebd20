"""Audits of running brokers: they pass, and name what somebody changes on one volume. Migrations of whole stores."""

from __future__ import annotations

import json
from typing import Any, Final

import pytest
from tests.e2e.kubernetes.deployed import Deployed
from tests.e2e.kubernetes.rig import SYSTEM, Cluster, Object, client_pod, until

RUN_SECONDS: Final = 240.0
"""A run of a few megabytes: some pods start one after another."""

DAMAGE: Final = """
import glob, json, pathlib
from brokerset_formats.epochs import decode_epoch_file, encode_epoch_file, history_of

store = pathlib.Path("/data/store")
epochs = store / "epochFileCheckpoint"
pairs = [(entry.epoch, entry.start_offset) for entry in decode_epoch_file(epochs.read_bytes()).entries]
log = sorted(glob.glob(str(store / "commitlog" / "*")))[0]
data = pathlib.Path(log).read_bytes()
last = pairs[-1][1]
size = int.from_bytes(data[last:last + 4], "big")
moved = last + size
epochs.write_bytes(encode_epoch_file(history_of([*pairs[:-1], (pairs[-1][0], moved)])))

at = data.index(b"the-body-0007")
begin = max(where for where in range(0, at - 4) if data[where + 4:where + 8] in (b"\\xda\\xa3\\x20\\xa7", b"\\xda\\xa3\\x20\\xab"))
with open(log, "r+b") as stream:
    stream.seek(at + 4)
    stream.write(b"X")
print(json.dumps({"epoch": pairs[-1][0], "was": last, "is": moved, "record": begin, "file": pathlib.Path(log).name}))
"""
"""In a broker's pod: its last epoch begins a record later, and one byte of a message is another."""

SOUND_DAMAGE: Final = """
import glob, json, pathlib
from dataclasses import replace
from brokerset_formats.records import COMPUTE_CRC, decode_record, encode_record, without_property_crc

log = sorted(glob.glob("/data/store/commitlog/*"))[0]
data = pathlib.Path(log).read_bytes()
at = data.index(b"the-later-body-0100")
begin = max(where for where in range(0, at - 4) if data[where + 4:where + 8] in (b"\\xda\\xa3\\x20\\xa7", b"\\xda\\xa3\\x20\\xab"))
record = decode_record(data, begin, verify_crc=True)
properties = without_property_crc(record.properties)
changed = replace(record, body=record.body[:-1] + b"X", body_crc=COMPUTE_CRC, properties=properties)
written = encode_record(changed, property_crc=properties != record.properties)
assert len(written) == record.size
with open(log, "r+b") as stream:
    stream.seek(begin)
    stream.write(written)
print(json.dumps({"record": begin, "queue": record.queue_id, "queueOffset": record.queue_offset}))
"""
"""In a broker's pod: one byte of a message is another, and both CRCs say that it was always so."""

REPORTS_CLAIM: Final = "audit-reports"
READER: Final = "reader"
"""Pod that has the volume of reports."""

READ_REPORTS: Final = """
import json, pathlib
found = {}
for path in sorted(pathlib.Path("/reports").rglob("*")):
    if path.is_file():
        found[str(path.relative_to("/reports"))] = path.read_text()
print(json.dumps(found))
"""

FIGURES: Final = """
import sys, urllib.request
print(urllib.request.urlopen(f"http://{sys.argv[1]}:8080/metrics", timeout=5).read().decode())
"""


def audit(namespace: str, **spec: Any) -> Object:
    """A StoreAudit of the set `orders`."""
    return {
        "apiVersion": "brokerset.io/v1alpha1",
        "kind": "StoreAudit",
        "metadata": {"name": "nightly", "namespace": namespace},
        "spec": {"brokerSetRef": {"name": "orders"}, "limits": {"deadlineSeconds": 600}, **spec},
    }


def reports_claim() -> Object:
    """A volume for reports that is mounted on one node at a time."""
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": REPORTS_CLAIM},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "64Mi"}}},
    }


def read_reports(cluster: Cluster, namespace: str) -> dict[str, str]:
    """Names and contents of the files in the volume of reports."""
    if cluster.get("pod", READER, namespace) is None:
        pod = client_pod(READER, cluster.image, cluster.provider.pull_policy)
        spec = pod["spec"]
        volume = {"name": "reports", "persistentVolumeClaim": {"claimName": REPORTS_CLAIM, "readOnly": True}}
        spec["volumes"].append(volume)
        spec["containers"][0]["volumeMounts"].append({"name": "reports", "mountPath": "/reports"})
        cluster.apply(pod, namespace=namespace)
        cluster.wait_pod(READER, namespace, 60)
    found: dict[str, str] = json.loads(cluster.execute(READER, namespace, "python", "-", given=READ_REPORTS))
    return found


def ask(cluster: Cluster, namespace: str, value: str) -> Object:
    """Ask for a run, and wait until it has ended."""
    latest = last_run(cluster, namespace)["number"]
    cluster.annotate("storeaudit", "nightly", namespace, audit_now=value)
    return wait_run(cluster, namespace, latest)


def last_run(cluster: Cluster, namespace: str) -> Object:
    """The last run that ended; raises `KeyError` before."""
    found: Object = cluster.must_get("storeaudit", "nightly", namespace)["status"]["lastRun"]
    return found


def wait_run(cluster: Cluster, namespace: str, after: int = 0) -> Object:
    """Wait until a later run than this has ended."""

    def check() -> Object:
        status = cluster.must_get("storeaudit", "nightly", namespace)["status"]
        run: Object = status["lastRun"]
        if run["number"] > after:
            return run
        raise ValueError(f"{status.get('workflow')}")

    return until("a run has ended", check, RUN_SECONDS, pause=1.0)


@pytest.mark.slow
@pytest.mark.usefixtures("spark_image")
def test_an_audit_names_what_somebody_changed_on_one_volume(cluster: Cluster, namespace: str) -> None:
    """On schedule all is well; then it says which replica, which file and which offset, to everybody who asks."""
    orders = Deployed(cluster, namespace)
    orders.create(controllers={"replicas": 1})
    orders.wait_settled(3, 1)
    client = orders.client("events")
    client.send("events", [f"the-body-{number:04}" for number in range(200)])
    before = orders.epoch()
    orders.annotate(switchover="orders-0")
    until("another master leads", lambda: orders.epoch() > before, 60)
    orders.wait_settled(3, 1)
    client.send("events", [f"the-later-body-{number:04}" for number in range(200)])
    cluster.apply(reports_claim(), namespace=namespace)
    kept = {"claimName": REPORTS_CLAIM, "keepRuns": 2}
    cluster.apply(audit(namespace, schedule="* * * * *", report=kept))

    first = wait_run(cluster, namespace)

    assert (first["result"], first["reason"], first["replicas"]) == ("Passed", "Schedule", "3/3"), first
    assert first["bytesRead"] > 0
    assert orders.condition("AuditPassed")["status"] == "True"
    orders.wait_settled(3, 1)
    assert orders.condition("AuditPassed")["status"] == "True", "rounds of the set leave it alone"

    cluster.patch("storeaudit", "nightly", namespace, {"spec": {"suspend": True}})
    until("no run is on", lambda: phase(cluster, namespace) == "Suspended", RUN_SECONDS)
    slave = next(pod for pod in sorted(orders.ids()) if pod != orders.master())
    check_what_only_a_comparison_sees(cluster, namespace, slave)

    changed = json.loads(cluster.execute(slave, namespace, "python", "-", given=DAMAGE))
    found = ask(cluster, namespace, "2")

    assert (found["result"], found["reason"]) == ("FindingsFound", "Request"), found
    status = cluster.must_get("storeaudit", "nightly", namespace)["status"]
    errors = [each for each in status["findings"] if each["level"] == "error"]
    (damage,) = (each for each in errors if each["code"] == "damage")
    assert slave in damage["store"]
    assert damage["file"].endswith(changed["file"])
    assert damage["offset"] == changed["record"]
    moved = [each for each in errors if each["code"] == "epoch-start"]
    assert moved, errors
    assert any(str(changed["is"]) in each["text"].replace(",", "") for each in moved), moved
    for condition in (
        orders.condition("AuditPassed"),
        cluster.condition("storeaudit", "nightly", namespace, "AuditPassed"),
    ):
        assert condition is not None
        assert (condition["status"], condition["reason"]) == ("False", "ErrorsFound")
    told = cluster.items("events", namespace)
    notes = {
        (each["involvedObject"]["kind"], each["message"]) for each in told if each["reason"] == "AuditError"
    }
    for kind in ("StoreAudit", "BrokerSet"):
        assert any(
            each == kind and note.startswith("damage") and str(changed["record"]) in note
            for each, note in notes
        ), notes
    figures = operator_figures(cluster, client.pod, namespace)
    labels = f'name="nightly",namespace="{namespace}"'
    of_set = f'broker_set="orders",{labels}'
    assert f'brokerset_audit_findings{{broker_set="orders",code="damage",{labels}}} 1.0' in figures
    fared = f'group="orders-0",{labels},replica="{slave}",result="Accused"'
    assert f'brokerset_audit_replica{{broker_set="orders",{fared}}} 1.0' in figures
    assert f"brokerset_audit_errors{{{of_set}}} {float(found['errors'])}" in figures

    files = read_reports(cluster, namespace)
    names = {f"audits/nightly-{number:03}-0.{kind}" for number in range(2) for kind in ("json", "html")}
    assert set(files) == names, "of three runs or more the last two are kept"
    report = json.loads(files[f"{found['report']}-0.json"])
    assert {each["code"] for each in report["findings"]} >= {"damage", "epoch-start"}
    assert report["findingsTotal"] == found["findings"]
    assert changed["file"] in files[f"{found['report']}-0.html"]
    assert all(text.startswith("<!DOCTYPE html>") for name, text in files.items() if name.endswith(".html"))

    cluster.delete("storeaudit", "nightly", namespace=namespace, seconds=60)
    until("its Jobs are gone", lambda: not cluster.items("jobs", namespace), 60)
    until(
        "nobody says anything of the data", lambda: orders.condition("AuditPassed")["reason"] == "Absent", 30
    )


def check_what_only_a_comparison_sees(cluster: Cluster, namespace: str, slave: str) -> None:
    """Replicas are read where they are, each alone; still the record is named, by the answers to two rounds."""
    changed = json.loads(cluster.execute(slave, namespace, "python", "-", given=SOUND_DAMAGE))

    found = ask(cluster, namespace, "1")

    assert found["result"] == "FindingsFound", found
    findings = cluster.must_get("storeaudit", "nightly", namespace)["status"]["findings"]
    errors = [each for each in findings if each["level"] == "error"]
    assert {each["code"] for each in errors} == {"bytes"}, errors
    where = f"topic events, queue {changed['queue']}, queue offset {changed['queueOffset']},"
    for each in errors:
        assert each["offset"] == changed["record"]
        assert each["store"] == f"/stores/{slave}/store", "it stands alone against two"
        assert where in each["text"]
        assert "bodyCRC" in each["text"]
    fared = {each["pod"]: each["result"] for each in found["brokers"]}
    assert {pod for pod, result in fared.items() if result == "Accused"} == {slave}
    assert len(fared) == 3


def phase(cluster: Cluster, namespace: str) -> str:
    """What the StoreAudit does."""
    word: str = cluster.must_get("storeaudit", "nightly", namespace)["status"]["phase"]
    return word


def operator_figures(cluster: Cluster, pod: str, namespace: str) -> str:
    """The figures of the operator that leads, asked from a pod, with labels in order."""
    leader = until("an operator leads", cluster.leader, 60)
    address = cluster.must_get("pod", leader, SYSTEM)["status"]["podIP"]
    text = cluster.execute(pod, namespace, "python", "-", address, given=FIGURES)
    lines = []
    for line in text.splitlines():
        name, brace, rest = line.partition("{")
        labels, closing, value = rest.rpartition("}")
        if brace and closing:
            line = f"{name}{{{','.join(sorted(labels.split(',')))}}}{value}"
        lines.append(line)
    return "\n".join(lines)
