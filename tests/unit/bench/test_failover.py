"""The figures of `brokerset bench failover`, its history, and what it is asked for."""

from __future__ import annotations

import json
import signal
from dataclasses import dataclass, field
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from brokerset_bench import failover
from brokerset_bench.faults import KINDS, LEDGER_KINDS, inject
from brokerset_bench.history import Ack, History, Verdict, body_of, checksum, number_of, read_events
from brokerset_bench.measurements import (
    KindResult,
    RunResult,
    latency_summary,
    longest_pause,
    pause_after_takeover,
    percentile,
    takeover_gap,
)
from brokerset_bench.probes import GroupView
from brokerset_bench.server_process import ServerProcess
from brokerset_bench.sets import BenchSet, our_set
from brokerset_cli.main import main


def acks(*pairs: tuple[float, str]) -> list[Ack]:
    return [Ack(t, broker) for t, broker in pairs]


def test_percentiles_are_nearest_ranks() -> None:
    values = [float(n) for n in range(1, 101)]

    assert [percentile(values, share) for share in (0.0, 0.5, 0.99, 1.0)] == [1.0, 50.0, 99.0, 100.0]
    assert latency_summary([2.0, 1.0]) == {"p50Ms": 1.0, "p99Ms": 2.0, "p999Ms": 2.0, "maxMs": 2.0}
    assert latency_summary([]) == {}


def test_the_gap_is_from_the_old_masters_last_to_another_ones_first() -> None:
    seen = acks((1.0, "a"), (2.0, "a"), (2.1, "a"), (2.4, "b"), (2.5, "b"))

    assert takeover_gap(seen, 2.05, "a") == pytest.approx(0.3)


def test_what_the_old_master_acknowledges_after_another_one_does_not_shorten_the_gap() -> None:
    seen = acks((1.0, "a"), (4.0, "b"), (11.0, "a"), (11.1, "b"))

    assert takeover_gap(seen, 1.5, "a") == 3.0


def test_acknowledgements_of_others_before_the_fault_are_of_earlier_masters() -> None:
    seen = acks((0.5, "b"), (1.0, "a"), (2.0, "c"))

    assert takeover_gap(seen, 1.5, "a") == 1.0


def test_there_is_no_gap_when_nobody_takes_over() -> None:
    assert takeover_gap(acks((1.0, "a"), (20.0, "a")), 1.5, "a") is None
    assert takeover_gap(acks((2.0, "b")), 1.5, "a") is None
    assert takeover_gap([], 1.5, "a") is None


def test_a_stall_behind_the_first_acknowledgement_of_a_new_master_is_told() -> None:
    """Neither the gap itself counts, nor what the old one acknowledges before it."""
    seen = acks((1.0, "a"), (2.0, "b"), (2.1, "b"), (3.4, "b"), (3.5, "b"))

    assert pause_after_takeover(seen, 1.05, "a", 3.6) == pytest.approx(1.3)
    assert pause_after_takeover(seen, 1.05, "a", 5.5) == pytest.approx(2.0)
    assert pause_after_takeover(acks((1.0, "a")), 1.05, "a", 9.0) is None


def test_the_longest_pause_may_begin_before_and_end_after_the_time_that_is_watched() -> None:
    seen = acks((1.0, "a"), (2.0, "a"), (2.5, "b"), (6.0, "b"))

    assert longest_pause(seen, 1.5, 3.0) == 3.5
    assert longest_pause(seen, 2.1, 2.6) == 3.5
    assert longest_pause(seen, 1.5, 2.4) == 1.0
    assert longest_pause(seen, 6.0, 16.0) == 10.0
    assert longest_pause([], 1.0, 4.0) == 3.0


