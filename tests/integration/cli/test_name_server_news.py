"""Running brokers are told which name servers there are, over real connections."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from brokerset_broker.live_settings import LiveSettings
from brokerset_cli import name_server_news, running
from brokerset_cli.folder import DataFolder
from brokerset_cli.name_server_news import TRIES_MAX, NameServerNews, NotInformed
from brokerset_cli.running import Run
from brokerset_protocol.bodies import properties_text
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_rig.process_loopback import PROCESS_LOOPBACK
from brokerset_runtime.remoting import Connection, RemotingServer
from brokerset_runtime.supervision import Child, ChildSpec
from brokerset_spec.broker_settings import BrokerSettings
from brokerset_spec.manifest import default_manifest, read_manifest
from brokerset_spec.plan import ProcessPlan, plan_local
from brokerset_spec.set_memory import SetMemory

HOST = PROCESS_LOOPBACK
PORT = 10911
NOT_YET = "not yet, please"
NOBODY = NotInformed({}, {})


class Broker:
    """Takes settings as a broker does, after it has refused some."""

    def __init__(self, refusals: int) -> None:
        self.live = LiveSettings(BrokerSettings(namesrv_addr="127.0.0.1:1"))
        self.asked = 0
        self._refusals = refusals

    def take(self, connection: Connection, command: Command) -> Command:
        self.asked += 1
        if self.asked <= self._refusals:
            return command.reply(ResponseCode.SYSTEM_ERROR, NOT_YET)
        self.live.update(properties_text.from_text(command.body))
        return command.reply()


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(name_server_news, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(name_server_news, "FOUND_SECONDS_MAX", 0.0)


def _process() -> ProcessPlan:
    manifest = default_manifest("set")
    plan = plan_local(manifest, Path("/d"), memory=SetMemory("u"), is_free=lambda _: True, host=HOST)
    return plan.brokers[0]


def _child(process: ProcessPlan) -> Child:
    return Child(ChildSpec(process.name, ("run",), Path("log")), "running", 7)


def _tell(
    broker: Broker, child: Child, process: ProcessPlan, *, listens: bool = True
) -> tuple[NotInformed, str]:
    """Tell a broker twice: who has not taken it, and the name servers that are named afterwards."""

    async def work() -> tuple[NotInformed, str]:
        server = RemotingServer({RequestCode.UPDATE_BROKER_CONFIG: broker.take})
        if listens:
            await server.listen(HOST, PORT)
        try:
            news = NameServerNews()
            news.on_start(child, "127.0.0.1:1")
            await news.tell([(process, child)], "127.0.0.1:1;127.0.0.1:2")
            untold = await news.tell([(process, child)], "127.0.0.1:1;127.0.0.1:2")
            return untold, news.known_to_all("127.0.0.1:1;127.0.0.1:2", [child])
        finally:
            await server.close(0.1)

    return asyncio.run(work())


def test_a_broker_that_refuses_at_first_is_told_again_and_then_no_more() -> None:
    broker, process = Broker(refusals=2), _process()

    untold, known = _tell(broker, _child(process), process)

    assert untold == NOBODY
    assert known == broker.live.current.namesrv_addr == "127.0.0.1:1;127.0.0.1:2"
    assert broker.asked == 3


def test_a_broker_that_goes_on_refusing_is_named_with_its_reason() -> None:
    """It is told again with the next news; until then commands ask only the name servers that it knows."""
    broker, process = Broker(refusals=1000), _process()

    untold, known = _tell(broker, _child(process), process)

    assert untold == NotInformed({"set-0-0": NOT_YET}, {})
    assert known == "127.0.0.1:1"
    assert broker.asked == 2 * TRIES_MAX


def test_a_broker_that_runs_and_cannot_be_reached_is_named_and_has_refused_nothing() -> None:
    process = _process()

    untold, known = _tell(Broker(0), _child(process), process, listens=False)

    assert untold == NotInformed({}, {"set-0-0": f"cannot connect to {HOST}:{PORT}: Connection refused"})
    assert known == "127.0.0.1:1"


@pytest.mark.parametrize("state", ["waiting", "stopping"])
def test_a_broker_that_ends_need_not_be_told(state: str) -> None:
    """It reads its file when it is started again."""
    broker, process = Broker(refusals=1000), _process()
    child = _child(process)
    child.state = "waiting" if state == "waiting" else "stopping"

    untold, _ = _tell(broker, child, process)

    assert untold == NOBODY
    assert broker.asked == 0


def test_a_broker_that_was_silent_is_told_as_soon_as_it_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has to ask for it, and until then commands ask only the name servers that it knows."""
    monkeypatch.setattr(running, "INFORM_AGAIN_SECONDS", 0.01)
    broker, folder = Broker(refusals=0), DataFolder(tmp_path)
    manifest = read_manifest(
        {
            "apiVersion": "brokerset.io/v1alpha1",
            "kind": "BrokerSet",
            "metadata": {"name": "set"},
            "spec": {"replicas": 1},
        }
    )
    plan = plan_local(manifest, tmp_path, memory=SetMemory("u"), is_free=lambda _: True, host=HOST)
    run = Run(manifest, plan, folder, HOST)
    (child,) = [child for child in run.supervisor.children if child.spec.name == "set-0-0"]
    child.pid, child.state = 7, "running"
    first = plan.controllers[0].namesrv_address
    run._news.on_start(child, first)

    def named() -> str:
        state = folder.read_state()
        assert state is not None
        return state.namesrv

    async def work() -> tuple[str, str, str]:
        told = asyncio.Event()
        problem = await run._inform_brokers()
        before = named()
        server = RemotingServer({RequestCode.UPDATE_BROKER_CONFIG: broker.take})
        wishes = asyncio.create_task(run.fulfil_wishes(told))
        try:
            await server.listen(HOST, PORT)
            async with asyncio.timeout(10):
                while named() == before:  # noqa: ASYNC110  # the state file tells nobody
                    await asyncio.sleep(0.01)
        finally:
            wishes.cancel()
            await server.close(0.1)
        return problem, before, named()

    problem, before, after = asyncio.run(work())

    assert problem == ""
    assert before == first
    assert after == broker.live.current.namesrv_addr == plan.namesrv_address
