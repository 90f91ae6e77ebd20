"""Name servers that come and go while a broker runs, because its settings change."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from brokerset_broker.outside import name_servers
from brokerset_formats.config import TopicConfig
from brokerset_protocol.errors import Rejected
from brokerset_rig.registrar_parts import NameServer, Place
from brokerset_rig.waiting import until


async def test_a_change_brings_and_takes_name_servers_and_leaves_the_others_alone(tmp_path: Path) -> None:
    """New ones get the full table at once, old ones a goodbye; who stays is neither told nor dialed again."""

    async with NameServer.started() as old, NameServer.started() as kept, NameServer.started() as new:
        place = Place(tmp_path, f"{old.address};{kept.address}")
        async with place.running():
            await place.registered_at(old.address, kept.address)
            before = kept.connections

            place.use(kept.address, new.address)
            await place.registered_at(kept.address, new.address)
            await until(lambda: old.leaving == ["10.0.0.7:10911"] and not old.connections)
            assert not old.known
            assert new.topics[0] == kept.topics[0] == len(list(place.topics)) > 1
            assert (len(kept.told), kept.connections) == (1, before)

            place.topics.put(TopicConfig("later"))
            await until(lambda: kept.topics[1:] == [1] and new.topics[-1] == 1)
            assert kept.connections == before
        assert (len(old.told), len(kept.leaving)) == (1, 0)


async def test_new_name_servers_do_not_wait_for_the_goodbye_to_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They know the broker while an old one has not answered yet; its connection stays open for that."""

    monkeypatch.setattr(name_servers, "UNREGISTER_SECONDS", 60)

    async with NameServer.started() as old, NameServer.started() as new:
        old.hears_goodbyes.clear()
        place = Place(tmp_path, old.address)
        async with place.running():
            await place.registered_at(old.address)

            place.use(new.address)
            await place.registered_at(new.address)
            await until(lambda: len(old.leaving) == 1)
            assert old.connections
            old.hears_goodbyes.set()
            await until(lambda: not old.connections)
            assert not old.known


@pytest.mark.parametrize("ends", ["in time", "with the registrar"])
async def test_the_connection_of_an_old_name_server_that_answers_no_goodbye_is_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: str
) -> None:
    """After `UNREGISTER_SECONDS`, or when the broker ends before."""

    monkeypatch.setattr(name_servers, "UNREGISTER_SECONDS", 0.05 if ends == "in time" else 60)

    async with NameServer.started() as old:
        old.hears_goodbyes.clear()
        place = Place(tmp_path, old.address)
        async with place.running():
            await place.registered_at(old.address)
            place.use("")
            await until(lambda: bool(old.leaving))
            if ends == "in time":
                await until(lambda: not old.connections)
        await until(lambda: not old.connections)
        assert old.known


async def test_of_several_changes_the_last_one_counts(tmp_path: Path) -> None:
    """Also when they come before anything could be done: what was passed over is not even dialed."""

    async with (
        NameServer.started() as first,
        NameServer.started() as second,
        NameServer.started() as last,
    ):
        place = Place(tmp_path, first.address)
        async with place.running():
            await place.registered_at(first.address)
            before = first.connections

            place.use(second.address)
            place.use(first.address)
            await asyncio.sleep(0)
            place.use(second.address)
            place.use(last.address)
            await place.registered_at(last.address)
            await until(lambda: not first.connections)
            assert (len(first.told), len(first.leaving), before) == (1, 1, before)
            assert not second.told


async def test_a_change_that_is_taken_back_at_once_is_none(tmp_path: Path) -> None:
    """The name server hears nothing of it, and keeps its connection."""

    async with NameServer.started() as one, NameServer.started() as other:
        place = Place(tmp_path, one.address)
        async with place.running():
            await place.registered_at(one.address)
            before = one.connections

            place.use(other.address)
            place.use(one.address)
            place.use(one.address, other.address)
            await place.registered_at(one.address, other.address)
            assert (len(one.told), one.leaving, one.connections) == (1, [], before)


async def test_a_name_server_that_is_wanted_again_while_it_hears_the_goodbye_knows_the_broker(
    tmp_path: Path,
) -> None:
    """The goodbye may take effect after the new registration: then it is told once more."""

    async with NameServer.started() as one, NameServer.started() as other:
        place = Place(tmp_path, one.address)
        async with place.running():
            await place.registered_at(one.address)
            one.hears_goodbyes.clear()

            place.use(other.address)
            await until(lambda: bool(one.leaving))
            place.use(one.address)
            await place.registered_at(one.address)
            await until(lambda: not other.connections)
            one.hears_goodbyes.set()
            await until(lambda: one.forgotten == 1 and one.known)
            assert set(one.topics) == {len(list(place.topics))}


@pytest.mark.parametrize("twin_before", [False, True], ids=["new", "there-before"])
async def test_one_name_server_under_another_address_knows_the_broker(
    tmp_path: Path, twin_before: bool
) -> None:
    """The goodbye at the old address is told to the same name server, and must not be the last word."""

    async with NameServer.started() as one:
        other = f"localhost:{one.address.rpartition(':')[2]}"
        before = [one.address, *([other] if twin_before else [])]
        place = Place(tmp_path, ";".join(before))
        async with place.running():
            await place.registered_at(*before)
            one.hears_goodbyes.clear()

            place.use(other)
            await place.registered_at(other)
            await until(lambda: len(one.leaving) == 1 and len(one.told) == 2)
            one.hears_goodbyes.set()
            await until(lambda: one.forgotten == 1 and one.known)
            assert len(one.told) == 3