def test_runs_are_summed_up() -> None:
    verdict = Verdict(acked=10, duplicates=2)
    bad = Verdict(acked=5)
    bad.violations["lost"] = 3
    bad.texts["lost"] = ["message 7 was acknowledged and is nowhere at the end"]
    result = KindResult(
        [
            RunResult(0.1, verdict, 4, 1, {"connection closed": 4}, 0.5),
            RunResult(0.3, verdict, 0, 0, {}, 0.1, 0.0624, 40),
            RunResult(None, bad, 1, 0, {"connection closed": 1}, 2.0),
            RunResult(0.2, Verdict(acked=1), 0, 0, {}, None),
        ]
    )

    figures = result.to_object()

    assert result.broken
    assert (figures["runs"], figures["unserved"], figures["lost"]) == (4, 1, 3)
    assert (figures["p50Ms"], figures["p99Ms"], figures["maxMs"]) == (200.0, 300.0, 300.0)
    assert (figures["duplicates"], figures["failedSends"], figures["failedAtOldMaster"]) == (4, 5, 1)
    assert figures["violations"] == {"lost": 3}
    assert figures["texts"] == ["message 7 was acknowledged and is nowhere at the end"]
    assert figures["reasons"] == {"connection closed": 5}
    assert figures["gapsMs"] == [100.0, 300.0, None, 200.0]
    assert figures["neverWhole"] == 1
    assert figures["laterPauseMsMax"] == 62.4
    assert (figures["wholeAfterMsMax"], figures["toldPauseMsMax"]) == (2000, 40)


def test_no_runs_have_no_figures() -> None:
    figures = KindResult(problem="it did not start").to_object()

    assert (figures["runs"], figures["p50Ms"], figures["problem"]) == (0, None, "it did not start")


def test_a_run_in_a_network_of_its_own_has_the_same_loads() -> None:
    """The command starts itself again for such kinds; nothing that was asked for is left out."""
    wish = failover.Wish(
        kinds=(), runs=2, rate=10, size=64, replicas=3, settings=("a=1",), port=None, keep=None,
        transactions=7, timers=8, pops=9,
    )  # fmt: skip

    arguments = wish.arguments(KINDS["cutMaster"])

    assert {"--kinds=cutMaster", "--transactions=7", "--timers=8", "--pops=9", "--set=a=1"} <= set(arguments)
    load = wish.load(java=False)
    assert (load.transactions, load.timers, load.pops) == (7, 8, 9)


def test_brokers_ask_soon_where_transactions_run_unless_something_else_was_asked_for() -> None:
    """What is given last counts; without transactions nothing is set."""
    wish = failover.Wish((), 1, 10, 64, 3, ("transactionTimeOut=9000",), None, None, transactions=1)
    folder_settings = [one for one in wish.broker_settings if one.startswith("transactionTimeOut")]

    assert folder_settings == ["transactionTimeOut=2000", "transactionTimeOut=9000"]
    assert failover.Wish((), 1, 10, 64, 3, (), None, None).broker_settings == ()


def test_a_body_tells_its_number_and_no_two_are_alike() -> None:
    bodies = [body_of(number, 1024) for number in (0, 1, 10, 10**12)]

    assert [len(body) for body in bodies] == [1024] * 4
    assert len({checksum(body) for body in bodies}) == 4
    assert [number_of(body) for body in bodies] == [0, 1, 10, 10**12]
    assert [number_of(body) for body in (b"", b"7", b"x:1", b":", b"-1:")] == [None] * 5


def test_a_history_is_written_as_lines_that_can_be_judged(tmp_path: Path) -> None:
    now = iter(range(100))
    history = History(lambda: float(next(now)))
    body = body_of(3, 100)
    history.sent(3, 1, "a", body)
    history.failed(3, 1, "a", "code 14: no master")
    history.sent(3, 1, "b", body)
    history.acked(3, 1, 0, "b")
    history.note("fault", "killMaster", "a")
    history.consumed(1, 0, "b", body)
    history.found(1, 0, "b", body)
    history.found(1, 1, "b", b"rubbish")
    history.note("scanned", broker="b")

    history.write(tmp_path / "deep" / "run.jsonl")

    with (tmp_path / "deep" / "run.jsonl").open("rb") as lines:
        events = list(read_events(lines))
    assert events == list(history.events())
    assert events[0] == {"t": 0.0, "kind": "send", "id": 3, "queue": 1, "broker": "a", "body": checksum(body)}
    assert events[3] == {"t": 3.0, "kind": "ack", "id": 3, "queue": 1, "offset": 0, "broker": "b"}
    assert events[4] == {"t": 4.0, "kind": "fault", "broker": "a", "why": "killMaster"}
    assert events[7]["id"] is None
    assert [(ack.t, ack.broker) for ack in history.acks] == [(3.0, "b")]


