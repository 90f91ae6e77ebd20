"""What must be true after the master of a group of both makes has changed many times; seen from outside the system."""

from __future__ import annotations

import json
import re
import subprocess
import sys

from brokerset_rig import controllers, mqadmin, stack, wire
from brokerset_rig.controller_parts import Add, step
from brokerset_rig.controllers import until
from brokerset_rig.mixed_work import CROSSINGS_MIN, FLOW_TOPIC, KEPT, Work
from brokerset_rig.replicated_group import NAME, QUEUES, TOPIC, Group, Member
from brokerset_rig.replication_checks import compared, missing_metadata, note, unexpected
from brokerset_rig.replication_clients import CONSUMED_SECONDS_MAX

CLUSTER_INFO = 106
STATUS_SECONDS_MAX = 60
METADATA_SECONDS_MAX = 20.0
"""A Java slave polls every 10 s, and replaces its tables entry by entry."""

SHOWN = 3
"""So many examples of what is wrong."""

Queues = dict[int, list[tuple[int, str]]]
"""By queue: queue offset and body of what is stored, in order."""


def run(add: Add, found: Group, name: str, proves: str, work: Work) -> None:
    """All of it; clients are ended. The last line is the sentence that the mix proves."""
    passed: list[bool] = []

    def counted(sentence: str, problems: list[str], seconds: float) -> None:
        passed.append(not problems)
        add(f"{name}: {sentence}", problems, seconds)

    with step(
        counted, "the Java consumer got everything that was acknowledged to the Java producer"
    ) as problems:
        work.load.stop()
        work.producer.end()
        problems += not_consumed(work)
    with step(
        counted, "nothing acknowledged is lost; queue offsets are dense; what was read is what is stored"
    ) as problems:
        found.wait_in_sync()
        master, _ = found.master()
        problems += work.load.problems(master.port)
        problems += stored_problems(master, work)
    with step(
        counted, "all logs are the same byte for byte up to the confirmed offset, and so are the epoch files"
    ) as problems:
        problems += compared(found)
        problems += unconfirmed(found) + epoch_file_problems(found)
    with step(counted, "topic, group and offset from before the first switch are on every broker"):
        until(
            "the metadata everywhere",
            lambda: not any(missing_metadata(member, KEPT) for member in found.members),
            METADATA_SECONDS_MAX,
        )
    with step(
        counted, "mqadmin getSyncStateSet, getBrokerEpoch and haStatus tell of the same group"
    ) as problems:
        problems += admin_problems(found)
    with step(counted, "brokerset status says which mix it is, and what holds") as problems:
        problems += status_problems(found)
    with step(counted, "the makes led in turn, and our brokers logged no unexpected failure") as problems:
        problems += unexpected(found.members)
        if len({member.make for member in found.members}) > 1 and work.crossings < CROSSINGS_MIN:
            problems.append(
                f"only {work.crossings} of {work.switches} switches went from one make to the other"
            )
    note(
        f"{work.switches} switches, {work.crossings} between the makes; {work.load.count:,} and"
        f" {len(work.producer.acked):,} acknowledged, refused {work.load.refused}; seconds without an"
        f" acknowledgement to the Java producer: {work.pauses}"
    )
    if all(passed):
        add(f"{name}: {proves}", [], 0.0)


def not_consumed(work: Work) -> list[str]:
    acked = set(work.producer.acked)
    try:
        until("everything is consumed", lambda: acked <= work.consumer.got, CONSUMED_SECONDS_MAX)
    except stack.StackError:
        missing = acked - work.consumer.got
        return [f"{len(missing)} of {len(acked)} are not there, such as {sorted(missing)[:SHOWN]}"]
    return []


def stored(port: int, topic: str) -> Queues:
    """What a broker has in the queues of a topic."""
    found: Queues = {}
    with wire.Client(port, 10.0) as client:
        for queue in range(QUEUES):
            rows: list[tuple[int, str]] = []
            while True:
                answer = client.call(wire.PULL, wire.pull_ext(topic, queue, rows[-1][0] + 1 if rows else 0))
                if answer.code:
                    break
                rows += [(each.queue_offset, each.body.decode()) for each in wire.records(answer.body)]
            found[queue] = rows
    return found


def stored_problems(master: Member, work: Work) -> list[str]:
    """What the master's queues lack of what was acknowledged and read, and where their offsets are not dense."""
    rows = stored(master.port, FLOW_TOPIC)
    problems = dense_problems(rows) + dense_problems(stored(master.port, TOPIC))
    there = {body for queue in rows.values() for _, body in queue}
    if lost := [body for body in work.producer.acked if body not in there]:
        problems.append(
            f"{len(lost)} of {len(work.producer.acked)} acknowledged to the Java producer are gone: {lost[:SHOWN]}"
        )
    at = {(queue, offset): body for queue, each in rows.items() for offset, body in each}
    other = []
    for line in work.consumer.of("got"):
        queue, offset, body = int(line.words[0]), int(line.words[1]), line.words[2]
        if at.get((queue, offset)) != body:
            other.append(f"{body} at {queue}/{offset}, where {at.get((queue, offset))} is stored")
    if other:
        problems.append(f"{len(other)} messages were read that are not stored so: {other[:SHOWN]}")
    return problems


def dense_problems(rows: Queues) -> list[str]:
    return [
        f"queue {queue}: offsets are not dense: {len(each)} messages, the last is {each[-1][0]}"
        for queue, each in rows.items()
        if [offset for offset, _ in each] != list(range(len(each)))
    ]


