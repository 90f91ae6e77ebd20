"""What waits for the driver waits on its disk."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor

import pytest

from brokerset_spark.jobs.waiting import Inbox, Shelf


def test_a_shelf_is_empty_when_all_was_taken() -> None:
    """The disk has what waits, not what has ever waited."""
    shelf = Shelf()
    places = [shelf.put([number] * 1_000) for number in range(3)]
    assert [shelf.take(place)[0] for place in reversed(places)] == [2, 1, 0]
    assert shelf.put("next")[0] == 0
    shelf.close()


def test_a_task_counts_once() -> None:
    """What a second attempt hands over is dropped; so is what comes when nobody asks any more."""
    inbox = Inbox(3)
    for number in (2, 0, 2):
        inbox.put(number, pickle.dumps(number))
    inbox.end()
    assert list(inbox.taken()) == [2, 0]
    assert inbox.missing == 1
    inbox.close()
    inbox.put(1, pickle.dumps(1))
    assert inbox.missing == 1


@pytest.mark.parametrize("tasks", [1, 500])
def test_an_inbox_is_read_while_it_is_filled(tasks: int) -> None:
    """From several threads."""
    inbox = Inbox(tasks)
    with ThreadPoolExecutor(4) as pool:
        found = pool.submit(lambda: list(inbox.taken()))
        list(pool.map(lambda number: inbox.put(number, pickle.dumps(number)), range(tasks)))
        inbox.end()
        assert sorted(found.result()) == list(range(tasks))
    inbox.close()
