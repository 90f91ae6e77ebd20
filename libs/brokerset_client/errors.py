"""What can go wrong for a user of the client; every text says what happened, where, and what to do next."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby


class ClientError(Exception):
    """Root of everything that this package raises on purpose."""


class ClientClosed(ClientError):
    """The producer, consumer or admin was closed, or not started yet: start a new one."""


class ClosedByListener(ClientError):
    """A listener awaited `close` of its own consumer, which waits for listeners: nothing was closed."""

    def __init__(self) -> None:
        super().__init__(
            "close() was awaited by a listener of this consumer, for which it would wait: let another task "
            "close it, for example by an asyncio.Event that the main program waits for"
        )


class MessageInvalid(ClientError):
    """The message cannot be sent as it is (name, size, properties): nothing left this process."""


class MessageUnreadable(ClientError):
    """A received record or its body cannot be decoded, for example because of an unknown compression."""


class NameServerUnavailable(ClientError):
    """No name server of the list answered; `problems` has one text for each address."""

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__(
            "no name server answered: " + "; ".join(problems) + ". Check the address and whether it runs"
        )
        self.problems = tuple(problems)


class TopicNotFound(ClientError):
    """The name servers know no route for the topic: create it, or wait until its broker has registered."""

    def __init__(self, topic: str) -> None:
        super().__init__(
            f"no name server knows topic {topic!r}: create it, or allow a broker to create topics itself"
        )
        self.topic = topic


class NoQueue(ClientError):
    """The topic exists, but no broker of it can serve now (no master, or no permission): try again later."""


class BrokerUnreachable(ClientError):
    """No connection to `address`, or it broke: whether the request was carried out is unknown."""

    def __init__(self, address: str, reason: str) -> None:
        super().__init__(f"{address} is not reachable: {reason}")
        self.address = address


class AnswerTimeout(ClientError):
    """No answer in time: whether the request was carried out is unknown."""


class RequestRefused(ClientError):
    """The peer at `address` answered with an error: `code` is a `ResponseCode`, `remark` its explanation."""

    def __init__(self, code: int, remark: str, address: str = "") -> None:
        where = f" by {address}" if address else ""
        super().__init__(f"refused{where} with code {code}: {remark}")
        self.code = code
        self.remark = remark
        self.address = address


class HandleRefused(RequestRefused):
    """A broker does not take the handle of a popped message: the message is not the caller's any more.

    Its invisible time ended and it is delivered again, or it was acknowledged before. What was done with it
    is perhaps done twice; a longer invisible time, or renewing it, helps.
    """

    def __init__(self, message_id: str, code: int, remark: str, address: str = "") -> None:
        super().__init__(code, f"{remark} (message {message_id})", address)
        self.message_id = message_id


class HandleExpired(ClientError):
    """No broker confirmed what was asked for a popped message before its invisible time ended.

    It is delivered again, unless the last attempt, of which nothing was heard, was an ack that arrived.
    """

    def __init__(self, message_id: str, what: str, reason: str) -> None:
        super().__init__(
            f"{what} of message {message_id} was not confirmed before its invisible time ended: {reason}"
        )
        self.message_id = message_id


class SendFailed(ClientError):
    """Every attempt to send failed; `attempts` tells each, `__cause__` is the last error.

    A time-out or a lost connection among the attempts means that the message may be stored nevertheless.
    """

    def __init__(self, topic: str, attempts: Sequence[str]) -> None:
        super().__init__(
            f"message to {topic!r} was not acknowledged after {len(attempts)} attempts: "
            + attempts_text(attempts)
        )
        self.attempts = tuple(attempts)


class ReplyTimeout(ClientError):
    """A request is stored, and no reply came in time (Java's 10006): a consumer may still handle it."""

    def __init__(self, topic: str, correlation_id: str, seconds: float) -> None:
        super().__init__(
            f"request to {topic!r} is stored, but no reply came in {seconds:g} s: see whether a consumer of "
            f"the topic replies (correlation id {correlation_id})"
        )
        self.topic = topic
        self.correlation_id = correlation_id


class NotARequest(ClientError):
    """There is nobody to reply to: the message was not sent as a request (Java's 10007)."""


class ReplyNotTaken(ClientError):
    """No broker could give the reply to the client that sent the request: it has gone, or waits no more.

    `attempts` tells what each broker said.
    """

    def __init__(self, message_id: str, attempts: Sequence[str]) -> None:
        super().__init__(
            f"nobody took the reply to request {message_id}, its sender has gone or waits no more: "
            + attempts_text(attempts)
        )
        self.attempts = tuple(attempts)


def attempts_text(attempts: Sequence[str]) -> str:
    """What became of the attempts of one send: equal texts in a row are counted, not repeated."""
    runs = [(text, len(list(run))) for text, run in groupby(attempts)]
    return "; ".join(text if count == 1 else f"{text} ({count} times)" for text, count in runs)


class GroupOffline(ClientError):
    """The group has no member online, or its position is not stored yet."""


class TransactionsFull(ClientError):
    """As many transactions of this producer are open as its limit allows: end some first."""


class TransactionNotPrepared(ClientError):
    """The half message is stored less safely than the broker's settings ask for; it was taken back.

    The transaction's block did not run. Try again; `brokerset status` shows disks and replicas.
    """


class TransactionNotCommitted(ClientError):
    """The broker refused the commit of a transaction whose local work is done; `problems` says why.

    Those half messages are not visible. If they are still there, the broker asks the check handler; one that
    is gone (checked too often, or deleted by age) has to be sent again.
    """

    def __init__(self, problems: Sequence[str]) -> None:
        super().__init__("the broker refused to commit: " + "; ".join(problems))
        self.problems = tuple(problems)
