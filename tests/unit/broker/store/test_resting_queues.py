"""Queues whose messages have all been deleted go on with their numbers, also where nobody knew of them."""

from __future__ import annotations

from typing import Any

import pytest

from brokerset_broker.store import MessageStore

Stores = Any  # the class of conftest.py, which cannot be imported by name


def next_number(stores: Stores, store: MessageStore, queue_id: int = 0) -> int:
    number: int = stores.append(store, queue_id=queue_id).queue_offset
    return number


@pytest.mark.parametrize("number", [1, 7, 10, 20, 25], ids=lambda number: f"number {number}")
@pytest.mark.parametrize("crash", [False, True], ids=["at once", "after a crash"])
def test_a_queue_that_is_begun_goes_on_with_its_number(stores: Stores, number: int, *, crash: bool) -> None:
    """Queue files have 10 units: also where the number is the first of a file."""
    store = stores.open()
    for _ in range(40):
        stores.append(store, b"x" * 5_000, topic="other")
    store.log.detach_first().path.unlink()
    assert store.begin_queues("T", {0: number})
    if crash:
        stores.abandon_all()
        store = stores.open()

    assert store.queue_min("T", 0) == store.queue_max("T", 0) == number
    assert next_number(stores, store) == number
    assert store.get("T", 0, number, 10, 10_000).message_count == 1


def test_a_queue_that_has_messages_keeps_its_numbers(stores: Stores) -> None:
    store = stores.open()
    stores.append(store)

    assert not store.begin_queues("T", {0: 7, 1: 0})

    assert next_number(stores, store) == 1
    assert next_number(stores, store, 1) == 0


def test_queues_rest_when_their_messages_are_before_what_is_kept(stores: Stores) -> None:
    """Those that were begun, too; others say by their messages where they end."""
    store = stores.open()
    first = stores.append(store)
    store.begin_queues("U", {3: 25})
    end = first.end
    stores.append(store, queue_id=1)

    assert dict(store.resting_queues(end)) == {"T": {0: 1}, "U": {3: 25}}
    assert dict(store.resting_queues(end - 1)) == {"U": {3: 25}}


def test_a_topic_that_is_deleted_takes_its_resting_queues_with_it(stores: Stores) -> None:
    store = stores.open()
    store.begin_queues("T", {0: 7})

    store.forget_queues("T", 0)

    assert next_number(stores, store) == 0
