"""BrokerSets as the operator reads them: without what one machine can have, and Kubernetes cannot."""

from __future__ import annotations

from brokerset_spec import manifest
from brokerset_spec.dledger_mode import check_on_kubernetes
from brokerset_spec.manifest import BrokerSet, ManifestError


def read_manifest(document: object) -> BrokerSet:
    """Check a BrokerSet of the Kubernetes API; raises `ManifestError`.

    The CRD refuses the same. An API server that still has the CRD of another release may let it through.
    """
    found = manifest.read_manifest(document)
    if problems := check_on_kubernetes(found.spec.replication):
        raise ManifestError(problems)
    return found
