"""Ends a broker's process without a warning, where the node is within reach; else its pod by force."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.e2e.kubernetes.deployed import Deployed
from tests.e2e.kubernetes.rig import OWN_CLUSTER, run

BROKER: Final = "brokerset_broker"


def kill_process(orders: Deployed, pod: str) -> bool:
    """Kill -9 the broker in a pod from the node, as the kernel would that has no memory left.

    False where pods' processes cannot be seen from here: then nothing was done. From within a container its
    first process cannot be killed.
    """
    return kill_process_at(orders, pod) is not None


def kill_process_at(orders: Deployed, pod: str) -> float | None:
    """The same; returns when it was done, in seconds since 1970, or None."""
    uid = orders.uids()[pod]
    number = _process_of(uid)
    if number is None:
        return None
    at = time.time()
    os.kill(number, signal.SIGKILL)
    return at


@contextlib.contextmanager
def cut_off(orders: Deployed, pod: str) -> Iterator[float]:
    """Drop every packet to and from a pod, as if its node were gone; only with the cluster of `tests/cluster`.

    The kubelet still reaches it, and clients' connections stay open and silent. Yields when, in seconds since 1970.
    """
    ip = orders.ips()[pod]
    _packet_rules("-I", ip)
    try:
        yield time.time()
    finally:
        _packet_rules("-D", ip)


def _packet_rules(verb: str, ip: str) -> None:
    rules = "".join(f"{verb} FORWARD {side} {ip} -j DROP\n" for side in ("-s", "-d"))
    command = f"source {OWN_CLUSTER}/env && on_node iptables-restore --noflush --wait"
    run(["bash", "-c", command], given=f"*filter\n{rules}COMMIT\n")


def _process_of(uid: str) -> int | None:
    marks = (uid, uid.replace("-", "_"))
    for folder in Path("/proc").iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            groups = (folder / "cgroup").read_text()
            command = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:  # it has ended meanwhile
            continue
        if any(mark in groups for mark in marks) and BROKER.encode() in command:
            return int(folder.name)
    return None
