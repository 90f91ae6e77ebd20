"""What `brokerset up --tls` writes: members and clients of a set have authorities of their own."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509

from brokerset_cli.set_tls import clients_file, make_tls, processes_file
from brokerset_runtime.tls import Tls, read_tls_config


def issuer(file: Path) -> str:
    return x509.load_pem_x509_certificate(file.read_bytes()).issuer.rfc4514_string()


@pytest.fixture
def data(tmp_path: Path) -> Path:
    make_tls(tmp_path / "shop", ["10.0.0.1"])
    return tmp_path / "shop"


def test_certificates_of_clients_are_of_another_authority_than_those_of_members(data: Path) -> None:
    """So a client's certificate opens no port of members, and both files can be used as they are."""
    processes, clients = read_tls_config(processes_file(data)), read_tls_config(clients_file(data))
    Tls(processes_file(data))
    Tls(clients_file(data))

    assert processes.member_authorities == data / "tls" / "authority.pem" == clients.server_authorities
    assert processes.client_authorities == data / "tls" / "client-authority.pem"
    assert processes.server is not None
    assert issuer(processes.server.certificate) == "CN=brokerset shop"
    assert clients.client is not None
    assert issuer(clients.client.certificate) == "CN=clients of brokerset shop"


def test_a_folder_with_one_authority_gets_the_second_and_its_clients_trust_on(data: Path) -> None:
    """As folders were made before members had an authority of their own."""
    folder = data / "tls"
    for file in ("client-authority.pem", "client-authority.key", "client.pem", "client.key"):
        (folder / file).unlink()
    trusted = (folder / "authority.pem").read_bytes()

    make_tls(data, ["10.0.0.1"])

    assert (folder / "authority.pem").read_bytes() == trusted
    assert issuer(folder / "client.pem") == "CN=clients of brokerset shop"


def test_authorities_stay_from_start_to_start_and_their_keys_are_for_the_owner_alone(data: Path) -> None:
    """Certificates alone are made again."""
    folder = data / "tls"
    before = {file.name: file.read_bytes() for file in folder.iterdir()}

    make_tls(data, ["10.0.0.1"])

    same = {file.name for file in folder.iterdir() if before[file.name] == file.read_bytes()}
    assert {name for name in same if "authority" in name} == {
        "authority.pem", "authority.key", "client-authority.pem", "client-authority.key",
    }  # fmt: skip
    assert not same & {"processes.pem", "processes.key", "client.pem", "client.key"}
    assert {file.stat().st_mode & 0o77 for file in folder.glob("*.key")} == {0}
