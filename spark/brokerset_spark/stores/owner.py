"""Whose store a folder is."""

from __future__ import annotations

from brokerset_spark.stores.folder import StoreFolder
from brokerset_spark.stores.http_folder import HttpFolder
from brokerset_spark.stores.layout import StoreFacts


def owner_of(folder: StoreFolder, facts: StoreFacts) -> tuple[str | None, str | None, int | None]:
    """Cluster, broker name and broker id: of the store's identity, or of the broker that gives it out."""
    found = facts.identity
    if found is not None:
        return found.cluster_name, found.broker_name, found.broker_id
    if isinstance(folder, HttpFolder):
        state = folder.state()
        return state.cluster_name, state.broker_name, state.broker_id
    return None, None, None