def unconfirmed(found: Group) -> list[str]:
    """Our brokers whose confirmed offset is not the end of the log, though nobody writes and all are in sync."""

    def look() -> list[str]:
        tables = {str(member): member.facts() for member in found.members if member.is_ours}
        return [
            f"{who} has confirmed {table['brokersetConfirmedOffset']} of {table['brokersetMaxOffset']}"
            for who, table in tables.items()
            if table["brokersetConfirmedOffset"] != table["brokersetMaxOffset"]
        ]

    try:
        until("everything is confirmed", lambda: not look(), METADATA_SECONDS_MAX)
    except stack.StackError:
        return look()
    return []


def epoch_file_problems(found: Group) -> list[str]:
    """Where the files `epochFileCheckpoint` differ, of epochs that have bytes in the log."""
    end = min(member.log_end() for member in found.members)
    files = {}
    for member in found.members:
        text = (member.commit_log.parent / "epochFileCheckpoint").read_text()
        entries = [tuple(map(int, line.split("-"))) for line in text.split()[2:]]
        files[str(member)] = [entry for entry in entries if entry[1] < end]
    few = min(map(len, files.values()))
    if few and len({tuple(entries[-few:]) for entries in files.values()}) == 1:
        return []
    return [f"the epoch files are {files}"]


def name_server_problems(found: Group) -> list[str]:
    """Where the name servers disagree about the group's brokers, or with the controllers about its master."""
    tables = {}
    for address in found.servers.name_servers.split(";"):
        with wire.Client(int(address.rpartition(":")[2]), 5.0) as client:
            answer = controllers.loads(client.call(CLUSTER_INFO, {}).body)
        data = (answer.get("brokerAddrTable") or {}).get(NAME) or {}
        tables[address] = data.get("brokerAddrs") or {}
    master, _ = found.master()
    wanted = {
        "0" if member is master else str(member.broker_id): member.server.address for member in found.members
    }
    return [f"the name server {address} has {table}" for address, table in tables.items() if table != wanted]


def admin_problems(found: Group) -> list[str]:
    """Where mqadmin's view of the group is not the rig's own."""
    master, epoch = found.master()
    names = ("-n", found.servers.name_servers)
    asked = (
        ("getSyncStateSet", "-a", f"127.0.0.1:{found.panel.ports[0]}", "-b", NAME),
        ("getBrokerEpoch", *names, "-b", NAME),
        ("haStatus", *names, "-b", master.server.address),
    )
    sets, epochs, status = (mqadmin.text_of(found.env, *arguments) for arguments in asked)
    ids = sorted(member.broker_id for member in found.members)
    problems = []
    in_sync = sorted(map(int, re.findall(r"(?m)^InSyncReplica:.*brokerId=(\d+)", sets)))
    shown = re.findall(r"(?m)^#Master(?:BrokerId|Epoch)\s+(\d+)", sets)
    if in_sync != ids or shown != [str(master.broker_id), str(epoch)]:
        problems.append(f"getSyncStateSet is not {ids}, {master.broker_id}, {epoch}:\n{sets[-900:]}")
    parts = [
        re.findall(r"EpochEntry\{epoch=(\d+), startOffset=(\d+)", part)
        for part in epochs.split("#clusterName")[1:]
    ]
    few = min(map(len, parts), default=0)
    if len(parts) != len(ids) or not few or any(part[-few:] != parts[0][-few:] for part in parts):
        problems.append(f"getBrokerEpoch differs between the brokers:\n{epochs[-1500:]}")
    elif int(parts[0][-1][0]) != epoch:
        problems.append(f"getBrokerEpoch ends with {parts[0][-1]}, the controllers say {epoch}")
    if re.findall(r"(?m)^#InSyncSlaveNum\s+(\d+)", status) != [str(len(ids) - 1)]:
        problems.append(f"haStatus of {master}:\n{status[-900:]}")
    return problems


def status_problems(found: Group) -> list[str]:
    """Where `brokerset status` does not tell the makes, the master and what its death may cost."""
    where = ("--namesrv", found.servers.name_servers, "--controller", found.servers.addresses)
    command = [sys.executable, "-m", "brokerset_cli.main", "status", *where]
    as_json, as_text = (
        subprocess.run(each, capture_output=True, text=True, timeout=STATUS_SECONDS_MAX)
        for each in ([*command, "--json"], command)
    )
    master, _ = found.master()
    view = json.loads(as_json.stdout)
    (group,) = view["groups"]
    mix = group["mix"]
    ours = any(server.name.startswith("controller") for server in found.servers.servers)
    makes = {"ours": "brokerset", "Java": "Java"}
    shown = {int(key): value["make"] for key, value in mix["brokers"].items()}
    problems = []
    if shown != {member.broker_id: makes[member.make] for member in found.members}:
        problems.append(f"the makes are told as {shown}")
    if view["controllersMake"] != ("brokerset" if ours else "Java") or group["masterId"] != master.broker_id:
        problems.append(f"controllers of {view['controllersMake']}, master {group['masterId']}")
    wanted = [] if ours else ["Java's controllers: no lease"]
    for member in found.members:
        if not member.is_ours:
            wanted.append(f"Java {'master' if member is master else 'slave'} {NAME}/{member.broker_id}: ")
    problems += [f"it does not say {text!r}" for text in wanted if text not in as_text.stdout]
    if as_json.returncode or as_text.returncode or problems:
        problems.append(f"{as_text.stdout[-1500:]}{as_text.stderr[-500:]}")
    return problems
