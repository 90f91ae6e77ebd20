"""Slaves and masters of different ages at each other's HA ports: the connection is refused with words, and no log changes."""

from __future__ import annotations

import socket
import struct
from contextlib import ExitStack
from pathlib import Path

from brokerset_rig import controller_parts, controllers, java_release, stack, wire
from brokerset_rig.controller_parts import BROKER_SETTINGS, NAME, TOPIC, Add, step
from brokerset_rig.controllers import CLUSTER, Panel, claim, until

CLASSIC, BY_ADDRESS = "4.9.7", "5.1.0"
SECONDS_MAX = 90.0
CLOSED_SECONDS_MAX = 3.0
"""For a handshake that is refused at once; our HA port gives a silent slave 5 s."""

HEARTBEAT_MS = 600_000


def run(add: Add) -> None:
    """Two worlds that share one name server: a pair of 5.1.0 under its controllers, and ours under ours."""
    with stack.Workspace("releases") as folder, ExitStack() as running:
        ports = stack.free_ports(20, below=2)
        name_server = running.enter_context(stack.our_namesrv(folder / "ns", ports[0]))
        old = java_release.controllers(BY_ADDRESS, folder / "old", ports[1:2], ports[2:3])
        running.enter_context(old)
        pair = [
            java_release.broker(
                BY_ADDRESS,
                folder / f"pair-{i}",
                port,
                name_server.address,
                {**BROKER_SETTINGS, "controllerAddr": old.addresses},
            )
            for i, port in enumerate(ports[3:5])
        ]
        for broker in pair:
            running.callback(controller_parts.kill_running, broker)
        with step(
            add, f"two brokers of {BY_ADDRESS} replicate under their controllers, at our name server"
        ) as problems:
            _replicate(*pair)
        if problems:
            return
        master, slave = pair
        before = log_of(master)
        _our_slave(add, folder / "first", ports[5:12], name_server, master)
        with step(add, f"the log of the master of {BY_ADDRESS} is as it was, and it serves") as problems:
            if log_of(master) != before:
                problems.append("its log differs")
            until("a stored message", lambda: controller_parts.sent(master.port, b"still here"), 20)
        for server in old.servers:
            server.kill()  # so that its slave is not elected when the master goes
        _at_our_master(add, folder / "second", ports[12:], name_server, master, slave)


def _replicate(master: stack.Server, slave: stack.Server) -> None:
    """Start both, the second as slave of the first; wait until what is sent is in both."""
    master.start()
    until("a topic", lambda: _made(master.port), SECONDS_MAX)
    slave.start()
    until("a stored message", lambda: controller_parts.sent(master.port, b"copied"), SECONDS_MAX)
    until("it is copied", lambda: b"copied" in log_of(slave), SECONDS_MAX)


def _made(port: int) -> bool:
    controller_parts.create_topic(port)
    return True


def log_of(broker: stack.Server) -> bytes:
    """What a broker's log holds, without the empty space behind."""
    files = sorted((broker.folder / "broker-0" / "store" / "commitlog").glob("*"))
    return b"".join(path.read_bytes().rstrip(b"\0") for path in files)


# -- our slave, a master of 5.1.0 ----------------------------------------------------------------------------


def _our_slave(
    add: Add, folder: Path, ports: list[int], name_server: stack.Server, master: stack.Server
) -> None:
    """Our controllers are made to name the Java process as master, as a wrong proxy or address could."""
    connections = _connections(master)
    with ExitStack() as running:
        servers = running.enter_context(stack.our_controllers(folder, ports[:3], ports[3:6]))
        panel = Panel(servers.ports)
        impostor = running.enter_context(wire.Client(panel.serving(), 5.0))
        _pretend(panel, impostor, master.address)
        settings = {**BROKER_SETTINGS, "controllerAddr": servers.addresses}
        ours = running.enter_context(
            stack.our_broker(folder / "ours", ports[6], name_server.address, settings)
        )
        with step(
            add, f"our slave does not connect to a master of {BY_ADDRESS}, says so and the way out"
        ) as problems:
            words = ("not following the master", f"is of RocketMQ {BY_ADDRESS}", "upgrade the master")
            until("the words", lambda: _line(ours.log.read_text(), words), SECONDS_MAX)
            if (
                not connections or _connections(master) != connections
            ):  # its own slave's, which may come again
                problems.append(f"slaves connected {connections} times before, {_connections(master)} after")
            if log_of(ours):
                problems.append("it has bytes of that master")


def _connections(master: stack.Server) -> int:
    """How often slaves have connected, as its log says."""
    return java_release.log_text(master).count("receive new connection")


