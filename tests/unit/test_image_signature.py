"""The signature of an image is worth something: what was changed, or signed by somebody else, is refused."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterable, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

ROOT = Path(__file__).parents[2]
CONFIG, LAYER = b'{"architecture":"amd64"}', b"what runs in the pods" * 1000


@pytest.fixture
def signatures(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module; `generate` is found from the root alone."""
    monkeypatch.syspath_prepend(str(ROOT))
    return import_module("generate.image_signature")


def digest_of(blob: bytes) -> str:
    return f"sha256:{hashlib.sha256(blob).hexdigest()}"


def described(blob: bytes) -> dict[str, Any]:
    return {"digest": digest_of(blob), "size": len(blob)}


def manifest_of(layer: bytes = LAYER) -> bytes:
    return json.dumps({"config": described(CONFIG), "layers": [described(layer)]}).encode()


def index_of(*manifests: bytes) -> bytes:
    return json.dumps({"schemaVersion": 2, "manifests": [described(each) for each in manifests]}).encode()


def archive(
    folder: Path,
    *,
    index: bytes | None = None,
    changed: Mapping[str, bytes] | None = None,
    more: Iterable[bytes] = (),
) -> Path:
    """An image of one layer as builders save it; `changed` has other bytes under a digest."""
    blobs = {digest_of(each): each for each in (CONFIG, LAYER, manifest_of(), *more)} | dict(changed or {})
    files = [("index.json", index or index_of(manifest_of()))]
    files += [(f"blobs/sha256/{digest.removeprefix('sha256:')}", blob) for digest, blob in blobs.items()]
    return written(folder, files)


def written(folder: Path, files: Iterable[tuple[str, bytes]]) -> Path:
    file = folder / "brokerset.oci.tar"
    with tarfile.open(file, "w") as tar:
        for name, data in files:
            member = tarfile.TarInfo(name)
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return file


def keys(folder: Path, name: str = "release", password: bytes | None = None) -> tuple[Path, Path]:
    """A private key, with a password or without, and its public key."""
    return stored(folder, name, ec.generate_private_key(ec.SECP256R1()), password)


def stored(folder: Path, name: str, key: Any, password: bytes | None = None) -> tuple[Path, Path]:
    private, public = folder / f"{name}.key", folder / f"{name}.pub"
    encryption = (
        serialization.NoEncryption() if password is None else serialization.BestAvailableEncryption(password)
    )
    private.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
    )
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return private, public


def test_a_signed_image_is_verified_by_its_digest_and_the_payload_is_cosigns(
    signatures: Any, tmp_path: Path
) -> None:
    """The digest is that of the manifest, which registries show as well."""
    private, public = keys(tmp_path)
    image = archive(tmp_path)

    signed = signatures.sign(image, private, "registry.example.com/brokerset:1")

    assert signed == signatures.verify(image, public) == digest_of(manifest_of())
    assert json.loads((tmp_path / "brokerset.oci.tar.payload.json").read_text()) == {
        "critical": {
            "identity": {"docker-reference": "registry.example.com/brokerset:1"},
            "image": {"docker-manifest-digest": signed},
            "type": "cosign container image signature",
        },
        "optional": None,
    }


@pytest.mark.skipif(shutil.which("openssl") is None, reason="no openssl")
def test_openssl_verifies_it_too(signatures: Any, tmp_path: Path) -> None:
    """As SECURITY.md says, for who has no Python."""
    private, public = keys(tmp_path)
    image = archive(tmp_path)
    signatures.sign(image, private, "brokerset")
    raw = tmp_path / "raw.sig"
    raw.write_bytes(base64.b64decode(signatures.signature_file(image).read_text()))

    def check(payload: Path) -> int:
        command = ["openssl", "dgst", "-sha256", "-verify", str(public), "-signature", str(raw), str(payload)]
        return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode

    payload = signatures.payload_file(image)
    assert check(payload) == 0
    payload.write_bytes(payload.read_bytes().replace(b"brokerset", b"brokersot"))
    assert check(payload) != 0


