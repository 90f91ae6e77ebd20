"""A program that runs in a pod and is talked to over its standard input and output."""

from __future__ import annotations

import contextlib
import queue
import subprocess
import threading
import time
from pathlib import Path
from typing import Final

from tests.e2e.kubernetes.rig import Cluster

END_SECONDS: Final = 30.0


class PodProcess:
    """`kubectl exec` of a command; its lines are collected while it runs."""

    def __init__(self, cluster: Cluster, namespace: str, pod: str, *command: str) -> None:
        self._errors = Path(cluster.scratch) / f"{pod}-{time.time_ns()}.err"
        with self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                [cluster.kubectl_path, "--namespace", namespace, "exec", "-i", pod, "--", *command],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                env=cluster.env,
            )
        self._lines: queue.Queue[str] = queue.Queue()
        self._collector = threading.Thread(target=self._collect, daemon=True)
        self._collector.start()

    def _collect(self) -> None:
        assert self._process.stdout is not None, "it is a pipe"
        for line in self._process.stdout:
            self._lines.put(line.decode("utf-8", "replace"))
        self._lines.put("")

    def tell(self, line: str) -> None:
        """Write a line to it."""
        assert self._process.stdin is not None, "it is a pipe"
        self._process.stdin.write(f"{line}\n".encode())
        self._process.stdin.flush()

    def line(self, seconds: float) -> str:
        """Its next line; fails when it has ended or says nothing for so long."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            line = ""
        said = self._errors.read_text()[-3000:]
        assert line.strip(), f"no line within {seconds:g} s: {said}"
        return line.rstrip("\n")

    def lines_now(self) -> list[str]:
        """The lines that have come and were not taken yet."""
        found = []
        with contextlib.suppress(queue.Empty):
            while True:
                found.append(self._lines.get_nowait().rstrip("\n"))
        return [line for line in found if line]

    def end(self) -> None:
        """End it, whatever it does."""
        assert self._process.stdin is not None, "it is a pipe"
        assert self._process.stdout is not None, "it is a pipe"
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        self._process.terminate()
        self._process.wait(END_SECONDS)
        self._collector.join(END_SECONDS)
        self._process.stdout.close()
