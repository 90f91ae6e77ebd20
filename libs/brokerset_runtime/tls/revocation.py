"""Lists of revoked certificates (CRLs, RFC 5280): read, checked before they are in force, and asked again.

OpenSSL refuses revoked certificates in handshakes. What is here finds what is wrong with a file before it
keeps everybody out, and which of the connections that are open has a certificate that was revoked since.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm

from brokerset_runtime.settings import SettingsError

BLOCK: Final = re.compile(rb"-----BEGIN X509 CRL-----.*?-----END X509 CRL-----", re.DOTALL)
CERTIFICATE_BLOCK: Final = re.compile(rb"-----BEGIN (X509 |TRUSTED )?CERTIFICATE-----")


@dataclass(frozen=True, slots=True)
class ListFile:
    """A file of lists in PEM, and the file with the authorities that have signed them; with their keys."""

    key: str
    file: Path
    authorities_key: str
    authorities: Path


@dataclass(frozen=True, slots=True)
class RevocationList:
    """What one authority has revoked."""

    authority: x509.Certificate
    serials: frozenset[int]
    end: datetime
    """From then on OpenSSL takes no certificate of this authority, until there is a newer list."""

    @property
    def name(self) -> str:
        return self.authority.subject.rfc4514_string()

    def has(self, certificate: x509.Certificate) -> bool:
        if certificate.serial_number not in self.serials or certificate.issuer != self.authority.subject:
            return False
        try:  # another authority may have the same name
            certificate.verify_directly_issued_by(self.authority)
        except Exception:  # each kind of key has an error of its own
            return False
        return True


def read_lists(
    source: ListFile, now: datetime, in_force: Iterable[RevocationList] = ()
) -> tuple[RevocationList, ...]:
    """The newest list of each authority that `source` trusts.

    Each of them needs one: OpenSSL refuses all certificates of an authority without a list that is good now.
    So an expired one is wrong, unless the one of that authority that is `in_force` is no better: then it must
    not keep back what others have revoked. Raises `SettingsError` with all that is wrong.
    """
    where = f"{source.key}={source.file}"
    try:
        text = source.file.read_bytes()
        authorities = x509.load_pem_x509_certificates(source.authorities.read_bytes())
    except OSError as error:
        raise SettingsError([f"{where}: {error.filename} cannot be read: {error.strerror}"]) from None
    except ValueError:
        raise SettingsError([f"{source.authorities_key}={source.authorities}: is no PEM"]) from None
    if CERTIFICATE_BLOCK.search(text):  # OpenSSL would trust it
        raise SettingsError([f"{where}: has a certificate; put authorities into {source.authorities_key}"])
    try:
        found = [x509.load_pem_x509_crl(block) for block in BLOCK.findall(text)]
        lists = [
            (authority, [each for each in found if _signed(each, authority)]) for authority in authorities
        ]
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise SettingsError([f"{where}: has a list that cannot be understood: {error}"]) from None
    if not found:
        raise SettingsError([f"{where}: has no revocation list in PEM (BEGIN X509 CRL)"])
    known_lists = tuple(in_force)
    known = {id(each) for _, signed in lists for each in signed}
    problems = [
        f"has a list of {each.issuer.rfc4514_string()}, which no authority in"
        f" {source.authorities_key}={source.authorities} has signed"
        for each in found
        if id(each) not in known
    ]
    newest: list[RevocationList] = []
    for authority, signed in lists:
        name = authority.subject.rfc4514_string()
        if not signed:
            problems.append(
                f"has no list of {name}: all its certificates would be refused; add one, an empty one if"
                " nothing is revoked"
            )
            continue
        crl = max(signed, key=lambda each: each.last_update_utc)
        end = crl.next_update_utc
        if end is None:
            problems.append(f"the list of {name} does not say when the next one comes (nextUpdate)")
        elif end <= now and not any(each.authority == authority and each.end <= end for each in known_lists):
            problems.append(
                f"the list of {name} has expired at {end:%Y-%m-%d %H:%M:%S} UTC: fetch a newer one"
            )
        elif crl.last_update_utc > now:
            problems.append(
                f"the list of {name} is of the future ({crl.last_update_utc:%Y-%m-%d %H:%M:%S} UTC)"
            )
        else:
            newest.append(RevocationList(authority, frozenset(each.serial_number for each in crl), end))
    if problems:
        raise SettingsError([f"{where}: {problem}" for problem in problems])
    return tuple(newest)


def revoked_name(lists: Iterable[RevocationList], shown: bytes) -> str | None:
    """Subject and serial of a certificate (DER) that is on one of the lists; None if it is on none."""
    try:
        certificate = x509.load_der_x509_certificate(shown)
    except ValueError:  # OpenSSL has taken it: nothing that anybody lists
        return None
    return name_of(certificate) if any(each.has(certificate) for each in lists) else None


def name_of(certificate: x509.Certificate) -> str:
    """Subject and serial, as `openssl` writes the latter."""
    return f"{certificate.subject.rfc4514_string()}, serial {certificate.serial_number:X}"


def _signed(crl: x509.CertificateRevocationList, authority: x509.Certificate) -> bool:
    key = authority.public_key()
    return crl.issuer == authority.subject and crl.is_signature_valid(key)  # type: ignore[arg-type]  # or raises
