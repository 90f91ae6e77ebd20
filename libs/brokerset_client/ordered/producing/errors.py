"""What can go wrong for a producer of ordered subjects; every text says what happened and what to do next."""

from __future__ import annotations

from brokerset_client.errors import ClientError


class ProducerFull(ClientError):
    """No room in time for what is not confirmed yet: nothing was accepted, so try again later."""


class TooManySubjects(ClientError):
    """The producer has as many subjects as it may: nothing was accepted.

    Nothing is wrong with the message: send it with another producer, or with a higher `subjects_max`.
    """


class StillQueued(ClientError):
    """`send` waited long enough; the message keeps its place and is stored later.

    Sending it again makes a second message.
    """


class SubjectRefused(ClientError):
    """The controllers refuse the subject (its name, its order strategy), or it was deleted."""


class ProducerFenced(ClientError):
    """Another process runs with this producer's id and was started later: end this one.

    Messages whose outcome was unknown may be stored; later ones are not.
    """


class OrderedSendFailed(ClientError):
    """The message failed for good: exactly once, and the producer does not send it again.

    `maybe_stored` says that an attempt without an answer may have stored it nevertheless.
    """

    def __init__(self, text: str, *, maybe_stored: bool) -> None:
        super().__init__(text + (": it may be stored nevertheless" if maybe_stored else ": it is not stored"))
        self.maybe_stored = maybe_stored


class TriesExhausted(OrderedSendFailed):
    """Under BestTried: so many tries, or so much time, and no broker has confirmed the message."""


class MessageRefused(OrderedSendFailed):
    """The broker refuses this message alone (too large, illegal properties): change it."""


class OutcomeLost(OrderedSendFailed):
    """Who could say whether the message is stored has forgotten it: read the subject before sending it again.

    It happens when a broker lost what it had confirmed, or when the message's partition was removed while
    its broker was out of reach. Messages behind it go on.
    """
