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
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import click
import uvloop

from brokerset_cli import failover_network
from brokerset_cli.failover_faults import KINDS, Kind
from brokerset_cli.failover_measurements import KindResult
from brokerset_cli.failover_network import INSIDE, OwnNetwork
from brokerset_cli.failover_run import Load, run_kind
from brokerset_cli.failover_set import BenchSet, java_set, our_set
from brokerset_cli.options import json_option
from brokerset_cli.output import fail, progress, write_json, write_table
from brokerset_runtime.logs import configure_logs

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
    port: int
    keep: Path | None

    def load(self, *, java: bool) -> Load:
        """How runs are loaded and how patient they are."""
        return Load(
            rate=self.rate,
            size=self.size,
            warm=WARM_SECONDS,
            settle=JAVA_SETTLE_SECONDS if java else 0.2,
            takeover_max=JAVA_TAKEOVER_SECONDS if java else OUR_TAKEOVER_SECONDS,
            whole_max=90.0 if java else 60.0,
        )


def _kinds(_: click.Context, __: click.Parameter, value: str | None) -> tuple[Kind, ...]:
    names = [name.strip() for name in (value or ",".join(KINDS)).split(",") if name.strip()]
    if unknown := [name for name in names if name not in KINDS]:
        raise click.BadParameter(f"there is no kind {unknown[0]!r}; there are {', '.join(KINDS)}")
    return tuple(KINDS[name] for name in dict.fromkeys(names))


def _settings(_: click.Context, __: click.Parameter, value: tuple[str, ...]) -> tuple[str, ...]:
    if wrong := [one for one in value if not one.partition("=")[1]]:
        raise click.BadParameter(f"{wrong[0]!r} is not NAME=VALUE")
    return value


@click.command("failover", short_help="Break parts of a set under load; show pauses and losses.")
@click.option(
    "--runs", type=click.IntRange(1), metavar="N", default=5, show_default=True, help="Runs of each kind."
)
@click.option(
    "--kinds", callback=_kinds, metavar="KIND,…", help=f"Kinds of faults. [default: {','.join(KINDS)}]"
)
@click.option(
    "--rate",
    type=click.IntRange(1, 20_000),
    metavar="N",
    default=2000,
    show_default=True,
    help="Messages sent in a second.",
)
@click.option(
    "--size",
    type=click.IntRange(32, 1024 * 1024),
    metavar="B",
    default=1024,
    show_default=True,
    help="Bytes of a body.",
)
@click.option(
    "--replicas",
    type=click.IntRange(1, 9),
    metavar="N",
    default=3,
    show_default=True,
    help="Brokers of the group.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    callback=_settings,
    metavar="NAME=VALUE",
    help="A setting of the brokers; may be given several times.",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65_000),
    metavar="PORT",
    default=0,
    help="First of the 300 ports that are used. [default: free ones]",
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
def failover(
    kinds: tuple[Kind, ...],
    runs: int,
    rate: int,
    size: int,
    replicas: int,
    settings: tuple[str, ...],
    port: int,
    keep: Path | None,
    java: Path | None,
    java_only: bool,
    as_json: bool,
) -> None:
    """Break parts of a set under load, again and again; show for how long nothing was acknowledged, and
    what was lost.

    Three controllers and one group of brokers run for each kind in a temporary folder, on free ports; sets
    that run are not touched. A raw client sends at a steady rate, reads the route every 10 ms while sends
    fail, and goes on sending to masters of before; a consumer reads everything. The gap is from the last
    acknowledgement by the old master to the first by the new one, for the kinds without a new master the
    longest time without any. Every message that was acknowledged must be in its place at the end, and must
    have been consumed. Exit code 1 when one is not.
    """
    if java_only and java is None:
        raise click.UsageError("--java-only needs --java DIR")
    wish = Wish(kinds, runs, rate, size, replicas, settings, port, keep)
    # A shell lets what it runs in the background ignore Ctrl-C.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    # A client that loses its brokers on purpose has nothing to tell about it.
    configure_logs("error", json=False)
    ours: dict[str, Any] = {}
    javas: dict[str, dict[str, Any]] = {}
    if not java_only:
        ours = _measure_ours(wish)
    if java is not None:
        javas = _measure_java(wish, java)
    if as_json:
        write_json({**ours, **({"java": javas} if javas else {})})
    else:
        _show(ours, javas)
    broken = [name for name, figures in ours.items() if figures["violations"] or "problem" in figures]
    if broken:
        told = [text for name in broken for text in (ours[name].get("problem"), *ours[name]["texts"]) if text]
        fail(
            f"promises were broken, or runs could not be ended: {', '.join(broken)}\n" + "\n".join(told),
            "please report this, with the logs and histories (--keep-history)",
        )


