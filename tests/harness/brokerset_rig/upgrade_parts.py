"""`brokerset upgrade` with real old releases: what they wrote is led into controller mode, by a command that is killed on its way."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from brokerset_cli.takeover.upgrade_observation import started_processes
from brokerset_formats.records import COMPUTE_CRC, encode_record
from brokerset_rig import controller_parts, stack, store_reading
from brokerset_rig.controllers import Panel, until
from brokerset_rig.old_groups import (
    CLASSIC_RELEASE,
    FILE_BYTES,
    GROUP,
    IDENTITY_RELEASE,
    MESSAGES,
    SMALL,
    Old,
    old_classic_group,
    old_identity_group,
    old_master,
)
from brokerset_rig.upgrade_checks import check

Add = controller_parts.Add
ROUNDS_MAX = 80
COMMAND_SECONDS_MAX = 180.0
OURS = SMALL
NOT_DONE_EXIT = 3


def run(add: Add, size: str) -> None:
    identity(add, "ours", _ours)
    classic(add)
    refused(add)
    if size == "all":
        identity(add, "Java's 5.5.0", _javas)


# -- the new sides ----------------------------------------------------------------------------------------

Make = Callable[[Path, list[int], list[int]], stack.Controllers]
Broker = Callable[[Path, int, str, Mapping[str, str]], stack.Server]


def _ours() -> tuple[Make, Broker, dict[str, str]]:
    return stack.our_controllers, stack.our_broker, OURS


def _javas() -> tuple[Make, Broker, dict[str, str]]:
    return stack.java_controllers, controller_parts.small_java_broker, SMALL


def new_settings(group: stack.Controllers, sizes: Mapping[str, str]) -> dict[str, str]:
    return {
        **controller_parts.BROKER_SETTINGS,
        **sizes,
        "controllerAddr": group.addresses,
        "allAckInSyncStateSet": "true",
    }


# -- the command, and the person before it ----------------------------------------------------------------


@dataclass
class Person:
    """Runs the command again and again, kills it on its way, and does what it asks for."""

    arguments: list[str]
    does: Mapping[str, Callable[[str], object]]
    """By the step that waits for it; what it is called with is what the command saw."""
    kills: int = 0
    seen: list[str] = field(default_factory=list)
    """Every step that the command said was the current one."""

    def complete(self) -> dict[str, Any]:
        """Until the command says that all is done. Raises `StackError` when it is blocked, or goes round in circles."""
        for _ in range(ROUNDS_MAX):
            self._run_and_kill()
            answer = self.look()
            if answer["done"]:
                return answer
            step = next(each for each in answer["steps"] if each["state"] != "done")
            if not self.seen or self.seen[-1] != step["name"]:
                self.seen.append(step["name"])
            if step["state"] == "blocked":
                raise stack.StackError(f"{step['name']}: {step['detail']}; {step['hint']}")
            if step["state"] == "yours":
                self.does[step["name"]](step["detail"])
            elif step["state"] == "waiting":
                time.sleep(1.0)
        raise stack.StackError(f"not done after {ROUNDS_MAX} rounds; last steps {self.seen[-5:]}")

    def _run_and_kill(self) -> None:
        """Run it; `kill -9` as it begins its second act, so that each run does one and leaves one half done."""
        process = subprocess.Popen(
            self._command("--yes", "--wait", "0"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )
        assert process.stdout is not None
        lines = 0
        text = []
        for line in process.stdout:
            text.append(line)
            lines += any(line.startswith(f"{name}: ") for name in ACTS)
            if lines == 2:
                process.send_signal(signal.SIGKILL)
                self.kills += 1
                break
        process.stdout.close()
        status = process.wait(COMMAND_SECONDS_MAX)
        if status not in (0, 1, NOT_DONE_EXIT, -signal.SIGKILL):
            raise stack.StackError(f"the command ended with {status}:\n{''.join(text)[-2000:]}")

    def look(self) -> dict[str, Any]:
        done = subprocess.run(
            self._command("--look", "--json"), capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX
        )
        if done.returncode:
            raise stack.StackError(f"--look ended with {done.returncode}:\n{done.stderr[-2000:]}")
        found = json.loads(done.stdout)
        assert isinstance(found, dict)
        return found

    def _command(self, *more: str) -> list[str]:
        return [sys.executable, "-m", "brokerset_cli.main", "upgrade", *self.arguments, *more]


ACTS = ("notes", "controller-data", "read-only", "logs", "epochs", "start-master", "start-slaves", "writable")
"""Steps that the command takes itself."""


def stores_of(old: Old) -> list[str]:
    return [each for store in old.stores() for each in ("--store", str(store))]


# -- scenarios --------------------------------------------------------------------------------------------


def identity(add: Add, make_name: str, make: Callable[[], tuple[Make, Broker, dict[str, str]]]) -> None:
    make_controllers, make_broker, sizes = make()
    with stack.Workspace("upgrade-identity") as folder, ExitStack() as running:
        prefix = f"{IDENTITY_RELEASE} with address-based ids to {make_name}"
        with controller_parts.step(add, f"{prefix}: the old group runs, in sync, with {MESSAGES} messages"):
            old = old_identity_group(running, folder, 3 if make is _ours else 2)
        ports = stack.free_ports(6, below=2)
        group = make_controllers(folder / "new", ports[:3], ports[3:])
        new = [
            make_broker(broker.folder, broker.port, group.name_servers, new_settings(group, sizes))
            for broker in old.brokers
        ]
        data = [each.folder / "store" for each in old.others if "controller" in each.name]
        person = Person(
            ["identity", *stores_of(old), "--namesrv", old.namesrv, "--controllers", group.addresses,
             "--old-controllers", ";".join(each.address for each in old.others if "controller" in each.name),
             *[each for path in data for each in ("--controller-data", str(path))]],
            {
                "old-controllers": lambda _: [each.stop() for each in old.others if "controller" in each.name],
                "controllers": lambda _: running.enter_context(group),
                "slaves-stopped": lambda seen: stop_named(old, seen),
                "master-stopped": lambda seen: stop_named(old, seen),
                "start-master": lambda seen: start_named(running, old, new, seen),
                "start-slaves": lambda seen: start_named(running, old, new, seen),
            },
        )  # fmt: skip
        before: dict[str, str] = {}
        with controller_parts.step(
            add, f"{prefix}: the command, killed with kill -9 between its acts, leads the group over"
        ) as problems:
            before = {"master": str(old_master(old).folder)}
            person.complete()
            problems += order_problems(person.seen, IDENTITY_ORDER)
            if person.kills < 2:
                problems.append(f"the command was killed {person.kills} times only")
            problems += [f"{path} is still there" for path in data if path.exists()]
            problems += [
                f"{path} was not kept" for path in data if not path.with_name("store-upgrade-backup").exists()
            ]
            problems += backup_problems(old)
        with controller_parts.step(add, f"{prefix}: the old master leads first") as problems:
            panel = Panel(group.ports)
            found = until("a master", lambda: panel.master(GROUP), 30)
            leader = next(each for each in new if each.port == found[1])
            if str(leader.folder) != before["master"]:
                problems.append(f"{leader.folder} leads, {before['master']} did before")
        check(add, prefix, old, new, group)


def classic(add: Add) -> None:
    with stack.Workspace("upgrade-classic") as folder, ExitStack() as running:
        prefix = f"{CLASSIC_RELEASE} master and slave to ours"
        with controller_parts.step(add, f"{prefix}: the old brokers run, with {MESSAGES} messages"):
            old = old_classic_group(running, folder)
        ports = stack.free_ports(6, below=2)
        group = stack.our_controllers(folder / "new", ports[:3], ports[3:])
        new = [
            stack.our_broker(broker.folder, broker.port, group.name_servers, new_settings(group, OURS))
            for broker in old.brokers
        ]
        running.callback(end_started, old.stores())
        # The command starts the brokers itself: `{number}` is that of the store.
        start = f"{sys.executable} -m brokerset_broker -c {folder}/b{{number}}/broker.conf"
        person = Person(
            ["classic", *stores_of(old), "--namesrv", old.namesrv, "--controllers", group.addresses, "--start-with", start],
            {
                "controllers": lambda _: running.enter_context(group),
                "slaves-stopped": lambda seen: stop_named(old, seen),
                "master-stopped": lambda seen: stop_named(old, seen),
            },
        )  # fmt: skip
        with controller_parts.step(
            add,
            f"{prefix}: the command, killed with kill -9 between its acts, starts the brokers and leads them over",
        ) as problems:
            person.complete()
            problems += order_problems(person.seen, CLASSIC_ORDER)
            if person.kills < 2:
                problems.append(f"the command was killed {person.kills} times only")
            problems += backup_problems(old)
        check(add, prefix, old, new, group)


def refused(add: Add) -> None:
    """A slave whose last message is another one than its master's."""
    sentence = "a slave that is not aligned is refused, with what would be cut; --accept-cut cuts that, --back undoes it"
    with (
        stack.Workspace("upgrade-refused") as folder,
        ExitStack() as running,
        controller_parts.step(add, sentence) as problems,
    ):
        old = old_classic_group(running, folder)
        ports = stack.free_ports(6, below=2)
        group = running.enter_context(stack.our_controllers(folder / "new", ports[:3], ports[3:]))
        for broker in (*reversed(old.brokers), *old.others):
            broker.stop()
        master, slave = old.stores()
        last = change_last_message(slave)
        ends = store_reading.read_commit_log(slave)[-1]
        before = tree_digest(slave)
        arguments = ["classic", *stores_of(old), "--controllers", group.addresses, "--group", GROUP]
        arguments += ["--master", str(master)]
        person = Person(arguments, {})
        step = next(each for each in person.look()["steps"] if each["state"] == "blocked")
        words = (
            f"{slave} differs from {master}; would be cut from offset {last:,} on: 1 message, {ends.size:,} bytes,"
            f" which {master} does not have"
        )
        if (step["name"], step["detail"]) != ("logs", words):
            problems.append(f"{step['name']}: {step['detail']}\ninstead of: {words}")
        done = subprocess.run(
            [*person._command("--yes", "--wait", "0")],
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS_MAX,
        )
        if done.returncode != 1 or words not in done.stderr:
            problems.append(f"exit {done.returncode}: {done.stderr[-600:]}")
        if tree_digest(slave) != before:
            problems.append("the refused store was changed")
        cutting = Person([*arguments, "--accept-cut", str(slave)], {"start-master": lambda _: None})
        for _ in range(6):
            cutting._run_and_kill()
        step = next(each for each in cutting.look()["steps"] if each["state"] != "done")
        if step["name"] != "start-master":
            problems.append(f"after --accept-cut the step is {step}")
        if (
            store_reading.read_commit_log(slave)[-1].offset + store_reading.read_commit_log(slave)[-1].size
            != last
        ):
            problems.append("the log was not cut where it was said")
        back = subprocess.run(
            cutting._command("--back", "--yes"), capture_output=True, text=True, timeout=COMMAND_SECONDS_MAX
        )
        if back.returncode or tree_digest(slave) != before:
            problems.append(f"--back ({back.returncode}) did not put everything back: {back.stderr[-600:]}")


