"""The hash that tells whether a pod runs with today's template and settings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

HASH_CHARACTERS: Final = 16
"""64 bits: nobody tries to find two templates with the same hash, and people can read it out."""

NOT_ROLLED: Final = frozenset({"raftJoin", "controllerDLegerPeers", "raftPeers", "expectedReplicas"})
"""Settings that only count when a pod has no data yet: a change of them restarts nobody."""


def config_hash(template: Mapping[str, Any], settings: Mapping[str, str]) -> str:
    """Hash a pod template, without the hash's own annotation, and those settings that take a restart.

    Settings go by their outside names. The order of keys does not matter, and `NOT_ROLLED` does not count.
    """
    counted = {name: text for name, text in settings.items() if name not in NOT_ROLLED}
    text = json.dumps([template, counted], sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:HASH_CHARACTERS]
