"""Room for messages on their way: bounded, given in the order of asking."""

from __future__ import annotations

import asyncio

from brokerset_client.send_window import SendLimits, SendWindow


async def test_room_is_given_in_the_order_of_asking() -> None:
    window = SendWindow(SendLimits(messages_max=1))
    assert window.try_enter(10)
    order: list[int] = []

    async def enter(number: int) -> None:
        await window.enter(10)
        order.append(number)

    tasks = [asyncio.create_task(enter(number)) for number in range(3)]
    await asyncio.sleep(0)
    assert not window.try_enter(10)
    for _ in range(3):
        window.leave(10)
        await asyncio.sleep(0)
    await asyncio.gather(*tasks)

    assert order == [0, 1, 2]
    assert (window.messages, window.bytes) == (1, 10)


def test_bytes_are_bounded_and_one_message_always_fits() -> None:
    window = SendWindow(SendLimits(bytes_max=100))

    assert window.try_enter(1000)
    assert not window.try_enter(1)
    window.leave(1000)
    assert window.try_enter(60)
    assert not window.try_enter(41)
    assert window.try_enter(40)


async def test_giving_up_waiting_lets_the_next_one_in() -> None:
    window = SendWindow(SendLimits(bytes_max=100))
    assert window.try_enter(50)
    large = asyncio.create_task(window.enter(90))
    small = asyncio.create_task(window.enter(40))
    await asyncio.sleep(0)

    large.cancel()
    await asyncio.wait_for(small, 1)

    assert (window.messages, window.bytes) == (2, 90)


async def test_room_that_was_just_given_is_not_lost_with_a_cancelled_sender() -> None:
    window = SendWindow(SendLimits(messages_max=1))
    assert window.try_enter(1)
    waiting = asyncio.create_task(window.enter(1))
    await asyncio.sleep(0)

    window.leave(1)
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)

    assert (window.messages, window.bytes) == (0, 0)
