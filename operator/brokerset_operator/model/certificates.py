"""What is observed of certificates that the operator keeps for a set: values without any key. Pure.

Keys are read where they are used (`certificate_secrets`), so that they get into no plan, status, log or text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from brokerset_operator.model import names
from brokerset_spec.manifest import BrokerSet

RENEW_SHARE: Final = 1 / 3
"""What is left of a certificate's time when it is renewed: of 90 days 30, as cert-manager does it."""

ALARM_SHARE: Final = 1 / 6
"""What is left of it when people are warned: half of the time for its renewal is over."""


CLOCK_SKEW_SECONDS: Final = 3600.0
"""`CLOCK_SKEW` of `brokerset_runtime.tls.authority`: a certificate is good from so long before it is made."""


@dataclass(frozen=True, slots=True)
class Obstacle:
    """Why the operator cannot keep a set's certificate."""

    reason: str
    """In one word, for the condition."""

    message: str
    """Why, and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Certificate:
    """A certificate, as far as it matters here. Times are seconds since 1970."""

    fingerprint: str
    """SHA-256 of it, in hexadecimal digits."""

    made: float
    not_after: float
    names: frozenset[str] = frozenset()
    """DNS names and addresses that it is for."""

    pem: str = ""

    def is_ahead(self, now: float) -> bool:
        """Whether it is not good yet: it was made under a clock that was ahead."""
        return self.made > now + CLOCK_SKEW_SECONDS

    @property
    def renewal(self) -> float:
        """When to renew it."""
        return self.not_after - (self.not_after - self.made) * RENEW_SHARE

    @property
    def alarm(self) -> float:
        """From when on people are warned."""
        return self.not_after - (self.not_after - self.made) * ALARM_SHARE


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthoritySecret:
    """The Secret of an authority."""

    version: str
    """Its resource version: it is replaced only as the one that was observed."""

    signing: Certificate | None
    """None if it, or its key, cannot be read."""

    following: Certificate | None = None
    """The one that will sign when everybody trusts it."""

    retired: tuple[Certificate, ...] = ()
    """Those that signed before, and are trusted still."""

    renewal: str = ""
    """The value of `names.RENEW_AUTHORITY` that was done last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CertificateSecret:
    """The Secret that pods mount."""

    version: str
    shown: Certificate | None
    """None if it, or its key, cannot be read."""

    signed_by: str | None = None
    """Fingerprint of the authority; None if it is none of those that are known."""

    renewal: str = ""
    """The value of `names.RENEW_CERTIFICATES` that was done last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnCertificates:
    """What there is of a set's own authority."""

    problem: Obstacle | None = None
    """Why nothing can be done about it; the rest is unknown then."""

    foreign_trust: bool = False
    """Whether the ConfigMap where the authority is to be published belongs to somebody else."""

    authority: AuthoritySecret | None = None
    certificate: CertificateSecret | None = None
    published: tuple[tuple[Certificate, float | None], ...] = ()
    """Authorities in the ConfigMap that pods trust, with the time since when each is there, if that is
    known."""

    @property
    def trusted(self) -> tuple[Certificate, ...]:
        """Authorities that are to be trusted, the signing one first; as published while that is unknown."""
        secret = self.authority
        if secret is None or secret.signing is None:
            return tuple(each for each, _ in self.published)
        both = (secret.signing, secret.following, *secret.retired)
        return tuple({each.fingerprint: each for each in both if each is not None}.values())

    @property
    def usable(self) -> bool:
        """Whether pods that start now find a certificate, and trust who has signed it."""
        secret = self.certificate
        published = {each.fingerprint for each, _ in self.published}
        return secret is not None and secret.shown is not None and secret.signed_by in published


@dataclass(frozen=True, slots=True, kw_only=True)
class IssuedCertificate:
    """What cert-manager says of the Certificate of a set."""

    problem: Obstacle | None = None
    """Why nothing can be done about it."""

    ready: bool = False
    """Whether the Secret has a certificate as it was asked for last."""

    message: str = ""
    """What cert-manager says when not."""

    not_before: float | None = None
    not_after: float | None = None
    renewal: float | None = None


def certificate_secret(manifest: BrokerSet) -> str | None:
    """Name of the Secret that pods mount; None without TLS."""
    tls = manifest.spec.tls
    if tls.authority is not None or tls.issuer_ref is not None:
        return names.certificate(manifest.metadata.name)
    return tls.secret_name


def trust_config_map(manifest: BrokerSet) -> str | None:
    """Name of the ConfigMap with the authorities to trust; None without one."""
    tls = manifest.spec.tls
    return tls.trust_config_map if tls.authority is None else names.authority(manifest.metadata.name)


def earliest(times: Iterable[float | None]) -> float | None:
    """The first of some times, None if there are none."""
    return min((each for each in times if each is not None), default=None)
