"""Servers of older releases of Java RocketMQ: the same start scripts as `tests/peers`, on the jars that `tests/releases/fetch` gets.

Their logs are under `logs/rocketmqlogs` of each server's home, which `log_text` reads.
"""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from brokerset_rig import stack

RELEASES = stack.ROOT / "tests" / "releases"
FETCH_SECONDS_MAX = 600
ADMIN_SECONDS_MAX = 60
HEAP = "512m"
SMALL_HEAP = "192m"


@functools.cache
def fetch(release: str) -> Path:
    """The folder with the jars of a release, fetched when they are not there.

    Raises `StackError` with what Maven said.
    """
    done = subprocess.run(
        [str(RELEASES / "fetch"), release], capture_output=True, text=True, timeout=FETCH_SECONDS_MAX
    )
    if done.returncode:
        raise stack.StackError(
            f"RocketMQ {release} could not be fetched:\n{(done.stdout + done.stderr)[-2000:]}"
        )
    return Path(done.stdout.strip().splitlines()[-1])


def namesrv(release: str, folder: Path, port: int) -> stack.Server:
    """A name server."""
    _logging(folder / f"namesrv-{port}")
    command = [str(stack.PEERS / "bin" / "namesrv"), str(port)]
    return stack.Server(f"java-{release}-namesrv", command, port, folder, _environment(release, folder))


def broker(
    release: str,
    folder: Path,
    port: int,
    namesrv: str,
    settings: Mapping[str, str] | None = None,
    *,
    store: Path | None = None,
) -> stack.Server:
    """A broker: master of its own without `settings`, a slave or in controller mode with them.

    `store` is its `storePathRootDir`, by default the folder that `stack.our_broker` uses, so that another release or our broker can go on there.
    The HA port is the one above `port`.
    """
    root = store or folder / "broker-0" / "store"
    _logging(root.parent)
    values = {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "listenPort": str(port),
        "namesrvAddr": namesrv,
        "brokerIP1": "127.0.0.1",
        "brokerIP2": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "haListenPort": str(port + 1),
        "storePathRootDir": str(root),
        "storePathCommitLog": str(root / "commitlog"),
        "mappedFileSizeCommitLog": "268435456",
        "mappedFileSizeTimerLog": "10485760",
        "enablePropertyFilter": "true",
        **(settings or {}),
    }
    folder.mkdir(parents=True, exist_ok=True)
    conf = folder / f"java-{release}-broker.conf"
    conf.write_text("".join(f"{key}={value}\n" for key, value in values.items()))
    command = [str(stack.PEERS / "bin" / "broker"), str(conf)]
    return stack.Server(f"java-{release}-broker", command, port, folder, _environment(release, folder))


def controllers(
    release: str,
    folder: Path,
    remoting_ports: list[int],
    name_server_ports: list[int],
    settings: Mapping[str, str] | None = None,
) -> stack.Controllers:
    """Controllers (DLedger; raft speaks on the remoting ports, too), and one name server of that release on the first of the other ports."""
    given = [f"{key}={value}" for key, value in (settings or {}).items()]
    servers = []
    for i, port in enumerate(remoting_ports):
        home = folder / f"java-{release}-controller-{i}"
        _logging(home)
        command = [str(stack.PEERS / "bin" / "controller"), f"n{i}", stack.peers_text(remoting_ports), str(home),
                   f"controllerDLegerGroup={stack.CONTROLLER_GROUP}", *given]  # fmt: skip
        servers.append(
            stack.Server(f"java-{release}-controller-{i}", command, port, home, _environment(release, folder))
        )
    beside = namesrv(release, folder / "namesrv", name_server_ports[0])
    return stack.Controllers(servers, [beside], beside.address)


def mqadmin(release: str, *arguments: str) -> str:
    """What the release's own mqadmin prints, both streams. Name servers are given with `-n`, controllers with `-a`."""
    with tempfile.TemporaryDirectory(prefix="brokerset-mqadmin-") as home:
        _logging(Path(home) / "client")
        done = subprocess.run(
            [str(stack.PEERS / "bin" / "mqadmin"), *arguments],
            capture_output=True, text=True, timeout=ADMIN_SECONDS_MAX,
            env={**os.environ, **_environment(release, Path(home))},
        )  # fmt: skip
    return done.stdout + done.stderr


def log_text(server: stack.Server) -> str:
    """Everything that a server of these has logged so far: what it printed and its log files."""
    homes = (server.folder, *server.folder.glob("broker-*"), *server.folder.glob("namesrv-*"))
    files = [server.log, *(path for home in homes for path in sorted(home.glob("logs/rocketmqlogs/*.log")))]
    return "".join(path.read_text(errors="replace") for path in files if path.exists())


def _environment(release: str, folder: Path) -> dict[str, str]:
    return {
        "PEERS_CACHE": str(fetch(release).parent),
        "PEERS_RUN": str(folder),
        "BROKER_HEAP": HEAP,
        "NAMESRV_HEAP": SMALL_HEAP,
        "CONTROLLER_HEAP": SMALL_HEAP,
    }


def _logging(home: Path) -> None:
    """Releases before 5.1 read how they log from their home, and do not start without."""
    conf = home / "conf"
    conf.mkdir(parents=True, exist_ok=True)
    text = (RELEASES / "logback.xml").read_text()
    for name in ("broker", "namesrv", "controller", "tools"):
        (conf / f"logback_{name}.xml").write_text(text.replace("NAME", name))