IDENTITY_ORDER = (
    "old-controllers",
    "controllers",
    "slaves-stopped",
    "master-stopped",
    "start-master",
    "start-slaves",
)
CLASSIC_ORDER = ("controllers", "slaves-stopped", "master-stopped")


def order_problems(seen: list[str], wanted: tuple[str, ...]) -> list[str]:
    """Whether the command asked for what it asks for in the order in which it has to be done."""
    asked = [name for name in seen if name in wanted]
    first = list(dict.fromkeys(asked))
    return [] if first == list(wanted) else [f"the steps came as {seen}, not as {wanted}"]


def named(old: Old, seen: str) -> list[int]:
    return [i for i, store in enumerate(old.stores()) if str(store) in seen]


def stop_named(old: Old, seen: str) -> None:
    for number in named(old, seen):
        old.brokers[number].stop()


def start_named(running: ExitStack, old: Old, new: list[stack.Server], seen: str) -> None:
    for number in named(old, seen):
        running.callback(controller_parts.kill_running, new[number])
        new[number].start()


def end_started(stores: list[Path]) -> None:
    """End the brokers that the command started."""
    for store in stores:
        for process in started_processes(store):
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)


def backup_problems(old: Old) -> list[str]:
    """The old epochs of every store lie in its backup folder, and the manifest names them."""
    problems = []
    for store in old.stores():
        manifest = json.loads((store / "upgrade-backup" / "manifest.json").read_text())
        for name in manifest["moved"]:
            if not (store / "upgrade-backup" / name).exists():
                problems.append(f"{name} of {store} is not in the backup")
        epochs = (store / "epochFileCheckpoint").read_text().splitlines()
        if epochs[2] != "0-0":
            problems.append(f"{store} begins with the epoch {epochs[2]}")
    return problems


def change_last_message(store: Path) -> int:
    """Write another body of the same length into the last record; its offset."""
    last = store_reading.read_commit_log(store)[-1]
    other = replace(last.record, body=bytes(len(last.record.body)), body_crc=COMPUTE_CRC)
    file = store / "commitlog" / f"{last.offset // FILE_BYTES * FILE_BYTES:020d}"
    with file.open("r+b") as stream:
        stream.seek(last.offset % FILE_BYTES)
        stream.write(encode_record(other))
    return last.offset


def tree_digest(store: Path) -> str:
    """Over all files of a store but its lock and what the command keeps alongside."""
    found = hashlib.sha256()
    for path in sorted(each for each in store.rglob("*") if each.is_file()):
        name = path.relative_to(store)
        if name.name != "lock" and name.parts[0] != "upgrade-backup":
            found.update(str(name).encode() + hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()
