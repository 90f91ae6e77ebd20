"""TLS of a local set: two authorities in its folder, and what processes and clients need of them.

One authority signs the certificates of processes: who shows one of them is a member of the set. The other one
signs those of clients, which are not members. A folder that was made with the first alone gets the second at
its next start; the certificate that its clients trust stays.

Everything is in `tls/`: who may read that folder may be a member of the set.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Final

from brokerset_runtime.files import write_atomically
from brokerset_runtime.tls import ENVIRONMENT_VARIABLE

if TYPE_CHECKING:
    from brokerset_runtime.tls.authority import Authority, Issued

FOLDER: Final = "tls"
_ELSEWHERE: Final = "192.0.2.1"
"""An address of nobody (RFC 5737), on the other side of the default route."""

LIFETIME: Final = timedelta(days=397)
"""Of the certificates of the set; every start makes new ones."""

_PROCESSES: Final = """\
# TLS of this set's processes; written by `brokerset up --tls`. The keys are RocketMQ's.
tls.server.mode=enforcing
tls.server.certPath=processes.pem
tls.server.keyPath=processes.key
tls.server.trustCertPath=client-authority.pem
tls.members.trustCertPath=authority.pem
tls.enable=true
tls.client.certPath=processes.pem
tls.client.keyPath=processes.key
tls.client.trustCertPath=authority.pem
"""

_CLIENTS: Final = """\
# TLS for clients of this set; written by `brokerset up --tls`. Java takes it with
#   -Dtls.enable=true -Dtls.config.file={file}
# and ours, and the commands, with {variable}={file}
tls.enable=true
tls.test.mode.enable=false
tls.client.authServer=true
tls.client.trustCertPath={authority}
tls.client.certPath={certificate}
tls.client.keyPath={key}
"""


def processes_file(data: Path) -> Path:
    """The configuration of the set's processes."""
    return data / FOLDER / "processes.properties"


def clients_file(data: Path) -> Path:
    """The configuration of clients, of Java's or of ours."""
    return data / FOLDER / "clients.properties"


def has_tls(data: Path) -> bool:
    """Whether the set of this folder has TLS."""
    return processes_file(data).exists()


def tls_config_file(data: Path) -> Path | None:
    """What the settings of the set's processes say."""
    return processes_file(data).absolute() if has_tls(data) else None


def hosts_of(host: str) -> list[str]:
    """What a certificate names for processes that listen on `host`: for all addresses, the machine's name and
    the address by which it reaches others."""
    if host != "0.0.0.0":
        return [host]
    names = [socket.gethostname()]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked, suppress(OSError):
        asked.connect((_ELSEWHERE, 9))  # sends nothing: the system chooses the address
        names.append(asked.getsockname()[0])
    return names


def make_tls(data: Path, hosts: Iterable[str]) -> None:
    """For a set that listens on `hosts`: make its authorities once, and certificates at each start.

    Raises `OSError`, and `ValueError` if the authority's files are damaged.
    """
    folder = (data / FOLDER).absolute()
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    name = data.absolute().name
    members = _authority(folder, "authority", f"brokerset {name}")
    of_clients = _authority(folder, "client-authority", f"clients of brokerset {name}")
    served = dict.fromkeys([*hosts, "127.0.0.1", "localhost"])
    _write_pair(folder, "processes", members.issue("brokerset", served, lifetime=LIFETIME))
    _write_pair(folder, "client", of_clients.issue("client", lifetime=LIFETIME))
    clients = _CLIENTS.format(
        file=clients_file(folder.parent),
        variable=ENVIRONMENT_VARIABLE,
        authority=folder / "authority.pem",
        certificate=folder / "client.pem",
        key=folder / "client.key",
    )
    write_atomically(clients_file(data), clients.encode())
    write_atomically(processes_file(data), _PROCESSES.encode())  # last: now the set has TLS


def use_tls_of(data: Path) -> None:
    """Let this process, and those that it starts, talk to the set of a folder as its members do.

    What the environment says already is left as it is.
    """
    if has_tls(data):
        os.environ.setdefault(ENVIRONMENT_VARIABLE, str(processes_file(data).absolute()))


def use_tls_of_own(data: Path) -> None:
    """Let this process, and those that it starts, talk as the set of a folder does that they run.

    Whatever the environment says is meant for another set.
    """
    os.environ.pop(ENVIRONMENT_VARIABLE, None)
    use_tls_of(data)


def _authority(folder: Path, file: str, name: str) -> Authority:
    """That of an earlier start, or a new one. Raises `ValueError` if its files are damaged."""
    from brokerset_runtime.tls.authority import Authority

    certificate, key = folder / f"{file}.pem", folder / f"{file}.key"
    if certificate.exists() and key.exists():
        try:
            return Authority(certificate.read_bytes(), key.read_bytes())
        except ValueError as error:
            raise ValueError(f"{certificate.name}, {key.name}: {error}") from None
    authority = Authority.make(name)
    _write_secret(key, authority.key)
    write_atomically(certificate, authority.certificate)
    return authority


def _write_pair(folder: Path, name: str, issued: Issued) -> None:
    _write_secret(folder / f"{name}.key", issued.key)
    write_atomically(folder / f"{name}.pem", issued.certificate)


def _write_secret(path: Path, data: bytes) -> None:
    """Write what only the owner may read."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    with os.fdopen(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        stream.write(data)
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(path)
