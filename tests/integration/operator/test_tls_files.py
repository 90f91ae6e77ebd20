"""What the operator says of TLS, understood by the processes, with a Secret as the kubelet mounts it."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from tests.unit.operator.resources.sets import build

from brokerset_operator.resources.tls_files import SECRET_FOLDER
from brokerset_runtime.tls import Tls
from brokerset_runtime.tls.authority import Authority, Issued


def mount(folder: Path, version: str, issued: Issued) -> None:
    """Put a version of the Secret into its volume: files are links through `..data`, which is swapped."""
    entries = {"tls.crt": issued.certificate, "tls.key": issued.key}
    (folder / version).mkdir(parents=True)
    for name, content in entries.items():
        (folder / version / name).write_bytes(content)
    (folder / "..data_tmp").symlink_to(version)
    os.replace(folder / "..data_tmp", folder / "..data")
    for name in entries:
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"..data/{name}")


def shown(tls: Tls) -> bytes:
    """The certificate that a client is shown, in a handshake in memory that checks nothing."""
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname, client.verify_mode = False, ssl.CERT_NONE
    assert tls.server is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours = client.wrap_bio(to_client, to_server)
    theirs = tls.server.wrap_bio(to_server, to_client, server_side=True)
    for _ in range(4):
        for end in (ours, theirs):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    found = ours.getpeercert(binary_form=True)
    assert found is not None
    return found


def test_a_renewed_secret_is_in_force_without_a_restart(tmp_path: Path) -> None:
    """The rendered file starts a process; later clients are shown the next version of the Secret."""
    authority = Authority.make("orders")
    first, second = (authority.issue("orders", ["*.orders-0.shop.svc"]) for _ in range(2))
    mount(tmp_path / "tls", "..first", first)
    text = build({"tls": {"secretName": "orders-tls"}})["ConfigMap", "orders-0"]["data"]["tls.properties"]
    file = tmp_path / "tls.properties"
    file.write_text(text.replace(SECRET_FOLDER, str(tmp_path / "tls")), encoding="utf-8")
    tls = Tls(file)
    assert shown(tls) == ssl.PEM_cert_to_DER_cert(first.certificate.decode())
    assert not tls.refresh(), "nothing has changed"

    mount(tmp_path / "tls", "..second", second)

    assert tls.refresh()
    assert shown(tls) == ssl.PEM_cert_to_DER_cert(second.certificate.decode())
