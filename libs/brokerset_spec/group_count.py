"""How many broker groups `groups: auto` means on a machine. Pure.

A broker moves messages on one core, whatever the machine has; `docs/sizing.md` has the model. What was
chosen once is kept: nobody could read the messages of a group that is left out, and a machine that looks
larger for one start would leave groups behind.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from brokerset_spec.set_memory import SetMemory

AUTO: Final = "auto"
"""What `spec.groups` says instead of a number."""

AUTO_ELSEWHERE: Final = (
    "auto counts the cores of one machine, and brokers of this set are placed on any node",
    "give the number of groups, one for each core that is to move messages; an autoscaler may write it",
)
"""What is wrong with `auto` on Kubernetes, and what to do."""


def groups_for(cores: int, replicas: int) -> int:
    """How many groups of `replicas` brokers on this machine use `cores` cores well; at least one.

    A master under full load takes a core. A slave takes about a quarter of that; half is left for it and for
    what the master does for it.
    """
    return max(1, 2 * cores // (replicas + 1))


def kept_groups(name: str, memory: SetMemory) -> int:
    """How many groups a folder has: `<name>-0`, `<name>-1`, … without a gap."""
    number = 0
    while f"{name}-{number}" in memory.groups:
        number += 1
    return number


def choose_groups(name: str, memory: SetMemory, *, cores: int, replicas: int, most: int) -> SetMemory:
    """What a set remembers once `auto` has chosen: never fewer than before, nor than there are.

    `most` is the largest number that a set may have.
    """
    wanted = memory.auto_groups or min(groups_for(cores, replicas), most)
    return replace(memory, auto_groups=max(wanted, kept_groups(name, memory)))


def auto_note(memory: SetMemory, *, cores: int, replicas: int) -> str | None:
    """Say that a machine has become larger or smaller since; None where the number fits."""
    now, has = groups_for(cores, replicas), memory.auto_groups
    if now == has:
        return None
    advice = (
        f"write `groups: {now}` to have more; `brokerset topic rebalance --all` gives topics queues there"
        if now > has
        else "none is taken away, as each has messages"
    )
    return (
        f"spec.groups: auto has chosen {has} for this folder, and {now} would fit the cores of this machine "
        f"({cores}); {advice}"
    )
