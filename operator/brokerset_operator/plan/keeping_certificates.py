"""Certificates that the operator keeps, or has cert-manager keep: the rule, and what is said of them.

Nothing that is plain becomes TLS before there is a certificate: until then `awaits_certificate` keeps objects
and pods as they are, and the rest of the plan goes on.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from brokerset_operator.model import names
from brokerset_operator.model.actions import EmitEvent, IssueCertificate, WriteAuthority
from brokerset_operator.model.certificates import (
    Certificate,
    IssuedCertificate,
    OwnCertificates,
    certificate_secret,
    earliest,
    trust_config_map,
)
from brokerset_operator.model.tls_stages import TRUST_VOLUME, VOLUME
from brokerset_operator.plan import reasons, steps
from brokerset_operator.plan.certificates import (
    AuthorityChange,
    ChangeAuthority,
    Decision,
    Issue,
    WaitUntil,
    Wishes,
    decide_authority,
    decide_certificate,
)
from brokerset_operator.plan.facts import Facts
from brokerset_operator.plan.objects import items, part, seconds, time_text
from brokerset_operator.plan.static import delete_unwanted, to_send
from brokerset_operator.plan.steps import At, Stage, Steps
from brokerset_operator.resources.certificates import certificate_hosts
from brokerset_operator.resources.set_facts import facts_of
from brokerset_spec.set_parts import OwnAuthority

ALARM_SECONDS: Final = 24 * 3600.0
"""How long after the time of its renewal people hear that cert-manager has not renewed a certificate."""

AUTHORITY: Final = "authority"
ISSUER: Final = "issuerRef"
"""Sources of certificates in `status.tls`: those that the operator keeps, and cert-manager."""

SAID: Final = {
    AuthorityChange.MAKE: "made an authority",
    AuthorityChange.PREPARE: "made the next authority, which signs when everybody trusts it",
    AuthorityChange.PROMOTE: "the next authority signs from now on",
    AuthorityChange.RETIRE: "the former authority is trusted no more",
}
"""What Events say of each change."""


def keep_certificates(facts: Facts) -> Steps:
    """Make, renew and replace the set's own authority and its certificate, one step in a reconcile."""
    own, seen = facts.manifest.spec.tls.authority, facts.observed.certificates
    if own is None or not isinstance(seen, OwnCertificates):
        return
    if _leaves_cert_manager(facts):
        # It would write the Secret that this authority is about to write.
        name = names.certificate(facts.meta.name)
        yield steps.GoesOn(reasons.CHANGING_TLS, f"Certificate {name} of cert-manager goes first")
        return
    if seen.problem is not None:
        return
    wishes = _wishes(facts)
    decided: Decision | None = decide_authority(seen, wishes, facts.now)
    if not isinstance(decided, ChangeAuthority):
        decided = decide_certificate(seen, wishes, facts.now) or decided
    # What waits for a certificate waits for this; what runs with one does not stop when it is refused. When
    # half of the time for a renewal is over, it goes before other steps, of which one may fail each time.
    needed = awaits_certificate(facts) or _lacks_hosts(seen, wishes) or _alarms(seen, facts.now)
    stage = Stage.OBJECTS if needed else Stage.REFUSABLE
    match decided:
        case ChangeAuthority(change, why):
            yield At(stage, _write(seen, own, wishes, decided))
            yield At(stage, EmitEvent("AuthorityChanged", f"{SAID[change]}: {why}"))
            yield steps.GoesOn(
                reasons.CHANGING_TLS, f"the set's authority changes: {why}", steps.AT_ONCE_SECONDS
            )
        case Issue(authority, why):
            version = seen.certificate.version if seen.certificate is not None else None
            yield At(
                stage,
                IssueCertificate(
                    version=version,
                    authority=authority,
                    hosts=tuple(wishes.hosts),
                    days=own.certificate_days,
                    renewal=wishes.renewal or (seen.certificate.renewal if seen.certificate else ""),
                    why=why,
                ),
            )
            yield At(stage, EmitEvent("CertificateIssued", f"a new certificate, because {why}"))
            yield steps.GoesOn(
                reasons.CHANGING_TLS, f"a certificate is issued, because {why}", steps.AT_ONCE_SECONDS
            )
        case WaitUntil(time, why):
            left = steps.BUSY_SECONDS if time is None else max(time - facts.now, steps.BUSY_SECONDS)
            yield steps.GoesOn(
                reasons.CHANGING_TLS, f"the set's authority changes: {why}", min(left, steps.WAIT_SECONDS)
            )


