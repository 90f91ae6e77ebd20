"""Runs mqadmin commands against our servers and compares the shape of their texts with the golden ones."""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import dataclass, field
from pathlib import Path

PEERS = Path(__file__).parents[2] / "peers"
GOLDEN = PEERS / "golden" / "mqadmin"
TIMEOUT_SECONDS = 90
TRIES = 3
GIVEN_UP = re.compile(r"Remoting(?:Timeout|Connect|SendRequest)Exception[^\n]*")
"""What mqadmin prints when its own time-out was over."""
LEADERS_MAX = 3


@dataclass(frozen=True, slots=True)
class Case:
    """One mqadmin command, and what its text must show beyond having the golden headings."""

    name: str
    arguments: tuple[str, ...]
    must_match: tuple[str, ...] = ()
    headings_from: str | None = None
    forbidden: tuple[str, ...] = field(default=("Exception", "CODE: 1 ", "not supported"))


def cases(namesrv: str, broker: str) -> list[Case]:
    n, b, cluster = ("-n", namesrv), ("-b", broker), ("-c", "DefaultCluster")
    topic, group = ("-t", "adm-topic"), ("-g", "adm-group")
    return [
        Case("updateTopic", (*n, *cluster, *topic, "-r", "4", "-w", "4"), (r"create topic to \S+ success", r"readQueueNums=4, writeQueueNums=4, perm=RW-")),
        Case("updateSubGroup", (*n, *cluster, *group), (r"create subscription group to \S+ success", r"groupName=adm-group, consumeEnable=true")),
        Case("sendMessage", (*n, *topic, "-p", "hello mqadmin", "-k", "adm-key", "-c", "adm-tag"), (r"broker-a\s+\d\s+SEND_OK",)),
        Case("consumeMessage", (*n, *topic), (r"BODY: hello mqadmin",)),
        Case("clusterList", n, (rf"DefaultCluster\s+broker-a\s+0\s+{re.escape(broker)}\s+V5_\S+\s+\d+\.\d\d\(",), "clusterList"),
        Case("clusterList", (*n, "-m"), (r"DefaultCluster\s+broker-a\s+\d+\s+\d+\s+\d+\s+\d+",), "clusterList-m"),
        Case("topicList", n, (r"(?m)^adm-topic$", r"(?m)^TBW102$", r"(?m)^SCHEDULE_TOPIC_XXXX$")),
        Case("topicList", (*n, "-c"), (r"DefaultCluster\s+adm-topic",), "topicList-c"),
        Case("topicRoute", (*n, *topic), (r'"brokerName":"broker-a"', r'"writeQueueNums":4', rf'0:"{re.escape(broker)}"')),
        Case("topicStatus", (*n, *topic), (r"broker-a\s+\d\s+0\s+1\s+\d{4}-", r"Topic Put TPS:"), "topicStatus"),
        Case("topicClusterList", (*n, *topic), (r"DefaultCluster",)),
        Case("brokerStatus", (*n, *b), (r"brokerVersionDesc\s*: V5_", r"msgPutTotalTodayNow\s*: \d", r"commitLogMaxOffset\s*: \d{3,}")),
        Case("consumerProgress", (*n, *group), (r"adm-topic\s+broker-a\s+\d\s+1\s+1\s+0", r"Consume Diff Total: 0"), "consumerProgress"),
        Case("consumerProgress", n, (r"adm-group\s+0",), "consumerProgress-all"),
        Case("getConsumerConfig", (*n, *group), (r"groupName\s*=\s*adm-group",)),
        Case("queryMsgByKey", (*n, *topic, "-k", "adm-key"), (r"[0-9A-F]{32,56}\s+\d\s+0",), "queryMsgByKey"),
        Case("queryMsgByOffset", (*n, *topic, "-b", "broker-a", "-i", "{queue}", "-o", "0"), (r"Tags:\s+\[adm-tag\]", r"Keys:\s+\[adm-key\]")),
        Case("queryMsgById", (*n, *topic, "-i", "{id}"), (r"Tags:\s+\[adm-tag\]", r"Queue Offset:\s+0", r"CLUSTER=DefaultCluster", r"trackType=")),
        Case("queryMsgById", (*n, *topic, "-i", "{offsetid}"), (r"Tags:\s+\[adm-tag\]", r"Keys:\s+\[adm-key\]")),
        Case("queryMsgByUniqueKey", (*n, *topic, "-i", "{id}"), (r"Tags:\s+\[adm-tag\]",)),
        Case("printMsg", (*n, *topic, "-d", "true"), (r"BODY: hello mqadmin",)),
        Case("queryCq", (*n, *topic, "-q", "{queue}", "-i", "0", "-c", "1", *b), (r"max: 1, min: 0", r"ConsumeQueueData\{physicOffset=\d+, physicSize=\d+, tagsCode=-?\d+"), ),
        Case("resetOffsetByTime", (*n, *group, *topic, "-s", "-1"), (r"broker-a\s+\d\s+\d",), "resetOffsetByTime"),
        Case("getBrokerConfig", (*n, *b), (r"brokerName\s*=\s*broker-a", r"flushDiskType\s*=\s*ASYNC_FLUSH", r"autoCreateTopicEnable\s*=\s*true")),
        Case("getNamesrvConfig", n, (r"listenPort\s*=\s*\d+",)),
        Case("updateBrokerConfig", (*n, *b, "-k", "fileReservedTime", "-v", "48"), (r"update broker config success",)),
        Case("getBrokerConfig", (*n, *b), (r"fileReservedTime\s*=\s*48",)),
        Case("updateKvConfig", (*n, "-s", "adm-space", "-k", "k", "-v", "v"), (r"create or update kv config to namespace success",)),
        Case("deleteKvConfig", (*n, "-s", "adm-space", "-k", "k"), (r"delete kv config from namespace success",)),
        Case("wipeWritePerm", (*n, "-b", "broker-a"), (r"wipe write perm of broker\[broker-a\] in name server\[\S+\] OK",)),
        Case("addWritePerm", (*n, "-b", "broker-a"), (r"add write perm of broker\[broker-a\] in name server\[\S+\] OK",)),
        Case("statsAll", (*n, *topic), (r"adm-topic",), "statsAll"),
        Case("checkMsgSendRT", (*n, *topic, "-a", "5", "-s", "100"), (r"broker-a\s+\d\s+true",), "checkMsgSendRT"),
        Case("updateTopicPerm", (*n, *cluster, *topic, "-p", "4"), (r"perm from 6 to 4|update topic perm",)),
        Case("deleteTopic", (*n, *cluster, *topic), (r"delete topic \[adm-topic\] from cluster \[DefaultCluster\] success", r"from NameServer success")),
        Case("deleteSubGroup", (*n, *cluster, *group), (r"delete subscription group \[adm-group\] from broker \[\S+\] in cluster \[DefaultCluster\] success",)),
    ]  # fmt: skip


