"""Which pods are old, and which are broken."""

from __future__ import annotations

from typing import Final

from brokerset_operator.plan.objects import Keeper, Pod, Template

SLOW_SECONDS: Final = 300.0
"""A pod that was not ready for so long counts as broken when it is old and its broker is not in sync."""

CRASHES_MIN: Final = 2
"""Restarts of a container from which on it counts as one that crashes again and again, as for the kubelet."""

STEADY_SECONDS: Final = 60.0
"""A pod that is ready is believed after so long, when its container has crashed again and again."""

RECOVERED_SECONDS: Final = 600.0
"""After so long a container that runs is no longer blamed for crashes: the kubelet forgets them, too."""

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


def why_failing(pod: Pod, now: float) -> str | None:
    """Return why a pod does not serve, nor soon will by itself: it crashes, does not start, or takes long.

    One that crashes again and again runs, and may even be ready, between two crashes.
    """
    if pod.terminating:
        return None
    if pod.broken is not None:
        return pod.broken
    enough = STEADY_SECONDS if pod.ready else RECOVERED_SECONDS
    steady = pod.running_since is not None and now - pod.running_since >= enough
    if pod.restarts >= CRASHES_MIN and pod.last_end is not None and not steady:
        return f"it was started again {pod.restarts} times; {pod.last_end}"
    if is_slow(pod, now):
        return f"it has not been ready for more than {SLOW_SECONDS / 60:g} minutes"
    return None


def is_slow(pod: Pod, now: float) -> bool:
    """Return whether a pod has not been ready for very long."""
    return not pod.ready and pod.unready_since is not None and now - pod.unready_since > SLOW_SECONDS
