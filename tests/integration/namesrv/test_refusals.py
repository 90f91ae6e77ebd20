"""Who is no administrator does not keep a name server busy with one connection."""

from __future__ import annotations

import asyncio
from pathlib import Path

from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_rig.local_servers import HOST, Client, running_name_server
from brokerset_runtime.remoting import connect

INNER = '{"accessKey":"broker","secretKey":"of-brokers"}'


async def test_a_connection_that_is_refused_too_often_ends(tmp_path: Path) -> None:
    """The setting says how often; what needs no signature does not count, and another one is served."""
    async with running_name_server(
        tmp_path,
        authentication_enabled=True,
        inner_client_authentication_credentials=INNER,
        refusals_max=3,
    ) as names:
        address = f"{HOST}:{names.port}"
        stranger, client = Client(await connect(address)), Client(await connect(address))
        for _ in range(5):
            assert (await client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="t")).code != 16

        codes = [(await stranger.call(RequestCode.UNREGISTER_BROKER, brokerName="b")).code for _ in range(3)]
        async with asyncio.timeout(60):
            await stranger.connection.wait_closed()

        assert codes == [ResponseCode.NO_PERMISSION] * 3
        assert (await client.call(RequestCode.GET_ROUTEINFO_BY_TOPIC, topic="t")).code != 16
        client.connection.close()
        await client.connection.wait_closed()
