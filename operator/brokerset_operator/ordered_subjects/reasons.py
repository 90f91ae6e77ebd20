"""Conditions and reasons that only Subjects have; people rely on them."""

from __future__ import annotations

from typing import Final

SCALING: Final = "Scaling"
"""Whether a newer generation of partitions is agreed on, and does not take all messages yet."""

REFUSED: Final = "Refused"
"""There while controllers refuse what is wanted; its message is theirs."""


# Why it is not ready: what is wanted cannot be.
BROKER_SET_UNSUPPORTED: Final = "BrokerSetUnsupported"
CONTROLLERS_TOO_OLD: Final = "ControllersTooOld"
GROUP_UNKNOWN: Final = "GroupUnknown"
ORDER_DIFFERS: Final = "OrderDiffers"
REFUSED_BY_CONTROLLERS: Final = "RefusedByControllers"

# Why it is not ready: it waits.
PARTITIONS_WAIT: Final = "PartitionsWait"
GROUP_LEAVES: Final = "GroupLeaves"
IMPAIRED: Final = "Impaired"

# Of the condition Scaling.
SEALING: Final = "Sealing"
OPENING: Final = "Opening"
NEXT_WAITS: Final = "NextWaits"
SETTLED: Final = "Settled"
