"""Which step from one configuration to the next is small enough to be safe."""

from __future__ import annotations

from brokerset_raft.configuration import Configuration, ConfigurationRefused


def check_step(known: Configuration, wanted: Configuration) -> int | None:
    """Allow at most one node to be added, removed or altered, so that any two majorities share a voter.

    Returns the node that gets a vote by it, if any. Raises `ConfigurationRefused`.
    """
    if not wanted.voters:
        raise ConfigurationRefused("a group needs a voter")
    ids = sorted({member.node_id for member in (*known.members, *wanted.members)})
    changed = [node_id for node_id in ids if known.member(node_id) != wanted.member(node_id)]
    if len(changed) > 1:
        raise ConfigurationRefused(f"nodes {changed} would change; change one at a time")
    for node_id in changed:
        if known.member(node_id) is None and node_id in wanted.voters:
            raise ConfigurationRefused(f"node {node_id} is no member; add it as a learner first")
        if node_id in wanted.voters and node_id not in known.voters:
            return node_id
    return None
