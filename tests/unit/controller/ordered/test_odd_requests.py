"""Whatever headers and bodies a request about subjects has: it is answered, and nothing odd is kept."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from brokerset_protocol.codes import RequestCode
from brokerset_rig.subject_bench import GROUP, SUBJECT, make_subject_bench
from brokerset_sim.loop import run

CODES = tuple(range(21_021, 21_030))
NAMES = (
    "subject", "orderStrategy", "partitions", "route", "create", "knownVersion", "waitMs", "producerId",
    "consumerGroup", "session", "clientId", "consumeStrategy", "leaving", "version",
)  # fmt: skip

values = st.one_of(
    st.sampled_from([
        "", SUBJECT, GROUP, "s", "Strict", "BestTried", "Exclusive", "Shared", "true", "false",
        "0", "-1", "2",
        "9" * 19, "9" * 30, "a;b", ";;", "a;a", "a;" * 40_000, "x" * 300, "%RETRY%", "\ud800", "a\nb",
    ]),
    st.text(max_size=20),
)  # fmt: skip
bodies = st.one_of(
    st.binary(max_size=40),
    st.sampled_from([
        b"", b"{}", b"[]", b"null", b'["orders"]', b'[1]', b"[" * 2_000, b"x" * 600_000,
        b'{"released":[{"partitionId":0,"epoch":1}]}',
        b'{"drained":[{"partitionId":0,"epoch":1,"position":-5}]}',
        b'{"released":[{"partitionId":-1,"epoch":9223372036854775807}],"drained":null}',
        b'{"released":' + b"[" + b",".join([b'{"partitionId":0,"epoch":1}'] * 4_097) + b"]}",
    ]),
)  # fmt: skip
requests = st.tuples(
    st.sampled_from(CODES), st.dictionaries(st.sampled_from(NAMES), values, max_size=10), bodies
)


@given(st.lists(requests, min_size=1, max_size=6))
def test_no_request_is_a_crash(asked: list[tuple[int, dict[str, str], bytes]]) -> None:
    """A code and, with an error, a remark of bounded size and no body; the state can be read again."""

    async def scene() -> None:
        bench = make_subject_bench()
        async with bench.running():
            await bench.create(2)
            await bench.assigned("s")
            await bench.settle()
            for code, ext, body in asked:
                usual = {"subject": SUBJECT, "consumerGroup": GROUP, "session": "s", "clientId": "c"}
                answer = await bench.ask(code, {**usual, **ext, "waitMs": "1"}, body)
                assert answer.code == 0 or (answer.remark and answer.ext == {} and answer.body == b"")
                assert len(answer.remark or "") < 1_000
            await bench.settle()
        for subject in bench.machine.subjects.values():
            assert all(len(each.members) <= len(asked) + 1 for each in subject.groups.values())

    run(scene())


def test_a_report_of_too_many_partitions_is_refused_whole() -> None:
    """4,096 is the most; nothing of it is agreed on."""

    async def scene() -> None:
        bench = make_subject_bench()
        await bench.create(2)
        await bench.assigned("s")
        before = len(bench.engine.proposed)
        body = b'{"released":[' + b",".join([b'{"partitionId":0,"epoch":1}'] * 4_097) + b"]}"
        ext = {
            "subject": SUBJECT, "consumerGroup": GROUP, "session": "s", "clientId": "c",
            "consumeStrategy": "Exclusive",
        }  # fmt: skip
        answer = await bench.ask(RequestCode.BROKERSET_CONSUMER_HEARTBEAT, ext, body)

        assert answer.code != 0
        assert len(bench.engine.proposed) == before

    asyncio.run(scene())
