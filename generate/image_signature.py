"""Sign an image, and check its signature: `image_signature.py sign|verify ARCHIVE --key FILE`.

ARCHIVE is the image as an OCI archive: a tar of blobs by their digests, and an index that names one manifest.
What is signed is cosign's "simple signing" payload with that manifest's digest, by ECDSA P-256 and SHA-256;
payload and signature stand next to the archive, as `cosign attach signature` takes them. A registry shows the
same digest if the archive is copied as it is.

Every blob that the manifest names is compared with its digest: else a changed layer would pass.
"""

from __future__ import annotations

import argparse
import base64
import hashlib
import json
import os
import re
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

PASSWORD_VARIABLE: Final = "SIGN_KEY_PASSWORD"
"""Has the password of the private key, if it has one: arguments can be read by others of the machine."""

SIGNATURE_TYPE: Final = "cosign container image signature"

JSON_SIZE_MAX: Final = 4 << 20
"""Most that an index or a manifest of an image may have, as registries take it."""

DEPTH_MAX: Final = 3
"""Most that indexes stand in each other: archives of Docker have one in one."""

CHUNK_BYTES: Final = 1 << 20

_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")


class Refused(Exception):
    """The image, its signature or a key is not as it must be; the text says what to do."""


def payload_file(archive: Path) -> Path:
    """What is signed."""
    return archive.with_name(f"{archive.name}.payload.json")


def signature_file(archive: Path) -> Path:
    """The signature of that, in base64."""
    return archive.with_name(f"{archive.name}.sig")


def sign(archive: Path, key_file: Path, image: str) -> str:
    """Write payload and signature next to the archive; returns the digest. `image` is what it claims to be.

    Raises `Refused`; `ValueError` and `TypeError` for a key that cannot be read, or not with this password.
    """
    key = serialization.load_pem_private_key(key_file.read_bytes(), _password())
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        advice = "make one with openssl ecparam -name prime256v1 -genkey -noout"
        raise Refused(f"{key_file}: is no key of ECDSA P-256; {advice}")
    digest = checked_digest(archive)
    claims = {
        "critical": {
            "identity": {"docker-reference": image},
            "image": {"docker-manifest-digest": digest},
            "type": SIGNATURE_TYPE,
        },
        "optional": None,
    }
    payload = json.dumps(claims, separators=(",", ":")).encode()
    signature = key.sign(payload, ec.ECDSA(hashes.SHA256()))
    payload_file(archive).write_bytes(payload)
    signature_file(archive).write_text(base64.b64encode(signature).decode() + "\n")
    return digest


def verify(archive: Path, key_file: Path) -> str:
    """The digest of an image that the owner of the key has signed. Raises `Refused`."""
    key = serialization.load_pem_public_key(key_file.read_bytes())
    if not isinstance(key, ec.EllipticCurvePublicKey):
        raise Refused(f"{key_file}: is no public key of ECDSA; take that of the release")
    payload = payload_file(archive).read_bytes()
    try:
        signature = base64.b64decode(signature_file(archive).read_text().strip(), validate=True)
        key.verify(signature, payload, ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ValueError):
        raise Refused(
            f"{signature_file(archive)}: is no signature of {payload_file(archive).name} by this key;"
            " do not use the image"
        ) from None
    critical = json.loads(payload)["critical"]
    if critical["type"] != SIGNATURE_TYPE:
        raise Refused(f"{payload_file(archive)}: is about something else than an image; do not use the image")
    signed, found = critical["image"]["docker-manifest-digest"], checked_digest(archive)
    if signed != found:
        raise Refused(f"{archive}: has the image {found}, and signed is {signed}; do not use the image")
    return found


def checked_digest(archive: Path) -> str:
    """The digest of the only image of the archive, all of whose blobs are as their digests say."""
    try:
        with tarfile.open(archive) as tar:
            return _Blobs(archive, tar).image()
    except (tarfile.TarError, KeyError, TypeError, ValueError) as error:
        raise Refused(f"{archive}: is no OCI archive ({error}); make it with make image SIGN_KEY=…") from None


class _Blobs:
    """The files of an archive."""

    def __init__(self, archive: Path, tar: tarfile.TarFile) -> None:
        self._archive, self._tar = archive, tar
        self._members: dict[str, tarfile.TarInfo] = {}
        for member in tar:
            name = os.path.normpath(member.name)
            if member.isfile() and self._members.setdefault(name, member) is not member:
                raise Refused(
                    f"{archive}: has {name} twice, and readers differ in which counts; do not use it"
                )

    def image(self) -> str:
        manifests = json.loads(self._open("index.json").read(JSON_SIZE_MAX))["manifests"]
        if len(manifests) != 1:
            raise Refused(f"{self._archive}: has {len(manifests)} images; save one alone")
        (descriptor,) = manifests
        for digest in self._below(descriptor, DEPTH_MAX):
            self._check(digest)
        return str(descriptor["digest"])

    def _below(self, descriptor: dict[str, Any], depth: int) -> Iterator[str]:
        """The digests of a manifest or an index, and of all that it names; each checked before it is read."""
        digest = descriptor["digest"]
        self._check(digest)
        document = json.loads(self._blob(digest).read(JSON_SIZE_MAX))
        for each in document.get("manifests", ()):
            if not depth:
                raise Refused(f"{self._archive}: has indexes in indexes; save one image alone")
            yield from self._below(each, depth - 1)
        if "config" in document:
            yield from (each["digest"] for each in (document["config"], *document["layers"]))

    def _check(self, digest: str) -> None:
        found, blob = hashlib.sha256(), self._blob(digest)
        while chunk := blob.read(CHUNK_BYTES):
            found.update(chunk)
        if f"sha256:{found.hexdigest()}" != digest:
            raise Refused(f"{self._archive}: the blob {digest} was changed; do not use the image")

    def _blob(self, digest: str) -> IO[bytes]:
        if not _DIGEST.fullmatch(digest):
            raise Refused(f"{self._archive}: {digest!r} is no digest by SHA-256")
        return self._open(f"blobs/sha256/{digest.removeprefix('sha256:')}")

    def _open(self, name: str) -> IO[bytes]:
        member = self._members.get(name)
        blob = None if member is None else self._tar.extractfile(member)
        if blob is None:
            raise Refused(
                f"{self._archive}: lacks {name}; make it with make image SIGN_KEY=…, or fetch it again"
            )
        return blob


def _password() -> bytes | None:
    given = os.environ.get(PASSWORD_VARIABLE)
    return given.encode() if given else None


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("action", choices=("sign", "verify"))
    parser.add_argument("archive", type=Path)
    parser.add_argument(
        "--key", type=Path, required=True, help="private key to sign, public key to verify; PEM"
    )
    parser.add_argument("--image", default="brokerset", help="what a signed image claims to be")
    options = parser.parse_args()
    try:
        if options.action == "sign":
            said = f"signed {sign(options.archive, options.key, options.image)}"
        else:
            said = f"verified {verify(options.archive, options.key)}"
    except (Refused, OSError, ValueError, TypeError) as error:
        sys.stderr.write(f"image_signature: {error}\n")
        return 1
    sys.stdout.write(f"{said}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
