"""mqadmin commands about consumers that run: recorded once from Java's servers, then compared with ours.

`python -m brokerset_rig.mqadmin_consumers` records the golden texts again (from real Java servers). A Java push consumer
runs all the while, because most of these commands are relayed to one.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from brokerset_rig import mqadmin, stack

Add = Callable[[str, list[str], float], None]
TOPIC, GROUP, CLONE, ABSENT, OWN = "live-topic", "live-group", "live-clone", "live-absent", "live-own"
POP_TOPIC, POP_GROUP = "live-popped", "live-popping"
SETTINGS = {"traceTopicEnable": "true"}

ONLINE_SECONDS_MAX = 60.0
OUTPUT_SECONDS_MAX = 12.0
"""How long a command that never ends by itself is listened to."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command; `name` is that of the golden text, words in braces are filled with what was seen before."""

    name: str
    command: str
    arguments: tuple[str, ...]
    endless: bool = False
    """Whether it runs until it is stopped."""

    exact: bool = True
    """Whether the lines must be the golden ones; else only what `shows` says."""

    shows: tuple[str, ...] = ()
    """Patterns that the text must match, on both makes."""

    waits: bool = False
    """Whether it is repeated until it shows them."""


def commands(namesrv: str, broker: str, folder: Path) -> list[Command]:
    """All commands in their order; the consumer of `GROUP` runs, and has consumed all messages."""
    n, b, c = ("-n", namesrv), ("-b", broker), ("-c", "DefaultCluster")
    t, g = ("-t", TOPIC), ("-g", GROUP)
    groups = folder / "groups.json"
    groups.write_text('[{"groupName":"live-list-1","consumeEnable":true},{"groupName":"live-list-2"}]')
    topics = folder / "topics.json"
    topics.write_text('[{"topicName":"live-list-1"},{"topicName":"live-list-2","readQueueNums":2}]')
    return [
        Command("live-consumerConnection", "consumerConnection", (*n, *g)),
        Command("live-consumerConnection-broker", "consumerConnection", (*n, *g, *b)),
        Command("live-producerConnection", "producerConnection", (*n, "-g", "CLIENT_INNER_PRODUCER", *t)),
        Command("live-producer", "producer", (*n, *b)),
        Command("live-consumerStatus", "consumerStatus", (*n, *g), shows=(r"Same subscription", r"Rebalance OK")),
        Command("live-consumerStatus-client", "consumerStatus", (*n, *g, "-i", "{client}"),
                shows=(r"#Consumer RT&TPS#", rf"{TOPIC}\s+broker-a\s+0\s+\d+")),
        Command("live-consumerStatus-jstack", "consumerStatus", (*n, *g, "-i", "{client}", "-s"), exact=False,
                shows=(r"#Consumer jstack#", r"ConsumeMessageThread|PullMessageService")),
        Command("live-consumerStatus-absent", "consumerStatus", (*n, *g, "-i", "nobody@1")),
        Command("live-consumerProgress", "consumerProgress", (*n, *g, *t, "-s", "true")),
        Command("live-brokerConsumeStats", "brokerConsumeStats", (*n, *b, "-l", "-1")),
        Command("live-brokerConsumeStats-order", "brokerConsumeStats", (*n, *b, "-o", "true")),
        Command("live-queryCq-group", "queryCq", (*n, *t, "-q", "0", "-i", "0", "-c", "2", *b, *g), exact=False,
                shows=(r"Subscription data", r"Filter data: \nnull\n", r"max: 6, min: 0")),
        Command("live-queryCq-absent-group", "queryCq", (*n, *t, "-q", "0", "-i", "0", "-c", "1", *b, "-g", ABSENT)),
        Command("live-queryCq-absent-queue", "queryCq", (*n, *t, "-q", "77", "-i", "0", "-c", "1", *b)),
        Command("live-queryMsgByOffset", "queryMsgByOffset", (*n, *t, "-b", "broker-a", "-i", "0", "-o", "0"),
                exact=False, shows=(rf"consumerGroup={GROUP}, trackType=CONSUMED",)),
        Command("live-queryMsgByUniqueKey", "queryMsgByUniqueKey", (*n, *t, "-i", "{id}", *g, "-d", "{client}"),
                shows=(r"CR_SUCCESS",)),
        Command("live-queryMsgById", "queryMsgById", (*n, *t, "-i", "{offsetid}", *g, "-d", "{client}"),
                shows=(r"CR_SUCCESS",)),
        Command("live-queryMsgById-absent", "queryMsgById", (*n, *t, "-i", "{offsetid}", *g, "-d", "nobody@1")),
        Command("live-cloneGroupOffset-absent", "cloneGroupOffset", (*n, "-s", GROUP, "-d", ABSENT, *t, "-o", "false")),
        Command("live-updateSubGroup", "updateSubGroup", (*n, *b, "-g", CLONE)),
        Command("live-cloneGroupOffset", "cloneGroupOffset", (*n, "-s", GROUP, "-d", CLONE, *t, "-o", "false")),
        Command("live-consumerProgress-clone", "consumerProgress", (*n, "-g", CLONE, *t)),
        Command("live-resetOffsetByTime-begin", "resetOffsetByTime", (*n, *g, *t, "-s", "0")),
        Command("live-consumerProgress-reset", "consumerProgress", (*n, *g, *t), waits=True, exact=False,
                shows=(r"Consume Diff Total: 0", rf"{TOPIC}\s+broker-a\s+0\s+(\d+)\s+\1\s+0")),
        Command("live-resetOffsetByTime-queue", "resetOffsetByTime",
                (*n, *g, *t, "-s", "0", *b, "-q", "0", "-o", "1")),
        Command("live-resetOffsetByTime-range", "resetOffsetByTime",
                (*n, *g, *t, "-s", "0", *b, "-q", "0", "-o", "9999")),
        Command("live-resetOffsetByTime-absent", "resetOffsetByTime", (*n, "-g", ABSENT, *t, "-s", "0")),
        Command("live-skipAccumulatedMessage", "skipAccumulatedMessage", (*n, *g, *t)),
        Command("live-skipAccumulatedMessage-absent", "skipAccumulatedMessage", (*n, "-g", ABSENT, *t)),
        Command("live-cleanExpiredCQ", "cleanExpiredCQ", (*n, *b)),
        Command("live-cleanExpiredCQ-cluster", "cleanExpiredCQ", (*n, *c)),
        Command("live-cleanUnusedTopic", "cleanUnusedTopic", (*n, *b)),
        Command("live-cleanUnusedTopic-cluster", "cleanUnusedTopic", (*n, *c)),
        Command("live-deleteExpiredCommitLog", "deleteExpiredCommitLog", (*n, *b)),
        Command("live-deleteExpiredCommitLog-cluster", "deleteExpiredCommitLog", (*n, *c)),
        Command("live-updateSubGroupList", "updateSubGroupList", (*n, *b, "-f", str(groups))),
        Command("live-updateTopicList", "updateTopicList", (*n, *b, "-f", str(topics))),
        Command("live-printMsgByQueue", "printMsgByQueue",
                (*n, *t, "-a", "broker-a", "-i", "0", "-p", "true", "-d", "true", "-f", "true"), exact=False,
                shows=(r"BODY: body-\d+", r"Tag: A\s+Count: 2", r"Tag: C\s+Count: 2")),
        Command("live-sendMsgStatus", "sendMsgStatus", (*n, "-b", "broker-a", "-c", "2"), exact=False,
                shows=(r"SEND_OK",)),
        Command("live-updateOrderConf", "updateOrderConf", (*n, *t, "-m", "put", "-v", "broker-a:4")),
        Command("live-updateOrderConf-get", "updateOrderConf", (*n, *t, "-m", "get")),
        Command("live-updateOrderConf-delete", "updateOrderConf", (*n, *t, "-m", "delete")),
        Command("live-sendMessage-trace", "sendMessage", (*n, *t, "-p", "traced", "-k", "traced", "-m", "true")),
        Command("live-queryMsgTraceById", "queryMsgTraceById", (*n, "-i", "{traced}"), shows=(r"success",)),
        Command("live-consumerProgress-pop", "consumerProgress", (*n, "-g", POP_GROUP, "-t", POP_TOPIC), waits=True,
                exact=False, shows=(r"Consume Diff Total: 0", r"Consume Inflight Total: 0", rf"{POP_TOPIC}\s+broker-a")),
        Command("live-exportPopRecord", "exportPopRecord", (*n, *b)),
        Command("live-exportPopRecord-cluster", "exportPopRecord", (*n, *c)),
        Command("live-exportPopRecord-dry", "exportPopRecord", (*n, *b, "-d", "true")),
        Command("live-setConsumeMode-pop", "setConsumeMode", (*n, *b, *t, *g, "-m", "POP", "-q", "8")),
        Command("live-setConsumeMode-pull", "setConsumeMode", (*n, *b, *t, *g, "-m", "PULL", "-q", "0")),
        Command("live-allocateMQ", "allocateMQ", (*n, *t, "-i", "127.0.0.1,127.0.0.2"), exact=False,
                shows=(r'"topic":"live-topic"',)),
        Command("live-statsAll", "statsAll", (*n, *t)),
        Command("live-statsAll-active", "statsAll", (*n, "-a", *t)),
        Command("live-startMonitoring", "startMonitoring", n, endless=True, exact=False),
        Command("live-updateSubGroup-off", "updateSubGroup", (*n, *b, *g, "-s", "false")),
        Command("live-getConsumerConfig-off", "getConsumerConfig", (*n, *g)),
        Command("live-updateSubGroup-on", "updateSubGroup", (*n, *b, *g, "-s", "true")),
    ]  # fmt: skip


