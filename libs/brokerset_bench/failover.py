"""`brokerset bench failover`: faults under load in a set of its own, how long nobody acknowledged, and what
was kept."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import click
import uvloop

from brokerset_bench import network
from brokerset_bench.faults import KINDS_OF_MODE, Kind
from brokerset_bench.measurements import KindResult
from brokerset_bench.message_loads import CHECK_SETTINGS
from brokerset_bench.message_tables import message_tables
from brokerset_bench.network import INSIDE, OwnNetwork
from brokerset_bench.runs import Load, run_kind
from brokerset_bench.sets import BenchSet, java_set, our_set
from brokerset_cli.options import json_option, mode_option, number_option
from brokerset_cli.output import fail, progress, write_json, write_table
from brokerset_runtime.logs import configure_logs
from brokerset_spec.dledger_mode import LEDGER_REPLICAS
from brokerset_spec.set_memory import CONTROLLER
from brokerset_spec.set_parts import DLEDGER

OUR_TAKEOVER_SECONDS: Final = 30.0
JAVA_TAKEOVER_SECONDS: Final = 60.0
"""Java's default needs 10 to 15 s to see that a master is silent."""

WARM_SECONDS: Final = 2.0
JAVA_SETTLE_SECONDS: Final = 12.0
"""Java's slaves fetch topics every few seconds, and a controller's check of in-sync sets has a timer, too."""

JAVA_HEAP: Final = "512m"
JAVA_VARIANTS: Final = {"default": {}, "allAck": {"allAckInSyncStateSet": "true"}}
"""Settings of Java's brokers that are measured, by name."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What was asked for."""

    kinds: tuple[Kind, ...]
    runs: int
    rate: int
    size: int
    replicas: int
    settings: tuple[str, ...]
    port: int | None
    keep: Path | None
    mode: str = CONTROLLER
    transactions: int = 0
    timers: int = 0
    pops: int = 0

    def arguments(self, kind: Kind) -> list[str]:
        """How this command is asked for the same with one kind."""
        keep = [] if self.keep is None else [f"--keep-history={self.keep}"]
        same = ("mode", "runs", "rate", "size", "replicas", "transactions", "timers", "pops")
        numbers = [f"--{name}={getattr(self, name)}" for name in same]
        return [f"--kinds={kind.name}", *numbers, *(f"--set={one}" for one in self.settings), *keep]

    def load(self, *, java: bool) -> Load:
        """How runs are loaded and how patient they are."""
        return Load(
            rate=self.rate,
            size=self.size,
            warm=WARM_SECONDS,
            settle=JAVA_SETTLE_SECONDS if java else 0.2,
            takeover_max=JAVA_TAKEOVER_SECONDS if java else OUR_TAKEOVER_SECONDS,
            whole_max=90.0 if java else 60.0,
            transactions=self.transactions,
            timers=self.timers,
            pops=self.pops,
        )

    @property
    def broker_settings(self) -> tuple[str, ...]:
        """Settings of our brokers: what was wished for comes last, and counts."""
        return (*(CHECK_SETTINGS if self.transactions else ()), *self.settings)


def _kinds(context: click.Context, _: click.Parameter, value: str | None) -> tuple[Kind, ...]:
    kinds = KINDS_OF_MODE[context.params["mode"]]
    names = [name.strip() for name in (value or ",".join(kinds)).split(",") if name.strip()]
    if unknown := [name for name in names if name not in kinds]:
        raise click.BadParameter(f"there is no kind {unknown[0]!r}; there are {', '.join(kinds)}")
    return tuple(kinds[name] for name in dict.fromkeys(names))


