"""Controllers and brokers that run with the settings of pods, each at an address of its own, watched by nobody."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def running(module: str, folder: Path, settings: Mapping[str, str], **environment: str) -> Iterator[None]:
    """A process with these settings; its output is in `folder/log`."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / "settings.properties"
    file.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
    with (folder / "log").open("ab") as log:
        command = [sys.executable, "-m", module, "-c", str(file)]
        process = subprocess.Popen(command, env={**os.environ, **environment}, stdout=log, stderr=log)
        try:
            yield
        finally:
            process.terminate()
            process.wait(40)


def controller_settings(folder: Path, host: str, controller: int, raft: int, namesrv: int) -> dict[str, str]:
    """The only controller of the group `orders`."""
    return {
        "controllerDLegerGroup": "orders",
        "controllerDLegerSelfId": "n0",
        "controllerDLegerPeers": f"n0-{host}:{controller}",
        "raftPeers": f"n0-{host}:{raft}",
        "listenPort": str(controller),
        "raftListenPort": str(raft),
        "namesrvListenPort": str(namesrv),
        "controllerStorePath": str(folder / "raft"),
        "kvConfigPath": str(folder / "kv.json"),
        "configStorePath": str(folder / "controller.properties"),
        "httpPort": "0",
    }


def broker_settings(folder: Path, host: str, port: int, ha_port: int) -> dict[str, str]:
    """A broker of the group `orders-0` with two replicas."""
    return {
        "brokerIP1": host,
        "brokerName": "orders-0",
        "enableControllerMode": "true",
        "expectedReplicas": "2",
        "allAckInSyncStateSet": "true",
        "listenPort": str(port),
        "haListenPort": str(ha_port),
        "storePathRootDir": str(folder / "store"),
        "mappedFileSizeCommitLog": "16777216",
        "httpPort": "0",
    }


def logs(folder: Path) -> list[tuple[str, str]]:
    """The end of each process's output, by name of its folder."""
    return [(log.parent.name, log.read_text(errors="replace")[-2000:]) for log in folder.glob("*/log")]
