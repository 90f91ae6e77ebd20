"""`kubectl brokerset report`: what is in it, what is not, and that secrets stay at home."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from tests.unit.cli.kubernetes.conftest import FakeCluster, broker_set, pod

from brokerset_cli.kubernetes.redaction import MASK, is_secret_name, redact, redact_text
from brokerset_cli.kubernetes.report import newest
from brokerset_cli.kubernetes.report_objects import belongs


def contents(path: Path) -> dict[str, str]:
    """Files of a report, without their folder."""
    with tarfile.open(path) as archive:
        found = {}
        for member in archive.getmembers():
            file = archive.extractfile(member)
            assert file is not None
            found[member.name.partition("/")[2]] = file.read().decode()
        return found


def filled(cluster: FakeCluster) -> None:
    """A set with secrets in the open, events, a restarted pod and an operator."""
    item = broker_set()
    item["metadata"]["managedFields"] = [{"manager": "kubectl"}]
    item["metadata"]["annotations"] = {
        "kubectl.kubernetes.io/last-applied-configuration": "hunter2",
        "example.com/note": "hunter2",
    }
    item["spec"]["podTemplate"] = {
        "env": [
            {"name": "DB_PASSWORD", "value": "hunter2"},
            {"name": "TZ", "value": "UTC"},
            {"name": "GREETING", "value": "hunter2"},
            {"name": "FROM", "valueFrom": {"secretKeyRef": {"name": "of-a-secret", "key": "password"}}},
        ]
    }
    cluster.set(item)
    restarted = pod("orders-0-0")
    restarted["status"]["containerStatuses"][0]["restartCount"] = 1
    cluster.pods([restarted])
    cluster.log(
        "orders-0-0", '2026-01-01T10:00:00Z {"event": "login", "password": "hunter2", "broker": "a"}\n'
    )
    cluster.log("orders-0-0.previous", "2026-01-01T09:00:00Z the end\n")
    labels = {"brokerset.io/set": "orders", "app.kubernetes.io/name": "brokerset-operator"}
    meta = {"name": "orders-0", "namespace": "shop", "labels": labels}
    settings = {"broker.properties": "brokerName=orders-0\nsecretKey=hunter2\n"}
    about = {"kind": "Pod", "name": "orders-0-1"}
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": meta,
        "involvedObject": about,
        "lastTimestamp": "2026-01-01T10:00:00Z",
        "type": "Warning",
        "reason": "BackOff",
        "message": "token=hunter2",
        "count": 3,
    }
    operator = {"name": "brokerset-operator", "namespace": "system", "labels": labels}
    cluster.put(
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta, "data": settings},
        event,
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": "other", "namespace": "shop"},
            "involvedObject": {"kind": "Pod", "name": "other-0-1"},
            "message": "elsewhere",
        },
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": operator},
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": operator,
            "spec": {"holderIdentity": "x"},
        },
    )


def test_everything_is_in_one_file_and_listed(
    cluster: FakeCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Manifest, status, events, objects, logs before and after a restart, operator, versions."""
    filled(cluster)
    monkeypatch.chdir(tmp_path)

    result = cluster.run("report", "orders")

    assert result.exit_code == 0, result.output
    (path,) = tmp_path.glob("brokerset-report-shop-orders-*.tar.gz")
    assert path.stat().st_mode & 0o077 == 0, "only its owner reads it"
    files = contents(path)
    assert {
        "README.txt",
        "brokerset.json",
        "configmaps.json",
        "events.txt",
        "logs/orders-0-0.log",
        "logs/orders-0-0.previous.log",
        "missing.txt",
        "nodes.json",
        "operator/leases-system.json",
        "operator/objects.json",
        "pods.json",
        "statefulsets.json",
        "status.txt",
        "subjects.json",
        "topics.json",
        "versions.json",
    } <= files.keys()
    assert all(name in result.output for name in files)
    assert "Pod/orders-0-1 BackOff" in files["events.txt"]
    assert "(3 times)" in files["events.txt"]
    assert "elsewhere" not in files["events.txt"]
    assert "v1.35.0" in files["versions.json"]
    assert files["missing.txt"] == "nothing is missing\n"


