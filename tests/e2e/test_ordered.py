"""An ordered subject on real processes, some of which are killed and stopped while it is scaled."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from brokerset_rig.local_set import LocalSet, local_set
from brokerset_rig.ordered_run import (
    GROUP,
    MANIFEST,
    PERMISSION_MS,
    SUBJECT,
    WAIT_MARGIN_MS,
    OrderedRun,
    with_short_permissions,
)

PRODUCERS, KEYS, COUNT, RATE = 2, 40, 5_000, 400.0
SHARED_GROUP = "mailers"


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSet]:
    with local_set(tmp_path_factory.mktemp("ordered"), MANIFEST) as found:
        with_short_permissions(found)
        found.until_healthy()
        yield found


@pytest.fixture
def run(local: LocalSet, tmp_path: Path) -> Iterator[OrderedRun]:
    found = OrderedRun(local, tmp_path)
    yield found
    found.end()


@pytest.mark.slow
def test_keys_keep_their_order_over_dead_and_frozen_consumers_a_dead_master_and_scaling(
    run: OrderedRun,
) -> None:
    """Strict: what was sent is handled, in its order, and stored once (statements 71, 72, 73, 76)."""
    run.local("subject", "create", SUBJECT, "--partitions", "2")
    for name in ("c1", "c2", "c3"):
        run.consume(name)
    began = time.monotonic()
    producers = [run.produce(f"p{n}", keys=KEYS, count=COUNT, rate=RATE) for n in range(PRODUCERS)]

    def at(seconds: float) -> None:
        time.sleep(max(0.0, began + seconds - time.monotonic()))

    at(3)
    run.scale(4)
    run.signal("c1", signal.SIGKILL)
    at(5)
    run.signal("c2", signal.SIGSTOP)
    run.consume("c4")
    at(6)
    run.kill_master("orders-0")
    at(6 + (PERMISSION_MS + WAIT_MARGIN_MS) / 1000 + 1)
    run.signal("c2", signal.SIGCONT)
    run.scale(3)
    sent = run.sent(producers)
    run.wait_until_handled(PRODUCERS * COUNT)
    run.stop_consumers()

    verdict, stored, state = run.verdict(sent), run.stored(sent), run.state()

    assert verdict.problems == []
    assert verdict.handled == PRODUCERS * COUNT
    assert stored.problems == []
    assert stored.handled == PRODUCERS * COUNT
    assert [group["members"] for group in state["groups"] if group["name"] == GROUP] == [[]]
    assert sum(each["status"] == "Open" for each in state["partitions"]) == 3


@pytest.mark.slow
def test_a_shared_group_handles_everything_over_dead_and_frozen_members_and_a_dead_master(
    run: OrderedRun,
) -> None:
    """What a dead, or frozen, member had comes to others, and all is handled (statements 60, 71, 72, 73)."""
    run.subject = "mails"
    run.local("subject", "create", run.subject, "--partitions", "4")
    for name in ("m1", "m2", "m3"):
        run.consume(name, SHARED_GROUP, "Shared")
    began = time.monotonic()
    producers = [run.produce(f"s{n}", keys=KEYS, count=COUNT, rate=RATE) for n in range(PRODUCERS)]
    time.sleep(max(0.0, began + 3 - time.monotonic()))
    run.signal("m1", signal.SIGKILL)
    run.signal("m2", signal.SIGSTOP)
    run.consume("m4", SHARED_GROUP, "Shared")
    time.sleep(2)
    run.kill_master("orders-1")
    sent = run.sent(producers)
    run.wait_until_handled(PRODUCERS * COUNT, group=SHARED_GROUP)
    run.signal("m2", signal.SIGCONT)
    run.stop_consumers()

    verdict, state = run.unordered_verdict(sent, SHARED_GROUP), run.state()

    assert verdict.problems == []
    assert verdict.handled == PRODUCERS * COUNT
    assert verdict.repeated < PRODUCERS * COUNT / 5
    (group,) = state["groups"]
    assert (group["name"], group["strategy"], group["members"]) == (SHARED_GROUP, "Shared", [])


@pytest.mark.slow
def test_a_shared_group_is_seen_and_used_from_the_command_line(local: LocalSet) -> None:
    """Consume as a member, describe, remove."""
    local("subject", "create", "mailbox", "--partitions", "2")
    lines = "".join(f"k{number % 10}:{number}\n" for number in range(100))
    local("send", "mailbox", "--file", "-", "--order-key-from", ":", stdin=lines)
    command = ("consume", "mailbox", "--ordered", "--shared", "--group", "g", "--count", "100", "--json")
    messages = [json.loads(line) for line in local(*command).stdout.splitlines()]
    (group,) = json.loads(local("subject", "describe", "mailbox", "--json").stdout)["groups"]
    local("subject", "remove-group", "mailbox", "g", "--yes")

    assert sorted(message["body"] for message in messages) == sorted(lines.split())
    assert (group["name"], group["strategy"], set(group["lag"].values())) == ("g", "Shared", {0})


@pytest.mark.slow
def test_the_commands_show_who_owns_what_and_refuse_what_would_lose_messages(local: LocalSet) -> None:
    """As an administrator uses them: create, send, consume, describe, remove a group, delete."""
    created = json.loads(local("subject", "create", "desk", "--partitions", "3", "--json").stdout)
    again = json.loads(local("subject", "create", "desk", "--partitions", "3", "--json").stdout)
    lines = "".join(f"k{number % 10}:{number}\n" for number in range(200))
    local("send", "desk", "--file", "-", "--order-key-from", ":", stdin=lines)
    plain = local("send", "desk", "--body", "unstamped", code=1)
    shown = local("consume", "desk", "--ordered", "--group", "g", "--count", "200", "--json").stdout
    messages = [json.loads(line) for line in shown.splitlines()]
    described = json.loads(local("subject", "describe", "desk", "--json").stdout)
    table = local("subject", "describe", "desk").stdout
    unknown = local("subject", "describe", "nothing", code=1)
    local("subject", "remove-group", "desk", "g", "--yes")
    local("subject", "delete", "desk", "--yes")
    left = [state["name"] for state in json.loads(local("subject", "list", "--json").stdout)]

    assert again["partitions"] == created["partitions"]
    by_key: dict[str, list[int]] = {}
    for message in messages:
        by_key.setdefault(message["orderKey"], []).append(int(message["body"].partition(":")[2]))
    assert by_key == {f"k{key}": list(range(key, 200, 10)) for key in range(10)}
    assert all(message["token"] > 0 and message["attempt"] == 1 for message in messages)
    assert "13" in plain.stderr
    (group,) = described["groups"]
    assert (group["name"], group["members"]) == ("g", [])
    assert set(group["lag"].values()) == {0}
    assert "lag of g".upper() in table.upper()
    assert "brokerset subject list" in unknown.stderr
    assert "desk" not in left
