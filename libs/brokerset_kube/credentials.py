"""Where the API server is and who we are to it: a pod's service account, or a kubeconfig."""

from __future__ import annotations

import base64
import binascii
import os
import ssl
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

ACCOUNT_FOLDER: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where the kubelet puts a pod's token, certificate authority and namespace."""

TOKEN_SECONDS: Final = 60.0
"""A token file is read again when it was read longer ago; the kubelet renews tokens of an hour."""

KUBECONFIG_BYTES_MAX: Final = 4 * 1024 * 1024
"""A larger file is refused: it is certainly something else."""


class CredentialsProblem(Exception):
    """There are no credentials that can be used; the text says where was looked and what to do."""


@dataclass(slots=True)
class TokenFile:
    """A bearer token that somebody else renews."""

    path: Path
    _text: str = ""
    _read_at: float | None = None

    def token(self, now: float, *, fresh: bool = False) -> str:
        """The token, read again after `TOKEN_SECONDS` or on demand. Raises `CredentialsProblem`."""
        if fresh or self._read_at is None or now - self._read_at >= TOKEN_SECONDS:
            try:
                text = self.path.read_text("ascii").strip()
            except (OSError, UnicodeDecodeError) as error:
                if self._text:
                    return self._text  # better an old one than none
                raise CredentialsProblem(f"the token {self.path} cannot be read: {error}") from None
            self._text, self._read_at = text, now
        return self._text


@dataclass(frozen=True, slots=True)
class Access:
    """How to reach an API server."""

    server: str
    """`https://host:port`, without a path behind it."""

    namespace: str = "default"
    """Our own namespace, or the one that a kubeconfig's context names."""

    tls: Callable[[], ssl.SSLContext] | None = None
    """None for a server without encryption, as tests use it."""

    token: TokenFile | str | None = field(default=None, repr=False)
    ca_data: bytes | None = field(default=None, repr=False)
    certificate: tuple[bytes, bytes] | None = field(default=None, repr=False)
    """Client certificate and key, in PEM."""

    insecure: bool = False
    """Whether the server's certificate is not checked, as a kubeconfig may ask for."""

    def authorization(self, now: float, *, fresh: bool = False) -> dict[str, str]:
        """The header that tells who asks; empty where a certificate does."""
        if self.token is None:
            return {}
        text = self.token if isinstance(self.token, str) else self.token.token(now, fresh=fresh)
        return {"Authorization": f"Bearer {text}"}


def load_access(kubeconfig: Path | None = None, environment: Mapping[str, str] | None = None) -> Access:
    """The kubeconfig if one is named, else the pod's account, else what `KUBECONFIG` or the home folder has.

    Raises `CredentialsProblem`.
    """
    env = os.environ if environment is None else environment
    if kubeconfig is not None:
        return from_kubeconfig(kubeconfig)
    if env.get("KUBERNETES_SERVICE_HOST"):
        return from_account(env)
    named = env.get("KUBECONFIG")
    if named:
        return from_kubeconfig(Path(named.split(os.pathsep, 1)[0]))
    default = Path.home() / ".kube" / "config"
    if default.is_file():
        return from_kubeconfig(default)
    raise CredentialsProblem(
        f"no Kubernetes was found: this is not a pod, KUBECONFIG is not set and there is no {default}; "
        "name a file with --kubeconfig"
    )


def from_account(
    environment: Mapping[str, str], folder: Path = ACCOUNT_FOLDER, *, namespace: str | None = None
) -> Access:
    """The access of a pod. Raises `CredentialsProblem`.

    `namespace` is the pod's where it is known; else its file is read, which brokers' pods do not have.
    """
    host = environment.get("KUBERNETES_SERVICE_HOST", "")
    port = environment.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise CredentialsProblem("KUBERNETES_SERVICE_HOST is not set: this process does not run in a pod")
    shown = f"[{host}]" if ":" in host else host
    try:
        ca_data = (folder / "ca.crt").read_bytes()
        if namespace is None:
            namespace = (folder / "namespace").read_text("utf-8").strip()
    except OSError as error:
        raise CredentialsProblem(
            f"the pod's service account cannot be read: {error}; set automountServiceAccountToken: true"
        ) from None
    if not ca_data.strip():
        raise CredentialsProblem(f"{folder / 'ca.crt'} is empty: the API server cannot be known by it")
    return Access(
        server=f"https://{shown}:{port}",
        namespace=namespace or "default",
        tls=lambda: tls_context(ca_data=ca_data),
        token=TokenFile(folder / "token"),
        ca_data=ca_data,
    )


