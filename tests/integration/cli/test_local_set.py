"""The command against a real name server and a real broker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerset_cli.processes import start_ticks
from brokerset_formats import native
from brokerset_rig.local_set import FREE_PORTS, WAIT_SECONDS, LocalSet

pytestmark = pytest.mark.long

MANIFEST = """
apiVersion: brokerset.io/v1alpha1
kind: BrokerSet
metadata: {name: orders}
spec:
  clusterName: Shop
  brokerNames: [north, south]
  replicas: 1
  config: {mappedFileSizeCommitLog: 16777216, maxHashSlotNum: 1000, maxIndexNum: 4000}
"""


class Cli(LocalSet):
    """The command with one data folder."""

    def json(self, *arguments: str) -> Any:
        return json.loads(self(*arguments, "--json").stdout)

    def command(self, *arguments: str) -> list[str]:
        """The same, for a test that starts the process itself."""
        return [sys.executable, "-u", "-m", "brokerset_cli.main", *arguments, "--data", str(self.data)]


@pytest.fixture(scope="module")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    command = Cli(tmp_path_factory.mktemp("set") / "data")
    try:
        command.up(MANIFEST)
        yield command
        command("down", "--purge", "--yes")
        assert not command.data.exists()
    finally:
        command.end()


@pytest.fixture
def own(tmp_path: Path) -> Iterator[Cli]:
    """The command with a folder of the test's own; what runs there ends with the test, passed or failed."""
    command = Cli(tmp_path / "data")
    yield command
    command.end()


def test_status_shows_every_process_and_every_broker(cli: Cli) -> None:
    view = cli.until_healthy()

    names = [p["name"] for p in view["local"]["processes"]]
    assert names == ["controller-0", "controller-1", "controller-2", "north-0", "south-0"]
    assert [g["masterId"] for g in view["groups"]] == [1, 1]
    assert [(b["cluster"], b["group"], b["role"]) for b in view["brokers"]] == [
        ("Shop", "north", "master"),
        ("Shop", "south", "master"),
    ]
    assert {b["nativeCore"] for b in view["brokers"]} == {native.description}
    shown = cli("status").stdout
    assert "BrokerSet orders" in shown
    assert "south-0" in shown


def test_what_is_sent_is_consumed_once_by_each_group(cli: Cli) -> None:
    cli.until_healthy()
    cli("topic", "create", "letters", "--queues", "2")
    sent = cli.json("send", "letters", "--count", "50", "--tag", "A", "--key", "k")
    first = cli("consume", "letters", "--group", "readers", "--count", "30", "--json").stdout
    rest = cli("consume", "letters", "--group", "readers", "--count", "20", "--json").stdout
    other = cli("consume", "letters", "--group", "others", "--count", "50", "--json").stdout

    messages = [json.loads(line) for line in (first + rest).splitlines()]
    bodies = sorted(message["body"] for message in messages)
    assert sent["count"] == 50
    assert {name.split("/")[0] for name in sent["queues"]} == {"north", "south"}
    assert bodies == sorted(f"message {n} of 50" for n in range(1, 51))
    assert all(m["tags"] == "A" and m["keys"] == ["k"] for m in messages)
    assert sorted(json.loads(line)["body"] for line in other.splitlines()) == bodies
    assert cli.json("group", "describe", "readers")["lag"] == 0


def test_lines_of_standard_input_are_sent_as_they_are(cli: Cli) -> None:
    cli.until_healthy()
    cli("send", "lines", "--file", "-", stdin="one\n\nthree ü\n")

    shown = cli("consume", "lines", "--group", "lines", "--count", "2", "--json").stdout

    assert sorted(json.loads(line)["body"] for line in shown.splitlines()) == ["one", "three ü"]


def test_one_order_key_goes_to_one_queue(cli: Cli) -> None:
    cli.until_healthy()
    sent = cli.json("send", "ordered", "--count", "20", "--order-key", "customer-7")

    assert len(sent["queues"]) == 1


def test_consuming_less_than_asked_for_is_no_success(cli: Cli) -> None:
    cli.until_healthy()
    cli("topic", "create", "nothing")

    done = cli("consume", "nothing", "--count", "1", "--wait", "0.5", code=1)

    assert "only 0 of 1 messages came" in done.stderr


def test_ctrl_c_is_a_good_end_of_consuming_and_keeps_what_was_shown(cli: Cli) -> None:
    cli.until_healthy()
    cli("send", "endless", "--count", "3")
    command = cli.command("consume", "endless", "--group", "ends")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        shown = [process.stdout.readline() for _ in range(3)]
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=WAIT_SECONDS)

    assert process.returncode == 0, errors
    assert len(set(shown)) == 3
    assert "Read 3 messages of endless" in errors
    assert cli.json("group", "describe", "ends")["lag"] == 0


def test_a_closed_pipe_ends_consuming_and_what_nobody_saw_is_not_consumed(cli: Cli) -> None:
    cli.until_healthy()
    cli("send", "piped", "--count", "5", "--order-key", "one queue")
    command = cli.command("consume", "piped", "--group", "pipes")
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, timeout=WAIT_SECONDS, check=False)
    os.close(writing)

    assert done.returncode == 1, done.stderr
    shown = cli("consume", "piped", "--group", "pipes", "--count", "5", "--json").stdout
    assert len(shown.splitlines()) == 5


