"""Conditions of Subjects, and their reasons; people rely on them."""

from __future__ import annotations

from typing import Final

READY: Final = "Ready"
"""Whether the subject is as the manifest says."""

SCALING: Final = "Scaling"
"""Whether a newer generation of partitions is agreed on, and does not take all messages yet."""

REFUSED: Final = "Refused"
"""There while controllers refuse what is wanted; its message is theirs."""

AS_WANTED: Final = "AsWanted"

# Why it is not ready: what is wanted cannot be.
INVALID_SPEC: Final = "InvalidSpec"
NAME_TAKEN: Final = "NameTaken"
BROKER_SET_MISSING: Final = "BrokerSetMissing"
BROKER_SET_INVALID: Final = "BrokerSetInvalid"
BROKER_SET_UNSUPPORTED: Final = "BrokerSetUnsupported"
CONTROLLERS_TOO_OLD: Final = "ControllersTooOld"
GROUP_UNKNOWN: Final = "GroupUnknown"
ORDER_DIFFERS: Final = "OrderDiffers"
REFUSED_BY_CONTROLLERS: Final = "RefusedByControllers"

# Why it is not ready: it waits.
CONTROLLERS_SILENT: Final = "ControllersSilent"
NO_MASTER: Final = "NoMaster"
PARTITIONS_WAIT: Final = "PartitionsWait"
GROUP_LEAVES: Final = "GroupLeaves"
IMPAIRED: Final = "Impaired"
DELETION_WAITS: Final = "DeletionWaits"

# Of the condition Scaling.
SEALING: Final = "Sealing"
OPENING: Final = "Opening"
NEXT_WAITS: Final = "NextWaits"
SETTLED: Final = "Settled"