@contextmanager
def consumer(env: Mapping[str, str], folder: Path) -> Iterator[None]:
    """A Java push consumer of `GROUP` that runs until the end of the block."""
    with (folder / "consumer.log").open("ab") as log:
        process = subprocess.Popen(
            [str(stack.PEERS / "bin" / "interop"), "consume", f"topic={TOPIC}", f"group={GROUP}",
             "count=1000000", "timeout=1800000"],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL, env={**os.environ, "CLIENT_HEAP": "128m", **env},
        )  # fmt: skip
        try:
            yield
        finally:
            process.kill()
            process.wait()


def texts(namesrv: str, broker: str, folder: Path) -> Iterator[tuple[Command, str]]:
    """Every command with what it printed, while a consumer runs."""
    env = {"NAMESRV_ADDR": namesrv, "PEERS_RUN": str(folder / "client")}
    _until(env, r"create topic to \S+ success", "updateTopic", "-n", namesrv, "-c", "DefaultCluster", "-t", TOPIC,
           "-r", "2", "-w", "2")  # fmt: skip
    seen = {"client": "", "id": "", "offsetid": "", "traced": ""}
    _until(env, r"create topic to \S+ success", "updateTopic", "-n", namesrv, "-c", "DefaultCluster", "-t", POP_TOPIC,
           "-r", "2", "-w", "2")  # fmt: skip
    _send(env)
    _interop(env, "send", f"topic={POP_TOPIC}", "count=6")
    _interop(env, "pop", f"topic={POP_TOPIC}", f"group={POP_GROUP}", "count=6")
    with consumer(env, folder):
        _until(env, r"Consume Diff Total: 0", "consumerProgress", "-n", namesrv, "-g", GROUP)
        for command in commands(namesrv, broker, folder):
            words = [word.format(**seen) if word.startswith("{") else word for word in command.arguments]
            text = _endless(env, command.command, *words) if command.endless else ""
            text = text or mqadmin.text_of(env, command.command, *words, cwd=folder)
            deadline = time.monotonic() + ONLINE_SECONDS_MAX
            while command.waits and problems(command, text) and time.monotonic() < deadline:
                text = mqadmin.text_of(env, command.command, *words, cwd=folder)
            _remember(seen, command.name, text)
            yield command, f"$ mqadmin {command.command} {' '.join(words)}\n{text}"


