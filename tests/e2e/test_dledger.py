"""A DLedger group that `brokerset up` runs, under load: its leader is killed, and its leadership transferred."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerset_rig.local_set import LocalSet, Sending, local_set

MANIFEST = """
apiVersion: brokerset.io/v1alpha1
kind: BrokerSet
metadata: {name: ledgers}
spec:
  replication: {mode: dledger}
  config: {mappedFileSizeCommitLog: 16777216, maxHashSlotNum: 1000, maxIndexNum: 4000}
"""

AT_LEAST = 100
"""Messages that are acknowledged before something happens, and after it."""


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalSet]:
    with local_set(tmp_path, MANIFEST) as found:
        yield found


def _group(view: dict[str, Any]) -> dict[str, Any]:
    (group,) = view["dledgerGroups"]
    return dict(group)


def _leads(view: dict[str, Any]) -> dict[str, Any]:
    """The member whose broker is master."""
    group = _group(view)
    return next(dict(each) for each in group["members"] if each["brokerId"] == group["masterId"])


def _whole(view: dict[str, Any]) -> bool:
    """Whether all is well, and every member has what the leader has."""
    return bool(view["healthy"]) and all(
        each["inSync"] and each["lagBytes"] == 0 for each in _group(view)["members"]
    )


def _peers(view: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """By member: the process that is it, and where the others reach it."""
    return {each["member"]: (each["process"], each["peerAddress"]) for each in _group(view)["members"]}


def _goes_on(sending: Sending) -> None:
    """Wait until more messages are acknowledged."""
    goal, deadline = len(sending.acknowledged) + AT_LEAST, time.monotonic() + 60
    while len(sending.acknowledged) < goal:
        assert time.monotonic() < deadline, sending.failures[-3:]
        time.sleep(0.02)


def test_nothing_acknowledged_is_lost_when_the_leader_is_killed_and_no_send_fails_in_a_switchover(
    local: LocalSet,
) -> None:
    """The killed one comes back at another port, is the member that it was, and follows. All that was acknowledged
    is read from the set that was stopped and started again.
    """
    first = _leads(local.until_healthy())

    with Sending(local, "orders", at_least=AT_LEAST) as sending:
        local("switchover", "ledgers-0")
        _goes_on(sending)
        assert sending.failures == [], "sends are held and forwarded"

        second = _leads(local.until(lambda view: bool(_group(view)["masterId"]), "somebody leads"))
        pid = local.processes("broker")[second["process"]]["pid"]
        os.kill(pid, signal.SIGKILL)
        _goes_on(sending)

    whole = local.until(_whole, "all members follow, and have everything")
    third = _leads(whole)
    assert len({first["member"], second["member"]}) == len({second["member"], third["member"]}) == 2
    assert first["term"] < second["term"] < third["term"]
    back = next(each for each in _group(whole)["members"] if each["member"] == second["member"])
    assert (back["role"], back["brokerRole"], back["leader"]) == ("follower", "slave", third["member"])
    assert (back["process"], back["brokerId"]) == (second["process"], second["brokerId"])
    assert back["peerAddress"] == second["peerAddress"]
    assert local.processes("broker")[back["process"]]["pid"] != pid
    assert "follower" in local("status").stdout

    assert local("fence", "ledgers-0", "1", code=1).stderr.count("has no controllers") == 1
    assert "cannot be scaled" in local("scale", "ledgers-0", "--replicas", "5", code=1).stderr

    local("down")
    local.up(MANIFEST)
    again = local.until(_whole, "the same members, and all is well")
    assert _peers(again) == _peers(whole)
    read = local("consume", "orders", "--wait", "2", "--json").stdout
    assert set(sending.acknowledged) <= {json.loads(line)["body"] for line in read.splitlines()}
