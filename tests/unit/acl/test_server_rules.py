"""What requests need at controllers and name servers."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import orjson
import pytest

from brokerset_acl.server_rules import CONTROLLER_RULES, NAMESRV_RULES, ServerRules, needs_at_server
from brokerset_namesrv.kv_config import KvTable
from brokerset_namesrv.processors import Processors
from brokerset_namesrv.routes import RouteTable
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_rig.controller_bench import make_bench
from brokerset_spec.namesrv_settings import NamesrvSettings

CLUSTERS = frozenset({"east", "west"})


def needed(
    rules: ServerRules,
    code: int,
    ext: dict[str, str] | None = None,
    body: bytes = b"",
    *,
    known: Any = CLUSTERS,
) -> list[str]:
    """Resource and actions; `!` where no policy is enough."""
    found = needs_at_server(Command(code, ext or {}, body), rules.rules, lambda: known)
    return [f"{need.resource.key} {'|'.join(need.actions)}{'!' if need.super_only else ''}" for need in found]


def test_every_code_that_a_controller_serves_has_a_rule_or_is_open() -> None:
    """A new request is open to administrators only until somebody says what it needs."""
    served = set(make_bench().processors.handlers())

    assert served == set(CONTROLLER_RULES.rules) | CONTROLLER_RULES.open
    assert not set(CONTROLLER_RULES.rules) & CONTROLLER_RULES.open
    assert set(CONTROLLER_RULES.rules) >= CONTROLLER_RULES.of_clients
    assert needed(CONTROLLER_RULES, 99_999) == ["Cluster:east Update", "Cluster:west Update"]


def test_every_code_that_a_name_server_serves_has_a_rule_or_is_open() -> None:
    """The same there."""
    settings = NamesrvSettings()
    made = Processors(
        settings=settings, table=RouteTable(settings), kv=KvTable(), kv_file=cast(Any, None),
        clock=cast(Any, SimpleNamespace()), tell=lambda _: None,
    )  # fmt: skip

    assert set(made.handlers()) == set(NAMESRV_RULES.rules) | NAMESRV_RULES.open
    assert needed(NAMESRV_RULES, 99_999) == ["Cluster:east Update", "Cluster:west Update"]


def test_what_concerns_the_cluster_needs_a_pattern_while_no_cluster_is_known() -> None:
    """Else a policy for any cluster would do at a controller that has no broker yet."""
    code = RequestCode.GET_CONTROLLER_CONFIG
    assert needed(CONTROLLER_RULES, code, known=frozenset()) == ["Cluster:* Get"]


@pytest.mark.parametrize(
    ("code", "ext", "needs"),
    [
        ("SUBJECT_ROUTE", {"subject": "s"}, ["Topic:s Pub|Sub|Get"]),
        ("START_PRODUCER", {"subject": "s"}, ["Topic:s Pub"]),
        ("CONSUMER_HEARTBEAT", {"subject": "s", "consumerGroup": "g"}, ["Group:g Sub", "Topic:s Sub"]),
        ("ASSIGNMENT_CHANGED", {"subject": "s", "consumerGroup": "g"}, ["Group:g Sub", "Topic:s Sub"]),
        ("CREATE_SUBJECT", {"subject": "s"}, ["Topic:s Create"]),
        ("SCALE_SUBJECT", {"subject": "s"}, ["Topic:s Create|Update"]),
        ("DELETE_SUBJECT", {"subject": "s"}, ["Topic:s Delete"]),
        ("REMOVE_CONSUMER_GROUP", {"subject": "s", "consumerGroup": "g"}, ["Group:g Delete"]),
        ("DESCRIBE_SUBJECTS", {}, ["Topic:* Get|List"]),
        ("CONSUMER_HEARTBEAT", {}, ["Cluster:east Get", "Cluster:west Get"]),
    ],
)
def test_requests_about_subjects_need_topics_and_groups(
    code: str, ext: dict[str, str], needs: list[str]
) -> None:
    """A subject is the topic of its name; what is not named is everything."""
    assert needed(CONTROLLER_RULES, RequestCode[f"BROKERSET_{code}"], ext) == needs


def test_subjects_are_described_to_who_uses_each_of_them() -> None:
    """Every name in the body counts, and a body that is no list is refused."""
    code = RequestCode.BROKERSET_DESCRIBE_SUBJECTS
    named = needed(CONTROLLER_RULES, code, body=orjson.dumps(["a", "b"]))

    assert named == ["Topic:a Pub|Sub|Get", "Topic:b Pub|Sub|Get"]
    for body in (b"{}", b"[1]", b"[", b'"a"'):
        with pytest.raises(Rejected):
            needed(CONTROLLER_RULES, code, body=body)


@pytest.mark.parametrize(
    ("rules", "code"),
    [
        (CONTROLLER_RULES, RequestCode.CONTROLLER_REGISTER_BROKER),
        (CONTROLLER_RULES, RequestCode.BROKER_HEARTBEAT),
        (CONTROLLER_RULES, RequestCode.BROKERSET_GET_ACCESS),
        (CONTROLLER_RULES, RequestCode.BROKERSET_ADOPT_ACCESS),
        (CONTROLLER_RULES, RequestCode.BROKERSET_CHANGE_MEMBERS),
        (CONTROLLER_RULES, RequestCode.BROKERSET_REBUILD_GROUP),
        (NAMESRV_RULES, RequestCode.REGISTER_BROKER),
    ],
)
def test_no_policy_makes_a_member(rules: ServerRules, code: RequestCode) -> None:
    """Members get messages and passwords: they sign as a Super user."""
    assert all(text.endswith("!") for text in needed(rules, code))


def test_the_page_says_what_the_most_important_requests_need() -> None:
    """docs/security.md names the rights of clients of ordered subjects."""
    page = (Path(__file__).parents[3] / "docs" / "security.md").read_text()
    for text in ("`Pub` on the topic", "`Sub` on the topic", "`Sub` on the group"):
        assert text in page