def test_what_is_secret_stays_at_home(cluster: FakeCluster, tmp_path: Path) -> None:
    """In the manifest, its copy in an annotation, settings, events and logs; Secrets are never asked for."""
    filled(cluster)

    cluster.run("report", "orders", "-o", str(tmp_path / "r.tar.gz"))

    files = contents(tmp_path / "r.tar.gz")
    assert [name for name, text in files.items() if "hunter2" in text] == []
    assert "managedFields" not in files["brokerset.json"]
    assert "of-a-secret" in files["brokerset.json"], "the name of a Secret is none"
    assert "brokerName=orders-0" in files["configmaps.json"]
    assert '"broker": "a"' in files["logs/orders-0-0.log"]
    assert not any("secret" in call.plural for call in cluster.kube.calls)


def test_what_may_not_be_read_is_named_and_the_rest_is_there(cluster: FakeCluster, tmp_path: Path) -> None:
    """Most people may not look at nodes or into the operator's namespace."""
    filled(cluster)
    cluster.kube.forbidden |= {("list", "nodes"), ("list", "deployments"), ("get", "pods/log")}

    result = cluster.run("report", "orders", "-o", str(tmp_path / "r.tar.gz"))

    assert result.exit_code == 0, result.output
    files = contents(tmp_path / "r.tar.gz")
    assert "nodes: nodes is forbidden" in files["missing.txt"]
    assert "--operator-namespace" in files["missing.txt"]
    assert "logs/orders-0-0.log: " in files["missing.txt"]
    assert "missing: nodes" in result.output
    assert "brokerset.json" in files


def test_no_file_is_overwritten(cluster: FakeCluster, tmp_path: Path) -> None:
    """A report that somebody kept is kept."""
    path = tmp_path / "r.tar.gz"
    path.write_text("precious")

    result = cluster.run("report", "orders", "-o", str(path))

    assert result.exit_code == 1
    assert "is there already" in result.output
    assert path.read_text() == "precious"


def test_a_folder_that_is_not_there_is_named(cluster: FakeCluster, tmp_path: Path) -> None:
    """What to do: another name."""
    result = cluster.run("report", "orders", "-o", str(tmp_path / "nowhere" / "r.tar.gz"))

    assert result.exit_code == 1
    assert "could not be written: No such file or directory" in result.output