def keep_trust(facts: Facts) -> Steps:
    """Keep only what a certificate needs, while the rest of the set waits for that."""
    observed = facts.observed
    mine = {
        ("ConfigMap", names.authority(facts.meta.name)),
        ("Certificate", names.certificate(facts.meta.name)),
    }
    for manifest in facts.objects:
        kind, name = str(manifest["kind"]), str(part(manifest, "metadata")["name"])
        if (kind, name) in mine:
            there = (
                observed.config_maps.get(name)
                if kind == "ConfigMap"
                else observed.other.get(f"{kind}/{name}")
            )
            if (send := to_send(manifest, there)) is not None:
                yield send
    yield from delete_unwanted(facts, ("Certificate",))
    seen = observed.certificates
    yield steps.Again(steps.WAIT_SECONDS if seen is not None and seen.problem else steps.BUSY_SECONDS)


def report_certificates(facts: Facts) -> Steps:
    """Say what keeps a certificate from being there, or from being renewed."""
    seen = facts.observed.certificates
    if seen is None:
        return
    if seen.problem is not None:
        yield steps.Raise(reasons.TLS_REFUSED, seen.problem.reason, seen.problem.message)
        yield steps.Waits(seen.problem.message, steps.WAIT_SECONDS)
    elif isinstance(seen, IssuedCertificate) and not seen.ready:
        name = names.certificate(facts.meta.name)
        text = f"cert-manager has not issued Certificate {name} yet: {seen.message or 'it says nothing'}"
        if awaits_certificate(facts):
            yield steps.Raise(reasons.TLS_REFUSED, reasons.NOT_ISSUED, f"{text}; pods stay as they are")
        yield steps.Waits(text, steps.WAIT_SECONDS)
    if (late := _expiring(facts)) is not None:
        yield steps.Raise(reasons.CERTIFICATE_EXPIRING, reasons.NOT_RENEWED, late)
    if (due := _renewal(facts)) is not None:
        yield steps.Again(min(max(due - facts.now, steps.WAIT_SECONDS), steps.IDLE_SECONDS))


def awaits_certificate(facts: Facts) -> bool:
    """Whether pods of the set cannot be made yet, because there is no certificate for them.

    False for a set that has one in its pod templates, whatever became of it: pods that run go on with it.
    """
    if not _is_kept(facts):
        return False
    needed = {names.certificate(facts.meta.name)}
    if facts.manifest.spec.tls.authority is not None:
        needed.add(names.authority(facts.meta.name))
    keepers = facts.observed.stateful_sets.values()
    if keepers and all(needed <= _mounted(each) for each in keepers):
        return False
    match facts.observed.certificates:
        case OwnCertificates() as own:
            return own.problem is not None or not own.usable
        case IssuedCertificate(problem=None, ready=True):
            return False
    return True


def tls_status(facts: Facts) -> dict[str, Any]:
    """`status.tls`: nothing secret, and what was known stays while nothing is.

    The source is `issuerRef` until the Certificate is gone: it is observed for as long.
    """
    leaves = _leaves_cert_manager(facts)
    if not _is_kept(facts):
        return {"tls": {"source": ISSUER}} if leaves else {}
    found: dict[str, Any] = {
        "source": ISSUER if leaves else facts.manifest.spec.tls.sources[0],
        "secretName": certificate_secret(facts.manifest),
    }
    if (trusted := trust_config_map(facts.manifest)) is not None:
        found["trustConfigMap"] = trusted
    if (clients := facts.manifest.spec.tls.clients_mode) != "none":
        found["clients"] = clients
    match facts.observed.certificates:
        case OwnCertificates(problem=None, authority=authority, certificate=certificate) as own:
            if certificate is not None and certificate.shown is not None:
                found |= _times(certificate.shown)
            if authority is not None and authority.signing is not None:
                found["authority"] = {**_times(authority.signing), "trusted": len(own.trusted)}
        case IssuedCertificate(problem=None) as issued:
            found |= {
                key: time_text(time)
                for key, time in (("notAfter", issued.not_after), ("renewal", issued.renewal))
                if time is not None
            }
        case _:
            before = part(facts.observed.status, "tls")
            if before.get("source") == found["source"]:
                found |= {key: before[key] for key in ("notAfter", "renewal", "authority") if key in before}
    return {"tls": found}


def expiring_unseen(status: Mapping[str, Any], now: float, why: str) -> str | None:
    """What should have been renewed of a set that is not observed, by what its status last said."""
    tls = part(status, "tls")
    if tls.get("source") != AUTHORITY:
        return None  # cert-manager goes on without us
    for what, known in (("certificate", tls), ("authority", part(tls, "authority"))):
        ends, renewal = seconds(known.get("notAfter")), seconds(known.get("renewal"))
        if ends is not None and renewal is not None and now >= (ends + renewal) / 2:
            return f"the {what} of the set expires at {time_text(ends)} and is not renewed: {why}"
    return None


