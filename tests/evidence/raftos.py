"""What `raftos` 0.2.6 does, shown by running its own code: `raftos.py` (evidence for decision 5).

The source distribution is downloaded into a temporary folder, with the msgpack that it pins; nothing is
installed here. Each claim is a function that returns what was seen, and prints REPRODUCED or NOT REPRODUCED.
Exit status 0 only if all were reproduced.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

RAFTOS = "raftos==0.2.6"
MSGPACK = "msgpack-python==0.4.8"
PIP_SECONDS_MAX = 300


@dataclass(frozen=True, slots=True)
class Claim:
    """A sentence, and how to see whether it is true: the evidence, or None when it is not."""

    sentence: str
    show: Callable[[Evidence], str | None]


@dataclass(slots=True)
class Evidence:
    """The unpacked distribution, its modules, and a folder for its files."""

    folder: Path
    source: Path
    nodes: int = 0
    sent: list[dict[str, Any]] = field(default_factory=list)

    def module(self, name: str) -> Any:
        return importlib.import_module(f"raftos.{name}")

    def where(self, thing: Any, text: str) -> str:
        """`file:line` of the first line of `thing` that contains `text`."""
        lines, first = inspect.getsourcelines(thing)
        number = next(first + i for i, line in enumerate(lines) if text in line)
        path = Path(str(inspect.getsourcefile(thing)))
        return f"{path.parent.name}/{path.name}:{number}"

    def log_path(self) -> Path:
        """A fresh folder that raftos keeps its files in."""
        self.nodes += 1
        path = self.folder / f"node-{self.nodes}"
        path.mkdir()
        self.module("conf").config.log_path = str(path)
        return path

    def server(self, nodes: int) -> SimpleNamespace:
        """What raftos' `State` needs of its `Node`, without a socket; answers are collected in `sent`."""

        async def send(data: dict[str, Any], destination: object) -> None:
            self.sent.append(data)

        others = {("127.0.0.1", 9001 + i) for i in range(nodes - 1)}
        return SimpleNamespace(
            host="127.0.0.1", port=9000, loop=asyncio.get_running_loop(), cluster=others,
            cluster_count=len(others), send=send, broadcast=lambda data: None,
        )  # fmt: skip


def pip(*arguments: str, constraint: Path | None = None) -> subprocess.CompletedProcess[str]:
    names = ("PIP_CONSTRAINT", "PIP_BUILD_CONSTRAINT")  # the second is the name since pip 25.3
    env = {**os.environ, **({name: str(constraint) for name in names} if constraint else {})}
    return subprocess.run(
        [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments],
        capture_output=True, text=True, timeout=PIP_SECONDS_MAX, env=env,
    )  # fmt: skip


def download(folder: Path) -> Evidence:
    """Unpack the distribution and put it first on the import path. Raises `RuntimeError` with pip's words."""
    done = pip("download", "-q", "--no-deps", "--no-binary", ":all:", "-d", str(folder), RAFTOS)
    archives = list(folder.glob("raftos-*"))
    if not archives:
        raise RuntimeError(f"{RAFTOS} could not be downloaded: {done.stderr[-500:]}")
    if archives[0].suffix == ".zip":
        with zipfile.ZipFile(archives[0]) as archive:
            archive.extractall(folder)
    else:
        subprocess.run(["tar", "xf", str(archives[0]), "-C", str(folder)], check=True)
    done = pip("install", "-q", "--no-deps", "--target", str(folder / "msgpack"), MSGPACK)
    if done.returncode:
        raise RuntimeError(f"{MSGPACK} could not be fetched: {done.stderr[-500:]}")
    source = folder / "raftos-0.2.6"
    sys.path[:0] = [str(source), str(folder / "msgpack")]
    return Evidence(folder, source)


