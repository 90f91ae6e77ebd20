"""Members vote when a quorum began with the same old log."""

from __future__ import annotations

from dataclasses import replace

from brokerset_broker.member.dledger import old_logs
from brokerset_broker.member.dledger.old_logs import OldLogComparison
from brokerset_broker.store.old_log import OldFile, OldLog
from brokerset_protocol.commands import Command
from brokerset_runtime.remoting import RequestTimeout

OWN = OldLog(100, (OldFile(0, 100, ("a",)),))
OTHER = OldLog(100, (OldFile(0, 100, ("b",)),))


class Members:
    """What the others answer; None: nothing."""

    def __init__(self, **answers: bytes | None) -> None:
        self.answers = answers

    async def ask(self, address: str, command: Command, timeout: float) -> Command:
        body = self.answers[address]
        if body is None:
            raise RequestTimeout("nobody answers")
        return command.reply(0, body=body)

    async def tell(self, address: str, command: Command, timeout: float) -> None:
        """Nobody is told anything."""


def comparison(**answers: bytes | None) -> OldLogComparison:
    others = {name: name for name in answers}
    return OldLogComparison(OWN, others, 2, Members(**answers))


async def test_one_other_of_three_with_the_same_log_suffices() -> None:
    compared = comparison(n1=OWN.to_json(), n2=None)
    await compared.run()
    assert compared.problem == ""
    await comparison(n1=OTHER.to_json(), n2=OWN.to_json()).run()


async def test_a_group_is_new_where_nobody_of_a_quorum_has_begun() -> None:
    """An old log would be gone with a disk; who has none is not known to have lost nothing."""
    new, begun = comparison(n1=OWN.to_json(), n2=None), replace(OWN, begun=True)
    without = OldLogComparison(OldLog(), {"n1": "n1"}, 2, Members(n1=OldLog().to_json()))
    goes_on = comparison(n1=begun.to_json(), n2=None)
    for each in (new, without, goes_on):
        await each.run()

    assert (new.group_is_new, without.group_is_new, goes_on.group_is_new) == (True, False, False)


async def test_who_differs_from_all_that_answer_waits_and_says_where() -> None:
    compared = comparison(n1=OTHER.to_json(), n2=None)
    assert not await compared._ask_others()
    assert "old log of n1 differs" in compared.problem
    assert "copy of the folder commitlog" in compared.problem


async def test_who_hears_nobody_or_nonsense_waits() -> None:
    compared = comparison(n1=None, n2=b"nonsense")
    assert not await compared._ask_others()
    assert "fewer than half" in compared.problem


async def test_a_group_of_one_asks_nobody() -> None:
    await OldLogComparison(OWN, {}, 1, Members()).run()


def test_the_request_is_none_of_javas() -> None:
    assert old_logs.OLD_LOG > 51_005
