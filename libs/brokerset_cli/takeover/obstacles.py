"""What stands against taking a Java cluster over, from what its brokers answer; knows no socket and no file.

Names of settings and topics are those of RocketMQ 5 (`BrokerConfig`, `MessageStoreConfig`, `TopicValidator`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from brokerset_formats import names

ACCEPTED_HINT: Final = "if it is not used any more, say so with --accept {name}"
CLOCK_MS_MAX: Final = 5_000
"""Clocks may be so far apart; brokers tell theirs to the second only."""

TRUE: Final = "true"

FIRST_WITH_IDS: Final = (5, 1, 1)
"""From this release on brokers and controllers know persistent ids, as ours do; before, a broker is its
address. No broker of one age works under controllers of the other ("Releases" in `docs/compatibility.md`)."""

_RELEASE: Final = re.compile(r"[vV]?(\d+)[._](\d+)[._](\d+)(?:[-_].*)?")

SETTINGS_OFF: Final = {
    "aclEnable": "acl",
    "authenticationEnabled": "acl",
    "authorizationEnabled": "acl",
    "transRocksDBEnable": "rocksdb",
    "timerRocksDBEnable": "rocksdb",
}
"""Settings that must not be on, with the feature's name."""

FEATURES: Final = {
    "acl": "users and access control, which our brokers do not check",
    "rocksdb": "stores in RocksDB",
    "tiered-storage": "a plugin in front of the store, such as tiered storage",
    "several-paths": "a commit log on several paths",
    "pop": "POP consumption",
    "static-topics": "static topics",
    "compaction": "compaction topics",
    "batch-queues": "batch queues (queue.type=BatchCQ)",
}
"""What our brokers do not serve, by the name that `--accept` takes."""


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that a person must know."""

    name: str
    """Short and stable; `--accept` takes those of features."""

    text: str
    blocks: bool = True
    """Whether it stands against it; else it is a warning."""


@dataclass(frozen=True, slots=True)
class BrokerAnswers:
    """What one Java broker answered."""

    group: str
    address: str
    settings: Mapping[str, str] = field(default_factory=dict)
    measurements: Mapping[str, str] = field(default_factory=dict)
    topics: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    static_topics: Sequence[str] = ()
    written: Sequence[str] = ()
    """System topics that hold messages."""

    problem: str = ""
    """Why it did not answer; empty when it did."""

    skew_ms: int | None = None
    """How far its clock is before ours."""

    @property
    def version(self) -> tuple[int, ...]:
        """Its release; empty when it does not say."""
        return release_of(self.measurements.get("brokerVersionDesc", ""))

    @property
    def is_ours(self) -> bool:
        """Whether it is a broker of this project, which tells more measurements."""
        return any(name.startswith("brokerset") for name in self.measurements)


def release_of(version: str) -> tuple[int, ...]:
    """A release as RocketMQ writes it, in numbers: `5.1.0`, `V4_9_7_SNAPSHOT`; empty for no version."""
    found = _RELEASE.fullmatch(version.strip())
    return tuple(map(int, found.groups())) if found is not None else ()


def findings_of(broker: BrokerAnswers, accepted: Sequence[str] = ()) -> list[Finding]:
    """Everything that is to be said about one broker of a group that shall be taken over."""
    where = f"{broker.group} at {broker.address}"
    if broker.problem:
        return [
            Finding(
                "unreachable",
                f"{where} does not answer: {broker.problem}; start it, or let the controllers forget it "
                "(mqadmin cleanBrokerMetadata). With tls.server.mode=enforcing or ACL it answers nobody "
                "without them: brokerset cannot take such a cluster over",
            )
        ]
    found = _identity(broker, where)
    for feature in features_in_use(broker):
        taken = feature in accepted
        hint = ACCEPTED_HINT.format(name=feature)
        more = "accepted with --accept" if taken else f"our brokers do not serve that; {hint}"
        found.append(Finding(feature, f"{where} uses {FEATURES[feature]}: {more}", not taken))
    if broker.settings.get("allAckInSyncStateSet") == "false" and not found:
        found.append(
            Finding(
                "all-ack",
                f"{where} has allAckInSyncStateSet=false: while a Java broker is master, what it "
                "acknowledges may be on it alone, and is lost if it dies; set it to true if that matters "
                "before ours lead",
                False,
            )
        )
    if broker.skew_ms is not None and abs(broker.skew_ms) > CLOCK_MS_MAX:
        found.append(
            Finding(
                "clock",
                f"the clock of {where} and this machine's are {abs(broker.skew_ms) / 1000:.0f} s apart: "
                "times of messages would jump; set the clocks",
                False,
            )
        )
    return found


def _identity(broker: BrokerAnswers, where: str) -> list[Finding]:
    """Whether it is of an age, and runs in a mode, that can be joined."""
    settings = broker.settings
    if settings.get("enableDLegerCommitLog") == TRUE:
        text = (
            f"{where} keeps a DLedger commit log, which cannot be followed; `brokerset upgrade dledger` "
            "leads such groups to controllers"
        )
        return [Finding("dledger", text)]
    if settings.get("enableControllerMode") != TRUE:
        role = settings.get("brokerRole", "unknown")
        text = (
            f"{where} has no controllers (brokerRole={role}); `brokerset upgrade classic` leads such groups "
            "to controllers"
        )
        return [Finding("classic", text)]
    if broker.version and broker.version < FIRST_WITH_IDS:
        release = ".".join(map(str, broker.version))
        text = (
            f"{where} is RocketMQ {release}, which knows brokers by their addresses; `brokerset upgrade "
            "identity` leads to ids that stay"
        )
        return [Finding("too-old", text)]
    if settings.get("enableSlaveActingMaster") == TRUE:
        text = f"{where} has enableSlaveActingMaster=true: our slaves pass requests on to the master instead"
        return [Finding("acting-master", text, False)]
    return []


def features_in_use(broker: BrokerAnswers) -> list[str]:
    """Names of features that a broker uses and ours do not serve, in the order of `FEATURES`."""
    settings = broker.settings
    found = {feature for name, feature in SETTINGS_OFF.items() if settings.get(name) == TRUE}
    if "rocksdb" in settings.get("storeType", "").lower():
        found.add("rocksdb")
    if settings.get("messageStorePlugIn", "").strip():
        found.add("tiered-storage")
    if "," in settings.get("storePathCommitLog", ""):
        found.add("several-paths")
    if broker.static_topics:
        found.add("static-topics")
    if any(topic.startswith(names.REVIVE_PREFIX) for topic in broker.written):
        found.add("pop")
    for config in broker.topics.values():
        attributes = config.get("attributes") or {}
        if "COMPACTION" in str(attributes.get("cleanup.policy", "")).upper():
            found.add("compaction")
        if str(attributes.get("queue.type", "")).upper() == "BATCHCQ":
            found.add("batch-queues")
    return [name for name in FEATURES if name in found]


def watched_topics(cluster: str) -> tuple[str, ...]:
    """System topics with messages only when a feature is in use."""
    return (f"{names.REVIVE_PREFIX}{cluster}",)


def differences(brokers: Sequence[BrokerAnswers]) -> list[Finding]:
    """Settings in which the brokers must not differ among each other."""
    found = []
    for name, why in (
        ("mappedFileSizeCommitLog", "replicas of a log need files of one size"),
        ("brokerClusterName", "one adoption is about one cluster"),
        ("messageDelayLevel", "a delayed message would come at another time after a switch"),
        ("timerPrecisionMs", "replicas would count the time of a timer message in other steps"),
    ):
        values: dict[str, list[str]] = {}
        for each in brokers:
            if name in each.settings:
                values.setdefault(each.settings[name], []).append(each.address)
        if len(values) > 1:
            listed = "; ".join(f"{value or 'nothing'} at {', '.join(at)}" for value, at in values.items())
            found.append(Finding("unlike", f"{name} is unlike: {listed}; {why}; make it the same everywhere"))
    return found


def name_server_findings(brokers: Sequence[BrokerAnswers], given: str) -> list[Finding]:
    """Whether our brokers would register at other name servers than Java's do.

    A warning: the same one may be spelled otherwise, as a name or as an address.
    """
    found = []
    for named in sorted({each.settings.get("namesrvAddr", "") for each in brokers}):
        if named and set(named.split(";")) != set(given.split(";")):
            text = (
                f"Java's brokers register at {named}, and ours will at {given}: give all of them with "
                "--namesrv, or clients of the others do not find ours"
            )
            found.append(Finding("name-servers", text, False))
    return found


def disk_finding(wanted_bytes: int, free_bytes: int, path: str) -> list[Finding]:
    """Whether the copies have room."""
    if wanted_bytes <= free_bytes:
        return []
    return [
        Finding(
            "disk",
            f"{path} has {free_bytes / 2**30:.1f} GiB free, and the copies need about "
            f"{wanted_bytes / 2**30:.1f} GiB; make room, give another folder with --data, or ask for fewer "
            "brokers with --replicas",
        )
    ]