def does_not_install(evidence: Evidence) -> str | None:
    requirements = (evidence.source / "requirements.txt").read_text()
    pin = next(line for line in requirements.splitlines() if "crypto" in line)
    old = evidence.folder / "old.txt"
    old.write_text("setuptools<70\n")
    seen = []
    for words, constraint in (("today's setuptools", None), ("an old setuptools", old)):
        wheels = evidence.folder / words.replace(" ", "-")
        done = pip(
            "wheel", "-q", "--no-cache-dir", "--no-deps", "-w", str(wheels), pin, constraint=constraint
        )
        wheel = next(wheels.glob("*.whl"), None)
        if wheel is None:
            reason = re.search(r"^\s*(\w*Error: .+)$", done.stderr, re.M)
            seen.append(f"{words}: {reason[1] if reason else done.stderr.strip()[-200:]}")
            continue
        with zipfile.ZipFile(wheel) as archive:
            if any(name.endswith(".so") for name in archive.namelist()):
                return None
        seen.append(f"{words}: {wheel.name}, which lacks all modules in C")
    where = evidence.where(evidence.module("cryptors"), "default_cryptor =")
    return f"requirements.txt pins {pin}; {'; '.join(seen)}; without it {where} sends in clear text"


def does_not_start(evidence: Evidence) -> str | None:
    async def start() -> str | None:
        evidence.log_path()
        try:
            evidence.module("server").Node(("127.0.0.1", 9000), asyncio.get_running_loop())
        except TypeError as error:
            version = ".".join(map(str, sys.version_info[:2]))
            where = evidence.where(evidence.module("server").Node, "asyncio.Queue")
            return f"{where}, Python {version}: {error}"
        return None

    return asyncio.run(start())


def loses_the_log(evidence: Evidence) -> str | None:
    storage, packer = evidence.module("storage"), evidence.module("serializers").MessagePackSerializer

    class Forgiving(packer):  # type: ignore[valid-type,misc]  # a class of a module that is not there yet
        """Passes over the line end behind an entry, so that only those inside of entries are left."""

        @staticmethod
        def unpack(data: bytes) -> object:
            return packer.unpack(data.removesuffix(b"\n"))

    def reread(serializer: object, *terms: int) -> str | None:
        evidence.log_path()
        log = storage.Log("127.0.0.1:9000", serializer)
        for term in terms:
            log.write(term, {"topic": "a"})
        try:
            left = len(storage.Log("127.0.0.1:9000", serializer))
        except Exception as error:  # whatever the reading of a torn line raises
            return f"reading entries of the terms {terms} ends in {type(error).__name__}"
        return f"{left} of {len(terms)} entries are read back" if left < len(terms) else None

    inside = reread(Forgiving, 9, 10, 11)
    if inside is None or reread(Forgiving, 8, 9, 11) is not None:
        return None
    where = evidence.where(storage.Log.read, "readlines")
    behind = reread(packer, 8, 9, 11)
    also = f"; as it comes, even {behind}, at the line end behind each" if behind else ""
    return f"{where}: {inside}, for 10 is the byte of a line end{also}"


def vote_request(term: int, candidate: str) -> dict[str, Any]:
    return {"type": "request_vote", "term": term, "candidate_id": candidate, "last_log_index": 0,
            "last_log_term": 0, "sender": ("127.0.0.1", 9001)}  # fmt: skip


def votes_twice(evidence: Evidence) -> str | None:
    async def vote() -> str | None:
        evidence.log_path()
        module = evidence.module("state")
        votes = []
        for candidate in ("A", "B"):  # the second one asks after a restart on the same files
            evidence.sent.clear()
            state = module.State(evidence.server(3))
            state.start()
            if candidate == "A":
                state.storage.update({"term": 5})
            state.request_handler(vote_request(5, candidate))
            await asyncio.sleep(0)
            state.stop()
            granted = [answer["term"] for answer in evidence.sent if answer["vote_granted"]]
            votes += [f"{candidate} in term {term}" for term in granted]
        where = evidence.where(module.Follower.init_storage, "'voted_for': None")
        return f"{where}: granted to {' and, after a restart, to '.join(votes)}" if len(votes) == 2 else None

    return asyncio.run(vote())


