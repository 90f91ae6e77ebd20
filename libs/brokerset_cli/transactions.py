"""What `send --transaction` does: half messages, their ends, and answers to the broker's checks."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Any, Final

from brokerset_cli.output import CommandFailed, counted
from brokerset_client.instance import ClientInstance
from brokerset_client.messages import Message, MessageView, SendResult
from brokerset_client.tracing import TraceSettings
from brokerset_client.transaction_producer import TransactionProducer
from brokerset_client.transactions import EndStatus, HalfMessage, TransactionResult, TransactionState

STATES: Final = {state.name.lower(): state for state in TransactionState}
"""By the words of the options: commit, rollback, unknown."""


@dataclass(slots=True)
class Ends:
    """What became of the transactions."""

    counts: Counter[str] = field(default_factory=Counter)
    """By what is known of the end."""

    problems: list[str] = field(default_factory=list)
    """Which transactions are not known to have ended as asked for, and why."""

    unchecked: set[str] = field(default_factory=set)
    """Transactions that the broker has not asked for yet."""

    early: set[str] = field(default_factory=set)
    """Transactions that were asked for before their end was left open."""

    def to_json(self) -> dict[str, Any]:
        """Return the counts for scripts."""
        return {"ends": dict(self.counts), "notConfirmed": self.problems}


class TransactionalSends:
    """A transaction producer in the form that `send_all` wants: each message is a transaction of its own."""

    def __init__(
        self,
        instance: ClientInstance,
        group: str,
        state: TransactionState,
        answer: TransactionState | None,
        trace: TraceSettings | None,
    ) -> None:
        """`state` ends every message; `answer` is what checks are told, which then are waited for."""
        self.ends = Ends()
        self._state = state
        self._answer = answer
        self._checked = asyncio.Event()
        self._tasks: set[asyncio.Task[TransactionResult]] = set()
        self.producer = TransactionProducer(group, instance=instance, check=self._check, trace=trace)

    async def send_async(self, message: Message) -> asyncio.Future[SendResult]:
        """Send one message as a half, and end it; the future is done when the end is."""
        made: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
        task = asyncio.create_task(self.producer.send_in_transaction(message, self._local))
        self._tasks.add(task)
        task.add_done_callback(lambda done: self._ended(done, made))
        return made

    async def send_batch_async(self, messages: list[Message]) -> asyncio.Future[SendResult]:
        """Not possible: a batch has no half messages."""
        raise CommandFailed("a batch cannot be a transaction", "send its messages one by one")

    async def wait_checked(self, stop: asyncio.Event) -> None:
        """Wait until the broker has asked for every message that was left open, or `stop` is set."""
        while self.ends.unchecked and not stop.is_set():
            self._checked.clear()
            waiting = [asyncio.create_task(event.wait()) for event in (self._checked, stop)]
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for task in waiting:
                task.cancel()
        await asyncio.sleep(0)  # the answers to the last checks leave in this turn

    async def _local(self, half: HalfMessage) -> TransactionState:
        return self._state

    async def _check(self, message: MessageView) -> TransactionState:
        ends = self.ends
        if message.message_id in ends.unchecked:
            ends.unchecked.discard(message.message_id)
        else:
            ends.early.add(message.message_id)
        self._checked.set()
        return TransactionState.UNKNOWN if self._answer is None else self._answer

    def _ended(self, task: asyncio.Task[TransactionResult], made: asyncio.Future[SendResult]) -> None:
        self._tasks.discard(task)
        if task.cancelled():
            made.cancel()
            return
        error = task.exception()
        if error is not None:
            if not made.done():
                made.set_exception(error)
            return
        result = task.result()
        self.ends.counts[result.end.value] += 1
        if result.end is EndStatus.LEFT_TO_CHECK and result.transaction_id not in self.ends.early:
            self.ends.unchecked.add(result.transaction_id)
        if result.state is not self._state:
            text = f"taken back, because it was stored less safely than asked for ({result.sent.status.name})"
            self.ends.problems.append(f"{result.transaction_id}: {text}")
        elif result.problem is not None and self._state is not TransactionState.UNKNOWN:
            self.ends.problems.append(f"{result.transaction_id}: {result.problem}")
        if not made.done():
            made.set_result(result.sent)


def ends_line(ends: Ends, state: TransactionState, answer: TransactionState | None) -> str:
    """Say what became of the transactions, for people."""
    parts = [f"{count:,} {name}" for name, count in sorted(ends.counts.items())]
    line = f"Transactions: {state.name.lower()}, {', '.join(parts)}"
    if answer is not None and ends.counts[EndStatus.LEFT_TO_CHECK.value]:
        checked = ends.counts[EndStatus.LEFT_TO_CHECK.value] - len(ends.unchecked)
        line += f"; {counted(checked, 'check')} answered with {answer.name.lower()}"
    return line


def check_ends(ends: Ends) -> None:
    """End the command when a decided transaction is not known to have ended so."""
    if ends.problems:
        count = counted(len(ends.problems), "transaction")
        raise CommandFailed(
            f"{count} not ended as asked for, the first: {ends.problems[0]}",
            "the broker asks for those that are open; `--transaction unknown --check-answer …` of this group "
            "answers",
        )