def test_a_line_that_is_no_event_is_named() -> None:
    with pytest.raises(ValueError, match="line 2 is not JSON"):
        list(read_events([b"{}", b"{"]))
    with pytest.raises(ValueError, match="line 3 is no object"):
        list(read_events([b"{}", b"\n", b"[]"]))


@dataclass
class FakeProcess:
    """Remembers what was done to it."""

    address: str
    told: list[str] = field(default_factory=list)

    def send(self, number: signal.Signals) -> bool:
        self.told.append(number.name)
        return True

    def start(self) -> None:
        self.told.append("start")


@dataclass
class FakeNetwork:
    """Remembers who was cut off."""

    told: list[str] = field(default_factory=list)

    def cut(self, number: int) -> None:
        self.told.append(f"cut {number}")

    def mend(self, number: int) -> None:
        self.told.append(f"mend {number}")

    def cut_path(self, sender: str, receiver: str) -> None:
        self.told.append(f"cut {sender} > {receiver}")

    def mend_paths(self) -> None:
        self.told.append("mend paths")


@pytest.mark.parametrize(
    ("kind", "master", "slave", "leader", "network"),
    [
        ("killMaster", ["SIGKILL", "start"], [], [], []),
        ("stopMaster", ["SIGSTOP", "SIGCONT"], [], [], []),
        ("cutMaster", [], [], [], ["cut 1", "mend 1"]),
        ("cutSlaves", [], [], [], ["cut M > S", "cut S > M", "mend paths"]),
        ("killLeader", [], [], ["SIGKILL", "start"], []),
        ("killBoth", ["SIGKILL", "start"], [], ["SIGKILL", "start"], []),
        ("hangSlave", [], ["SIGSTOP", "SIGCONT"], [], []),
        ("switchover", [], [], [], []),
    ],
)
def test_each_fault_hits_its_victims_and_is_mended(
    kind: str, master: list[str], slave: list[str], leader: list[str], network: list[str]
) -> None:
    victims = {name: FakeProcess(name) for name in ("S:1", "M:1", "c0", "c1")}
    wires = FakeNetwork()
    bench = BenchSet(
        "g",
        (victims["c0"], victims["c1"]),  # type: ignore[arg-type]  # all that a fault uses of a process
        (victims["S:1"], victims["M:1"]),  # type: ignore[arg-type]  # all that a fault uses of a process
        (),
        (),
        wires,  # type: ignore[arg-type]  # all that a fault uses of a network
        {"S:1": 0, "M:1": 1},
    )

    inject(KINDS[kind], bench, GroupView("c1", "M:1", 3, (1, 2)))()

    assert victims["M:1"].told == master
    assert victims["S:1"].told == slave
    assert victims["c1"].told == leader
    assert victims["c0"].told == []
    assert wires.told == network


def test_a_set_is_planned_on_the_ports_that_are_wished_for(tmp_path: Path) -> None:
    bench = our_set(tmp_path, replicas=3, settings=("allAckInSyncStateSet=false",), port=23_500, network=None)

    assert bench.broker_addresses == ("127.0.0.1:23600", "127.0.0.1:23610", "127.0.0.1:23620")
    assert bench.name_servers == ("127.0.0.1:23500", "127.0.0.1:23510", "127.0.0.1:23520")
    assert bench.controller_addresses == ("127.0.0.1:23502", "127.0.0.1:23512", "127.0.0.1:23522")
    conf = (tmp_path / "brokers" / "bench-0-2" / "broker.conf").read_text()
    assert "allAckInSyncStateSet=false\n" in conf
    assert "mappedFileSizeCommitLog=268435456\n" in conf
    assert "expectedReplicas=3\n" in conf
    assert bench.ended().startswith("controller-0 has ended")


def test_the_logs_of_all_processes_are_kept(tmp_path: Path) -> None:
    bench = our_set(tmp_path / "set", replicas=1, settings=(), port=23_500, network=None)
    for process in bench.controllers:
        process.log_file.parent.mkdir(parents=True, exist_ok=True)
        process.log_file.write_text(f"log of {process.name}")

    bench.keep_logs(tmp_path / "kept")

    kept = {file.name: file.read_text() for file in (tmp_path / "kept").iterdir()}
    assert kept == {f"controller-{n}.log": f"log of controller-{n}" for n in range(3)}


