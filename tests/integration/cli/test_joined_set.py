"""A set that joined another cluster, with real processes: controllers of its own alongside, and leaving.

The other cluster is a set of ours. What is told there of Java's controllers and name servers holds for any.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerset_cli.folder import DataFolder
from brokerset_cli.output import CommandFailed
from brokerset_cli.scaling import run_own_controllers, use_own_name_servers
from brokerset_client.admin import Admin
from brokerset_client.controller_admin import ControllerAdmin
from brokerset_rig.local_set import LocalSet, local_set
from brokerset_spec.set_memory import JoinedCluster, SetMemory

pytestmark = pytest.mark.long

MANIFEST = """
apiVersion: brokerset.io/v1alpha1
kind: BrokerSet
metadata: {{name: {name}}}
spec:
  clusterName: Shop
  brokerNames: [{group}]
  replicas: 1
  controllers: {{replicas: 1}}
  config: {{mappedFileSizeCommitLog: 16777216, maxHashSlotNum: 1000, maxIndexNum: 4000}}
"""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalSet]:
    """The other cluster: a controller with a name server, and a broker."""
    with local_set(tmp_path_factory.mktemp("host"), MANIFEST.format(name="host", group="south")) as found:
        yield found


def _joined(tmp_path: Path, name: str, joined_cluster_of: JoinedCluster) -> DataFolder:
    """The folder of a joined set that has not been started yet."""
    folder = DataFolder(tmp_path / "data")
    folder.claim(name).release()
    folder.write_memory(SetMemory(uid=name, joined_cluster_of=joined_cluster_of))
    return folder


def _known_at(name_servers: str) -> dict[str, set[str]]:
    """By name server: the addresses of all brokers that it knows."""

    async def ask(address: str) -> set[str]:
        async with Admin(namesrv=address) as admin:
            table = (await admin.cluster_info()).broker_addr_table
        return {address for data in table.values() for address in data.broker_addrs.values()}

    return {address: asyncio.run(ask(address)) for address in name_servers.split(";")}


def _groups_of(controllers: str) -> dict[str, int | None]:
    """The groups that controllers know, with their masters."""

    async def ask() -> dict[str, int | None]:
        async with ControllerAdmin(controllers) as admin:
            return {group.broker_name: group.master_id for group in await admin.groups()}

    return asyncio.run(ask())


def _address(found: LocalSet) -> str:
    (broker,) = found.processes("broker").values()
    return str(broker["address"])


def _ports(state: dict[str, Any]) -> dict[str, tuple[str, str]]:
    return {p["name"]: (p["address"], p["namesrv"]) for p in state["processes"]}


def test_a_joined_set_runs_controllers_of_its_own_and_its_brokers_register_with_the_name_servers_of_both(
    host: LocalSet, tmp_path: Path
) -> None:
    """The broker goes on as it is, under the controllers that it belonged to; also after a restart."""
    other = host.state()
    folder = _joined(tmp_path, "joined", JoinedCluster(other["controllers"], other["namesrv"]))
    with local_set(tmp_path, MANIFEST.format(name="joined", group="north")) as joined:
        alone = joined.state()

        asyncio.run(run_own_controllers(folder, 2, namesrv_port=0))
        state = joined.state()
        known = _known_at(state["namesrv"])
        asyncio.run(run_own_controllers(folder, 5))
        again = joined.state()
        groups = _groups_of(other["controllers"])
        own = ";".join(p["address"] for p in joined.processes("controller").values())
        empty = _groups_of(own)
        with pytest.raises(CommandFailed, match="the brokers of this set belong to the controllers at "):
            asyncio.run(use_own_name_servers(folder))
        joined("down")
        joined("up", "--detach")
        restarted = joined.state()

        assert [p["name"] for p in alone["processes"]] == ["north-0"]
        assert [p["name"] for p in state["processes"]] == ["controller-0", "controller-1", "north-0"]
        assert joined.processes("broker")["north-0"]["restarts"] == 0
        assert [p["pid"] for p in state["processes"][2:]] == [p["pid"] for p in alone["processes"]]
        own_name_servers = [p["namesrv"] for p in state["processes"][:2]]
        assert state["namesrv"].split(";") == [other["namesrv"], *own_name_servers]
        assert known[other["namesrv"]] == {_address(host), alone["processes"][0]["address"]}
        assert [known[each] for each in own_name_servers] == [{alone["processes"][0]["address"]}] * 2
        assert (state["controllers"], state["guest"]) == (other["controllers"], True)
        assert again["processes"] == state["processes"]
        assert groups == {"south": 1, "north": 1}
        assert empty == {}
        assert _ports(restarted) == _ports(state)
        assert restarted["namesrv"] == state["namesrv"]
        assert _known_at(restarted["namesrv"]) == known


def test_when_one_of_a_joined_sets_controllers_cannot_start_none_runs_and_its_brokers_go_on(
    host: LocalSet, tmp_path: Path
) -> None:
    other = host.state()
    folder = _joined(tmp_path, "unlucky", JoinedCluster(other["controllers"], other["namesrv"]))
    taken = int(other["namesrv"].rpartition(":")[2])
    with local_set(tmp_path, MANIFEST.format(name="unlucky", group="east")) as joined:
        before = joined.state()
        with pytest.raises(CommandFailed, match=f"port {taken}, which the name server needs, is in use"):
            asyncio.run(run_own_controllers(folder, 2, namesrv_port=taken))
        (folder.path / "controllers" / "controller-1").mkdir(parents=True)
        (folder.path / "controllers" / "controller-1" / "raft").write_text("no folder")

        with pytest.raises(CommandFailed, match="controller-1 ended with exit code 1; its log is "):
            asyncio.run(run_own_controllers(folder, 2, namesrv_port=0))
        after = joined.state()
        settings = (Path(after["processes"][0]["folder"]) / "broker.conf").read_text()
        asyncio.run(run_own_controllers(folder, 2, namesrv_port=0))
        again = joined.state()

        assert after["processes"] == before["processes"]
        assert after["namesrv"] == before["namesrv"] == other["namesrv"]
        assert f"namesrvAddr={other['namesrv']}\n" in settings
        assert [p["name"] for p in again["processes"]] == ["controller-2", "controller-3", "east-0"]


def test_brokers_under_controllers_of_their_own_leave_another_clusters_name_servers_while_they_run(
    host: LocalSet, tmp_path: Path
) -> None:
    other = host.state()
    folder = _joined(tmp_path, "leaver", JoinedCluster("", other["namesrv"]))
    with local_set(tmp_path, MANIFEST.format(name="leaver", group="west")) as leaver:
        before = leaver.state()
        known = _known_at(before["namesrv"])

        asyncio.run(use_own_name_servers(folder))
        after = leaver.state()
        left = _known_at(f"{other['namesrv']};{after['namesrv']}")

        assert before["guest"] is after["guest"] is False
        assert before["namesrv"] == f"{other['namesrv']};{after['namesrv']}"
        assert known == {
            other["namesrv"]: {_address(host), _address(leaver)},
            after["namesrv"]: {_address(leaver)},
        }
        assert left == {other["namesrv"]: {_address(host)}, after["namesrv"]: {_address(leaver)}}
        assert after["processes"] == before["processes"]
        assert json.loads((folder.path / "set.json").read_text())["guestOf"] is None


def test_brokers_follow_name_servers_that_come_and_go_with_their_controllers(host: LocalSet) -> None:
    """Commands ask all name servers that run; those that stopped are asked by nobody."""
    one = host.state()
    host("controller", "scale", "2")
    two = host.state()
    known = _known_at(two["namesrv"])
    host("controller", "scale", "1")
    back = host.state()

    added = next(p["namesrv"] for p in two["processes"] if p["name"] == "controller-1")
    assert two["namesrv"] == f"{one['namesrv']};{added}"
    assert known[added] == known[one["namesrv"]] == {_address(host)}
    assert back["namesrv"] == one["namesrv"]
    assert host.processes("broker") == {p["name"]: p for p in one["processes"] if p["kind"] == "broker"}
    settings = (Path(back["processes"][-1]["folder"]) / "broker.conf").read_text()
    assert f"namesrvAddr={one['namesrv']}\n" in settings
