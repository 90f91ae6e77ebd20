"""The body of BATCH_ACK_MESSAGE."""

from __future__ import annotations

import pytest

from brokerset_protocol.bodies import BatchAck, BatchAckMessages
from brokerset_protocol.errors import Rejected

GOLDEN = (
    b'{"acks":[{"b":"BQI=","c":"g","it":60000,"pt":1700000000000,"q":1,"r":"0","rq":3,"so":7,"t":"T"}],'
    b'"brokerName":"b"}'
)


def test_the_body_of_java_is_read_and_written() -> None:
    """Golden: of the original classes. Bit i names the message at the start plus i."""
    body = BatchAckMessages.from_json(GOLDEN)

    assert body.acks == (BatchAck("g", "T", 7, 1, 3, 1_700_000_000_000, 60_000, "BQI=", "0"),)
    assert body.acks[0].offsets() == (7, 9, 16)
    assert BatchAck.bits_of(7, (7, 9, 16)) == "BQI="
    assert body.to_json() == GOLDEN


def test_a_retry_flag_names_the_kind_of_topic() -> None:
    """What Java does not know stands for the topic itself."""
    flags = {
        text: BatchAck("g", "T", 7, 1, 3, 1, 1, "", text).retry_flag for text in ("0", "1", "2", "x", "")
    }

    assert flags == {"0": 0, "1": 1, "2": 2, "x": 0, "": 0}


def test_unreadable_bits_are_refused() -> None:
    """With the code of every malformed body."""
    with pytest.raises(Rejected, match="bit set"):
        BatchAck("g", "T", 7, 1, 3, 1, 1, "=").offsets()