def _measure_ours(wish: Wish) -> dict[str, Any]:
    found: dict[str, Any] = {}
    inside = os.environ.get(INSIDE) == "1"
    for kind in wish.kinds:
        if wish.replicas < kind.brokers_min:
            found[kind.name] = _not_measured(f"it needs {kind.brokers_min} brokers, see --replicas")
        elif kind.needs_network and not inside:
            found[kind.name] = _measure_inside(wish, kind)
        else:

            def make(folder: Path, network: bool = inside) -> BenchSet:
                return our_set(
                    folder,
                    replicas=wish.replicas,
                    settings=wish.settings,
                    port=wish.port,
                    network=OwnNetwork(folder) if network else None,
                )

            found[kind.name] = _measure(kind, wish, wish.load(java=False), make).to_object()
    return found


def _measure_java(wish: Wish, peers: Path) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = {}
    for variant, settings in JAVA_VARIANTS.items():
        for kind in wish.kinds:
            if not kind.java:
                continue

            def make(folder: Path, settings: dict[str, str] = settings) -> BenchSet:
                try:
                    return java_set(
                        folder,
                        peers,
                        replicas=wish.replicas,
                        settings=settings,
                        port=wish.port,
                        heap=JAVA_HEAP,
                    )
                except (OSError, subprocess.CalledProcessError) as error:
                    fail(f"Java's servers cannot be run: {error}", f"see {peers / 'README.md'}")

            label = f"java {variant} {kind.name}"
            result = _measure(kind, wish, wish.load(java=True), make, label)
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
    why = failover_network.why_not()
    if why:
        return _not_measured(f"no network of its own can be had: {why}")
    arguments = [
        "-m",
        "brokerset_cli.main",
        "bench",
        "failover",
        "--json",
        "--kinds",
        kind.name,
        "--runs",
        str(wish.runs),
    ]
    arguments += ["--rate", str(wish.rate)]
    arguments += ["--size", str(wish.size), "--replicas", str(wish.replicas)]
    for setting in wish.settings:
        arguments += ["--set", setting]
    if wish.keep is not None:
        arguments += ["--keep-history", str(wish.keep)]
    done = subprocess.run(
        failover_network.inside_command(arguments),
        env={**os.environ, INSIDE: "1"},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    try:
        figures: dict[str, Any] = json.loads(done.stdout)[kind.name]
    except (ValueError, KeyError):
        fail(f"{kind.name}: the run in a network of its own told nothing (exit code {done.returncode})")
    return figures


# -- showing ----------------------------------------------------------------------------------------------


def _show(ours: dict[str, Any], javas: dict[str, dict[str, Any]]) -> None:
    rows: list[Sequence[object]] = []
    for name, figures in ours.items():
        rows.append(_row("brokerset", name, figures, f"≤ {KINDS[name].goal_ms:,}"))
    for variant, found in javas.items():
        rows += [_row(f"Java, {variant}", name, figures, "") for name, figures in found.items()]
    columns = (
        "servers",
        "fault",
        "runs",
        "p50 ms",
        "p99 ms",
        "max ms",
        "goal p99",
        "later ms",
        "unserved",
        "lost",
    )
    write_table((*columns, "twice", "failed sends", "acknowledged", "broken promises"), rows)
    for name, figures in ours.items():
        if "notMeasured" in figures:
            click.echo(f"{name} was not measured: {figures['notMeasured']}")


def _row(who: str, name: str, figures: dict[str, Any], goal: str) -> Sequence[object]:
    violations = ", ".join(f"{kind} {count:,}" for kind, count in figures["violations"].items())
    return (
        who,
        name,
        figures["runs"],
        figures["p50Ms"],
        figures["p99Ms"],
        figures["maxMs"],
        goal,
        figures["laterPauseMsMax"],
        figures["unserved"],
        figures["lost"],
        figures["duplicates"],
        figures["failedSends"],
        figures["acked"],
        violations or "none",
    )