def _send(env: Mapping[str, str]) -> None:
    _interop(env, "send", f"topic={TOPIC}", "count=12")


def _interop(env: Mapping[str, str], verb: str, *arguments: str) -> None:
    """Run a Java client until it has ended. Raises `StackError`."""
    done = subprocess.run(
        [str(stack.PEERS / "bin" / "interop"), verb, *arguments],
        capture_output=True, text=True, timeout=90, env={**os.environ, "CLIENT_HEAP": "128m", **env},
    )  # fmt: skip
    if done.returncode:
        raise stack.StackError(f"{verb} failed: {done.stdout[-500:]} {done.stderr[-500:]}")


def _until(env: dict[str, str], pattern: str, command: str, *arguments: str) -> None:
    """Repeat a command until it shows the pattern. Raises `StackError`."""
    deadline = time.monotonic() + ONLINE_SECONDS_MAX
    text = ""
    while time.monotonic() < deadline:
        text = mqadmin.text_of(env, command, *arguments)
        if re.search(pattern, text):
            return
    raise stack.StackError(f"{command} did not show {pattern!r} in {ONLINE_SECONDS_MAX:.0f} s: {text[-800:]}")


def _endless(env: Mapping[str, str], command: str, *arguments: str) -> str:
    """What a command prints that does not end; an exception ends the program, so it must not have ended."""
    process = subprocess.Popen(
        [str(stack.PEERS / "bin" / "mqadmin"), command, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, env={**os.environ, **env},
    )  # fmt: skip
    try:
        text, _ = process.communicate(timeout=OUTPUT_SECONDS_MAX)
    except subprocess.TimeoutExpired:
        process.kill()
        text, _ = process.communicate()
        return text + "\nstill running\n"
    return text + "\nended\n"


def _remember(seen: dict[str, str], name: str, text: str) -> None:
    patterns = {
        "live-consumerConnection": ("client", r"(\S+@\S+)"),
        "live-queryMsgByOffset": ("offsetid", r"OffsetID:\s+([0-9A-F]{32,56})"),
        "live-sendMessage-trace": ("traced", r"SEND_OK\s+([0-9A-F]{32,56})"),
    }
    if name in patterns:
        key, pattern = patterns[name]
        if found := re.search(pattern, text):
            seen[key] = found[1]
    if name == "live-queryMsgByOffset" and (found := re.search(r"UNIQ_KEY=([0-9A-F]{32,56})", text)):
        seen["id"] = found[1]


def run(add: Add) -> None:
    """Compare what our servers' texts are like with the golden ones."""
    with stack.Workspace("interop") as folder:
        ports = stack.free_ports(2, below=2)
        with (
            stack.our_namesrv(folder, ports[0]) as namesrv,
            stack.our_broker(folder, ports[1], namesrv.address, SETTINGS) as broker,
        ):
            before = time.monotonic()
            for command, text in texts(namesrv.address, broker.address, folder):
                add(command.name, problems(command, text), time.monotonic() - before)
                before = time.monotonic()
            add("commands about our own consumer", _own_problems(namesrv.address, folder), 0.0)


def _own_problems(namesrv: str, folder: Path) -> list[str]:
    """What is wrong where Java's tool asks our consumer: it must be able to read all that it says."""
    env = {"NAMESRV_ADDR": namesrv, "PEERS_RUN": str(folder / "client")}
    where = ("-n", namesrv, "-g", OWN)
    with (folder / "own-consumer.log").open("ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "brokerset_cli.main", "consume", TOPIC, "--group", OWN, "--namesrv", namesrv],
            stdout=log, stderr=log, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        try:
            _until(env, r"Consume Diff Total: 0", "consumerProgress", *where)
            seen = {"client": "", "offsetid": ""}
            _remember(seen, "live-consumerConnection", mqadmin.text_of(env, "consumerConnection", *where))
            offset = mqadmin.text_of(
                env, "queryMsgByOffset", "-n", namesrv, "-t", TOPIC, "-b", "broker-a", "-i", "0", "-o", "0"
            )
            _remember(seen, "live-queryMsgByOffset", offset)
            client, message = (
                ("-i", seen["client"]),
                ("-t", TOPIC, "-i", seen["offsetid"], "-d", seen["client"]),
            )
            asked = [
                (r"Rebalance OK", "consumerStatus", where),
                (
                    rf"(?s)#Consumer RT&TPS#.*{TOPIC}.*thread MainThread",
                    "consumerStatus",
                    (*where, *client, "-s"),
                ),
                (r"CR_SUCCESS", "queryMsgById", (*where, *message)),
            ]
            texts = [
                (pattern, mqadmin.text_of(env, command, *words, cwd=folder))
                for pattern, command, words in asked
            ]
        finally:
            process.terminate()
            process.wait()
    return [
        f"no match for {pattern!r}: {text[-1500:]}" for pattern, text in texts if not re.search(pattern, text)
    ]


def problems(command: Command, text: str) -> list[str]:
    """How one text differs from the golden one, or lacks what it must show."""
    found = [
        f"no match for {pattern!r}\n--- text\n{text[-1500:]}\n---"
        for pattern in command.shows
        if not re.search(pattern, text)
    ]
    return found + (_form_problems(command.name, text) if command.exact else [])


def _form_problems(name: str, text: str) -> list[str]:
    """How the form of a text differs from the golden one. A client knows the route of its retry topic only 30 s after
    its start, so lines about that one may be missing."""
    golden = (mqadmin.GOLDEN / f"{name}.txt").read_text()
    want, got = ([line for line in mqadmin.form(t) if "%RETRY%" not in line] for t in (golden, text))
    missing = [f"the line {line!r} is missing" for line in want if line not in got]
    more = [f"the line {line!r} is not Java's" for line in got if line not in want]
    return [f"{problem}\n--- text\n{text.strip()[-1200:]}\n---" for problem in missing + more][:3]


def record() -> None:
    """Write the golden texts from Java's servers."""
    with stack.Workspace("interop-record") as folder:
        ports = stack.free_ports(2, below=2)
        with (
            stack.java_namesrv(folder, ports[0]) as namesrv,
            stack.java_broker(folder, ports[1], namesrv.address, SETTINGS) as broker,
        ):
            for command, text in texts(namesrv.address, broker.address, folder):
                missing = [pattern for pattern in command.shows if not re.search(pattern, text)]
                print(f"{command.name}: {len(text.splitlines())} lines {missing or ''}", flush=True)
                if command.exact:
                    (mqadmin.GOLDEN / f"{command.name}.txt").write_text(text)


if __name__ == "__main__":
    record()
