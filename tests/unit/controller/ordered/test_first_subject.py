"""What the first subject asks of the other controllers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_controller.first_subject import check_readers
from brokerset_controller.ordered.codec import ORDERED_VERSION
from brokerset_protocol.bodies.controllers import ControllerStatus
from brokerset_protocol.codes import ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.remoting import ConnectionClosed

STATUS = ControllerStatus(1, "follower", 3, 0, False, 9, 9, 9, 0, (), ORDERED_VERSION)


class Others:
    """Implements `Asker`: controllers by address, with what they say of themselves."""

    def __init__(self, **statuses: ControllerStatus | None) -> None:
        self._statuses = statuses

    async def ask(self, address: str, command: Command, timeout: float) -> Command:
        status = self._statuses[address]
        if status is None:
            raise ConnectionClosed("refused")
        return command.reply(body=status.to_json())

    async def tell(self, address: str, command: Command, timeout: float) -> None:
        raise AssertionError("nobody is to be told anything")


async def test_controllers_that_read_subjects_let_the_first_one_be_created() -> None:
    """All others say that they read this format of the log."""
    await check_readers(Others(a=STATUS, b=replace(STATUS, node_id=2)), {1: "a", 2: "b"})


async def test_one_controller_is_enough() -> None:
    """A group of one asks nobody."""
    await check_readers(Others(), {})


@pytest.mark.parametrize(
    ("status", "reason"),
    [(replace(STATUS, log_format=0), "upgrade it"), (None, "does not answer")],
    ids=["of an older version", "silent"],
)
async def test_one_that_may_not_read_it_refuses_the_first_subject(
    status: ControllerStatus | None, reason: str
) -> None:
    """An older controller would end at the first entry of a subject: it is named, with what to do."""
    with pytest.raises(Rejected, match=f"controller 2 at b .*{reason}") as refused:
        await check_readers(Others(a=STATUS, b=status), {1: "a", 2: "b"})

    assert refused.value.code == ResponseCode.BROKERSET_SUBJECT_REFUSED


def test_an_older_controller_says_nothing_of_its_format() -> None:
    """The field is absent from its answer, and counts as 0."""
    body = STATUS.to_json().replace(b'"logFormat"', b'"unknown"')

    assert ControllerStatus.from_json(body).log_format == 0
