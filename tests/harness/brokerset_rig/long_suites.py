"""Suites of `.ci/run` that take minutes and that a change needs only if it touches what they are about.

What changed is everything since the commit that `CI_BASE` names, else the one in `.ci/passed`: the last one that
passed all of them. When nobody knows that commit, every suite is due. `make full` runs all of them, always.
"""

from __future__ import annotations

import argparse
import datetime
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).parents[3]

REPLICATION = (
    "broker/brokerset_broker/member/*",
    "broker/brokerset_broker/store/*",
    "controller/*",
    "libs/brokerset_raft/*",
)
RIG = (
    "tests/harness/brokerset_rig/stack.py",
    "tests/harness/brokerset_rig/controller_parts.py",
    "tests/peers/*",
)
TAKEOVER = "libs/brokerset_cli/takeover/*"


@dataclass(frozen=True, slots=True)
class Suite:
    """A suite, and the paths that it is about; `*` matches slashes, too."""

    name: str
    command: str
    seconds: int
    """By the clock, on two cores that another lane uses as well."""
    paths: tuple[str, ...]


def _interop(name: str, seconds: int, *paths: str) -> Suite:
    return Suite(
        f"interop-{name}", f"python tests/interop/run.py --lanes 1 --only {name}", seconds, (*paths, *RIG)
    )


SUITES = (
    _interop("upgrades", 300, TAKEOVER, "tests/harness/brokerset_rig/upgrade*", "tests/releases/*"),
    _interop("adopt", 300, TAKEOVER, "controller/brokerset_namesrv/*", "tests/harness/brokerset_rig/adopt*"),
    _interop("releases", 240, TAKEOVER, "libs/brokerset_protocol/*", "broker/brokerset_broker/member/*", "tests/harness/brokerset_rig/release*"),
    _interop("mqadmin-consumers", 330, "broker/brokerset_broker/requests/admin.py", "broker/brokerset_broker/requests/groups.py", "broker/brokerset_broker/requests/offsets.py", "broker/brokerset_broker/requests/clients.py", "libs/brokerset_protocol/bodies/*", "libs/brokerset_client/client_requests.py"),
    _interop("access-group", 300, "libs/brokerset_runtime/tls/*", "libs/brokerset_acl/*", "broker/brokerset_broker/requests/access*", "broker/brokerset_broker/tables/access.py", "broker/brokerset_broker/member/*", "tests/harness/brokerset_rig/access_*"),
    _interop("secure-set", 180, "libs/brokerset_acl/*", "libs/brokerset_runtime/tls/*", "libs/brokerset_cli/set_[at]*", "broker/brokerset_broker/requests/access*", "tests/harness/brokerset_rig/secure_set.py"),
    _interop("timer-stores", 150, "broker/brokerset_broker/timers/*", "broker/brokerset_broker/services/timers/*", "libs/brokerset_formats/timer_files.py", "tests/harness/brokerset_rig/timer_stores.py"),
    _interop("transactions", 150, "broker/brokerset_broker/transactions/*", "broker/brokerset_broker/*/*transaction*", "libs/brokerset_formats/transactions.py", "tests/harness/brokerset_rig/transaction_stores.py"),
    _interop("pop-push", 180, "broker/brokerset_broker/pop/*", "broker/brokerset_broker/*/pop/*", "tests/harness/brokerset_rig/pop_*"),
    _interop("transaction-groups", 200, "broker/brokerset_broker/transactions/*", "broker/brokerset_broker/*/*transaction*", "libs/brokerset_formats/transactions.py", "tests/harness/brokerset_rig/transaction_*"),
    _interop("pop-stores", 360, "broker/brokerset_broker/pop/*", "broker/brokerset_broker/*/pop/*", "libs/brokerset_formats/pop/*", "tests/harness/brokerset_rig/pop_*"),
    _interop("traces", 120, "libs/brokerset_client/tracing.py", "libs/brokerset_protocol/bodies/traces.py", "libs/brokerset_cli/message_traces.py", "tests/harness/brokerset_rig/trace_suite.py"),
    _interop("pop-consumer", 90, "libs/brokerset_client/pop/*", "broker/brokerset_broker/*/pop/*", "broker/brokerset_broker/pop/*", "tests/harness/brokerset_rig/pop_consumer_suite.py"),
    _interop("proxy", 420, "broker/brokerset_broker/requests/groups.py", "broker/brokerset_broker/requests/clients.py", "broker/brokerset_broker/*/*transaction*", "broker/*/pop/*", "libs/brokerset_formats/pop/*", "tests/harness/brokerset_rig/proxy*"),
    _interop("mixed-groups", 300, *REPLICATION, "tests/harness/brokerset_rig/mixed*"),
    _interop("switches", 240, *REPLICATION, "tests/harness/brokerset_rig/switch*"),
    _interop("replication-clients", 300, *REPLICATION, "tests/harness/brokerset_rig/replication*"),
    _interop("migrated-stores", 240, "libs/brokerset_formats/*", "native/src/*", "broker/brokerset_broker/store/*", "spark/brokerset_spark/jobs/*", "tests/harness/brokerset_rig/migrated*"),
    _interop("dledger", 150, "libs/brokerset_dledger/*", "libs/brokerset_protocol/bodies/*", "broker/brokerset_broker/store/ledger.py", "tests/harness/brokerset_rig/dledger_suite.py", "tests/harness/brokerset_rig/dledger_node.py"),
    _interop("dledger-brokers", 600, "libs/brokerset_dledger/*", "broker/brokerset_broker/member/dledger/*", "broker/brokerset_broker/store/ledger*", "broker/brokerset_broker/store/receiving.py", "tests/harness/brokerset_rig/dledger_[abgl]*"),
    _interop("dledger-changes", 240, "libs/brokerset_dledger/*", "broker/brokerset_broker/member/dledger/*", "broker/brokerset_broker/store/ledger*", "tests/harness/brokerset_rig/dledger_[cgl]*"),
    _interop("dledger-clients", 240, "broker/brokerset_broker/member/dledger/*", "tests/harness/brokerset_rig/dledger_[cgl]*"),
    Suite("dledger-takeover", "make dledger-takeover", 300, (TAKEOVER, "broker/brokerset_broker/store/old_log.py", "broker/brokerset_broker/store/ledger*", "broker/brokerset_broker/member/dledger/*", "spark/brokerset_spark/jobs/migrate/*", "tests/harness/brokerset_rig/dledger_takeover.py", "tests/harness/brokerset_rig/takeover_records.py")),
    Suite("fuzz-native", "make fuzz-native FUZZ_SECONDS=15", 120, ("native/*", "tests/faults/native_fuzz.py")),
    Suite("image-spark", "flock build/ci/cluster.lock make e2e-kubernetes KUBERNETES=-ktest_store_jobs", 600, ("Dockerfile", "locks/spark.txt", "spark/entrypoint.sh", "tests/image.sh")),
    Suite("store-export", "flock build/ci/cluster.lock env BROKERSET_E2E_EXPORT_MINUTES=2 make e2e-kubernetes KUBERNETES=-ktest_the_table_equals", 480, ("operator/brokerset_operator/store_jobs/*", "operator/brokerset_operator/exports.py", "spark/brokerset_spark/jobs/lake/*", "spark/brokerset_spark/topics/*", "locks/spark.txt", "tests/e2e/kubernetes/test_store_export.py")),
    Suite("test-spark", "make test-spark", 600, ("spark/*", "libs/brokerset_formats/*", "locks/dev.txt", "tests/*/spark/*", "tests/harness/brokerset_rig/*store*")),
)  # fmt: skip
"""The table that `.ci/run` reads."""