UNREAD_SETTINGS = {
    "jraftConfig": "JRaft is not an engine here",
    "rocketmqHome": "there is no such folder",
    "controllerType": "there is one engine",
    "controllerThreadPoolNums": "requests are served on one loop",
    "controllerRequestThreadPoolQueueCapacity": "the same",
    "isProcessReadEvent": "reads that decide something always pass a barrier",
    "mappedFileSize": "the raft log is not mapped; its segments have a fixed size",
}
"""Keys of Java's getControllerConfig that ours may lack, and why. Those of metrics and of Netty (`_TRANSPORT`) are lacking as well."""

_TRANSPORT = re.compile(r"metric|server|writeBuffer|useEpoll|enableShutdown|shutdownWait")


def text_of(env: dict[str, str], name: str, *arguments: str, cwd: Path | None = None) -> str:
    """What one mqadmin command prints; some commands write files to where they run.

    mqadmin's own time-out of some seconds begins before its program is loaded. On processors that do other work it may
    be over before a request has left, so what ends that way is tried again, and a line says so.
    """
    for left in reversed(range(TRIES)):
        done = subprocess.run(
            [str(PEERS / "bin" / "mqadmin"), name, *arguments],
            capture_output=True, text=True, timeout=TIMEOUT_SECONDS, env={**os.environ, **env}, cwd=cwd,
        )  # fmt: skip
        text = done.stdout + done.stderr
        given_up = GIVEN_UP.search(text)
        if given_up is None or not left:
            break
        print(f"again mqadmin       {name}: {given_up[0]}", flush=True)
    return text


