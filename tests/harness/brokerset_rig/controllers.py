"""Asks a group of controllers, ours or Java's, the way brokers and mqadmin do: by raw frames, the leader found by 1005."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any, TypeVar

from brokerset_rig import stack, wire

ALTER_SYNC_SET, ELECT, REGISTER, REPLICA_INFO, METADATA, SYNC_STATES = 1001, 1002, 1003, 1004, 1005, 1006
EPOCHS, GET_CONFIG, CLEAN, NEXT_ID, APPLY_ID, HEARTBEAT, HA_STATUS = 1007, 1010, 1011, 1012, 1013, 904, 907
CONTROLLER_STATUS, GROUP_STATES = 21001, 21005
NOT_LEADER, STILL_MASTER = 2007, 2011
CLUSTER = "DefaultCluster"
ANSWER_SECONDS_MAX = 5.0
LEADER_SECONDS_MAX = 30.0

T = TypeVar("T")


def until(what: str, check: Callable[[], T | None], seconds: float = LEADER_SECONDS_MAX) -> T:
    """Ask again and again until there is something true. Raises `StackError` with the last thing seen."""
    deadline = time.monotonic() + seconds
    last: object = None
    while True:
        try:
            found = check()
            if found:
                return found
            last = found
        except (OSError, ValueError, KeyError) as error:
            last = repr(error)
        if time.monotonic() > deadline:
            raise stack.StackError(f"{what}: not within {seconds:g} s; last seen: {last!r}")
        time.sleep(0.02)


def loads(data: bytes) -> Any:
    """JSON as RocketMQ writes it: integer keys may lack their quotes."""
    return json.loads(re.sub(rb"([{,])(\d+):", rb'\1"\2":', data))


class Refused(stack.StackError):
    """A controller's answer with another code than was wanted."""

    def __init__(self, code: int, answer: wire.Answer) -> None:
        super().__init__(f"request {code} was answered {answer.code}: {answer.remark}")
        self.answer = answer


class Panel:
    """The controllers at these ports of this machine."""

    def __init__(self, ports: list[int], access: wire.Access | None = None) -> None:
        self.ports = ports
        self._access = access
        self._leader: int | None = None

    def metadata(self, port: int) -> dict[str, str]:
        """What 1005 says at one controller."""
        with wire.Client(port, ANSWER_SECONDS_MAX, self._access) as client:
            return client.call(METADATA, {}).ext

    def leader(self, seconds: float = LEADER_SECONDS_MAX) -> int:
        """The port of the controller that says it leads."""

        def look() -> int | None:
            for port in self.ports:
                try:
                    if self.metadata(port).get("isLeader") == "true":
                        return port
                except OSError:
                    continue
            return None

        return until("a controller leads", look, seconds)

    def serving(self, seconds: float = LEADER_SECONDS_MAX) -> int:
        """The port of the controller that leads and serves: it has committed in its own term."""
        self.ask(NEXT_ID, {"clusterName": CLUSTER, "brokerName": "nobody"}, seconds=seconds)
        assert self._leader is not None
        return self._leader

    def ask(
        self, code: int, ext: dict[str, str], body: bytes = b"", *, seconds: float = LEADER_SECONDS_MAX
    ) -> wire.Answer:
        """The leader's answer, whatever its code; asked again while nobody leads."""

        def attempt() -> wire.Answer | None:
            if self._leader is None:
                self._leader = self.leader(seconds)
            try:
                with wire.Client(self._leader, ANSWER_SECONDS_MAX, self._access) as client:
                    answer = client.call(code, ext, body)
            except OSError:
                self._leader = None
                raise
            if answer.code == NOT_LEADER:
                self._leader = None
                return None
            return answer

        return until(f"request {code} is answered by a leader", attempt, seconds)

    def sure(self, code: int, ext: dict[str, str], body: bytes = b"") -> wire.Answer:
        """The leader's answer of code 0. Raises `Refused`."""
        answer = self.ask(code, ext, body)
        if answer.code:
            raise Refused(code, answer)
        return answer

    def group(self, name: str) -> dict[str, Any]:
        """What 1006 says of a broker group; empty if it is unknown."""
        answer = self.sure(SYNC_STATES, {}, json.dumps([name]).encode())
        table = loads(answer.body).get("replicasInfoTable") or {}
        found = table.get(name) or {}
        assert isinstance(found, dict)
        return found

    def replicas(self, name: str) -> dict[int, dict[str, Any]]:
        """Every registered replica by id, with the additional key `inSync`."""
        group = self.group(name)
        return {
            replica["brokerId"]: {**replica, "inSync": key == "inSyncReplicas"}
            for key in ("inSyncReplicas", "notInSyncReplicas")
            for replica in group.get(key, [])
        }

    def master(self, name: str) -> tuple[int, int, int] | None:
        """Id, port and epoch of a group's master, if there is one and it is alive."""
        group = self.group(name)
        if not group.get("masterBrokerId"):
            return None
        found = {r["brokerId"]: r for r in group["inSyncReplicas"] + group["notInSyncReplicas"]}
        if not found.get(group["masterBrokerId"], {}).get("alive"):
            return None
        return group["masterBrokerId"], int(group["masterAddress"].rpartition(":")[2]), group["masterEpoch"]


def claim(panel: Panel, name: str, address: str) -> int:
    """Claim an id as a new broker does (1012, 1013); a fake broker that goes no further."""
    ext = {"clusterName": CLUSTER, "brokerName": name}
    broker_id = panel.sure(NEXT_ID, ext).ext["nextBrokerId"]
    code = f"{address};{time.time_ns() // 1_000_000}"
    panel.sure(APPLY_ID, {**ext, "appliedBrokerId": broker_id, "registerCheckCode": code})
    return int(broker_id)
