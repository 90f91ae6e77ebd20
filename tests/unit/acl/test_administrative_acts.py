"""Which requests are administrative acts, and what is shown of them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from brokerset_acl.administrative_acts import BY_ADMINISTRATORS, OF_MEMBERS, act_codes, is_act, objects_of
from brokerset_acl.needs import RULES, Rule
from brokerset_acl.policies import Action
from brokerset_acl.server_rules import CONTROLLER_RULES, NAMESRV_RULES
from brokerset_protocol.codes import RequestCode
from brokerset_protocol.commands import Command
from brokerset_rig.log_lines import lines_of
from brokerset_runtime.remoting import audit_log

TABLES = [RULES, CONTROLLER_RULES.rules, NAMESRV_RULES.rules]
WRITES = {Action.CREATE, Action.UPDATE, Action.DELETE}
OWN = {RequestCode.UPDATE_CONSUMER_OFFSET}
"""A consumer's own progress."""


@pytest.mark.parametrize("rules", TABLES)
def test_every_code_that_writes_is_an_act(rules: dict[int, Rule]) -> None:
    """But those of members, and a consumer's own."""
    writing = {code for code, rule in rules.items() if WRITES & set(rule.actions)}
    of_members = {code for code, rule in rules.items() if rule.super_only} - BY_ADMINISTRATORS
    assert act_codes(rules) == writing - of_members - OF_MEMBERS - OWN


def test_requests_with_bodies_say_in_their_rules_what_they_change() -> None:
    """A rule that reads the body has the actions of what it changes: these change something, no others."""
    changing = {code for code in act_codes(RULES) if RULES[code].read is not None}
    assert changing == {
        RequestCode.UPDATE_AND_CREATE_TOPIC_LIST,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        RequestCode.SET_MESSAGE_REQUEST_MODE,
    }


def test_an_election_is_an_act_if_an_administrator_asks_for_it() -> None:
    """Brokers without a master, and masters that hand over, ask by themselves."""
    code = RequestCode.CONTROLLER_ELECT_MASTER
    assert is_act(Command(code, {"designateElect": "true"}))
    assert not is_act(Command(code, {}))
    assert not is_act(Command(code, {"designateElect": "true", "handoverEpoch": "3"}))


def test_names_are_shown_and_values_are_not() -> None:
    """Of a properties text, names that the server knows; of unreadable bodies nothing."""
    command = Command(RequestCode.UPDATE_BROKER_CONFIG, {}, b"flushDiskType=hidden\nhunter2=x\n")
    assert objects_of(command, RULES, {"flushDiskType"}) == ["Setting:flushDiskType"]
    entry = Command(RequestCode.PUT_KV_CONFIG, {"namespace": "n", "key": "k", "value": "hidden"})
    assert objects_of(entry, NAMESRV_RULES.rules, ()) == ["KV:n/k"]
    assert objects_of(Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, b"{"), RULES, ()) == []


@pytest.mark.parametrize("rules", TABLES)
def test_each_act_has_a_line_and_nothing_else_is_wrapped(rules: dict[int, Rule]) -> None:
    """Handlers of other requests stay the same objects, so they pay nothing."""
    handlers: dict[int, Any] = {code: lambda _, command: command.reply(17) for code in rules}
    log = audit_log.AuditLog(rules, authenticates=False, settings=())
    served = log.around(handlers)
    connection = cast(Any, SimpleNamespace(peer=("10.0.0.7", 5)))

    with lines_of(audit_log) as lines:
        for code in act_codes(rules):
            served[code](connection, Command(code, {"designateElect": "true"}))

    assert {code for code in rules if served[code] is not handlers[code]} == act_codes(rules)
    assert {(each["code"], each["result"]) for each in lines} == {
        (code, "TOPIC_NOT_EXIST") for code in act_codes(rules)
    }
