"""What name servers are told as a broker's address, and which name servers those are."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

from brokerset_rig.registrar_parts import NameServer, Place
from brokerset_rig.waiting import until


async def test_a_master_is_told_under_the_masters_address_and_a_slave_under_its_own(tmp_path: Path) -> None:
    """And a broker that was master says goodbye as the slave it is: the other address is its successor's."""

    server = NameServer()
    port = await server.server.listen("127.0.0.1", 0)
    place = Place(
        tmp_path,
        f"127.0.0.1:{port}",
        advertised_address="orders-0-1.orders-0:10911",
        advertised_master_address="orders-0-master:10911",
    )
    async with asyncio.TaskGroup() as group:
        task = group.create_task(place.registrar.run())
        await server.heard((0, "orders-0-master:10911"))
        place.role = 2
        place.registrar.register_again()
        await server.heard((2, "orders-0-1.orders-0:10911"))
        place.role = 0
        place.registrar.register_again()
        await server.heard((0, "orders-0-master:10911"))
        place.role = 2
        await place.registrar.unregister()
        task.cancel()
    await server.server.close(0)

    assert server.leaving == ["orders-0-1.orders-0:10911"]


async def test_without_other_addresses_its_own_is_told_in_every_role(tmp_path: Path) -> None:
    """As RocketMQ does it."""

    server = NameServer()
    port = await server.server.listen("127.0.0.1", 0)
    place = Place(tmp_path, f"127.0.0.1:{port}")
    async with asyncio.TaskGroup() as group:
        task = group.create_task(place.registrar.run())
        await server.heard((0, "10.0.0.7:10911"))
        task.cancel()
    await server.server.close(0)


async def test_name_servers_come_and_go_with_their_dns_records(tmp_path: Path, monkeypatch: Any) -> None:
    """A name stands for all addresses behind it, and a failed look-up changes nothing."""

    monkeypatch.setattr("brokerset_broker.outside.name_servers.LOOK_UP_SECONDS", 0.02)

    first, second = NameServer(), NameServer()
    async with AsyncExitStack() as stack:
        port = await first.server.listen("127.0.0.1", 0)
        assert await second.server.listen("127.0.0.2", port) == port
        stack.push_async_callback(first.server.close, 0)
        stack.push_async_callback(second.server.close, 0)
        place = Place(tmp_path, f"servers:{port}", fetch_namesrv_addr_by_dns_lookup=True)
        task = asyncio.create_task(place.registrar.run())
        stack.callback(task.cancel)

        place.found = ["127.0.0.1"]
        await first.heard((0, "10.0.0.7:10911"))
        place.found = ["127.0.0.1", "127.0.0.2"]
        await second.heard((0, "10.0.0.7:10911"))
        both = [f"127.0.0.1:{port}", f"127.0.0.2:{port}"]
        await until(lambda: sorted(place.registrar.registered) == both)
        place.found = ()
        told = len(first.told)
        place.registrar.register_again()
        while len(first.told) == told:
            first.changed.clear()
            await first.changed.wait()
        place.found = ["127.0.0.2"]
        await until(lambda: place.registrar.addresses == [f"127.0.0.2:{port}"])
