"""Controllers and brokers of both makes together: Java brokers under our controllers, ours under Java's, volumes handed over.

What is not here: Java's and our controllers in one group. Java's DLedger and our Raft speak different protocols, so a group is of one make.
"""

from __future__ import annotations

import os
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path

from brokerset_rig import controllers, golden, mqadmin, stack, wire
from brokerset_rig.controllers import CLUSTER, Panel, until

Add = Callable[[str, list[str], float], None]
MakeControllers = Callable[[Path, list[int], list[int]], stack.Controllers]
NAME = "broker-a"
TOPIC = "hand-over"
REPLICAS = 3
SYNC_SECONDS_MAX = 90.0
"""Until a Java replica is in sync: it starts to copy 5 s after it answers, and learns its master's address every 10 s."""

FAILOVER_SECONDS_MAX = 20.0
HELD_SECONDS = 1.0
"""How long replicas stand still before their master dies; far below any time-out."""

BROKER_SETTINGS = {
    "enableControllerMode": "true",
    "registerNameServerPeriod": "10000",
}
WIRE_CASES = (
    "controller-1004-replica-info",
    "controller-1004-replica-info-unknown",
    "controller-1005-metadata",
    "controller-1006-sync-state",
    "controller-1010-config",
    "controller-1012-next-broker-id",
    "controller-unknown-code",
)


@contextmanager
def step(add: Add, sentence: str) -> Iterator[list[str]]:
    """Report what the block found; it may append problems, and what it raises is one."""
    problems: list[str] = []
    before = time.monotonic()
    try:
        yield problems
    except (stack.StackError, OSError, KeyError, ValueError, AssertionError) as error:
        problems.append(f"{type(error).__name__}: {error}")
    add(sentence, problems, time.monotonic() - before)


def identity(broker: stack.Server) -> str:
    """The identity file of a broker's volume; empty if there is none."""
    path = broker.folder / "broker-0" / "store" / "brokerIdentity"
    return path.read_text() if path.exists() else ""


def send(port: int, body: bytes, topic: str = TOPIC, queue_id: int = 0) -> wire.Answer:
    with wire.Client(port, 5.0) as client:
        return client.call(wire.SEND_V2, wire.send_ext(topic, queue_id, "WAIT\x01true\x02"), body)


