from __future__ import annotations

import base64
from pathlib import Path

import pytest

from brokerset_kube.credentials import (
    TOKEN_SECONDS,
    CredentialsProblem,
    TokenFile,
    from_account,
    from_kubeconfig,
    load_access,
)

AUTHORITY = base64.b64encode(b"a certificate").decode()
CONFIG = """
apiVersion: v1
kind: Config
current-context: here
contexts:
- name: here
  context: {cluster: one, user: me, namespace: shop}
- name: there
  context: {cluster: one, user: robot}
clusters:
- name: one
  cluster: {server: "https://127.0.0.1:6443/", certificate-authority-data: "AUTHORITY"}
users:
- name: me
  user: {token: secret}
- name: robot
  user: {exec: {command: aws}}
""".replace("AUTHORITY", AUTHORITY)


def written(folder: Path, text: str) -> Path:
    path = folder / "config"
    path.write_text(text)
    return path


def test_a_kubeconfig_gives_server_namespace_and_token(tmp_path: Path) -> None:
    """The current context decides."""
    access = from_kubeconfig(written(tmp_path, CONFIG))

    assert access.server == "https://127.0.0.1:6443"
    assert access.namespace == "shop"
    assert access.ca_data == b"a certificate"
    assert access.authorization(0.0) == {"Authorization": "Bearer secret"}
    assert "secret" not in repr(access)


def test_programs_that_log_in_are_refused_with_a_way_out(tmp_path: Path) -> None:
    """A user with an exec plugin is refused, and the text says what to do instead."""
    with pytest.raises(CredentialsProblem, match=r"robot logs in with 'exec'.*kubectl create token"):
        from_kubeconfig(written(tmp_path, CONFIG), "there")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (("current-context: here", "current-context: nowhere"), "no context 'nowhere'"),
        (("cluster: one, user: me", "cluster: two, user: me"), "no cluster 'two'"),
        (("https://127.0.0.1:6443/", "ftp://x"), "no http"),
        (("token: secret", "username: me, password: x"), "with a password"),
        (("token: secret", "client-certificate-data: YQ=="), "must both be there"),
        (("token: secret", "client-certificate: gone.pem"), "gone.pem cannot be read"),
        (('certificate-authority-data: "', 'certificate-authority-data: "!'), "not base64"),
        (("apiVersion: v1", "[unclosed"), "not YAML"),
    ],
)
def test_what_is_wrong_with_a_kubeconfig_is_said(
    tmp_path: Path, change: tuple[str, str], problem: str
) -> None:
    """Each fault of the file has a text of its own, which names the file."""
    path = written(tmp_path, CONFIG.replace(*change))

    with pytest.raises(CredentialsProblem, match=problem) as caught:
        from_kubeconfig(path)
    assert str(path) in str(caught.value)


def test_a_pod_uses_its_account(tmp_path: Path) -> None:
    """In a pod, address, authority, namespace and token come from where the kubelet puts them."""
    (tmp_path / "ca.crt").write_bytes(b"ca")
    (tmp_path / "namespace").write_text("brokerset-system\n")
    (tmp_path / "token").write_text("first\n")
    environment = {"KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "6443"}

    access = from_account(environment, tmp_path)

    assert access.server == "https://[fd00::1]:6443"
    assert access.namespace == "brokerset-system"
    assert access.authorization(0.0) == {"Authorization": "Bearer first"}


def test_a_pod_whose_account_has_no_namespace_says_its_own(tmp_path: Path) -> None:
    """Brokers' pods have a token and the authority, and nothing else of the account."""
    (tmp_path / "ca.crt").write_bytes(b"ca")
    (tmp_path / "token").write_text("first\n")

    access = from_account({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path, namespace="shop")

    assert access.namespace == "shop"


def test_an_empty_authority_is_a_problem(tmp_path: Path) -> None:
    """The system's authorities do not take its place."""
    (tmp_path / "ca.crt").write_bytes(b"\n")

    with pytest.raises(CredentialsProblem, match="is empty"):
        from_account({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path, namespace="shop")


def test_a_pod_without_an_account_is_told_so(tmp_path: Path) -> None:
    """When nothing is mounted the text names the setting."""
    with pytest.raises(CredentialsProblem, match="automountServiceAccountToken"):
        from_account({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, tmp_path)


def test_a_token_is_read_again_after_a_while_and_on_demand(tmp_path: Path) -> None:
    """A renewed token is used within a minute, and at once when the old one was refused."""
    path = tmp_path / "token"
    path.write_text("first")
    token = TokenFile(path)
    assert token.token(100.0) == "first"

    path.write_text("second")

    assert token.token(100.0 + TOKEN_SECONDS / 2) == "first"
    assert token.token(100.0 + TOKEN_SECONDS) == "second"
    path.write_text("third")
    assert token.token(100.0 + TOKEN_SECONDS + 1, fresh=True) == "third"
    path.unlink()
    assert token.token(1000.0) == "third"


def test_without_any_cluster_the_places_that_were_looked_at_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Outside of a pod, without KUBECONFIG and without a file in the home folder, the text says so."""
    monkeypatch.setenv("HOME", str(tmp_path))

    with pytest.raises(CredentialsProblem, match=r"not a pod, KUBECONFIG is not set"):
        load_access(environment={})
