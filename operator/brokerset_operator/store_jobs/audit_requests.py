"""What replicas are asked after a comparison has found that they differ, until the record can be named."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from brokerset_operator.store_jobs.audit_jobs import store_url
from brokerset_operator.store_jobs.audit_work import Asked, Run, read_request
from brokerset_operator.store_jobs.outcomes import Summary

ROUNDS_MAX: Final = 2
"""Rounds of questions: for the records of a stretch, and for what stands at the first that differs."""


def questions(run: Run, summaries: Iterable[Summary]) -> tuple[Asked, ...]:
    """The next round; nothing when the comparisons want nothing, or would only ask the same again."""
    number = run.round + 1
    if number > ROUNDS_MAX:
        return ()
    by_url = {store_url(share): share for share in run.shares if share.failed is None}
    found = []
    for summary in summaries:
        for each in summary.further:
            share = by_url.get(str(each.get("url")))
            if share is None:
                continue
            asked = read_request(each, number, share.pod)
            known = {(one.pod, one.lists, one.shows) for one in run.asked}
            if (asked.lists or asked.shows) and (asked.pod, asked.lists, asked.shows) not in known:
                found.append(asked)
    return tuple(found)