@pytest.mark.parametrize(
    ("name", "of"),
    [
        ("orders", True),
        ("orders-eu", False),
    ],
)
def test_events_of_a_set_with_a_longer_name_are_not_ours(name: str, of: bool) -> None:
    """`orders` and `orders-eu` can be in one namespace."""
    events = [
        {"involvedObject": {"kind": kind, "name": f"{name}{rest}"}}
        for kind, rest in (("BrokerSet", ""), ("Pod", "-0-1"), ("Pod", "-controller-2"))
    ]

    assert [belongs(each, "orders", ()) for each in events] == [of] * 3


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("password=abc", f"password={MASK}"),
        ("secretKey: abc def", f"secretKey: {MASK}"),
        ("  dbPassword = a,b; c d ", f"  dbPassword = {MASK}"),
        ("login with password=a,b;c now", f"login with password={MASK} now"),
        ("password=12345", f"password={MASK}"),
        ("tokens=12345 authFailures=3", "tokens=12345 authFailures=3"),
        ("authParams=abc", f"authParams={MASK}"),
        ('{"accessKey": "a b", "topic": "t"}', f'{{"accessKey": "{MASK}", "topic": "t"}}'),
        ("GET http://user:pw@host/x", f"GET http://{MASK}@host/x"),
        ("Authorization: Bearer abcdefgh12345", f"Authorization: {MASK}"),
        ("x Authorization: Token abc, y", f"x Authorization: {MASK}"),
        ('"authorization": "Digest a=b c"', f'"authorization": "{MASK}"'),
        ("Set-Cookie: sid=abc; Path=/", f"Set-Cookie: {MASK}"),
        ("GET https://abcdef@host/x", f"GET https://{MASK}@host/x"),
        ("amqp://user:p@ss@host", f"amqp://{MASK}@host"),
        ("run --db-password hunter2 --port 80", f"run --db-password {MASK} --port 80"),
        ("java -Dpassword=hunter2 -jar x", f"java -Dpassword={MASK} -jar x"),
        ("pushed with ghp_abcdefghijklmnopqrstuvwxyz0123", f"pushed with {MASK}"),
        ("https://a.blob/x?sv=1&sig=abc%3D&se=2", f"https://a.blob/x?sv=1&sig={MASK}&se=2"),
        ("jwt eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.abc", f"jwt {MASK}"),
        ("key AKIAIOSFODNN7EXAMPLE", f"key {MASK}"),
        ("BackOff: token=abc (3 times)", f"BackOff: token={MASK} (3 times)"),
        ("url=jdbc:mysql://h/db?user=a&password=b&x=y", f"url=jdbc:mysql://h/db?user=a&password={MASK}&x=y"),
        (
            r'{"m": "{\"password\": \"a b\", \"x\": 1}"}',
            f'{{"m": "{{\\"password\\": \\"{MASK}\\", \\"x\\": 1}}"}}',
        ),
        ("tokenExpirationSeconds=3607", "tokenExpirationSeconds=3607"),
        ("aclEnable=true authEnabled=true", "aclEnable=true authEnabled=true"),
        ("keys=order-1 queue_offset=12", "keys=order-1 queue_offset=12"),
        ("a=1\nb: 2", "a=1\nb: 2"),
    ],
)
def test_texts_lose_what_looks_secret_and_nothing_else(text: str, redacted: str) -> None:
    """Names decide, and values that are secret wherever they stand."""
    assert redact_text(text) == redacted


def test_variables_of_people_lose_their_values_whatever_they_are_called() -> None:
    """Anything can be in them; those of the operator and the chart are settings."""
    names = ("GREETING", "BROKERSET_SET_brokerName", "POD_IP", "TZ", "BROKERSET_SET_accessKey")
    given = {"env": [{"name": name, "value": "x"} for name in names] + [{"name": "EMPTY"}]}

    found = {each["name"]: each.get("value") for each in redact(given)["env"]}

    assert found == {
        "GREETING": MASK,
        "BROKERSET_SET_brokerName": "x",
        "POD_IP": "x",
        "TZ": "x",
        "BROKERSET_SET_accessKey": MASK,
        "EMPTY": None,
    }


def test_annotations_of_unknown_owners_keep_their_names_only() -> None:
    """Tools keep the whole manifest in some, packed or not; people put anything into theirs."""
    given = {
        "annotations": {
            "kubectl.kubernetes.io/last-applied-configuration": "x",
            "kapp.k14s.io/original": "x",
            "objectset.rio.cattle.io/applied": "x",
            "example.com/note": "x",
            "note": "x",
            "brokerset.io/switchover": "orders-0/2",
            "volume.kubernetes.io/selected-node": "node-a",
            "meta.helm.sh/release-name": "r",
            "brokerset.io/token": "x",
            "evilkubernetes.io/x": "x",
        }
    }

    assert redact(given) == {
        "annotations": {
            "example.com/note": MASK,
            "note": MASK,
            "brokerset.io/switchover": "orders-0/2",
            "volume.kubernetes.io/selected-node": "node-a",
            "meta.helm.sh/release-name": "r",
            "brokerset.io/token": MASK,
            "evilkubernetes.io/x": MASK,
        }
    }