def from_kubeconfig(path: Path, context: str | None = None) -> Access:
    """The access that a kubeconfig's current context stands for. Raises `CredentialsProblem`.

    Certificates and tokens are understood. Programs that make credentials are not run: the operator's place
    is a pod, and on a desk `kubectl create token` gives what is needed.
    """
    config = _read_config(path)
    name = context or str(config.get("current-context") or "")
    chosen = _named(config, "contexts", "context", name, path)
    cluster = _named(config, "clusters", "cluster", str(chosen.get("cluster") or ""), path)
    user = _named(config, "users", "user", str(chosen.get("user") or ""), path)
    for refused in ("exec", "auth-provider"):
        if user.get(refused):
            raise CredentialsProblem(
                f"{path}: user {chosen.get('user')} logs in with {refused!r}, which is not run here; make a "
                "kubeconfig with a token: kubectl create token <service account>"
            )
    if user.get("username"):
        raise CredentialsProblem(
            f"{path}: user {chosen.get('user')} logs in with a password, which Kubernetes no longer knows; "
            "use a token or a certificate"
        )
    server = str(cluster.get("server") or "").rstrip("/")
    if not server.startswith(("https://", "http://")):
        raise CredentialsProblem(f"{path}: the cluster's server {server!r} is no http(s) address")
    ca_data = _data(cluster, "certificate-authority", path)
    certificate = _data(user, "client-certificate", path)
    key = _data(user, "client-key", path)
    if (certificate is None) != (key is None):
        raise CredentialsProblem(f"{path}: client-certificate and client-key must both be there, or neither")
    pair = (certificate, key) if certificate is not None and key is not None else None
    insecure = bool(cluster.get("insecure-skip-tls-verify"))
    server_name = cluster.get("tls-server-name")
    if server_name:
        raise CredentialsProblem(f"{path}: tls-server-name is not served; use the name of the certificate")
    token: TokenFile | str | None = str(user["token"]) if user.get("token") else None
    if token is None and user.get("tokenFile"):
        token = TokenFile(_relative_to(path, str(user["tokenFile"])))
    encrypted = server.startswith("https://")
    return Access(
        server=server,
        namespace=str(chosen.get("namespace") or "default"),
        tls=(lambda: tls_context(ca_data=ca_data, certificate=pair, insecure=insecure))
        if encrypted
        else None,
        token=token,
        ca_data=ca_data,
        certificate=pair,
        insecure=insecure,
    )


def tls_context(
    *, ca_data: bytes | None = None, certificate: tuple[bytes, bytes] | None = None, insecure: bool = False
) -> ssl.SSLContext:
    """What encrypts our connections. Raises `CredentialsProblem` for certificates that cannot be read."""
    try:
        context = ssl.create_default_context(cadata=ca_data.decode("ascii", "ignore") if ca_data else None)
        if insecure:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if certificate is not None:
            _load_pair(context, *certificate)
    except (ssl.SSLError, UnicodeDecodeError, ValueError) as error:
        raise CredentialsProblem(
            f"certificates of the kubeconfig or account cannot be used: {error}"
        ) from None
    return context


def _load_pair(context: ssl.SSLContext, certificate: bytes, key: bytes) -> None:
    # The ssl module reads them from files only; the file is for us alone and gone before this returns.
    with tempfile.NamedTemporaryFile(prefix="brokerset-") as stream:
        stream.write(certificate.rstrip(b"\n") + b"\n" + key)
        stream.flush()
        context.load_cert_chain(stream.name)


def _read_config(path: Path) -> Mapping[str, Any]:
    import yaml  # a pod has no kubeconfig, and brokers need no YAML

    try:
        with path.open("rb") as stream:
            data = stream.read(KUBECONFIG_BYTES_MAX + 1)
    except OSError as error:
        raise CredentialsProblem(f"the kubeconfig {path} cannot be read: {error.strerror}") from None
    if len(data) > KUBECONFIG_BYTES_MAX:
        raise CredentialsProblem(f"{path} is larger than {KUBECONFIG_BYTES_MAX} bytes; is it a kubeconfig?")
    try:
        config = yaml.safe_load(data)
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise CredentialsProblem(f"the kubeconfig {path} is not YAML: {error}") from None
    if not isinstance(config, dict):
        raise CredentialsProblem(f"{path} is no kubeconfig: it has no contexts")
    return config


def _named(config: Mapping[str, Any], many: str, one: str, name: str, path: Path) -> Mapping[str, Any]:
    for item in config.get(many) or ():
        if isinstance(item, dict) and item.get("name") == name:
            value = item.get(one)
            return value if isinstance(value, dict) else {}
    raise CredentialsProblem(
        f"{path}: there is no {one} {name!r} under {many}; choose one with current-context"
    )


def _data(part: Mapping[str, Any], name: str, path: Path) -> bytes | None:
    """A certificate or key that stands in the file as `<name>-data`, or in a file of its own."""
    inline = part.get(f"{name}-data")
    if inline:
        try:
            return base64.b64decode(str(inline), validate=True)
        except (binascii.Error, ValueError):
            raise CredentialsProblem(f"{path}: {name}-data is not base64") from None
    if not part.get(name):
        return None
    file = _relative_to(path, str(part[name]))
    try:
        return file.read_bytes()
    except OSError as error:
        raise CredentialsProblem(f"{path}: {name} {file} cannot be read: {error.strerror}") from None


def _relative_to(path: Path, name: str) -> Path:
    return path.parent / name  # an absolute name stays as it is