def _wishes(facts: Facts) -> Wishes:
    assert facts.shape is not None, "the rule is asked when it is known what the set consists of"
    annotations = facts.meta.annotations
    return Wishes(
        hosts=certificate_hosts(facts_of(facts.observed), facts.shape.groups, facts.shape.external),
        spread_seconds=facts.observed.operator.trust_spread_seconds,
        renewal=annotations.get(names.RENEW_CERTIFICATES, ""),
        authority_renewal=annotations.get(names.RENEW_AUTHORITY, ""),
    )


def _write(
    seen: OwnCertificates, own: OwnAuthority, wishes: Wishes, decided: ChangeAuthority
) -> WriteAuthority:
    secret, starts = seen.authority, (AuthorityChange.MAKE, AuthorityChange.PREPARE)
    done = secret.renewal if secret is not None else ""
    return WriteAuthority(
        change=decided.change.value,
        version=secret.version if secret is not None else None,
        days=own.authority_days,
        trusted=tuple(each.pem for each in decided.trusted),
        renewal=wishes.authority_renewal or done if decided.change in starts else done,
        why=decided.why,
    )


def _is_kept(facts: Facts) -> bool:
    """Whether the operator keeps the certificate, or asks cert-manager for it."""
    tls = facts.manifest.spec.tls
    return tls.authority is not None or tls.issuer_ref is not None


def _leaves_cert_manager(facts: Facts) -> bool:
    """Whether there is still a Certificate that the manifest no longer asks for."""
    there = f"Certificate/{names.certificate(facts.meta.name)}" in facts.observed.other
    return there and facts.manifest.spec.tls.issuer_ref is None


def _lacks_hosts(seen: OwnCertificates, wishes: Wishes) -> bool:
    shown = seen.certificate.shown if seen.certificate is not None else None
    return shown is None or bool(set(wishes.hosts) - shown.names)


def _mounted(stateful_set: Any) -> set[str]:
    """Names of Secrets with a certificate, and of ConfigMaps with whom to trust."""
    template = part(part(stateful_set, "spec"), "template")
    volumes = {str(each.get("name")): each for each in items(part(template, "spec"), "volumes")}
    secret = part(volumes.get(VOLUME, {}), "secret").get("secretName")
    return {str(secret), str(part(volumes.get(TRUST_VOLUME, {}), "configMap").get("name"))}


def _times(certificate: Certificate) -> dict[str, str]:
    return {"notAfter": time_text(certificate.not_after), "renewal": time_text(certificate.renewal)}


def _renewal(facts: Facts) -> float | None:
    """When something is to be renewed next."""
    match facts.observed.certificates:
        case OwnCertificates() as own:
            return earliest(each.renewal for each in _kept_parts(own).values())
        case IssuedCertificate(renewal=renewal):
            return renewal
    return None


def _kept_parts(seen: OwnCertificates) -> dict[str, Certificate]:
    """What pods show and who signs, by what people call it; what is not there is left out."""
    parts = {
        "certificate": seen.certificate.shown if seen.certificate is not None else None,
        "authority": seen.authority.signing if seen.authority is not None else None,
    }
    return {what: found for what, found in parts.items() if found is not None}


def _alarms(seen: OwnCertificates, now: float) -> bool:
    """Whether people are warned that something was not renewed in time."""
    return any(now >= found.alarm for found in _kept_parts(seen).values())


def _expiring(facts: Facts) -> str | None:
    """What is about to expire though it should have been renewed, and what to do."""
    seen, now = facts.observed.certificates, facts.now
    if isinstance(seen, OwnCertificates):
        if seen.problem is not None:
            return expiring_unseen(facts.observed.status, now, seen.problem.message)
        for what, found in _kept_parts(seen).items():
            if now >= found.alarm:
                return (
                    f"the {what} of the set expires at {time_text(found.not_after)} and is not renewed:"
                    " see the conditions ActionFailed and TlsRefused, and whether the set is paused"
                )
    if not isinstance(seen, IssuedCertificate) or seen.renewal is None or seen.not_after is None:
        return None
    if now < seen.renewal + min(ALARM_SECONDS, (seen.not_after - seen.renewal) / 2):
        return None
    name = names.certificate(facts.meta.name)
    return (
        f"Certificate {name} expires at {time_text(seen.not_after)}, and cert-manager has not renewed it:"
        f" {seen.message or f'see kubectl describe certificate {name}'}"
    )
