"""Cut the network between each pair of parts of a set under load, both ways and one way; judge what was kept.

`network_cuts.py [--cuts NAME,…] [--seconds N] [--runs N]`. Three controllers and three brokers, each in a
network namespace of its own, the clients in another. For each cut: load, the cut, `--seconds` later it is
mended, and then all that clients were promised must hold and the group must be whole again. Prints the
longest time without an acknowledgement. Exit code 1 when a promise is broken.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shutil
import sys
import tempfile
from pathlib import Path

import uvloop

from brokerset_bench.faults import CUTS, Cut, Kind
from brokerset_bench.measurements import KindResult
from brokerset_bench.network import INSIDE, OwnNetwork, inside_command, why_not
from brokerset_bench.runs import Load, run_kind
from brokerset_bench.sets import our_set
from brokerset_runtime.logs import configure_logs

LOAD = Load(rate=300, size=256, warm=1.0, settle=0.2, takeover_max=30.0, whole_max=60.0)


def measure(cut: Cut, runs: int, seconds: float, settings: tuple[str, ...]) -> KindResult:
    """Make the runs of one cut on a set of its own; the set's folder is kept when a promise is broken."""
    kind = Kind(cut.name, cut.name, False, seconds, 0, cut=cut)
    folder = Path(tempfile.mkdtemp(prefix="brokerset-cuts-"))
    bench = our_set(folder, replicas=3, settings=settings, port=0, network=OwnNetwork(folder))
    result = KindResult()
    try:
        bench.start()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(run_kind(bench, kind, runs, LOAD, folder / "histories", lambda _: None, result))
    finally:
        bench.end()
        if not result.broken:
            shutil.rmtree(folder, ignore_errors=True)
    if result.broken:
        print(f"kept {folder}", flush=True)
    return result


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cuts", default=",".join(CUTS), metavar="NAME,…", help="some of the cuts")
    parser.add_argument("--seconds", type=float, default=6.0, metavar="N", help="length of a cut")
    parser.add_argument("--runs", type=int, default=1, metavar="N", help="runs of each cut")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="brokers' settings")
    options = parser.parse_args()
    names = options.cuts.split(",")
    if unknown := [name for name in names if name not in CUTS]:
        parser.error(f"there is no cut {unknown[0]!r}; there are {', '.join(CUTS)}")
    if os.environ.get(INSIDE) != "1":
        if why := why_not():
            print(f"not run: no network of its own can be had: {why}")
            return 2
        command = inside_command([__file__, *sys.argv[1:]])
        os.execvpe(command[0], command, {**os.environ, INSIDE: "1"})

    configure_logs("error", json=False)
    broken = []
    for name in names:
        result = measure(CUTS[name], options.runs, options.seconds, tuple(options.set))
        measurements = result.to_object()
        print(
            f"{name:28} longest pause {measurements['maxMs']} ms, {measurements['acked']} acknowledged,"
            f" {measurements['lost']} lost, {measurements['duplicates']} twice, {measurements['failedSends']} sends failed,"
            f" whole after {measurements['wholeAfterMsMax']} ms",
            flush=True,
        )
        if result.broken:
            broken.append(name)
            print("\n".join([measurements.get("problem", ""), *measurements["texts"]]), flush=True)
    print(f"{len(names) - len(broken)} of {len(names)} cuts broke no promise", flush=True)
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
