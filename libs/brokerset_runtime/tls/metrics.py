"""What an administrator watches of TLS: who fails to come in, and until when certificates are good."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import structlog
from cryptography import x509
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from brokerset_runtime.tls.contexts import Tls

log = structlog.get_logger(__name__)


class TlsCollector(Collector):
    """Reads certificates again when they are new in force; those that are shown first of a file count."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._ends: dict[str, float] = {}
        self._read_at: int | None = None

    def collect(self) -> Iterator[Metric]:
        tls = self._tls
        failed = CounterMetricFamily(
            "brokerset_tls_handshakes_failed",
            "TLS connections that came to nothing: no or a wrong certificate, or none in time.",
            labels=["port"],
        )
        refused = CounterMetricFamily(
            "brokerset_tls_plain_refused",
            "Connections without TLS where it is enforced.",
            labels=["port"],
        )
        for port in ("clients", "members", "http"):
            failed.add_metric([port], tls.handshakes_failed[port])
            refused.add_metric([port], tls.plain_refused[port])
        yield failed
        yield refused
        yield CounterMetricFamily(
            "brokerset_tls_reloads", "Changes of certificates that are in force.", tls.reloads
        )
        yield CounterMetricFamily(
            "brokerset_tls_reload_failures", "Changes of certificates that could not be used.", tls.failures
        )
        yield CounterMetricFamily(
            "brokerset_tls_clients_without_certificate",
            "Connections that showed no certificate where one is optional.",
            tls.without_certificate,
        )
        yield CounterMetricFamily(
            "brokerset_tls_revoked_closed",
            "Connections that were closed, because their certificate was revoked.",
            tls.revoked_closed,
        )
        lists = GaugeMetricFamily(
            "brokerset_tls_revocation_list_end_seconds",
            "Unix time at which a revocation list expires.",
            labels=["authority"],
        )
        for name, end in {each.name: each.end.timestamp() for each in tls.revocations}.items():
            lists.add_metric([name], end)
        yield lists
        ends = GaugeMetricFamily(
            "brokerset_tls_certificate_end_seconds",
            "Unix time at which a certificate of this process expires.",
            labels=["shown_to"],
        )
        for shown_to, end in self._certificate_ends().items():
            ends.add_metric([shown_to], end)
        yield ends

    def _certificate_ends(self) -> dict[str, float]:
        if self._read_at != self._tls.reloads:
            found = {shown_to: _end_of(path) for shown_to, path in self._tls.certificates().items()}
            self._ends = {shown_to: end for shown_to, end in found.items() if end is not None}
            if len(self._ends) == len(found):
                self._read_at = self._tls.reloads
        return self._ends


def _end_of(path: Path) -> float | None:
    """Unix time at which the first certificate of a file expires; None if it cannot be read."""
    try:
        certificate = x509.load_pem_x509_certificate(path.read_bytes())
    except (OSError, ValueError) as error:
        log.warning("the end of a certificate is unknown", file=str(path), reason=str(error))
        return None
    return certificate.not_valid_after_utc.timestamp()


def tls_registry(tls: Tls) -> CollectorRegistry:
    """A registry with these metrics alone."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(TlsCollector(tls))
    return registry