def _settings(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    if wrong := [one for one in value if not one.partition("=")[1]]:
        raise click.BadParameter(f"{wrong[0]!r} is not NAME=VALUE")
    return value


@click.command("failover", short_help="Break parts of a set under load; show pauses and losses.")
@mode_option
@number_option("--runs", "Runs of each kind.", 1, default=5)
@click.option(
    "--kinds",
    callback=_kinds,
    metavar="KIND,…",
    help="Kinds of faults. [default: all of the mode: "
    + "; ".join(f"{mode}: {','.join(kinds)}" for mode, kinds in KINDS_OF_MODE.items())
    + "]",
)
@number_option("--rate", "Messages sent in a second.", 1, 20_000, default=2000)
@number_option("--transactions", "Transactions begun in a second, besides.", 0, 2000, default=0)
@number_option("--timers", "Timers put in a second, besides.", 0, 2000, default=0)
@number_option("--pops", "Messages sent in a second that a group pops, besides.", 0, 2000, default=0)
@number_option("--size", "Bytes of a body.", 32, 1024 * 1024, metavar="B", default=1024)
@number_option("--replicas", "Brokers of the group.", 1, 9, default=3)
@click.option(
    "--set",
    "settings",
    multiple=True,
    callback=_settings,
    metavar="NAME=VALUE",
    help="A setting of the brokers; may be given several times.",
)
@number_option(
    "--port", "First of the 300 ports that are used. [default: free ones]", 0, 65_000, metavar="PORT"
)
@click.option(
    "--keep-history",
    "keep",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Write what writer and consumer saw in each run to DIR, as JSON lines, and the logs of the servers.",
)
@click.option(
    "--java",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="Measure Java RocketMQ with the same load as well; DIR is `tests/peers` of the source tree.",
)
@click.option("--java-only", is_flag=True, help="With --java: do not measure ours.")
@json_option
def failover(java: Path | None, java_only: bool, as_json: bool, **wished: Any) -> None:
    """Break parts of a set under load, again and again; show for how long nothing was acknowledged, and
    what was lost.

    Three controllers and one group of brokers, or a DLedger group and a name server, run for each kind in a
    temporary folder, on free ports; sets that run are not touched. A raw client sends at a steady rate,
    reads the route every 10 ms while sends fail, and goes on sending to masters of before; a consumer reads
    everything. The gap is from the last acknowledgement by the old master to the first by the new one, for
    the kinds without a new master the longest time without any. Every message that was acknowledged must be
    in its place at the end, and must have been consumed. Exit code 1 when one is not.

    With --transactions a producer begins transactions, ends most of them, and answers brokers that ask about
    the others: no commit may be lost, and no half message or one that was rolled back may become visible.
    With --timers messages are put that are due 1.5 to 8 s later: none may be lost or early; what comes late
    or twice is counted.
    With --pops messages are sent that a group pops and acknowledges one by one: none may be lost, and none
    that is done may be given out again; what is given out twice before it is counted.
    """
    if java_only and java is None:
        raise click.UsageError("--java-only needs --java DIR")
    if wished["mode"] == DLEDGER and java is not None:
        raise click.UsageError("Java is measured with controllers only: leave --mode dledger or --java out")
    if wished["mode"] == DLEDGER and wished["replicas"] not in LEDGER_REPLICAS:
        raise click.UsageError("a DLedger group has 3 or 5 brokers, see --replicas")
    wish = Wish(**wished)
    # A shell lets what it runs in the background ignore Ctrl-C.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    # A client that loses its brokers on purpose has nothing to tell about it.
    configure_logs("error", json=False)
    ours = {} if java_only else {kind.name: _measure_ours(wish, kind) for kind in wish.kinds}
    javas = {} if java is None else _measure_java(wish, java)
    if as_json:
        write_json({**ours, **({"java": javas} if javas else {})})
    else:
        _show(wish.mode, ours, javas)
    broken = [name for name, found in ours.items() if found["violations"] or "problem" in found]
    if broken:
        texts = [
            text for name in broken for text in (ours[name].get("problem"), *ours[name]["texts"]) if text
        ]
        fail(
            f"promises were broken, or runs could not be ended: {', '.join(broken)}\n" + "\n".join(texts),
            "please report this, with the logs and histories (--keep-history)",
        )


def _measure_ours(wish: Wish, kind: Kind) -> dict[str, Any]:
    inside = os.environ.get(INSIDE) == "1"
    if wish.replicas < kind.brokers_min:
        return _not_measured(f"it needs {kind.brokers_min} brokers, see --replicas")
    if kind.needs_network and not inside:
        return _measure_inside(wish, kind)

    def make(folder: Path) -> BenchSet:
        return our_set(
            folder,
            replicas=wish.replicas,
            settings=wish.broker_settings,
            port=wish.port or 0,
            network=OwnNetwork(folder) if inside else None,
            mode=wish.mode,
        )

    return _measure(kind, wish, wish.load(java=False), make).to_object()


def _measure_java(wish: Wish, peers: Path) -> dict[str, dict[str, Any]]:
    checks = dict(one.split("=") for one in CHECK_SETTINGS) if wish.transactions else {}

    def make(settings: Mapping[str, str], folder: Path) -> BenchSet:
        port = wish.port or 0
        try:
            return java_set(
                folder, peers, replicas=wish.replicas, settings=settings, port=port, heap=JAVA_HEAP
            )
        except (OSError, subprocess.CalledProcessError) as error:
            fail(f"Java's servers cannot be run: {error}", f"see {peers / 'README.md'}")

    found: dict[str, dict[str, Any]] = {}
    for variant, settings in JAVA_VARIANTS.items():
        for kind in wish.kinds:
            if kind.java:
                label = f"java {variant} {kind.name}"
                result = _measure(
                    kind, wish, wish.load(java=True), partial(make, {**checks, **settings}), label
                )
                found.setdefault(variant, {})[kind.name] = result.to_object()
    return found


def _not_measured(why: str) -> dict[str, Any]:
    return {**KindResult().to_object(), "notMeasured": why}


def _measure(
    kind: Kind, wish: Wish, load: Load, make: Callable[[Path], BenchSet], label: str = ""
) -> KindResult:
    """Make all runs of a kind, on one set, or on several when one is not whole again after a run."""
    keep = wish.keep / label.replace(" ", "-") if wish.keep is not None and label else wish.keep
    result = KindResult()
    with progress(label or kind.name, wish.runs) as done:
        while len(result.runs) < wish.runs and not result.problem:
            logs = None if keep is None else keep / f"{kind.name}-{len(result.runs)}-logs"
            _measure_on_new_set(
                make, lambda bench: run_kind(bench, kind, wish.runs, load, keep, done, result), result, logs
            )
    return result


def _measure_on_new_set(
    make: Callable[[Path], BenchSet],
    work: Callable[[BenchSet], Coroutine[Any, Any, None]],
    result: KindResult,
    logs: Path | None,
) -> None:
    """Start a set, do the work, end the set, and copy its logs to `logs`.

    Its folder is kept when something went wrong.
    """
    folder = Path(tempfile.mkdtemp(prefix="brokerset-failover-"))
    bench: BenchSet | None = None
    ended = False
    try:
        bench = make(folder)
        bench.start()
        # The same loop as the servers have; a slow client would show in the gaps.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(work(bench))
        ended = True
    finally:
        if bench is not None:
            bench.end()
            if logs is not None:
                try:
                    bench.keep_logs(logs)
                except OSError as error:
                    ended = False
                    click.echo(f"the logs cannot be copied: {error}", err=True)
        if result.broken or not ended:
            click.echo(f"kept {folder}", err=True)
        else:
            shutil.rmtree(folder, ignore_errors=True)


def _measure_inside(wish: Wish, kind: Kind) -> dict[str, Any]:
    """Measure one kind in a network of its own, by this program run again."""
    if why := network.why_not():
        return _not_measured(f"no network of its own can be had: {why}")
    arguments = ("-m", "brokerset_cli.main", "bench", "failover", "--json", *wish.arguments(kind))
    environment = {**os.environ, INSIDE: "1"}
    done = subprocess.run(
        network.inside_command(arguments), env=environment, stdout=subprocess.PIPE, text=True, check=False
    )
    try:
        measured: dict[str, Any] = json.loads(done.stdout)[kind.name]
    except (ValueError, KeyError):
        fail(f"{kind.name}: the run in a network of its own told nothing (exit code {done.returncode})")
    return measured


COLUMNS: Final = {
    "runs": "runs",
    "p50 ms": "p50Ms",
    "p99 ms": "p99Ms",
    "max ms": "maxMs",
    "goal p99": "goal",
    "later ms": "laterPauseMsMax",
    "unserved": "unserved",
    "lost": "lost",
    "twice": "duplicates",
    "failed sends": "failedSends",
    "acknowledged": "acked",
    "broken promises": "broken",
}
"""The table's columns, and what each is in JSON; `goal` and `broken` are made for people."""


def _show(mode: str, ours: Mapping[str, Any], javas: Mapping[str, Mapping[str, Any]]) -> None:
    goals = {name: f"≤ {kind.goal_ms:,}" for name, kind in KINDS_OF_MODE[mode].items()}
    measured = [("brokerset", name, found, goals[name]) for name, found in ours.items()]
    for variant, kinds in javas.items():
        measured += [(f"Java, {variant}", name, found, "") for name, found in kinds.items()]
    rows = []
    for who, name, found, goal in measured:
        broken = ", ".join(f"{kind} {count:,}" for kind, count in found["violations"].items())
        shown = {**found, "goal": goal, "broken": broken or "none"}
        rows.append((who, name, *(shown[key] for key in COLUMNS.values())))
    write_table(("servers", "fault", *COLUMNS), rows)
    for heads, lines in message_tables([(who, name, found) for who, name, found, _ in measured]):
        click.echo()
        write_table(heads, lines)
    for name, found in ours.items():
        if "notMeasured" in found:
            click.echo(f"{name} was not measured: {found['notMeasured']}")
