"""What to do now about a set's own authority and its certificate: decisions on values, by a given time.

An authority is renewed with an overlap, as Strimzi and CloudNativePG do it. Nobody ever meets a certificate
of an authority that it does not trust yet:

1. `PREPARE`: a second authority is made. The ConfigMap has both from then on; the first one still signs.
2. When it has been there for `spread_seconds`, the kubelets have brought it to all pods. `PROMOTE`: the
   second one signs, so the certificate is issued again. The first one is trusted still.
3. After `spread_seconds` all pods show the new certificate. `RETIRE`: the first one is trusted no more.

What was made under a clock that was ahead is made again. That takes the same steps, since it may be this
clock that is wrong.

Where the Secret of the authority was lost, `MAKE` begins at the second step: those in the ConfigMap stay
trusted until a new certificate has taken the place of theirs.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from brokerset_operator.model.certificates import Certificate, OwnCertificates

AHEAD: Final = "is not valid yet: it was made under a clock that was ahead"


class AuthorityChange(StrEnum):
    """What is done to the Secret of an authority."""

    MAKE = "make"
    """An authority is made that signs at once, with an overlap if others are trusted."""

    PREPARE = "prepare"
    PROMOTE = "promote"
    RETIRE = "retire"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What a set asks for."""

    hosts: Collection[str]
    """Names that its certificate must be for."""

    spread_seconds: float
    """How long it takes at most until all pods have read a Secret or ConfigMap that was changed."""

    renewal: str = ""
    """Value of `names.RENEW_CERTIFICATES`: a new one wants a new certificate."""

    authority_renewal: str = ""
    """Value of `names.RENEW_AUTHORITY`: a new one wants a new authority."""


@dataclass(frozen=True, slots=True)
class ChangeAuthority:
    """Change the authority now."""

    change: AuthorityChange
    why: str
    trusted: tuple[Certificate, ...] = ()
    """Authorities that are to stay trusted besides the one that signs then."""


@dataclass(frozen=True, slots=True)
class Issue:
    """Issue a certificate now, by the authority with this fingerprint."""

    authority: str
    why: str


@dataclass(frozen=True, slots=True)
class WaitUntil:
    """Do nothing before that time, in seconds since 1970; None: until something else was done."""

    time: float | None
    why: str


Decision = ChangeAuthority | Issue | WaitUntil


def decide_authority(seen: OwnCertificates, wishes: Wishes, now: float) -> ChangeAuthority | WaitUntil | None:
    """Return the next step of the authority; None while it is as it should be."""
    secret = seen.authority
    if secret is None or secret.signing is None:
        what = "there is no authority" if secret is None else "its authority cannot be read"
        valid = tuple(each for each in seen.trusted if each.not_after > now)
        return ChangeAuthority(AuthorityChange.MAKE, what, valid)
    signing, following = secret.signing, secret.following
    if following is not None:
        if following.is_ahead(now):
            return ChangeAuthority(AuthorityChange.PREPARE, f"the next authority {AHEAD}")
        waits = spread(seen, following, wishes, now)
        if waits is None or signing.not_after <= now:
            kept = (signing, *secret.retired)
            return ChangeAuthority(AuthorityChange.PROMOTE, "everybody trusts the new authority", kept)
        return waits
    if secret.retired:
        until = _replaced_everywhere(seen, signing, wishes)
        gone = until is not None and until <= now
        kept = tuple(each for each in secret.retired if each.not_after > now and not gone)
        if kept != secret.retired:
            return ChangeAuthority(AuthorityChange.RETIRE, "nobody shows certificates of it any more", kept)
        return WaitUntil(until, "pods read the certificate of the new authority")
    if now >= signing.renewal:
        return ChangeAuthority(AuthorityChange.PREPARE, "the authority is about to expire")
    if signing.is_ahead(now):
        return ChangeAuthority(AuthorityChange.PREPARE, f"the authority {AHEAD}")
    if wishes.authority_renewal not in ("", secret.renewal):
        return ChangeAuthority(AuthorityChange.PREPARE, "a new authority was asked for")
    return None


def decide_certificate(seen: OwnCertificates, wishes: Wishes, now: float) -> Issue | WaitUntil | None:
    """Return what to do about the certificate; `decide_authority` goes first, and must have nothing to do."""
    secret = seen.authority
    if secret is None or secret.signing is None:
        return None
    why = _why_issue(seen, secret.signing, wishes, now)
    if not why:
        return None
    return spread(seen, secret.signing, wishes, now) or Issue(secret.signing.fingerprint, why)


def spread(seen: OwnCertificates, authority: Certificate, wishes: Wishes, now: float) -> WaitUntil | None:
    """Return what to wait for until everybody trusts an authority; None if they do.

    While it is the only one nobody trusts another one, so there is nothing to wait for.
    """
    if [each.fingerprint for each in seen.trusted] == [authority.fingerprint]:
        return None
    since = {each.fingerprint: since for each, since in seen.published}.get(authority.fingerprint)
    if since is None:
        return WaitUntil(None, "the new authority is not in the ConfigMap yet")
    since = min(since, now)  # a clock was ahead; the ConfigMap is about to say so, too
    if now < since + wishes.spread_seconds:
        return WaitUntil(since + wishes.spread_seconds, "pods and clients read the new authority")
    return None


def _why_issue(seen: OwnCertificates, signing: Certificate, wishes: Wishes, now: float) -> str:
    secret = seen.certificate
    if secret is None:
        return "there is no certificate"
    if secret.shown is None:
        return "the certificate cannot be read"
    if missing := sorted(set(wishes.hosts) - secret.shown.names):
        return f"it is not for {', '.join(missing[:3])}"
    if secret.signed_by != signing.fingerprint:
        return "another authority signs now"
    if now >= secret.shown.renewal:
        return "it is about to expire"
    if secret.shown.is_ahead(now):
        return f"it {AHEAD}"
    if wishes.renewal not in ("", secret.renewal):
        return "a new certificate was asked for"
    return ""


def _replaced_everywhere(seen: OwnCertificates, signing: Certificate, wishes: Wishes) -> float | None:
    """When nobody shows a certificate of another authority than the signing one; None while there is none."""
    secret = seen.certificate
    if secret is None or secret.shown is None or secret.signed_by != signing.fingerprint:
        return None
    return secret.shown.made + wishes.spread_seconds
