"""What a mutation is: one deliberate mistake in the product, and what must notice it."""

from __future__ import annotations

from dataclasses import dataclass

WORLDS = ("core", "controllers", "groups")
"""Raft cores alone; controllers with the membership of brokers; broker groups that replicate."""


@dataclass(frozen=True, slots=True)
class Seeds:
    """Runs of a simulated world, from the first seed on; one of them must fail."""

    world: str
    count: int
    first: int = 0


@dataclass(frozen=True, slots=True)
class Mutation:
    """`old`, which must occur once in the file at `path`, becomes `new`."""

    name: str
    breaks: str
    """What is wrong then, as a sentence."""

    path: str
    old: str
    new: str
    caught_by: str | Seeds
    """A test by its pytest id, or seeds."""