def test_words_of_a_command_lose_the_value_of_an_option() -> None:
    """Of containers that others put into the pods."""
    given = {"args": ["--api-token", "hunter2", "--port", "80", "--password", "--verbose", "--my-key=x"]}

    assert redact(given)["args"] == [
        "--api-token",
        MASK,
        "--port",
        "80",
        "--password",
        "--verbose",
        f"--my-key={MASK}",
    ]


def test_numbers_are_secret_where_nothing_else_can_be() -> None:
    """YAML reads a password of digits as a number; a number of tokens is none."""
    assert redact({"password": 1234, "tokens": 3, "passwordLength": 8}) == {
        "password": MASK,
        "tokens": 3,
        "passwordLength": 8,
    }
    assert redact({"key": "db-password", "value": "x"}) == {"key": "db-password", "value": MASK}


@pytest.mark.timeout(20)
@pytest.mark.parametrize("piece", ["a", "a=", "eyJ-", "://", "-a ", "\\\\", '"', "password=", "Bearer "])
def test_no_line_of_a_log_takes_long(piece: str) -> None:
    """A megabyte without an end is looked at once, not once from each of its letters."""
    redact_text(piece * ((1 << 18) // len(piece)))


def test_of_a_long_log_the_newest_lines_are_kept() -> None:
    """What happened last is what support asks about."""
    assert newest("a\nb\n", 10) == "a\nb\n"
    assert newest("first\nsecond\nthird\n", 9) == "[12 characters before this are left out]\nthird\n"


def test_what_a_login_says_is_looked_at_too(cluster: FakeCluster, tmp_path: Path) -> None:
    """Errors of whatever stands between end up in the list of what is missing."""
    cluster.fault("list", "nodes", 401, "the login failed: exec: password=hunter2")

    result = cluster.run("report", "orders", "-o", str(tmp_path / "r.tar.gz"))

    assert "hunter2" not in contents(tmp_path / "r.tar.gz")["missing.txt"] + result.output


def test_a_private_key_goes_as_a_whole() -> None:
    """Also when its end was cut off."""
    block = "-----BEGIN RSA PRIVATE KEY-----\nabc\ndef\n"

    assert redact_text(f"x\n{block}-----END RSA PRIVATE KEY-----\ny") == f"x\n{MASK}\ny"
    assert "abc" not in redact_text(block)


def test_objects_keep_references_switches_and_sizes() -> None:
    """What support needs of a pod is still there."""
    given = {
        "automountServiceAccountToken": False,
        "imagePullSecrets": [{"name": "registry"}],
        "secretName": "tls",
        "serviceAccountToken": {"path": "token", "expirationSeconds": 3607},
        "topologyKey": "kubernetes.io/hostname",
        "env": [{"name": "API_KEY", "value": "x"}, {"name": "EMPTY_TOKEN", "value": ""}],
        "tokens": ["a", "b"],
    }

    found = redact(given)

    assert found["env"] == [{"name": "API_KEY", "value": MASK}, {"name": "EMPTY_TOKEN", "value": ""}]
    assert found["tokens"] == [MASK, MASK]
    assert {key: found[key] for key in given if key not in ("env", "tokens")} == {
        key: given[key] for key in given if key not in ("env", "tokens")
    }


@pytest.mark.parametrize("name", ["keyTopic", "brokerName", "maxMessageSize", "author", "monkey", "keyword"])
def test_ordinary_names_are_not_secret(name: str) -> None:
    """A report that masks everything helps nobody."""
    assert not is_secret_name(name)


@pytest.mark.parametrize(
    "name", ["orders-namesrv", "orders-namesrv-0", "data-orders-controller-0", "orders-0-2"]
)
def test_an_event_about_what_is_gone_belongs_to_the_set_that_had_it(name: str) -> None:
    event = {"involvedObject": {"kind": "Pod", "name": name}}

    assert belongs(event, "orders", ())
    assert not belongs(event, "order", ())
