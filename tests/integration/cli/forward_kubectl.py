"""A kubectl for tests of port-forward: objects from files of a folder, pods that are ports of this machine.

The variable `FORWARD_KUBECTL` names the folder: `<kind>.json` has a list of objects, `<pod>.port` the port
where a pod listens. Every `port-forward` and watch writes its process id into `pids`.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

FOLDER = Path(os.environ["FORWARD_KUBECTL"])


def objects(kind: str) -> object:
    """What `get` finds."""
    return json.loads((FOLDER / f"{kind.partition('.')[0]}.json").read_text())


async def watch(kind: str) -> None:
    """Print a line whenever the file of a kind has changed."""
    file = FOLDER / f"{kind}.json"
    seen = file.stat().st_mtime_ns
    while True:
        await asyncio.sleep(0.02)
        if file.stat().st_mtime_ns != seen:
            seen = file.stat().st_mtime_ns
            print("endpointslice/changed", flush=True)


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Copy until the end."""
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


async def forward(pod: str, port: str) -> None:
    """Do as `kubectl port-forward` does."""
    if not (FOLDER / f"{pod}.port").exists():
        sys.exit(f"error: unable to forward port because pod is not running. Current status=Pending ({pod})")

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        print("Handling connection", flush=True)
        try:
            target = int((FOLDER / f"{pod}.port").read_text())
            pod_reader, pod_writer = await asyncio.open_connection("127.0.0.1", target)
        except OSError:
            print("error: lost connection to pod", file=sys.stderr, flush=True)
            os._exit(1)
        await asyncio.gather(copy(reader, pod_writer), copy(pod_reader, writer), return_exceptions=True)

    server = await asyncio.start_server(accepted, "127.0.0.1", 0)
    print(f"Forwarding from 127.0.0.1:{server.sockets[0].getsockname()[1]} -> {port}", flush=True)
    await server.serve_forever()


def main() -> None:
    """One call."""
    words = [word for word in sys.argv[1:] if not word.startswith("-")]
    if words[0] == "get" and "--watch-only" not in sys.argv:
        found = objects(words[1])
        print(json.dumps(found if words[1].startswith("brokersets") else {"items": found}))
        return
    with (FOLDER / "pids").open("a") as pids:
        pids.write(f"{os.getpid()}\n")
    if words[0] == "get":
        asyncio.run(watch(words[1]))
    else:
        asyncio.run(forward(words[1].removeprefix("pod/"), words[2].removeprefix(":")))


if __name__ == "__main__":
    main()
