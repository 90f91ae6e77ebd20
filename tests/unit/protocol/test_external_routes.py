"""Routes as clients outside a cluster get them."""

from __future__ import annotations

import pytest

from brokerset_protocol.bodies.routes import BrokerData, ClusterInfo, QueueData, TopicRouteData
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.errors import Rejected
from brokerset_protocol.external_routes import (
    ExternalAddresses,
    external_body,
    external_cluster_info,
    external_route,
)

MASTER = "orders-0-master.shop.svc:10911"
SLAVE = "orders-0-1.orders-0.shop.svc:10911"
OTHER = "orders-1-master.shop.svc:10911"
ADDRESSES = ExternalAddresses({"orders-0": "mq.example.com:30011"}, {SLAVE: "mq.example.com:30012"})


def route(*groups: tuple[str, dict[int, str]]) -> TopicRouteData:
    """The route of a topic that these groups hold."""
    return TopicRouteData(
        tuple(QueueData(name, 4, 4, 6) for name, _ in groups),
        tuple(BrokerData("DefaultCluster", name, addresses) for name, addresses in groups),
    )


def test_master_and_slaves_get_their_addresses_outside() -> None:
    """A master has the address of its group, a slave the one of the broker."""
    found = external_route(route(("orders-0", {0: MASTER, 2: SLAVE})), ADDRESSES)

    assert found is not None
    assert found.broker_datas[0].broker_addrs == {0: "mq.example.com:30011", 2: "mq.example.com:30012"}
    assert found.queue_datas == (QueueData("orders-0", 4, 4, 6),)


def test_a_masters_address_goes_with_it() -> None:
    """At node ports it is at the node of the broker that is master now; an unknown IP changes nothing.

    An IP that was a broker of another group when the file was written is unknown, too.
    """
    both = ExternalAddresses(
        {"orders-0": "192.0.2.1:30011", "orders-1": "192.0.2.1:30012"},
        hosts={"orders-0/10.0.0.7": "192.0.2.2:30011", "orders-1/fd00::7": "192.0.2.3:30012"},
    )

    before = both.following({"orders-0": "10.0.0.6:10912", "orders-1": "10.0.0.7:10912"})
    after = both.following({"orders-0": "10.0.0.7:10912", "orders-1": "[fd00::7]:10912"})

    assert before == both
    assert after.masters == {"orders-0": "192.0.2.2:30011", "orders-1": "192.0.2.3:30012"}
    assert ExternalAddresses.from_json(both.to_json()) == both


def test_a_slave_is_not_shown_at_the_address_of_the_master() -> None:
    """A broker without an address outside is left out, however its group can be reached."""
    found = external_route(
        route(("orders-0", {0: MASTER, 3: "orders-0-2.orders-0.shop.svc:10911"})), ADDRESSES
    )

    assert found is not None
    assert found.broker_datas[0].broker_addrs == {0: "mq.example.com:30011"}


def test_queues_of_a_group_without_address_are_left_out() -> None:
    """A consumer outside is given no queue that it cannot read."""
    found = external_route(route(("orders-0", {0: MASTER}), ("orders-1", {0: OTHER})), ADDRESSES)

    assert found is not None
    assert [each.broker_name for each in found.queue_datas] == ["orders-0"]
    assert [each.broker_name for each in found.broker_datas] == ["orders-0"]


def test_a_route_that_leads_nowhere_is_none() -> None:
    """A topic none of whose brokers can be reached has no route, rather than one with inner addresses."""
    body = route(("orders-1", {0: OTHER})).to_json()

    assert external_body(RequestCode.GET_ROUTEINFO_BY_TOPIC, body, ADDRESSES) is None


def test_a_master_that_registers_as_a_single_broker_is_found_by_its_address() -> None:
    """`advertise: podName`: without an address of its group a master has that of its broker."""
    addresses = ExternalAddresses({}, {SLAVE: "mq.example.com:30012"})

    found = external_route(route(("orders-0", {0: SLAVE})), addresses)

    assert found is not None
    assert found.broker_datas[0].broker_addrs == {0: "mq.example.com:30012"}


def test_cluster_info_is_rewritten_alike() -> None:
    """Tools that list a cluster get the same addresses, and no group that they cannot reach."""
    info = ClusterInfo(
        {
            "orders-0": BrokerData("DefaultCluster", "orders-0", {0: MASTER, 2: SLAVE}),
            "orders-1": BrokerData("Other", "orders-1", {0: OTHER}),
        },
        {"DefaultCluster": ("orders-0",), "Other": ("orders-1",)},
    )

    found = external_cluster_info(info, ADDRESSES)

    assert found.broker_addr_table["orders-0"].broker_addrs == {
        0: "mq.example.com:30011",
        2: "mq.example.com:30012",
    }
    assert found.cluster_addr_table == {"DefaultCluster": ("orders-0",)}
    assert list(found.broker_addr_table) == ["orders-0"]


def test_the_file_of_addresses_is_read_back() -> None:
    """What is written for name servers is what they read; a file of another shape is refused by name."""
    assert ExternalAddresses.from_json(ADDRESSES.to_json()) == ADDRESSES
    assert ExternalAddresses.from_json(b"{}") == ExternalAddresses()
    with pytest.raises(Rejected, match="masters"):
        ExternalAddresses.from_json(b'{"masters": {"orders-0": 3}}')
