"""Ways to ports of pods through the API server: one `kubectl port-forward` each, started at the first use."""

from __future__ import annotations

import asyncio
import os
import signal
from collections import deque
from contextlib import suppress
from typing import Final

from brokerset_cli.kubernetes.forward_targets import LOOPBACK, forwarded_port
from brokerset_cli.kubernetes.kubectl import Kubectl, environment, failure, no_kubectl

START_SECONDS: Final = 15.0
"""Longest time that kubectl has until it forwards; one that logs in needs seconds."""

ENDING_SECONDS: Final = 3.0
ERROR_LINES_MAX: Final = 20

LOST: Final = ("lost connection", "error forwarding", "error creating", "an error occurred", "timed out")
"""Parts of what kubectl writes when its way to the pod is broken; older ones go on running all the same."""


class Tunnel:
    """`kubectl port-forward` to one port of one pod; starts again after it has ended or lost its pod."""

    def __init__(self, kubectl: Kubectl, pod: str, port: int) -> None:
        self._kubectl = kubectl
        self._pod = pod
        self._port = port
        self._lock = asyncio.Lock()
        self._process: asyncio.subprocess.Process | None = None
        self._local: int | None = None
        self._readers: tuple[asyncio.Task[None], ...] = ()
        self._errors: deque[str] = deque(maxlen=ERROR_LINES_MAX)
        self._closed = False

    async def port(self) -> int:
        """The local port, of a kubectl that runs. Raises `KubectlFailed`."""
        async with self._lock:
            process = self._process
            if self._local is not None and process is not None and process.returncode is None:
                return self._local
            await self._end()
            if self._closed:
                raise ConnectionError(f"the way to {self._pod} is closed")
            return await self._start()

    async def renew(self, port: int) -> None:
        """End the kubectl that forwards from `port`: it leads nowhere; the next use starts another one."""
        async with self._lock:
            if self._local in (port, None):
                await self._end()

    async def close(self) -> None:
        """End kubectl for good."""
        self._closed = True
        async with self._lock:
            await self._end()

    async def _start(self) -> int:
        command = self._kubectl.command(
            "port-forward", f"pod/{self._pod}", f":{self._port}", f"--address={LOOPBACK}"
        )
        try:
            self._process = process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env=environment(),
                # Ctrl-C is for this program, which ends its kubectls in order.
                start_new_session=os.name == "posix",
            )
        except OSError as error:
            no_kubectl(command[0], error)
        assert process.stdout is not None, "a pipe was asked for"
        assert process.stderr is not None, "a pipe was asked for"
        self._errors.clear()
        started: asyncio.Future[int | None] = asyncio.get_running_loop().create_future()
        # Both are read until kubectl ends: a pipe that nobody empties would stop it.
        out = asyncio.create_task(self._read_out(process.stdout, started))
        errors = asyncio.create_task(self._read_errors(process.stderr))
        self._readers = (out, errors)
        try:
            async with asyncio.timeout(START_SECONDS):
                local = await started
                if local is None:
                    await errors
                    raise failure("\n".join(self._errors))
        except BaseException as error:
            await self._end()
            if isinstance(error, TimeoutError):
                raise failure(f"Unable to connect: no way to {self._pod} in {START_SECONDS:g} s") from None
            raise
        self._local = local
        return local

    async def _read_out(self, stream: asyncio.StreamReader, started: asyncio.Future[int | None]) -> None:
        async for line in stream:
            port = forwarded_port(line.decode("utf-8", "replace"))
            if port is not None and not started.done():
                started.set_result(port)
        if not started.done():
            started.set_result(None)

    async def _read_errors(self, stream: asyncio.StreamReader) -> None:
        async for line in stream:
            text = line.decode("utf-8", "replace").strip()
            self._errors.append(text)
            if any(sign in text for sign in LOST):
                self._local = None  # the next use starts a new one

    async def _end(self) -> None:
        process, self._process, self._local = self._process, None, None
        readers, self._readers = self._readers, ()
        if process is not None and process.returncode is None:
            await end_process(process)
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)


async def end_process(process: asyncio.subprocess.Process) -> None:
    """End a kubectl, by force when it does not end by itself."""
    with suppress(ProcessLookupError):
        # Not by `terminate`: that may take the exit status away from asyncio, which then complains.
        os.kill(process.pid, signal.SIGTERM)
    try:
        async with asyncio.timeout(ENDING_SECONDS):
            await process.wait()
    except TimeoutError:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()


class Tunnels:
    """The ways to the pods of a set; each pod, by its UID, has one to each port that is used."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        self._open: dict[tuple[str, str, int], Tunnel] = {}

    def to(self, pod: str, uid: str, port: int) -> Tunnel:
        """The way to a port; made now, not started, if there is none."""
        return self._open.setdefault((pod, uid, port), Tunnel(self._kubectl, pod, port))

    async def keep(self, pods: set[tuple[str, str]]) -> None:
        """End the ways to pods that are none of these."""
        gone = [key for key in self._open if key[:2] not in pods]
        await asyncio.gather(*(self._open.pop(key).close() for key in gone))

    async def close(self) -> None:
        """End all."""
        await self.keep(set())
