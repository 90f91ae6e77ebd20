"""Decisions about requests: cases of Java's `AuthorizationEvaluatorTest`, and a table of our own."""

from __future__ import annotations

import pytest

from brokerset_acl.deciding import Need, refusal
from brokerset_acl.needs import topic_need
from brokerset_acl.policies import Acl, Action, Decision, Entry, Resource, ResourceType, resource_of
from brokerset_acl.users import User, UserType

USER = User("test", "secret")
LAN = "192.168.0.0/24"


def entry(key: str, actions: str, decision: str = "Allow", *sources: str) -> Entry:
    resource = resource_of(key)
    assert resource is not None
    names = tuple(Action(name) for name in actions.split(","))
    return Entry(resource, names, Decision(decision), sources)


def acl(*custom: Entry, default: tuple[Entry, ...] = ()) -> Acl:
    return Acl("User:test").merged(Acl("User:test", custom, default))


def allowed(said: Acl | None, key: str, action: Action, source: str = "192.168.0.1") -> bool:
    kind, _, name = key.partition(":")
    need = Need(Resource(ResourceType(kind), name), (action,))
    return refusal(USER, said, [need], source) is None


EVALUATE_5 = acl(
    entry("*", "Pub,Sub", "Allow", LAN),
    entry("Topic:*", "Pub,Sub", "Deny", LAN),
    entry("Topic:test*", "Pub,Sub", "Allow", LAN),
    entry("Topic:test-1", "Pub,Sub", "Deny", LAN),
)
EVALUATE_9 = acl(
    entry("*", "Pub", "Allow", LAN),
    entry("Topic:*", "Pub", "Allow", LAN),
    entry("Topic:test*", "Pub", "Allow", LAN),
    entry("Topic:test_*", "Pub", "Deny", LAN),
    entry("Topic:test_001", "Pub", "Deny", LAN),
)
ONE = acl(entry("Topic:test*", "Pub", "Allow", LAN))
DENIED = acl(entry("Topic:test*", "Pub", "Deny", LAN))
DEFAULTED = acl(
    entry("Topic:test*", "Pub", "Deny", LAN), default=(entry("Topic:*", "Pub"), entry("Topic:test*", "Pub"))
)
RANGES = acl(entry("Topic:t", "Pub", "Allow", "10.1.2.3", "2001:db8::/32"))


@pytest.mark.parametrize(
    ("said", "key", "action", "source", "expected"),
    [
        (ONE, "Topic:test", Action.PUB, "192.168.0.1", True),
        (ONE, "Topic:abc", Action.PUB, "192.168.0.1", False),
        (ONE, "Topic:test", Action.SUB, "192.168.0.1", False),
        (ONE, "Topic:test", Action.PUB, "10.10.0.1", False),
        (ONE, "Group:test", Action.PUB, "192.168.0.1", False),
        (DENIED, "Topic:test", Action.PUB, "192.168.0.1", False),
        (EVALUATE_5, "Topic:test-1", Action.PUB, "192.168.0.1", False),
        (EVALUATE_5, "Topic:test-2", Action.PUB, "192.168.0.1", True),
        (EVALUATE_5, "Topic:abc", Action.PUB, "192.168.0.1", False),
        (EVALUATE_5, "Group:test-2", Action.SUB, "192.168.0.1", True),
        (DEFAULTED, "Topic:test", Action.PUB, "192.168.0.1", False),
        (DEFAULTED, "Topic:abc", Action.PUB, "192.168.0.1", True),
        (DEFAULTED, "Topic:test", Action.PUB, "10.0.0.1", True),
        (EVALUATE_9, "Topic:test_001", Action.PUB, "192.168.0.1", False),
        (EVALUATE_9, "Topic:test_002", Action.PUB, "192.168.0.1", False),
        (EVALUATE_9, "Topic:test", Action.PUB, "192.168.0.1", True),
        (RANGES, "Topic:t", Action.PUB, "10.1.2.3", True),
        (RANGES, "Topic:t", Action.PUB, "::ffff:10.1.2.3", True),
        (RANGES, "Topic:t", Action.PUB, "2001:db8::17", True),
        (RANGES, "Topic:t", Action.PUB, "2001:db9::17", False),
        (RANGES, "Topic:t", Action.PUB, "no address", False),
        (acl(entry("Topic:t", "All")), "Topic:t", Action.DELETE, "", True),
        (None, "Topic:t", Action.PUB, "10.0.0.1", False),
    ],
)
def test_who_may_what(said: Acl | None, key: str, action: Action, source: str, expected: bool) -> None:
    """The most specific custom entry decides, then the default ones; what nobody allows is refused."""
    assert allowed(said, key, action, source) is expected


def test_a_tie_is_a_denial() -> None:
    """Java sorts an allowance before a denial of the same precedence, whatever its comment says."""
    tie = Acl("User:test", (entry("Topic:t", "Pub"), entry("Topic:t", "Pub", "Deny")))
    assert not allowed(tie, "Topic:t", Action.PUB)


def test_every_need_counts() -> None:
    """One of several actions is enough; all of several resources are needed."""
    said = acl(entry("Topic:t", "Sub"), entry("Group:g", "Get"))
    topic = Need(Resource(ResourceType.TOPIC, "t"), (Action.SUB, Action.GET))
    group = Need(Resource(ResourceType.GROUP, "g"), (Action.SUB,))
    assert refusal(USER, said, [topic], "") is None
    assert refusal(USER, said, [topic, group], "10.0.0.1") == (
        "User:test has no permission to access Group:g from 10.0.0.1, no matched policies."
    )


def test_the_texts_are_javas() -> None:
    """Tools look for them."""
    need = Need(Resource(ResourceType.TOPIC, "test"), (Action.PUB,))
    assert refusal(USER, DENIED, [need], "192.168.0.9") == (
        "User:test has no permission to access Topic:test from 192.168.0.9, the decision is deny."
    )


def test_a_super_user_may_everything_and_nobody_else_reads_passwords() -> None:
    """The log of metadata holds passwords, so no policy opens its topic."""
    everything = acl(entry("*", "All"))
    need = topic_need("rmq_sys_BROKERSET_METADATA", (Action.SUB,))
    assert refusal(USER, everything, [need], "") is not None
    assert refusal(User("root", "x", UserType.SUPER), None, [need], "") is None


def test_names_are_found_without_comparing_each() -> None:
    """A request may name thousands of topics, and a user have a thousand entries."""
    named = [entry(f"Topic:t{number}", "Pub") for number in range(1_000)]
    pattern = entry("Topic:t*", "Pub", "Deny")
    acl = Acl("User:u", (*named, pattern))
    custom, default = acl.about(Resource(ResourceType.TOPIC, "t7"))
    assert list(custom) == [named[7], pattern]
    assert not list(default)
