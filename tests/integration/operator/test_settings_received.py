"""What running brokers say of their settings, and how they are told others."""

from __future__ import annotations

import asyncio

import pytest

from brokerset_broker.live_settings import LiveSettings
from brokerset_operator.apply import ActionFailed, _tell_settings
from brokerset_operator.brokers_view import broker_addresses, settings_at
from brokerset_operator.model import names
from brokerset_operator.model.actions import TellSettings
from brokerset_operator.model.observed import Meta, Observed, Operator
from brokerset_operator.observe import Seen
from brokerset_operator.resources.live_settings import OBSERVED
from brokerset_protocol.bodies import properties_text
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_rig.operator_parts import a_pod
from brokerset_rig.process_loopback import PROCESS_LOOPBACK
from brokerset_runtime.remoting import Connection, RemotingServer
from brokerset_runtime.settings import settings_values
from brokerset_spec.broker_settings import BrokerSettings

HOST = PROCESS_LOOPBACK


def test_settings_are_seen_and_told_and_only_to_who_is_meant() -> None:
    """Of all settings those are kept that count; a broker of another group that has the address is let be."""
    live = LiveSettings(BrokerSettings(broker_name="orders-0", owner_uid="u1", file_reserved_time=72))

    def say(connection: Connection, command: Command) -> Command:
        return command.reply(body=properties_text.to_text(settings_values(live.current)))

    def take(connection: Connection, command: Command) -> Command:
        live.update(properties_text.from_text(command.body))
        return command.reply()

    observed = Observed(
        meta=Meta(name="orders", namespace="shop", uid="u1", generation=1),
        manifest=None,
        operator=Operator(image="brokerset:1"),
        now=0.0,
    )

    seen = Seen(observed, {})

    def tell(group: str, owner: str, hours: str) -> TellSettings:
        address = f"{HOST}:{names.REMOTING_PORT}"
        return TellSettings(group, "orders-0-0", address, owner, {"fileReservedTime": hours}, "test")

    async def work() -> None:
        server = RemotingServer({RequestCode.GET_BROKER_CONFIG: say, RequestCode.UPDATE_BROKER_CONFIG: take})
        await server.listen(HOST, names.REMOTING_PORT)
        try:
            pods = {
                "orders-0-0": a_pod("orders-0-0", "broker", ip=HOST, ready=False),
                "orders-0-1": a_pod("orders-0-1", "broker", ip="127.77.0.22", ready=True),
                "orders-controller-0": a_pod("orders-controller-0", "controller", ip=HOST, ready=True),
            }
            said = await settings_at(broker_addresses(pods))
            assert said.keys() == {"orders-0-0"}
            assert said["orders-0-0"].keys() == OBSERVED
            assert said["orders-0-0"]["fileReservedTime"] == "72"

            for other in (tell("orders-1", "u1", "1"), tell("orders-0", "u2", "1")):
                with pytest.raises(ActionFailed, match="any more"):
                    await _tell_settings(other, seen)
            await _tell_settings(tell("orders-0", "u1", "48"), seen)
            assert (await settings_at(broker_addresses(pods)))["orders-0-0"]["fileReservedTime"] == "48"
        finally:
            await server.close(0.1)

    asyncio.run(work())
