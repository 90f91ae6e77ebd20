"""What mqadmin shows of a group on the log of a DLedger, compared with what it shows of one of Java's brokers alone.

`python -m brokerset_rig.dledger_admin` writes the golden file again, from such a group.
"""

from __future__ import annotations

import json
import os
import re
from concurrent.futures import ThreadPoolExecutor

from brokerset_rig import mqadmin, wire
from brokerset_rig.controller_parts import Add, create_topic, step
from brokerset_rig.controllers import until
from brokerset_rig.dledger_group import JAVA, LEADER_SECONDS_MAX, NAME, QUEUES, Group, Member, group
from brokerset_rig.replication_checks import note

GOLDEN = mqadmin.GOLDEN / "dledger.json"
"""By command, the different lines without their values; of brokerStatus its keys. consumerProgress has the golden text of others."""

TOPIC, KEY, CONSUMERS = "adm-topic", "admin-key", "adm-group"
"""The names of the topic and the group are those of the other golden texts."""

LACKING = "QueueSize|QueueCapacity|HeadWaitTimeMills|^timer|^dispatchMaxBuffer|^pageCacheLock"
"""Keys of brokerStatus that ours lacks in every mode: of thread pools and of Java's timer store."""


def prepare(found: Group) -> None:
    """Make the topic and the group. Raises `StackError`."""
    for topic in (TOPIC, f"%RETRY%{CONSUMERS}"):  # a consumer would make the second
        create_topic(found.leader().port, topic)
    said(found, "updateSubGroup", "success", "-c", "DefaultCluster", "-g", CONSUMERS)


def said(found: Group, command: str, word: str, *arguments: str) -> None:
    """Run a command until it prints a word. Raises `StackError`."""

    def done() -> bool:
        return word in mqadmin.text_of(found.env, command, "-n", found.name_server.address, *arguments)

    until(f"mqadmin {command}", done, LEADER_SECONDS_MAX)


def forms(found: Group, leader: Member) -> tuple[dict[str, list[str]], dict[str, str]]:
    """What each command prints without its values, and as it is. The message that is looked for was sent to this leader:
    a Java broker that was killed does not have all keys in its index afterwards."""
    names, topic = ("-n", found.name_server.address), ("-t", TOPIC)
    key = f"{KEY}-{leader.member_id}"
    said(found, "sendMessage", "SEND_OK", *topic, "-p", "hello", "-k", key, "-c", "admin-tag")
    commands: dict[str, tuple[str, ...]] = {
        "clusterList": (),
        "brokerStatus": ("-b", leader.server.address),
        "topicRoute": topic,
        "topicStatus": topic,
        "queryMsgByKey": (*topic, "-k", key),
    }
    with ThreadPoolExecutor(2) as side_by_side:
        asked = {
            name: side_by_side.submit(mqadmin.text_of, found.env, name, *names, *arguments)
            for name, arguments in commands.items()
        }
        texts = {name: text.result() for name, text in asked.items()}
    found_id = re.search(r"\b[0-9A-F]{32,56}\b", texts["queryMsgByKey"])
    message_id = found_id[0] if found_id else "none"
    texts["queryMsgById"] = mqadmin.text_of(found.env, "queryMsgById", *names, *topic, "-i", message_id)
    return {name: form(name, text) for name, text in texts.items()}, texts


def form(name: str, text: str) -> list[str]:
    """The different lines of a text without its values, in order of the alphabet.

    Without the progress of delay levels and without who reads a message, which is not the same everywhere.
    """
    if name == "brokerStatus":
        return sorted(
            {
                key
                for key in re.findall(r"(?m)^(\w+)\s*:", text)
                if not key.startswith("scheduleMessageOffset")
            }
        )
    lines = mqadmin.form(re.sub(rf"({KEY})-n\d", r"\1", re.sub(r"[0-9A-F]{32,56}", "ID", text)))
    return sorted(line for line in lines if not line.startswith(("MessageTrack", "WARN: No Consumer")))


def run(add: Add, found: Group, leader: Member) -> None:
    """Compare all commands while this member leads, as the name server knows."""
    with step(add, f"mqadmin shows the group, led by {leader}, as one of Java's brokers alone") as problems:
        golden: dict[str, list[str]] = json.loads(GOLDEN.read_text())
        got, texts = forms(found, leader)
        for name, want in golden.items():
            missing = [line for line in want if line not in got[name]]
            more = [line for line in got[name] if line not in want]
            if name == "brokerStatus" and leader.is_ours:
                note(f"keys of brokerStatus that ours lacks: {len(missing)}")
                missing, more = [key for key in missing if not re.search(LACKING, key)], []
            if missing or more:
                problems.append(f"{name}: missing {missing}, not Java's {more}\n{texts[name][-1500:]}")
        problems += broker_problems(found, leader, texts)
        problems += progress_problems(found, leader)


def progress_problems(found: Group, leader: Member) -> list[str]:
    """Where consumerProgress of a group that has read all is not as in the golden text."""
    with wire.Client(leader.port, 5.0) as client:
        for queue in range(QUEUES):
            asked = {"topic": TOPIC, "queueId": str(queue)}
            end = client.call(wire.MAX_OFFSET, asked).ext["offset"]
            committed = {**asked, "consumerGroup": CONSUMERS, "commitOffset": end}
            client.call(wire.UPDATE_CONSUMER_OFFSET, committed)
    text = mqadmin.text_of(found.env, "consumerProgress", "-n", found.name_server.address, "-g", CONSUMERS)
    return mqadmin.form_problems("consumerProgress", text)


def broker_problems(found: Group, leader: Member, texts: dict[str, str]) -> list[str]:
    """Where clusterList and topicRoute do not name the members by their ids, and the leader as 0."""
    wanted = {
        ("0" if member is leader else str(member.follower_id), member.server.address)
        for member in found.members
    }
    listed = set(re.findall(rf"(?m)^DefaultCluster\s+{NAME}\s+(\d+)\s+(\S+)", texts["clusterList"]))
    routed = set(re.findall(r'(\d+):"([\d.:]+)"', texts["topicRoute"]))
    return [
        f"{name} has {shown} instead of {wanted}"
        for name, shown in (("clusterList", listed), ("topicRoute", routed))
        if shown != wanted
    ]


def main() -> None:
    """Write the golden file again."""
    os.environ.setdefault("JAVA_OPT_EXT", "-XX:TieredStopAtLevel=1")
    with group("dledger-admin", (JAVA,) * 3, JAVA) as found:
        found.start()
        prepare(found)
        found.settled()
        got, _ = forms(found, found.wait_registered())
    GOLDEN.write_text(json.dumps(got, indent=1) + "\n")


if __name__ == "__main__":
    main()
