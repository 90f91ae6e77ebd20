"""From the settings of a broker to those of its DLedger member."""

from __future__ import annotations

from dataclasses import replace

from brokerset_dledger.config import NodeConfig
from brokerset_spec.broker_settings import BrokerSettings


def node_config(settings: BrokerSettings) -> NodeConfig:
    """How the member behaves. With asynchronous flushing entries count when they are in memory, as Java's."""
    group = settings.dledger_group or settings.broker_name
    peers = tuple(settings.dledger_addresses())
    preferred = tuple(each for each in settings.preferred_leader_id.split(";") if each)
    syncs = settings.flush_disk_type == "SYNC_FLUSH"
    if settings.dledger_brokerset_only:
        config = NodeConfig.for_group_alone(group, settings.dledger_self_id, peers)
    else:
        config = NodeConfig(group=group, node_id=settings.dledger_self_id, peers=peers)
    return replace(config, sync_before_ack=syncs, preferred_leaders=preferred)
