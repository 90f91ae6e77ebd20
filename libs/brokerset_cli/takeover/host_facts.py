"""What the command tells itself from one host to another, in a file that a person carries."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from pydantic import TypeAdapter

from brokerset_cli.output import duration
from brokerset_cli.takeover.log_compare import compare_digests, counted, digests
from brokerset_cli.takeover.upgrade_facts import (
    Comparison,
    Likeness,
    Note,
    OldStore,
    StoreSeen,
    World,
)
from brokerset_formats.config.fields import parse_object
from brokerset_formats.errors import FormatError
from brokerset_formats.identity import BrokerIdentity

VERSION: Final = 1
_STORE: Final = TypeAdapter(OldStore)
_COMPARISON: Final = TypeAdapter(Comparison)


@dataclass(frozen=True, slots=True)
class Compared:
    """What the host of a future master found about another store: it has the bytes for it."""

    leader: str
    slave: str
    slave_end: int
    comparison: Comparison


@dataclass(frozen=True, slots=True)
class HostFacts:
    """The stores of one host, as they were when it wrote this. Names of stores are `host:path`."""

    host: str
    group: str
    written_ms: int
    stores: tuple[StoreSeen, ...]
    digests: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    compared: tuple[Compared, ...] = ()


def name_at(host: str, name: str) -> str:
    """How other hosts call a store of this one."""
    return f"{host}:{name}"


def facts_of(host: str, world: World, leader: str) -> bytes:
    """The file's bytes; reads the logs of stores that nobody has open once more, for the digests."""
    here = [each for each in world.stores if each.here]
    names = {each.name: name_at(host, each.name) if each.here else each.name for each in world.stores}
    ends = {each.name: each.store.end for each in world.stores}
    compared = [
        {
            "leader": names[leader],
            "slave": names[name],
            "slaveEnd": ends[name],
            **_COMPARISON.dump_python(found, mode="json", by_alias=True),
        }
        for name, found in sorted(world.comparisons.items())
        if leader in names
    ]
    content = {
        "version": VERSION,
        "host": host,
        "group": world.group,
        "writtenMs": time.time_ns() // 1_000_000,
        "stores": [_store_object(host, each) for each in here],
        "compared": compared,
    }
    return (json.dumps(content, indent=1) + "\n").encode()


def _store_object(host: str, seen: StoreSeen) -> dict[str, Any]:
    store, extent = seen.store, seen.extent
    known = _STORE.dump_python(store, mode="json", by_alias=True, exclude={"path", "identity", "unsupported"})
    return {
        "name": name_at(host, seen.name),
        **known,
        "identity": None if store.identity is None else store.identity.encode().decode(),
        "portOpen": seen.port_open,
        "note": None if seen.note is None else json.loads(seen.note.to_json()),
        "digests": {} if extent is None else {str(k): v for k, v in digests(store.path, extent).items()},
    }


def read_facts(data: bytes) -> HostFacts:
    """Read the file of another host. Raises FormatError."""
    fields = parse_object(data)
    try:
        if fields["version"] != VERSION:
            raise FormatError(f"facts of version {fields['version']}, this one knows {VERSION}")
        stores: Any = fields["stores"]
        compared: Any = fields["compared"]
        return HostFacts(
            host=str(fields["host"]),
            group=str(fields["group"]),
            written_ms=int(str(fields["writtenMs"])),
            stores=tuple(map(_store_from, stores)),
            digests={each["name"]: {int(k): str(v) for k, v in each["digests"].items()} for each in stores},
            compared=tuple(map(_compared_from, compared)),
        )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise FormatError(f"a file of facts without a proper {error}") from None


def _store_from(value: Mapping[str, Any]) -> StoreSeen:
    identity, note = value["identity"], value["note"]
    found_id = None if identity is None else BrokerIdentity.decode(identity.encode())
    store = _STORE.validate_python({**value, "path": value["name"], "identity": found_id})
    found = None if note is None else Note.from_json(json.dumps(note).encode())
    return StoreSeen(store, found, here=False, port_open=bool(value["portOpen"]))


def _compared_from(value: Mapping[str, Any]) -> Compared:
    comparison = _COMPARISON.validate_python({"exact": False, **value})
    return Compared(str(value["leader"]), str(value["slave"]), int(value["slaveEnd"] or 0), comparison)


def comparisons_with(
    leader: StoreSeen, stores: Sequence[StoreSeen], facts: Sequence[HostFacts], host: str
) -> dict[str, Comparison]:
    """How stores stand to the leader where one of both is on another host, by the names used here.

    A leader that is here is read against the digests of the others. What stands about a leader elsewhere was
    found there, and counts as long as the slave's log still ends where it did.
    """
    found: dict[str, Comparison] = {}
    for each in stores:
        if each is leader or (each.here and leader.here):
            continue
        if leader.here:
            mine, theirs = leader.extent, each.extent
            known = next((one.digests[each.name] for one in facts if each.name in one.digests), None)
            if mine is not None and theirs is not None and known is not None:
                found[each.name] = compare_digests(leader.store.path, mine, theirs, known)
            continue
        name = name_at(host, each.name) if each.here else each.name
        for one in facts:
            for compared in one.compared:
                if (compared.leader, compared.slave) == (leader.name, name):
                    same = compared.slave_end == each.store.end
                    stale = Comparison(
                        Likeness.UNKNOWN, detail="its log has changed since the facts were written"
                    )
                    found[each.name] = _as_seen_here(each, compared.comparison) if same else stale
    return found


def _as_seen_here(slave: StoreSeen, found: Comparison) -> Comparison:
    """With what only this host can count, as it has the bytes."""
    if not slave.here or slave.extent is None or slave.store.problem:
        return found
    return counted(slave.store.path, slave.extent, found)


def as_of(facts: HostFacts, now_ms: int) -> str:
    """How old a file of facts is, as people say it."""
    return f"{facts.host}, {duration(max(0, now_ms - facts.written_ms) / 1000)} ago"