def create_topic(port: int, topic: str = TOPIC) -> None:
    ext = {"topic": topic, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
           "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}  # fmt: skip
    with wire.Client(port, 5.0) as client:
        answer = client.call(wire.CREATE_TOPIC, ext)
    if answer.code:
        raise stack.StackError(f"the topic could not be made: {answer.code} {answer.remark}")


def bodies(port: int, topic: str = TOPIC, queue_id: int = 0) -> list[bytes]:
    """All bodies of a queue."""
    found: list[bytes] = []
    offset = 0
    with wire.Client(port, 10.0) as client:
        while True:
            answer = client.call(wire.PULL, wire.pull_ext(topic, queue_id, offset))
            if answer.code:
                return found
            for record in wire.records(answer.body):
                found.append(record.body)
                offset = record.queue_offset + 1


def kill_running(server: stack.Server) -> None:
    """End a server that is left over."""
    if server.running:
        server.kill()


class Writer(threading.Thread):
    """Sends to whoever is master, all the time, and remembers what was acknowledged."""

    def __init__(self, panel: Panel, name: str = NAME) -> None:
        super().__init__(daemon=True)
        self._panel = Panel(panel.ports)
        self._name = name
        self._ending = threading.Event()
        self.acked: list[bytes] = []
        self.longest_pause = 0.0
        self.refused = 0

    def run(self) -> None:
        number = 0
        last = time.monotonic()
        while not self._ending.is_set():
            try:
                master = self._panel.master(self._name)
                if master is None:
                    self._ending.wait(0.05)
                    continue
                with wire.Client(master[1], 4.0) as client:
                    while not self._ending.wait(0.01):
                        number += 1
                        body = b"message %d" % number
                        answer = client.call(wire.SEND_V2, wire.send_ext(TOPIC, 0, "WAIT\x01true\x02"), body)
                        if answer.code:
                            self.refused += 1
                            break
                        now = time.monotonic()
                        self.longest_pause = max(self.longest_pause, now - last)
                        last = now
                        self.acked.append(body)
            except (OSError, stack.StackError):
                self._ending.wait(0.05)

    def stop(self) -> None:
        self._ending.set()
        self.join(30)


def run(add: Add, size: str, make: MakeControllers = stack.our_controllers) -> None:
    java_brokers(add, make)
    our_broker_under_java(add)
    if size == "all":
        java_brokers(
            lambda what, found, seconds: add(f"(control, all Java) {what}", found, seconds),
            stack.java_controllers,
        )


def java_brokers(add: Add, make: MakeControllers) -> None:
    """Three Java brokers: registration, failover, restart, designated election, cleaning, mqadmin, raw answers."""
    with stack.Workspace("controllers") as folder, ExitStack() as running:
        ports = stack.free_ports(9, below=2)
        group = running.enter_context(make(folder, ports[:3], ports[3:6]))
        panel = Panel(group.ports)
        settings = {
            **BROKER_SETTINGS,
            "controllerAddr": group.addresses,
            "allAckInSyncStateSet": "true",
        }
        brokers = [
            small_java_broker(folder / f"b{i}", port, group.name_servers, settings)
            for i, port in enumerate(ports[6:])
        ]
        for broker in brokers:
            running.callback(kill_running, broker)
        env = {"NAMESRV_ADDR": group.name_servers, "PEERS_RUN": str(folder / "client")}

        with step(
            add, "three Java brokers register, get the ids 1 to 3, and one of them is elected"
        ) as problems:
            for broker in brokers:
                broker.launch()
            for broker in brokers:
                broker.ready()
            until("a master", lambda: panel.master(NAME), 60)
            until("three registered replicas", lambda: len(panel.replicas(NAME)) == REPLICAS, 60)
            ids = sorted(identity(broker) for broker in brokers)
            if ids != [f"{CLUSTER}#{NAME}#{i + 1}" for i in range(REPLICAS)]:
                problems.append(f"the identity files are {ids}")

        with step(add, "the in-sync set grows to all three by the master's own requests (1001)"):
            until("three in sync", lambda: in_sync(panel) == REPLICAS, SYNC_SECONDS_MAX)

        admin_reads(add, panel, brokers, group, env)
        failover(add, panel, brokers)
        designated(add, panel, env, readable=make is stack.our_controllers)
        cleaning(add, panel, brokers, env)


def in_sync(panel: Panel) -> int:
    return sum(r["inSync"] and r["alive"] for r in panel.replicas(NAME).values())


def by_port(brokers: list[stack.Server], port: int) -> stack.Server:
    return next(broker for broker in brokers if broker.port == port)


def failover(add: Add, panel: Panel, brokers: list[stack.Server]) -> None:
    """The master is killed while messages are sent, and comes back."""
    writer = Writer(panel)
    master_id, port, epoch = until("a master", lambda: panel.master(NAME))
    dead = by_port(brokers, port)
    before = identity(dead)
    with step(
        add, "the master is killed (kill -9): another in-sync replica takes over, in a higher epoch"
    ) as problems:
        create_topic(port)
        writer.start()
        until("acknowledged messages", lambda: len(writer.acked) > 50, 30)
        with held(broker for broker in brokers if broker is not dead):
            time.sleep(HELD_SECONDS)  # what is acknowledged now is on the master alone
            dead.kill()
        killed = time.monotonic()
        found = until("another master", lambda: other_master(panel, master_id), FAILOVER_SECONDS_MAX)
        seconds = time.monotonic() - killed
        if found[2] <= epoch:
            problems.append(f"epoch {found[2]} after {epoch}")
        if seconds > FAILOVER_SECONDS_MAX / 2:
            problems.append(f"it took {seconds:.1f} s")
        count = len(writer.acked)
        until(
            "messages acknowledged by the new master",
            lambda: len(writer.acked) > count + 50,
            SYNC_SECONDS_MAX,
        )
        writer.stop()
    with step(add, "with allAckInSyncStateSet no acknowledged message is lost") as problems:
        writer.stop()
        stored = until("what the new master has", lambda: set(bodies(found[1])))
        lost = [body for body in writer.acked if body not in stored]
        if lost:
            problems.append(f"{len(lost)} of {len(writer.acked)} are gone, first {lost[0]!r}")
    with step(add, "the killed broker comes back under its old id and into the in-sync set") as problems:
        dead.start()
        until("in sync again", lambda: panel.replicas(NAME)[master_id]["inSync"], SYNC_SECONDS_MAX)
        if identity(dead) != before:
            problems.append(f"the identity {before!r} became {identity(dead)!r}")
        if len(panel.replicas(NAME)) != REPLICAS:
            problems.append(f"{len(panel.replicas(NAME))} replicas are registered")


@contextmanager
def held(servers: Iterable[stack.Server]) -> Iterator[None]:
    """Stop processes for a while, so that they copy nothing; their connections stay."""
    pids = [server.pid for server in servers]
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def other_master(panel: Panel, not_id: int) -> tuple[int, int, int] | None:
    found = panel.master(NAME)
    return found if found and found[0] != not_id else None


def designated(add: Add, panel: Panel, env: dict[str, str], *, readable: bool) -> None:
    """`readable`: mqadmin can read the answer; that of its own controller it cannot (see the golden notes)."""
    with step(add, "mqadmin electMaster makes the named replica master and prints the group") as problems:
        until("three in sync", lambda: in_sync(panel) == REPLICAS, SYNC_SECONDS_MAX)
        master_id, _, epoch = until("a master", lambda: panel.master(NAME))
        wanted = next(i for i in panel.replicas(NAME) if i != master_id)
        where = ("-a", f"127.0.0.1:{panel.ports[0]}", "-bn", NAME, "-c", CLUSTER)
        text = mqadmin.leaders_text(env, "electMaster", *where, "-b", str(wanted))
        found = until("the new master", lambda: panel.master(NAME))
        if found[0] != wanted or found[2] <= epoch:
            problems.append(f"master {found[0]} in epoch {found[2]} instead of {wanted} above {epoch}")
        if readable and ("Exception" in text or NAME not in text or f"127.0.0.1:{found[1]}" not in text):
            problems.append(f"mqadmin printed:\n{text[-1500:]}")


def cleaning(add: Add, panel: Panel, brokers: list[stack.Server], env: dict[str, str]) -> None:
    arguments = ("-a", f"127.0.0.1:{panel.ports[0]}", "-bn", NAME, "-c", CLUSTER, "-b")
    with step(
        add, "mqadmin cleanBrokerMetadata refuses a living broker as Java's controller does"
    ) as problems:
        master = until("a master", lambda: panel.master(NAME))
        text = mqadmin.leaders_text(env, "cleanBrokerMetadata", *arguments, str(master[0]))
        if "CODE: 2009" not in text or "still alive" not in text:
            problems.append(f"mqadmin printed:\n{text[-800:]}")
    with step(add, "mqadmin cleanBrokerMetadata removes a dead broker, and the others go on") as problems:
        gone = next(i for i in panel.replicas(NAME) if i != master[0])
        by_port(brokers, int(panel.replicas(NAME)[gone]["brokerAddress"].rpartition(":")[2])).kill()
        until("the replica is seen dead", lambda: not panel.replicas(NAME)[gone]["alive"], 30)
        text = mqadmin.leaders_text(env, "cleanBrokerMetadata", *arguments, str(gone))
        if gone in panel.replicas(NAME):
            problems.append(f"replica {gone} is still registered; mqadmin printed:\n{text[-800:]}")
        if panel.master(NAME) != master:
            problems.append(f"the master {master} became {panel.master(NAME)}")


def admin_reads(
    add: Add, panel: Panel, brokers: list[stack.Server], group: stack.Controllers, env: dict[str, str]
) -> None:
    """What mqadmin prints about controllers and replicas, and the raw answers, in the form of the golden ones."""
    controller = ("-a", f"127.0.0.1:{panel.ports[0]}")
    for name, arguments in (
        ("getControllerMetaData", controller),
        ("getSyncStateSet", (*controller, "-b", NAME)),
        ("getBrokerEpoch", ("-n", group.name_servers, "-b", NAME)),
    ):
        with step(add, f"mqadmin {name} prints what it prints for Java") as problems:
            problems += mqadmin.form_problems(name, mqadmin.leaders_text(env, name, *arguments))
    with step(add, "mqadmin haStatus reads the master's replication state") as problems:
        port = until("a master", lambda: panel.master(NAME))[1]
        text = mqadmin.text_of(env, "haStatus", "-n", group.name_servers, "-b", f"127.0.0.1:{port}")
        problems += mqadmin.form_problems("haStatus", text)
    with step(add, "mqadmin getControllerConfig shows the keys that Java's shows") as problems:
        problems += mqadmin.config_problems(mqadmin.text_of(env, "getControllerConfig", *controller))
    with step(add, "mqadmin updateControllerConfig changes a setting of a running controller") as problems:
        for value in ("true", "false"):
            update = ("-k", "enableElectUncleanMaster", "-v", value)
            changed = mqadmin.text_of(env, "updateControllerConfig", *controller, *update)
            shown = mqadmin.text_of(env, "getControllerConfig", *controller)
            if "success" not in changed or not re.search(
                rf"(?m)^enableElectUncleanMaster\s+=\s+{value}\b", shown
            ):
                problems.append(f"mqadmin printed:\n{changed[-500:]}\n{shown[-500:]}")
    with step(add, "mqadmin updateControllerConfig shows the refusal of a path") as problems:
        text = mqadmin.text_of(
            env, "updateControllerConfig", *controller, "-k", "configStorePath", "-v", "/nowhere"
        )
        if "CODE: 16" not in text:
            problems.append(f"mqadmin printed:\n{text[-500:]}")
    for name in WIRE_CASES:
        with step(add, f"the raw answer {name} has Java's form") as problems:
            code, ext, body = golden.wire_request(name)
            answer = panel.ask(code, ext, body)
            problems += golden.wire_differences(name, answer.code, answer.remark, answer.ext, answer.body)


def our_broker_under_java(add: Add) -> None:
    """Our broker with Java's controllers; a Java broker's volume goes on under ours, and back."""
    with stack.Workspace("controllers") as folder, ExitStack() as running:
        ports = stack.free_ports(16, below=2)
        java = stack.java_controllers(folder / "java", ports[:3], ports[3:6])
        java_panel = Panel(java.ports)
        volume = folder / "volume"
        taken = folder / "taken"
        with ExitStack() as java_running:
            java_running.enter_context(java)
            with step(add, "three Java controllers have a leader") as problems:
                java_panel.serving(60)
            if problems:
                return
            java_settings = {**BROKER_SETTINGS, "controllerAddr": java.addresses}
            ours = stack.our_broker(taken, ports[6], java.name_servers, java_settings)
            java_running.callback(kill_running, ours)
            under_java_controllers(add, java_panel, ours, java)
            written, epoch = born_under_java(add, java_panel, volume, ports[7], java, java_settings)
        under_ours = running.enter_context(stack.our_controllers(folder / "ours", ports[8:11], ports[11:14]))
        panel = Panel(under_ours.ports)
        settings = {**BROKER_SETTINGS, "controllerAddr": under_ours.addresses, "brokerName": ADOPTED}
        handed_over(add, panel, volume, ports[14], under_ours, settings, written, epoch)


ADOPTED = "broker-adopted"


def under_java_controllers(add: Add, panel: Panel, ours: stack.Server, java: stack.Controllers) -> None:
    env = {"NAMESRV_ADDR": java.name_servers, "PEERS_RUN": str(ours.folder / "client")}
    with step(add, "our broker registers with Java controllers, is elected and serves") as problems:
        controllers.claim(
            panel, NAME, "127.0.0.1:1"
        )  # so that the broker's id is not the one that anybody gets
        ours.start()
        found = until("a master", lambda: panel.master(NAME), 40)
        if identity(ours) != f"{CLUSTER}#{NAME}#2" or found[0] != 2:
            problems.append(f"identity {identity(ours)!r}, master {found[0]}")
        until("a stored message", lambda: sent(ours.port, b"first"), 20)
    with step(add, "our broker's raw answers to 1007 and 907 have Java's form") as problems:
        for name in ("broker-1007-epoch-cache", "broker-907-ha-status"):
            code, ext, body = golden.wire_request(name)
            with wire.Client(ours.port) as client:
                answer = client.call(code, ext, body)
            extras = {} if name.startswith("broker-1007") else answer.ext  # ours has fields that Java ignores
            problems += golden.wire_differences(name, answer.code, answer.remark, extras, answer.body)
    with step(add, "mqadmin getBrokerEpoch and haStatus read our broker") as problems:
        text = mqadmin.text_of(env, "getBrokerEpoch", "-n", java.name_servers, "-b", NAME)
        problems += mqadmin.form_problems("getBrokerEpoch", text)
        text = mqadmin.text_of(env, "haStatus", "-n", java.name_servers, "-b", ours.address)
        problems += [f"mqadmin printed:\n{text[-800:]}"] if "#MasterCommitLogMaxOffset" not in text else []
    with step(
        add, "our broker is killed and started again: the same id, no lower epoch, the same messages"
    ) as problems:
        before = until("a master", lambda: panel.master(NAME))
        ours.kill()
        ours.start()
        until("a stored message", lambda: sent(ours.port, b"second"), 40)
        after = until("a master", lambda: panel.master(NAME), 40)
        if identity(ours) != f"{CLUSTER}#{NAME}#2" or after[0] != 2 or after[2] < before[2]:
            problems.append(f"{before} became {after}; the identity is {identity(ours)!r}")
        if bodies(ours.port) != [b"first", b"second"]:
            problems.append(f"the queue has {bodies(ours.port)}")
        ours.stop()


def sent(port: int, body: bytes) -> bool:
    return send(port, body).code == 0


def born_under_java(
    add: Add, panel: Panel, volume: Path, port: int, java: stack.Controllers, settings: dict[str, str]
) -> tuple[list[bytes], int]:
    """What was stored, and the volume's epoch."""
    epoch = 0
    written = [b"from Java %d" % i for i in range(20)]
    with step(add, "a Java broker makes a volume under Java controllers") as problems:
        controllers.claim(panel, ADOPTED, "127.0.0.1:1")
        with small_java_broker(
            volume, port, java.name_servers, {**settings, "brokerName": ADOPTED}
        ) as broker:
            epoch = until("a master", lambda: panel.master(ADOPTED), 60)[2]
            create_topic(port)
            for body in written:
                until("a stored message", partial(sent, port, body), 20)
            if identity(broker) != f"{CLUSTER}#{ADOPTED}#2":
                problems.append(f"the identity is {identity(broker)!r}")
    return written, epoch


def small_java_broker(
    folder: Path, port: int, name_servers: str, settings: Mapping[str, str] | None = None
) -> stack.Server:
    broker = stack.java_broker(folder, port, name_servers, settings)
    broker.environment["BROKER_HEAP"] = "512m"
    return broker


def handed_over(
    add: Add, panel: Panel, volume: Path, port: int, group: stack.Controllers, settings: dict[str, str],
    written: list[bytes], epoch: int,
) -> None:  # fmt: skip
    """The Java volume goes on under our controllers: with our broker, then with Java's, then with ours again."""
    written = list(written)
    turns = (
        (
            "our broker takes a volume of Java's under our controllers: the same id, a higher epoch, every message",
            stack.our_broker,
            1,
        ),
        (
            "a Java broker takes the volume of ours under our controllers: the same id, a higher epoch, every message",
            small_java_broker,
            1,
        ),
        (
            "our broker takes the volume back from Java's: the same id, a higher epoch, every message",
            stack.our_broker,
            1,
        ),
    )
    for turn, (sentence, make, above) in enumerate(turns):
        with step(add, sentence) as problems:
            least = max(epoch, panel.group(ADOPTED).get("masterEpoch", 0)) + above
            with make(volume, port, group.name_servers, settings) as broker:
                found = until("a master", partial(serving_from, panel, least), 60)
                if found[0] != 2 or identity(broker) != f"{CLUSTER}#{ADOPTED}#2":
                    problems.append(f"master {found[0]}, identity {identity(broker)!r}")
                body = b"turn %d" % turn
                until("a stored message", partial(sent, port, body), 30)
                written.append(body)
                stored = until("the messages", partial(bodies, port))
                if stored != written:
                    problems.append(f"{len(stored)} messages instead of {len(written)}: {stored[-3:]}")


def serving_from(panel: Panel, epoch: int) -> tuple[int, int, int] | None:
    found = panel.master(ADOPTED)
    return found if found and found[2] >= epoch else None