def _pretend(panel: Panel, client: wire.Client, address: str) -> None:
    """Register and elect a broker that is not there, alive for some minutes."""
    broker_id = claim(panel, NAME, address)
    claim(
        panel, NAME, "127.0.0.1:1"
    )  # ours gets the third id: the pair's slave has the second at the name server
    ext = {"clusterName": CLUSTER, "brokerName": NAME, "brokerId": str(broker_id), "invokeTime": "0"}
    panel.sure(controllers.REGISTER, {**ext, "brokerAddress": address})
    beat = {
        **ext,
        "brokerAddr": address,
        "epoch": "0",
        "maxOffset": "0",
        "heartbeatTimeoutMills": str(HEARTBEAT_MS),
    }
    client.call(controllers.HEARTBEAT, beat)
    panel.sure(controllers.ELECT, {**ext, "designateElect": "false"})


def _line(text: str, words: tuple[str, ...]) -> str | None:
    return next((line for line in text.splitlines() if all(word in line for word in words)), None)


# -- slaves of other ages, our master ------------------------------------------------------------------------


def _at_our_master(
    add: Add,
    folder: Path,
    ports: list[int],
    name_server: stack.Server,
    master: stack.Server,
    slave: stack.Server,
) -> None:
    with ExitStack() as running:
        servers = running.enter_context(stack.our_controllers(folder, ports[:3], ports[3:6]))
        settings = {**BROKER_SETTINGS, "controllerAddr": servers.addresses}
        ours = running.enter_context(
            stack.our_broker(folder / "ours", ports[6], name_server.address, settings)
        )
        until("our broker leads", lambda: Panel(servers.ports).master(NAME), SECONDS_MAX)
        until("a topic", lambda: _made(ours.port), SECONDS_MAX)
        until("a stored message", lambda: controller_parts.sent(ours.port, b"ours alone"), SECONDS_MAX)
        _raw(add, ours)
        before = log_of(slave)
        master.kill()
        with step(
            add,
            f"a slave of {BY_ADDRESS} whom the name server sends to our master is refused, with the way out",
        ) as problems:
            words = ("a slave is refused", slave.address, "5.0 and 5.1.0", "upgrade it")
            until("the words", lambda: _line(ours.log.read_text(), words), SECONDS_MAX)
            if log_of(slave) != before or b"ours alone" in log_of(slave):
                problems.append("its log has changed")
        slave.kill()
        own = {"brokerRole": "SLAVE", "brokerId": "1", "brokerName": NAME}
        classic = java_release.broker(CLASSIC, folder / "classic", ports[7], name_server.address, own)
        running.callback(controller_parts.kill_running, classic)
        classic.start()
        with step(
            add, f"a slave of {CLASSIC}, without controllers, is refused by our master, with the way out"
        ) as problems:
            classic_words = ("a slave is refused", "without controllers", "enableControllerMode")
            until("the words", lambda: _line(ours.log.read_text(), classic_words), SECONDS_MAX)
            if log_of(classic):
                problems.append("it has bytes of our log")
        with step(add, "our master has served all the while, and has what it had") as problems:
            if controller_parts.bodies(ours.port, TOPIC) != [b"ours alone"]:
                problems.append(f"it has {controller_parts.bodies(ours.port, TOPIC)}")
            until("a stored message", lambda: controller_parts.sent(ours.port, b"and more"), 10)


def _raw(add: Add, ours: stack.Server) -> None:
    """The handshakes as the sources write them, and as the design pads them."""
    address = b"127.0.0.1:10911"
    words = ("a slave is refused", address.decode(), "5.0 and 5.1.0")
    head = struct.pack(">ihhi", 1, 0, 0, len(address))
    for what, data in (
        (f"as {BY_ADDRESS} sends it", head + address),
        ("padded to 62 bytes, as the design of 5.0 has it", head + address.ljust(50, b"\0")),
        ("of a learner that wants the last file only", struct.pack(">ihhi", 1, 1, 1, len(address)) + address),
        ("in two pieces", head),
    ):
        with step(add, f"a handshake {what}, ends the connection at our HA port without a byte") as problems:
            with socket.create_connection(("127.0.0.1", ours.port + 1), 5.0) as link:
                link.settimeout(CLOSED_SECONDS_MAX)
                link.sendall(data)
                if data == head:
                    link.sendall(address)
                problems += _closed(link)
            until("the words", lambda: _line(ours.log.read_text(), words), 5)


def _closed(link: socket.socket) -> list[str]:
    try:
        data = link.recv(1)
    except ConnectionResetError:
        return []
    except TimeoutError:
        return [f"it is open after {CLOSED_SECONDS_MAX:g} s"]
    return [f"it sent {data!r}"] if data else []