def test_kinds_are_chosen_by_name_in_the_order_given() -> None:
    context = click.Context(failover.failover)
    context.params["mode"] = "controller"
    wished = failover._kinds(context, failover.failover.params[0], "killBoth, killMaster,killBoth")

    assert [kind.name for kind in wished] == ["killBoth", "killMaster"]


def test_a_dledger_is_planned_without_controllers(tmp_path: Path) -> None:
    bench = our_set(tmp_path, replicas=3, settings=(), port=23_500, network=None, mode="dledger")

    assert bench.broker_addresses == ("127.0.0.1:23600", "127.0.0.1:23610", "127.0.0.1:23620")
    assert (bench.controllers, bench.name_servers) == ((), ("127.0.0.1:23500",))
    assert [process.name for process in bench.others] == ["namesrv-0"]
    conf = (tmp_path / "brokers" / "bench-0-2" / "broker.conf").read_text()
    assert "dLegerPeers=n0-127.0.0.1:23601;n1-127.0.0.1:23611;n2-127.0.0.1:23621\n" in conf


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("killLeader", "killMaster"),
        ("hangLeader", "stopMaster"),
        ("cutLeader", "cutMaster"),
        ("transfer", "switchover"),
    ],
)
def test_the_leader_of_a_dledger_is_hurt_as_a_master_is(kind: str, fault: str) -> None:
    wished = LEDGER_KINDS[kind]

    assert (wished.fault, wished.takeover, wished.mend_after) == (
        fault, KINDS[fault].takeover, KINDS[fault].mend_after
    )  # fmt: skip
    assert wished.needs_network == KINDS[fault].needs_network


def test_a_leader_that_is_ended_in_order_is_started_again(tmp_path: Path) -> None:
    """It is no fault to be too quick for: the process has ended before it is started."""
    broker = ServerProcess("b", ("sleep", "60"), "h:1", tmp_path / "b.log")
    broker.start()
    first = broker.pid
    view = GroupView("h:1", "h:1", 3, (1,))
    try:
        inject(LEDGER_KINDS["stopLeader"], BenchSet("g", (), (broker,), (), ()), view)()

        assert broker.running
        assert broker.pid != first
    finally:
        broker.end()


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--kinds", "killEverybody"], "there is no kind 'killEverybody'; there are killMaster, stopMaster"),
        (["--set", "x"], "'x' is not NAME=VALUE"),
        (["--java-only"], "--java-only needs --java DIR"),
        (
            ["--mode", "dledger", "--kinds", "killMaster"],
            "there is no kind 'killMaster'; there are killLeader",
        ),
        (
            ["--kinds", "transfer", "--mode", "dledger", "--replicas", "4"],
            "a DLedger group has 3 or 5 brokers",
        ),
        (["--mode", "dledger", "--java", "."], "Java is measured with controllers only"),
    ],
)
def test_a_wish_that_cannot_be_fulfilled_is_refused_before_anything_starts(
    arguments: list[str], problem: str
) -> None:
    result = CliRunner().invoke(main, ["bench", "failover", *arguments])

    assert result.exit_code == 2
    assert problem in " ".join(result.output.split())


def test_a_kind_that_needs_more_brokers_is_told_and_not_measured() -> None:
    result = CliRunner().invoke(
        main, ["bench", "failover", "--kinds", "killMaster", "--replicas", "2", "--json"]
    )

    assert result.exit_code == 0, result.output
    figures = json.loads(result.output)["killMaster"]
    assert (figures["runs"], figures["notMeasured"]) == (0, "it needs 3 brokers, see --replicas")


def test_figures_are_shown_as_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    ours = KindResult([RunResult(0.0987, Verdict(acked=9), 2, 0, {}, 0.0)]).to_object()
    java = KindResult([RunResult(0.3, Verdict(acked=9), 2, 0, {}, 0.0)]).to_object()

    failover._show("controller", {"killMaster": ours}, {"default": {"killMaster": java}})

    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["SERVERS", "FAULT", "RUNS"]
    assert "98.7" in lines[1]
    assert "≤ 500" in lines[1]
    assert lines[2].startswith("Java, default  killMaster")