async def test_a_change_before_the_start_is_what_it_starts_with(tmp_path: Path) -> None:
    """Nobody was told anything before."""

    async with NameServer.started() as one, NameServer.started() as other:
        place = Place(tmp_path, one.address)
        place.use(other.address)
        async with place.running():
            await place.registered_at(other.address)
        assert not one.told


async def test_a_change_after_the_goodbye_registers_nowhere(tmp_path: Path) -> None:
    """While the broker shuts down, and when all has ended."""

    async with NameServer.started() as one, NameServer.started() as other:
        place = Place(tmp_path, one.address)
        async with place.running() as registrar:
            await place.registered_at(one.address)
            one.hears_goodbyes.clear()
            leaving = asyncio.create_task(registrar.unregister())
            await until(lambda: bool(one.leaving))

            place.use(other.address)
            place.topics.put(TopicConfig("later"))
            for _ in range(20):
                await asyncio.sleep(0)
            one.hears_goodbyes.set()
            await leaving
            assert registrar.registered == []
        place.use("")
        assert not one.known
        assert (len(one.told), len(one.leaving), other.told, other.connections) == (1, 1, [], set())


async def test_without_name_servers_a_broker_is_registered_nowhere_until_it_gets_one(tmp_path: Path) -> None:
    """Empty at the start or later, the registrar goes on."""

    async with NameServer.started() as one:
        place = Place(tmp_path, "")
        async with place.running() as registrar:
            for times in (1, 2):
                place.use(one.address)
                await place.registered_at(one.address)
                place.use("")
                await until(lambda: not one.connections)
                assert registrar.addresses == registrar.registered == []
                assert (len(one.told), len(one.leaving), one.known) == (times, times, False)


@pytest.mark.parametrize("bad", ["here", "127.0.0.1:0", "127.0.0.1:70000", "a..b:9876", ":9876"])
async def test_a_bad_address_beside_a_good_one_changes_nothing(tmp_path: Path, bad: str) -> None:
    """The good one is not used either, and the registrar lives."""

    async with NameServer.started() as one, NameServer.started() as other:
        place = Place(tmp_path, one.address)
        async with place.running() as registrar:
            await place.registered_at(one.address)
            with pytest.raises(Rejected, match="is not HOST:PORT"):
                place.use(other.address, bad)
            place.topics.put(TopicConfig("later"))
            await until(lambda: len(one.told) == 2)
            assert registrar.registered == registrar.addresses == [one.address]
            assert (one.leaving, other.connections) == ([], set())


async def test_configured_names_change_while_dns_is_followed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Servers of the old name are left once the new one is looked up; one behind both notices nothing."""

    monkeypatch.setattr(name_servers, "LOOK_UP_SECONDS", 0.02)

    async with NameServer.started() as old, AsyncExitStack() as stack:
        port = int(old.address.rpartition(":")[2])
        shared = await stack.enter_async_context(NameServer.started("127.0.0.2", port))
        new = await stack.enter_async_context(NameServer.started("127.0.0.3", port))
        place = Place(tmp_path, f"before:{port}", fetch_namesrv_addr_by_dns_lookup=True)
        place.of_name = {
            "before": ["127.0.0.1", "127.0.0.2"],
            "after": ["127.0.0.2", "127.0.0.3"],
        }
        async with place.running():
            await place.registered_at(old.address, shared.address)
            kept = shared.connections

            place.use(f"after:{port}")
            await place.registered_at(shared.address, new.address)
            await until(lambda: not old.connections)
            assert (len(old.leaving), shared.leaving, len(shared.told)) == (1, [], 1)
            assert shared.connections == kept
            place.asked.clear()
            await until(lambda: len(place.asked) >= 3)
            assert set(place.asked) == {"after"}

            place.use("")
            await until(lambda: not shared.connections and not new.connections)
            assert not shared.known
            assert not new.known


async def test_a_new_name_that_nobody_knows_yet_is_shown_as_one_that_does_not_know_the_broker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The old name's servers go all the same, once that is seen; the new ones are used when DNS has them."""

    monkeypatch.setattr(name_servers, "UNKNOWN_NAME_SECONDS", 0.02)

    async with NameServer.started() as old, AsyncExitStack() as stack:
        port = int(old.address.rpartition(":")[2])
        new = await stack.enter_async_context(NameServer.started("127.0.0.2", port))
        place = Place(tmp_path, f"before:{port}", fetch_namesrv_addr_by_dns_lookup=True)
        place.of_name = {"before": ["127.0.0.1"]}
        async with place.running() as registrar:
            await place.registered_at(old.address)

            place.use(f"after:{port}")
            await until(lambda: not old.connections)
            assert len(old.leaving) == 1
            assert (registrar.registered, registrar.addresses) == ([], [f"after:{port}"])
            place.of_name["after"] = ["127.0.0.2"]
            await place.registered_at(new.address)