def test_topics_and_groups_are_made_shown_and_deleted(cli: Cli) -> None:
    cli.until_healthy()
    cli("topic", "create", "bills", "--queues", "3", "--type", "fifo")
    cli("group", "create", "payers", "--retries", "2")

    assert "exists already" in cli("topic", "create", "bills", code=1).stderr
    assert "bills" in cli.json("topic", "list")
    assert len(cli.json("topic", "describe", "bills")["queues"]) == 6
    assert "payers" in cli.json("group", "list")
    assert cli.json("group", "describe", "payers")["members"] == []
    cli("topic", "delete", "bills", "--yes")
    cli("group", "delete", "payers", "--yes")
    assert "no name server knows topic 'bills'" in cli("topic", "describe", "bills", code=1).stderr
    assert "no broker knows the group payers" in cli("group", "describe", "payers", code=1).stderr


def test_measurements_count_what_they_did(cli: Cli) -> None:
    cli.until_healthy()
    one = cli.json("bench", "send", "--count", "200", "--size", "100", "--topic", "measure")
    batched = cli.json("bench", "send", "--count", "200", "--batch", "8", "--topic", "measure")
    read = cli.json("bench", "consume", "--topic", "measure")

    assert (one["count"], batched["count"], read["count"]) == (200, 200, 402)
    assert 0 < one["p50Ms"] <= one["p99Ms"] <= one["maxMs"]
    assert all(result["perSecond"] > 0 for result in (one, batched, read))


def test_a_killed_broker_is_started_again_with_its_messages(cli: Cli) -> None:
    view = cli.until_healthy()
    cli("send", "survivors", "--count", "40")
    broker = view["local"]["processes"][3]
    os.kill(broker["pid"], signal.SIGKILL)
    cli.until(lambda view: view["local"]["processes"][3]["restarts"] == 1, "it was started again")

    view = cli.until_healthy()

    assert view["local"]["processes"][3]["pid"] != broker["pid"]
    assert "north-0 was ended by SIGKILL; starts again in 0.2 s" in (cli.data / "logs" / "up.log").read_text()
    shown = cli("consume", "survivors", "--group", "survivors", "--count", "40", "--json").stdout
    assert len({json.loads(line)["body"] for line in shown.splitlines()}) == 40


def test_a_second_up_in_the_same_folder_is_refused(cli: Cli) -> None:
    done = cli("up", "-f", str(cli.data / "manifest.json"), *FREE_PORTS, code=1)

    assert f"{cli.data} is in use: `brokerset up` runs there as process" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_set_in_the_foreground_ends_in_order_when_it_is_told_to(
    tmp_path: Path, number: signal.Signals
) -> None:
    command = Cli(tmp_path / "d").command("up", *FREE_PORTS)
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        lines = []
        for line in process.stdout:
            lines.append(line)
            if line.startswith("Try: "):
                process.send_signal(number)
    assert process.returncode == 0, lines

    told = [line[9:].strip() for line in lines if " is told to stop" in line or "has stopped" in line]
    assert sorted(told[:6]) == [
        f"brokerset-0-{n} {what}" for n in range(3) for what in ("has stopped", "is told to stop")
    ]
    assert sorted(told[6:12]) == [
        f"controller-{n} {what}" for n in range(3) for what in ("has stopped", "is told to stop")
    ]
    state = json.loads((tmp_path / "d" / "state.json").read_text())
    assert state["phase"] == "stopped"
    stored = json.loads((tmp_path / "d" / "manifest.json").read_text())  # the next `up` takes it
    assert stored["metadata"]["name"] == state["name"] == "brokerset"


def test_messages_survive_down_and_up(own: Cli) -> None:
    own("up", "--detach", *FREE_PORTS)
    own.until_healthy()
    own("send", "kept", "--count", "5")
    own("down")
    stopped = own("status", code=1)
    own("up", "--detach", *FREE_PORTS)
    own.until_healthy()

    shown = own("consume", "kept", "--count", "5", "--json").stdout

    own("down")
    assert "does not run: it was stopped" in stopped.stderr
    assert len(shown.splitlines()) == 5


def test_processes_whose_up_was_killed_end_too_and_down_clears_up(own: Cli) -> None:
    own("up", "--detach", *FREE_PORTS)
    state = own.state()
    os.kill(state["pid"], signal.SIGKILL)

    own("down")

    assert not any(start_ticks(process["pid"]) for process in state["processes"])


def test_the_demo_checks_every_message_and_leaves_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "brokerset_cli.main", "demo", "--count", "500"],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS,
        check=False,
    )

    assert done.returncode == 0, done.stdout + done.stderr
    assert "all 500 acknowledged messages came through" in done.stdout
    assert "No send was acknowledged for " in done.stdout
    assert "All 3 logs have the same " in done.stdout
    assert list(tmp_path.iterdir()) == []