@pytest.mark.parametrize(
    "changed", [CONFIG, LAYER, manifest_of()], ids=["settings", "a layer", "the manifest"]
)
def test_a_changed_image_is_refused(signatures: Any, tmp_path: Path, changed: bytes) -> None:
    """Whichever part it is, and by one byte."""
    private, public = keys(tmp_path)
    signatures.sign(archive(tmp_path), private, "brokerset")

    image = archive(tmp_path, changed={digest_of(changed): changed[:-1] + b"!"})

    with pytest.raises(signatures.Refused, match="was changed"):
        signatures.verify(image, public)


def test_another_image_with_this_signature_is_refused(signatures: Any, tmp_path: Path) -> None:
    """It is whole in itself, and is not what was signed."""
    private, public = keys(tmp_path)
    signatures.sign(archive(tmp_path), private, "brokerset")
    other = manifest_of(b"something else")

    image = archive(tmp_path, index=index_of(other), more=(other, b"something else"))

    with pytest.raises(signatures.Refused, match=f"has the image {digest_of(other)}, and signed is"):
        signatures.verify(image, public)


def test_a_signature_by_somebody_else_or_of_a_changed_payload_is_refused(
    signatures: Any, tmp_path: Path
) -> None:
    """Who changes the image can also make a signature, but not by the key of the release."""
    _, public = keys(tmp_path)
    private, _ = keys(tmp_path, "stranger")
    image = archive(tmp_path)
    signatures.sign(image, private, "brokerset")

    with pytest.raises(signatures.Refused, match="is no signature"):
        signatures.verify(image, public)
    signatures.signature_file(image).write_text("not base64!")
    with pytest.raises(signatures.Refused, match="is no signature"):
        signatures.verify(image, public)


def test_an_archive_that_readers_may_read_differently_is_refused(signatures: Any, tmp_path: Path) -> None:
    """A blob that is there twice, more images than one, a blob that is missing, and no image at all."""
    private, _ = keys(tmp_path)
    name = f"blobs/sha256/{digest_of(LAYER).removeprefix('sha256:')}"
    for files, problem in (
        ([(name, b"other"), (name, LAYER), ("index.json", index_of(manifest_of()))], "twice"),
        ([("index.json", index_of(manifest_of(), manifest_of(b"")))], "has 2 images"),
        ([("index.json", index_of(manifest_of()))], "lacks blobs"),
        ([("manifest.json", b"[]")], "lacks index.json"),
    ):
        with pytest.raises(signatures.Refused, match=problem):
            signatures.sign(written(tmp_path, files), private, "brokerset")
    (tmp_path / "brokerset.oci.tar").write_text("no tar")
    with pytest.raises(signatures.Refused, match="is no OCI archive"):
        signatures.sign(tmp_path / "brokerset.oci.tar", private, "brokerset")


def test_an_index_that_names_the_image_is_followed(signatures: Any, tmp_path: Path) -> None:
    """As Docker saves images: a changed layer two steps below is found."""
    private, public = keys(tmp_path)
    inner = index_of(manifest_of())
    image = archive(tmp_path, index=index_of(inner), more=(inner,))

    assert signatures.sign(image, private, "brokerset") == digest_of(inner)

    archive(tmp_path, index=index_of(inner), more=(inner,), changed={digest_of(LAYER): b"other"})
    with pytest.raises(signatures.Refused, match="was changed"):
        signatures.verify(image, public)


def test_the_command_takes_a_key_with_a_password_from_the_environment(tmp_path: Path) -> None:
    """And says in one line what is wrong, without a trace; another kind of key is refused before it signs."""
    private, public = keys(tmp_path, password=b"secret")
    image = archive(tmp_path)

    def run(action: str, key: Path, **environment: str) -> tuple[int, str]:
        done = subprocess.run(
            [
                sys.executable,
                str(ROOT / "generate" / "image_signature.py"),
                action,
                str(image),
                "--key",
                str(key),
            ],
            capture_output=True,
            text=True,
            timeout=60,
            env={**os.environ, **environment},
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    code, said = run("sign", private)
    assert code == 1
    assert said.startswith("image_signature: ")
    assert len(said.splitlines()) == 1
    assert run("sign", private, SIGN_KEY_PASSWORD="secret") == (0, f"signed {digest_of(manifest_of())}\n")
    assert run("verify", public) == (0, f"verified {digest_of(manifest_of())}\n")
    other, _ = stored(tmp_path, "other", ed25519.Ed25519PrivateKey.generate())
    code, said = run("sign", other)
    assert code == 1
    assert "is no key of ECDSA P-256" in said
