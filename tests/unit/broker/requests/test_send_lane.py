"""Answers of the native way of sends that have to say something else than success."""

from __future__ import annotations

from brokerset_broker.requests.replies import SendReplies
from brokerset_broker.requests.send_lane import with_status
from brokerset_broker.store.errors import PutStatus
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command, encode

REPLIES = SendReplies(bytes([127, 0, 0, 1, 0, 0, 42, 159]), "region", True)


def frame(opaque: int, messages: int, unique_id: str) -> bytes:
    ids = REPLIES.message_ids([100 * number for number in range(messages)])
    answer = REPLIES.success(Command(0, opaque=opaque), 3, 17, ids, unique_id)
    return encode(answer) if isinstance(answer, Command) else answer


def test_each_request_of_a_chunk_hears_that_its_message_is_not_safe() -> None:
    """The answer names the place of the message, as the Python path says it, in the same order."""
    frames = frame(1, 1, "AB1") + frame(2, 2, "")

    first, second = with_status(frames, PutStatus.FLUSH_SLAVE_TIMEOUT)

    assert first.code == second.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
    wanted = REPLIES.reply(
        Command(0, opaque=1), first.code, first.remark, 3, 17, REPLIES.message_ids([0]), "AB1"
    )
    assert encode(first) == encode(wanted)
    assert (second.opaque, list(second.ext)) == (
        2,
        ["queueId", "msgId", "queueOffset", "TRACE_ON", "MSG_REGION"],
    )


def test_a_message_that_is_not_stored_has_no_place() -> None:
    """Nothing is said of where it would have been."""
    (answer,) = with_status(frame(1, 1, "AB1"), PutStatus.SERVICE_NOT_AVAILABLE)

    assert (answer.code, answer.ext, answer.opaque) == (ResponseCode.SERVICE_NOT_AVAILABLE, {}, 1)


def test_an_answer_with_very_many_ids_does_not_keep_the_others_back() -> None:
    """Its header is larger than any that is read; the requests behind it get their answers all the same."""
    long = REPLIES.message_ids(list(range(20_000)))
    large = REPLIES.success(Command(0, opaque=7), 3, 17, long, "AB1")
    assert isinstance(large, bytes)

    answers = list(with_status(large + frame(8, 1, "AB2"), PutStatus.FLUSH_DISK_TIMEOUT))

    assert [answer.opaque for answer in answers] == [7, 8]