def erases_acknowledged(evidence: Evidence) -> str | None:
    async def follow() -> str | None:
        evidence.log_path()
        module = evidence.module("state")
        serializers = evidence.module("serializers")
        with mock.patch.object(evidence.module("conf").config, "serializer", serializers.JSONSerializer):
            state = module.State(evidence.server(3))  # with the serializer whose logs can be read back
        state.start()
        state.storage.update({"term": 1})
        evidence.sent.clear()

        def append(index: int) -> dict[str, Any]:
            return {"type": "append_entries", "term": 1, "leader_id": "A", "prev_log_index": index - 1,
                    "prev_log_term": 1 if index > 1 else 0, "entries": [{"term": 1, "command": {"n": index}}],
                    "commit_index": index, "request_id": index, "sender": ("127.0.0.1", 9001)}  # fmt: skip

        # The name that Python 3.7 had; without it a follower fails on the first entry that it applies.
        name = mock.patch.object(asyncio.futures, "InvalidStateError", asyncio.InvalidStateError, create=True)
        with name:
            for index in (1, 2, 3, 2):  # UDP may deliver a datagram twice
                state.request_handler(append(index))
                await asyncio.sleep(0)
        state.stop()
        acked = [answer["last_log_index"] for answer in evidence.sent if answer["success"]]
        left = len(module.Log("127.0.0.1:9000", serializers.JSONSerializer))
        where = evidence.where(module.Follower.on_receive_append_entries, "erase_from")
        if max(acked) <= left:
            return None
        return f"{where}: acknowledged {max(acked)} (committed); a doubled datagram of entry 2 leaves {left}"

    return asyncio.run(follow())


def counts_wrongly(evidence: Evidence) -> str | None:
    async def count() -> dict[int, int]:
        evidence.log_path()
        state = evidence.module("state").State
        found = {}
        for nodes in range(2, 7):
            server = object.__new__(evidence.module("server").Node)
            server.cluster = {("127.0.0.1", 9001 + i) for i in range(nodes - 1)}
            view = SimpleNamespace(server=server)
            found[nodes] = next(votes for votes in range(nodes + 1) if state.is_majority(view, votes))
        return found

    found = asyncio.run(count())
    wrong = {nodes: votes for nodes, votes in found.items() if votes * 2 <= nodes}
    where = evidence.where(evidence.module("state").State.is_majority, "return")
    text = ", ".join(f"{votes} of {nodes}" for nodes, votes in wrong.items())
    return f"{where}: {text} are a majority" if wrong else None


def never_syncs(evidence: Evidence) -> str | None:
    async def write() -> int:
        evidence.log_path()
        with mock.patch.object(os, "fsync") as fsync, mock.patch.object(os, "fdatasync") as fdatasync:
            state = evidence.module("state").State(evidence.server(3))
            state.start()
            state.request_handler(vote_request(1, "A"))
            state.log.write(1, {"topic": "a"})
            state.stop()
        return int(fsync.call_count + fdatasync.call_count)

    calls = asyncio.run(write())
    named = [path.name for path in (evidence.source / "raftos").glob("*.py") if "sync(" in path.read_text()]
    if calls or named:
        return None
    return "a vote and an entry were written with 0 calls of fsync and fdatasync; no file contains 'sync('"


CLAIMS = [
    Claim("pins a cryptography release that no longer builds", does_not_install),
    Claim("does not start on Python 3.10 or later", does_not_start),
    Claim("loses the log when an entry contains the byte of a line end", loses_the_log),
    Claim("forgets its vote at every start", votes_twice),
    Claim("erases entries that it has acknowledged", erases_acknowledged),
    Claim("takes half of the nodes for a majority when their number is even", counts_wrongly),
    Claim("never syncs anything", never_syncs),
]


def main() -> int:
    reproduced = 0
    with tempfile.TemporaryDirectory(prefix="raftos-") as folder:
        evidence = download(Path(folder))
        for claim in CLAIMS:
            seen = claim.show(evidence)
            reproduced += seen is not None
            print(f"{'REPRODUCED' if seen else 'NOT REPRODUCED'}  raftos {claim.sentence}", flush=True)
            print(f"    {seen or 'nothing of the kind was seen'}", flush=True)
    print(f"{reproduced} of {len(CLAIMS)} claims reproduced")
    return 0 if reproduced == len(CLAIMS) else 1


if __name__ == "__main__":
    sys.exit(main())