def leaders_text(env: dict[str, str], name: str, *arguments: str) -> str:
    """What mqadmin prints; it asks who leads, then that one, and an election in between is no difference."""
    for _ in range(LEADERS_MAX):
        text = text_of(env, name, *arguments)
        if "CODE: 2007" not in text:
            break
    return text


def form(text: str) -> list[str]:
    """The different lines of a text without its values: addresses, numbers, times, ids, hash codes; in order, each once."""
    lines = []
    for line in text.splitlines():
        line = re.sub(r"127\.0\.0\.1:\d+", "ADDRESS", line.strip())
        line = re.sub(r"\d{4}-\d\d-\d\d[ T][\d:,.]+", "TIME", line)
        line = re.sub(r"\b[0-9A-F]{32,56}\b", "ID", line)
        line = re.sub(r"(\$\$Lambda\S*)?(?<!ID)@[0-9a-f]{4,8}\b", "@HASH", line)
        line = re.sub(r"-?\d+(\.\d+)?", "N", line)
        line = re.sub(r"\s+", " ", line)
        if line and not line.startswith(("$ ", "exit N")) and line not in lines:
            lines.append(line)
    return lines


def form_problems(golden: str, text: str) -> list[str]:
    """How the form of a text differs from that of a golden one."""
    want, got = form((GOLDEN / f"{golden}.txt").read_text()), form(text)
    missing = [f"the line {line!r} is missing" for line in want if line not in got]
    more = [f"the line {line!r} is not Java's" for line in got if line not in want]
    return [f"{problem}\n--- text\n{text.strip()[-1200:]}\n---" for problem in missing + more][:3]


def config_problems(text: str) -> list[str]:
    """Keys that Java's getControllerConfig shows and ours does not."""
    keys = [
        set(re.findall(r"(?m)^(\w+)\s+=", t))
        for t in ((GOLDEN / "getControllerConfig.txt").read_text(), text)
    ]
    lost = sorted(
        key for key in keys[0] - keys[1] if key not in UNREAD_SETTINGS and not _TRANSPORT.match(key)
    )
    return [f"keys that Java has are missing: {', '.join(lost)}"] if lost else []


def run(case: Case, remembered: dict[str, str], env: dict[str, str]) -> list[str]:
    """What is wrong with the text of one command; `remembered` hands ids from one command to later ones."""
    arguments = [a.format(**remembered) if a.startswith("{") else a for a in case.arguments]
    text = text_of(env, case.name, *arguments)
    if case.name == "queryMsgByKey" and (found := re.search(r"([0-9A-F]{32,56})\s+(\d+)", text)):
        remembered.update(id=found[1], queue=found[2])
    if case.name == "queryMsgByOffset" and (found := re.search(r"OffsetID:\s+([0-9A-F]{32,56})", text)):
        remembered.update(offsetid=found[1])
    problems = [f"no match for {pattern!r}" for pattern in case.must_match if not re.search(pattern, text)]
    problems += [f"contains {word!r}" for word in case.forbidden if word in text]
    if case.headings_from:
        problems += [
            f"heading {heading!r} is missing"
            for heading in _headings(case.headings_from)
            if heading not in text
        ]
    return [f"{problem}\n--- text\n{text.strip()[-1500:]}\n---" for problem in problems]


def _headings(golden: str) -> list[str]:
    """The `#Heading` words that the golden text has."""
    text = (GOLDEN / f"{golden}.txt").read_text()
    return [heading.strip() for heading in re.findall(r"#[A-Za-z][A-Za-z() ]*?(?=\s{2,}|\s#|$)", text, re.M)]
