"""What one replica tells of itself: small enough to travel, and all that a comparison needs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Final

import orjson

from brokerset_formats.errors import FormatError
from brokerset_formats.identity import BrokerIdentity
from brokerset_spark.jobs.audit.digests import SegmentDigest, decode_digests, encode_digests, thin
from brokerset_spark.jobs.audit.epoch_facts import EpochFacts

MAP_VERSION: Final = 1
DAMAGES_MAX: Final = 100
"""Damaged stretches that a map names; all are counted."""


@dataclass(frozen=True, slots=True, order=True)
class Damage:
    """Bytes of a log that should be records, and are not."""

    begin: int
    end: int
    """Where the next whole record begins."""

    reason: str
    """`BAD_CRC`, … of `kernels.Stop`, or `GONE`: the file cannot be read."""

    file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaMap:
    """One replica. Offsets are those of the whole log."""

    url: str
    name: str
    """For people: broker name and id, or the path if there is no identity."""

    layout: str
    """`commitlog`, `dledger`, `both`, or `empty`."""

    identity: BrokerIdentity | None = None
    epochs: EpochFacts = field(default_factory=EpochFacts)
    bad_boundaries: tuple[int, ...] = ()
    """Starts of epochs inside the log where no record begins."""

    file_sizes: tuple[int, ...] = ()
    """Of the log's files, without doubles."""

    first: int = 0
    last: int = 0
    """Behind the last whole record."""

    confirmed: int | None = None
    """Up to here all replicas in sync had everything; None if the store does not tell."""

    confirmed_by: str = "nobody"
    """`given`, `checkpoint` (of the store), `committed` (entry of a DLedger), or `nobody`."""

    bound: int = 0
    """The digests end here: at the confirmed offset, or at what is sure of the log without one."""

    written: bool = False
    """Whether a broker may have been writing the store meanwhile."""

    leftover: Damage | None = None
    """Without a confirmed offset: a bad record that ends the log though sure ones follow behind it."""

    checkpoint: dict[str, int] = field(default_factory=dict)
    damages: tuple[Damage, ...] = ()
    damages_total: int = 0
    problems: tuple[tuple[str, str], ...] = ()
    """Files that are wrong: path, and a sentence."""

    records: int = 0
    """Between first offset and bound."""

    digests: tuple[SegmentDigest, ...] = ()
    confirmed_at_ms: int = 0
    """When the confirmed offset was looked up, and when the end of the log was."""

    last_at_ms: int = 0
    bytes_read: int = 0
    bytes_cached: int = 0
    """Of files whose digests are known from an earlier audit."""

    seconds: float = 0.0

    @property
    def is_ledger(self) -> bool:
        """Whether it is a DLedger, which cuts by terms and indexes and knows no epochs."""
        return self.layout in ("dledger", "both")

    def to_json(self) -> bytes:
        """One line."""
        value: dict[str, Any] = {
            "mapVersion": MAP_VERSION,
            "url": self.url,
            "name": self.name,
            "layout": self.layout,
            "identity": self.identity.encode().decode() if self.identity else None,
            "epochs": asdict(self.epochs),
            "badBoundaries": self.bad_boundaries,
            "fileSizes": self.file_sizes,
            "first": self.first,
            "last": self.last,
            "confirmed": self.confirmed,
            "confirmedBy": self.confirmed_by,
            "bound": self.bound,
            "written": self.written,
            "leftover": asdict(self.leftover) if self.leftover else None,
            "checkpoint": self.checkpoint,
            "damages": [asdict(each) for each in self.damages[:DAMAGES_MAX]],
            "damagesTotal": self.damages_total,
            "problems": self.problems,
            "records": self.records,
            "confirmedAtMs": self.confirmed_at_ms,
            "lastAtMs": self.last_at_ms,
            "bytesRead": self.bytes_read,
            "bytesCached": self.bytes_cached,
            "seconds": round(self.seconds, 3),
            "digests": encode_digests(thin(self.digests)),
        }
        return orjson.dumps(value)

    @classmethod
    def from_json(cls, data: bytes) -> ReplicaMap:
        """Read what `to_json` wrote; FormatError for anything else."""
        try:
            value = orjson.loads(data)
            version = value["mapVersion"]
            if version != MAP_VERSION:
                raise FormatError(f"a map of version {version}; this program reads version {MAP_VERSION}")
            epochs = value["epochs"]
            return cls(
                url=str(value["url"]),
                name=str(value["name"]),
                layout=str(value["layout"]),
                identity=BrokerIdentity.decode(value["identity"].encode()) if value["identity"] else None,
                epochs=EpochFacts(
                    tuple((int(epoch), int(start)) for epoch, start in epochs["pairs"]),
                    str(epochs["source"]),
                    tuple((str(path), str(text)) for path, text in epochs["problems"]),
                    str(epochs["disorder"]),
                ),
                bad_boundaries=tuple(int(each) for each in value["badBoundaries"]),
                file_sizes=tuple(int(each) for each in value["fileSizes"]),
                first=int(value["first"]),
                last=int(value["last"]),
                confirmed=None if value["confirmed"] is None else int(value["confirmed"]),
                confirmed_by=str(value["confirmedBy"]),
                bound=int(value["bound"]),
                written=bool(value["written"]),
                leftover=Damage(**value["leftover"]) if value["leftover"] else None,
                checkpoint={str(name): int(number) for name, number in value["checkpoint"].items()},
                damages=tuple(Damage(**each) for each in value["damages"]),
                damages_total=int(value["damagesTotal"]),
                problems=tuple((str(path), str(text)) for path, text in value["problems"]),
                records=int(value["records"]),
                confirmed_at_ms=int(value["confirmedAtMs"]),
                last_at_ms=int(value["lastAtMs"]),
                bytes_read=int(value["bytesRead"]),
                bytes_cached=int(value["bytesCached"]),
                seconds=float(value["seconds"]),
                digests=tuple(decode_digests(value["digests"])),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            if isinstance(error, FormatError):
                raise
            raise FormatError(f"no map of a replica: {error!r}") from error
