"""What `send --transaction` says about the ends of its messages."""

from __future__ import annotations

from collections import Counter

import pytest

from brokerset_cli.output import CommandFailed
from brokerset_cli.transactions import Ends, check_ends, ends_line
from brokerset_client.transactions import TransactionState


def test_the_line_counts_ends() -> None:
    """By what is known of each, with the checks that were waited for."""
    confirmed = Ends(Counter({"confirmed": 1200}))
    checked = Ends(Counter({"left to check": 3}), unchecked={"ID"})

    assert ends_line(confirmed, TransactionState.COMMIT, None) == "Transactions: commit, 1,200 confirmed"
    assert ends_line(checked, TransactionState.UNKNOWN, TransactionState.COMMIT) == (
        "Transactions: unknown, 3 left to check; 2 checks answered with commit"
    )


def test_ends_that_are_not_confirmed_fail_the_command() -> None:
    """With the first reason and what to do."""
    check_ends(Ends(Counter({"confirmed": 1})))
    with pytest.raises(
        CommandFailed, match="2 transactions not ended as asked for, the first: ID: gone"
    ) as caught:
        check_ends(Ends(problems=["ID: gone", "ID2: gone"]))

    assert "--check-answer" in caught.value.advice
