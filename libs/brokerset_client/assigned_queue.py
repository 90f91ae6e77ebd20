"""One queue while it belongs to this consumer: what was fetched of it, what is done, and whether it is still
ours."""

from __future__ import annotations

import asyncio
from collections import deque

from brokerset_client.messages import MessageView
from brokerset_client.offset_window import OffsetWindow
from brokerset_client.push_settings import ClientLimits, PushSettings
from brokerset_protocol.bodies.connections import ProcessQueueInfo
from brokerset_protocol.bodies.queues import MessageQueue


class Budget:
    """Unfinished messages and bytes over all queues of one consumer."""

    __slots__ = ("_limits", "_waiting", "bytes", "messages")

    def __init__(self, limits: ClientLimits) -> None:
        self._limits = limits
        self._waiting: deque[asyncio.Future[None]] = deque()
        self.messages = 0
        self.bytes = 0

    @property
    def is_full(self) -> bool:
        """Whether fetching must pause everywhere."""
        return self.messages >= self._limits.messages_max or self.bytes >= self._limits.bytes_max

    def take(self, messages: int, size: int) -> None:
        """Messages were fetched."""
        self.messages += messages
        self.bytes += size

    def give(self, messages: int, size: int) -> None:
        """Messages are finished, or were dropped."""
        self.messages -= messages
        self.bytes -= size
        if self._waiting and not self.is_full:
            while self._waiting:
                turn = self._waiting.popleft()
                if not turn.done():
                    turn.set_result(None)

    async def wait(self) -> None:
        """Until there is room again."""
        while self.is_full:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn


class AssignedQueue:
    """A queue of ours. After `retire` nothing that happens to its messages counts any more: a queue that is
    lost and won again gets a new object, so that late listeners of the old one cannot move its offset.
    """

    def __init__(
        self, queue: MessageQueue, start: int, settings: PushSettings, budget: Budget, *, orderly: bool
    ) -> None:
        self.queue = queue
        self.window = OffsetWindow(start)
        self.next_queue_offset = start
        self.active = True
        """Ours: what listeners say about its messages counts."""
        self.stopping = False
        """No further message is handed to a listener; those that run still count."""
        self.suspended = False
        """Nothing is fetched, and nothing is handed to a listener, until it is resumed."""
        self.set_aside: deque[list[MessageView]] = deque()
        """Not orderly: what the workers came upon meanwhile."""
        self._resumed = asyncio.Event()
        self.broker_id = 0
        """The replica to pull from, as the last answer suggested."""
        self.was_pulled = False
        self.committed: int | None = None
        """What was stored last, None if nothing was."""
        self.locked_until = 0.0
        """Orderly: when the lock is considered lost, on the loop's clock."""
        self.running = 0
        """Listeners that run with messages of this queue."""
        self.last_pull_ms = 0
        self.last_consume_ms = 0
        self.fetcher: asyncio.Task[object] | None = None
        self.handler: asyncio.Task[object] | None = None
        self.buffer: deque[MessageView] = deque()
        """Orderly: fetched, not handed to the listener yet."""
        self.arrived = asyncio.Event()
        """Orderly: something is in the buffer, or the queue is not ours any more."""
        self.stopped = asyncio.Event()
        """Set by `stop`, for those who pause."""
        self._orderly = orderly
        self._limits = settings.queue_limits
        self._budget = budget
        self._room = asyncio.Event()

    @property
    def is_full(self) -> bool:
        """Whether fetching must pause."""
        return self.window.is_full(self._limits, by_span=not self._orderly) or self._budget.is_full

    def add(self, messages: list[MessageView], next_queue_offset: int) -> list[MessageView]:
        """Take in what a pull brought; it was scanned up to `next_queue_offset`.

        Gives back what is new: a broker may send messages again that come before those that were asked for.
        """
        before = self.window.bytes
        fetched, messages, lowest = messages, [], self.next_queue_offset
        for message in fetched:
            if message.queue_offset >= lowest:
                messages.append(message)
                lowest = message.queue_offset + 1
        self.window.add([(message.queue_offset, message.size) for message in messages], next_queue_offset)
        self.next_queue_offset = max(next_queue_offset, lowest)
        self._budget.take(len(messages), self.window.bytes - before)
        if self._orderly and messages:
            self.buffer.extend(messages)
            self.arrived.set()
        return messages

    def finish(self, messages: list[MessageView]) -> None:
        """These need nothing more of this client."""
        if not self.active:
            return
        window = self.window
        count, size = window.count, window.bytes
        for message in messages:
            window.finish(message.queue_offset)
        self._budget.give(count - window.count, size - window.bytes)
        if not self._room.is_set() and not window.is_full(self._limits, by_span=not self._orderly):
            self._room.set()

    async def wait_for_room(self) -> None:
        """Until fetching may go on."""
        while not self.stopping and self.is_full:
            if self._budget.is_full:
                await self._budget.wait()
            else:
                self._room.clear()
                await self._room.wait()

    def suspend(self) -> None:
        """Fetch nothing and hand out nothing until `resume`; what runs may finish."""
        self.suspended = True
        self._resumed.clear()

    def resume(self) -> None:
        """Undo `suspend`."""
        self.suspended = False
        self._resumed.set()

    async def wait_resumed(self) -> None:
        """Until the queue is resumed, or stopped."""
        await self._resumed.wait()

    def stop(self) -> None:
        """Fetch no more, and hand out no more; what runs may finish."""
        self.stopping = True
        self._resumed.set()
        self.set_aside.clear()
        self.arrived.set()
        self._room.set()
        self.stopped.set()
        if self.fetcher is not None:
            self.fetcher.cancel()

    def retire(self) -> None:
        """It is not ours any more: stop fetching, and ignore what its listeners will say."""
        if not self.active:
            return
        self.active = False
        self._budget.give(self.window.count, self.window.bytes)
        self.buffer.clear()
        self.stop()

    def info(self) -> ProcessQueueInfo:
        """Its state, for an administrator."""
        return ProcessQueueInfo(
            commit_offset=self.window.commit_offset,
            cached_msg_min_offset=self.window.commit_offset,
            cached_msg_max_offset=max(self.window.commit_offset, self.next_queue_offset - 1),
            cached_msg_count=self.window.count,
            cached_msg_size_in_mib=self.window.bytes >> 20,
            locked=self._orderly and self.locked_until > 0,
            dropped=not self.active,
            last_pull_timestamp=self.last_pull_ms,
            last_consume_timestamp=self.last_consume_ms,
        )
