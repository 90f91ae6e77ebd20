"""The README's example runs as it stands."""

from __future__ import annotations

import asyncio
import re
import textwrap
from collections.abc import Callable, Coroutine
from pathlib import Path

from brokerset_cli.readiness import broker_is_found
from brokerset_rig import stack

README = Path(__file__).parents[2] / "README.md"


def test_the_python_example_sends_a_message(tmp_path: Path) -> None:
    """Against a name server and a broker that were started for it, at another port."""
    found = re.search(r"```python\n(.*?)```", README.read_text(), re.S)
    assert found is not None
    ports = stack.free_ports(3, below=2)
    example = found[1].replace("127.0.0.1:9876", f"127.0.0.1:{ports[0]}")
    names: dict[str, Callable[[], Coroutine[None, None, None]]] = {}
    exec(f"async def main():\n{textwrap.indent(example, '    ')}\n    return None\n", names)

    with (
        stack.our_namesrv(tmp_path, ports[0]) as namesrv,
        stack.our_broker(tmp_path, ports[1], namesrv.address, {"httpPort": str(ports[2])}),
    ):
        asyncio.run(_run(f"127.0.0.1:{ports[1]}", ports[2], namesrv.address, names["main"]))


async def _run(
    broker: str, http_port: int, namesrv: str, example: Callable[[], Coroutine[None, None, None]]
) -> None:
    """Run the example once the broker has registered; it listens a little earlier."""
    async with asyncio.timeout(30):
        while not await broker_is_found(broker, http_port, [namesrv]):  # noqa: ASYNC110  # sets no event
            await asyncio.sleep(0.02)
        await example()