INTEROP_LONG = tuple(
    suite.name.removeprefix("interop-") for suite in SUITES if suite.name.startswith("interop-")
)


def due(changed: Iterable[str] | None, today: datetime.date) -> list[tuple[Suite, str]]:
    """The suites that these paths need, each with one of them; all of them if nobody knows what changed.

    Each day another one is the first, so that what a run has no time for is not the same every day.
    """
    first = today.toordinal() % len(SUITES)
    in_turn = (*SUITES[first:], *SUITES[:first])
    if changed is None:
        return [(suite, "nobody knows what changed") for suite in in_turn]
    paths = sorted(changed)
    hits = {suite: [path for path in paths if matches(path, suite.paths)] for suite in in_turn}
    return [(suite, f"{found[0]} changed") for suite, found in hits.items() if found]


def matches(path: str, patterns: Sequence[str]) -> bool:
    """Whether a path is one that these patterns name."""
    return any(fnmatch(path, pattern) for pattern in patterns)


def base() -> str | None:
    """The commit since which changes count."""
    file = ROOT / ".ci" / "passed"
    return os.environ.get("CI_BASE") or (file.read_text().strip() if file.is_file() else None)


def changed_since(commit: str | None) -> set[str] | None:
    """Paths that differ from a commit, committed or not; None if the repository does not have it."""
    if commit is None:
        return None
    done = [
        subprocess.run(["git", *command], cwd=ROOT, capture_output=True, text=True, check=False)
        for command in (["diff", "--name-only", "--no-renames", commit, "--"], ["ls-files", "--others", "--exclude-standard"])
    ]  # fmt: skip
    if any(each.returncode for each in done):
        return None
    return {line for each in done for line in each.stdout.splitlines()}


def main() -> int:
    """Print a line for each suite that is due: name, seconds, reason and command, with tabs between them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--not-due", action="store_true", help="print the names of the others")
    asked = parser.parse_args()
    wanted = due(changed_since(base()), datetime.datetime.now(datetime.UTC).date())
    if asked.not_due:
        for suite in SUITES:
            if suite not in [one for one, _ in wanted]:
                print(suite.name)
    else:
        for suite, reason in wanted:
            print(suite.name, suite.seconds, reason, suite.command, sep="\t")
    return 0


if __name__ == "__main__":
    sys.exit(main())
