"""What somebody who starts a local set should know about the plan, as sentences."""

from __future__ import annotations

from typing import Final

from brokerset_spec.manifest import Spec
from brokerset_spec.set_memory import SetMemory

FROM_SCRATCH_NOTE: Final = (
    "all controllers have lost their data and start from scratch; brokers that had ids wait, and this start "
    "with them, until `brokerset controller rebuild` has told the controllers who they are"
)

FROM_SCRATCH_JOINED_NOTE: Final = (
    "all controllers of this set have lost their data and start from scratch; no broker belongs to them yet, "
    "so nothing is missing"
)

LEDGER_CONTROLLERS_NOTE: Final = (
    "spec.controllers: with mode: dledger the controllers only serve names; groups elect their leaders by "
    "themselves"
)


def replicas_note(group: str, has: int, wanted: int) -> str:
    """Say that a group was scaled to another size than the manifest's."""
    return (
        f"spec.replicas: is {wanted}, and {group} has {has} of them since it was scaled; change that while "
        f"they run, with `brokerset scale {group} --replicas {wanted}`"
    )


def controllers_note(has: int, wanted: int) -> str:
    """Likewise, for the controllers."""
    return (
        f"spec.controllers.replicas: is {wanted}, and {has} controllers belong "
        f"together; change that while they run, with `brokerset controller scale {wanted}`"
    )


def lost_note(node_id: int, wanted: int, memory: SetMemory) -> str:
    """Say why a controller does not start, and how it is replaced."""
    when = "" if memory.under_own_controllers else " and the brokers belong to them"
    return (
        f"controller-{node_id} has lost its data and does not start: a member that forgot its votes could "
        f"break the agreement. Replace it while the others run{when}: `brokerset controller scale {wanted}`"
    )


def joined_notes(memory: SetMemory) -> list[str]:
    """Say whose controllers and name servers a set uses that are not its own; nothing for other sets."""
    joined = memory.joined_cluster_of
    if joined is None:
        return []
    if not joined.controllers:
        found = (
            "the brokers belong to the controllers of this set, and still register with the name servers at "
            f"{joined.name_servers} as well"
        )
    elif memory.controllers:
        found = (
            f"the brokers belong to the controllers at {joined.controllers}; controllers of this set run "
            f"next to them, and the brokers register with their name servers and with those at "
            f"{joined.name_servers}"
        )
    else:
        found = (
            "no controllers and name servers are run: the brokers belong to those at "
            f"{joined.controllers} and {joined.name_servers}"
        )
    return [f"{found}, see `brokerset adopt`"]


def local_notes(spec: Spec) -> list[str]:
    """Say what a manifest asks for that has less effect on one machine than somebody may think."""
    default = Spec()
    notes = []
    if spec.controllers.replicas % 2 == 0:
        notes.append(
            f"spec.controllers.replicas: {spec.controllers.replicas} controllers survive the loss of no more "
            f"of them than {spec.controllers.replicas - 1} do: more than half must live"
        )
    if spec.image is not None:
        notes.append("spec.image: on one machine the installed programs run, in no container")
    if spec.controllers.resources is not None:
        notes.append("spec.controllers.resources: there are no pods on one machine")
    if spec.storage != default.storage or spec.controllers.storage is not None:
        notes.append(
            "spec.storage: folders are not limited in size, and only `brokerset down --purge` deletes them"
        )
    if spec.advertise != default.advertise:
        notes.append("spec.advertise: on one machine clients are told the broker's own address")
    if spec.external is not None:
        notes.append(
            "spec.external: has an effect on Kubernetes only; brokers and name servers listen here as well"
        )
    if spec.network_policy != default.network_policy:
        notes.append("spec.networkPolicy: has an effect on Kubernetes only; use the machine's firewall here")
    if spec.update != default.update:
        notes.append("spec.update: on one machine a changed manifest takes effect at the next `brokerset up`")
    if spec.monitoring != default.monitoring:
        notes.append("spec.monitoring: is installed on Kubernetes only; brokers serve /metrics here as well")
    if spec.pod_template:
        notes.append("spec.podTemplate: there are no pods on one machine")
    return notes
