"""Which pods are old, and which are broken."""

from __future__ import annotations

from typing import Final

from brokerset_operator.plan.objects import Keeper, Pod, Template

SLOW_SECONDS: Final = 300.0
"""A pod that was not ready for so long counts as broken when it is old and its broker is not in sync."""

STALE_SECONDS: Final = 30.0
"""What was seen is never older. A pod that is still there then, under the same UID, was not deleted."""


def is_old(pod: Pod, template: Template | None, keeper: Keeper | None) -> bool:
    """Return whether a pod differs from the newest template.

    The image of a pod, or of the StatefulSet itself, may have been rewritten on its way in (a mirror, a
    digest): a pod of the newest revision is new though its image differs, or it would be replaced for ever.
    """
    if template is None:
        return False
    if pod.template.hash != template.hash:
        return True
    if pod.template.images == template.images:
        return False
    if keeper is None or keeper.revision is None or keeper.template.hash != template.hash:
        return True
    return pod.revision != keeper.revision


def is_slow(pod: Pod, now: float) -> bool:
    """Return whether a pod has not been ready for very long."""
    return not pod.ready and pod.unready_since is not None and now - pod.unready_since > SLOW_SECONDS
