"""Decisions of policies against Java's way to find the entry that decides."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cmp_to_key

from hypothesis import given
from hypothesis import strategies as st

from brokerset_acl.deciding import Need, deciding_entry, refusal
from brokerset_acl.policies import Acl, Action, Decision, Entry, Pattern, Resource, ResourceType, comes_from
from brokerset_acl.users import User
from brokerset_rig.examples import examples

NAMES = ("a", "ab", "abc", "b")
SOURCES = ("10.0.0.0/8", "10.1.0.0/16", "10.1.2.3", "::1")

resources = st.one_of(
    st.just(Resource(ResourceType.ANY, None, Pattern.ANY)),
    st.builds(
        Resource, st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]), st.none(), st.just(Pattern.ANY)
    ),
    st.builds(
        Resource,
        st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]),
        st.sampled_from(NAMES),
        st.sampled_from([Pattern.LITERAL, Pattern.PREFIXED]),
    ),
)
actions = st.sampled_from([Action.PUB, Action.SUB, Action.ALL])
entries = st.builds(
    Entry,
    resources,
    st.lists(actions, min_size=1, max_size=2, unique=True).map(tuple),
    st.sampled_from(list(Decision)),
    st.lists(st.sampled_from(SOURCES), max_size=2).map(tuple),
)
acls = st.builds(
    Acl, st.just("User:u"), st.lists(entries, max_size=6).map(tuple), st.lists(entries, max_size=4).map(tuple)
)
needs = st.builds(
    Need,
    st.builds(Resource, st.sampled_from([ResourceType.TOPIC, ResourceType.GROUP]), st.sampled_from(NAMES)),
    st.lists(st.sampled_from([Action.PUB, Action.SUB]), min_size=1, max_size=2).map(tuple),
)
addresses = st.sampled_from(["10.0.0.1", "10.1.2.3", "10.1.9.9", "11.0.0.1", "::1"])


def compare(one: Entry, other: Entry) -> int:
    """Java's `comparePolicyEntries`, with a denial before an allowance at last, as its comment says."""
    first, second = one.resource, other.resource
    result = 0
    if first.type is not second.type:
        if first.type is ResourceType.ANY:
            result = 1
        if second.type is ResourceType.ANY:
            result = -1
    elif first.pattern is second.pattern:
        if first.pattern is Pattern.PREFIXED:
            result = len(second.name or "") - len(first.name or "")
    elif Pattern.LITERAL in (first.pattern, second.pattern):
        result = -1 if first.pattern is Pattern.LITERAL else 1
    elif Pattern.PREFIXED in (first.pattern, second.pattern):
        result = -1 if first.pattern is Pattern.PREFIXED else 1
    if result:
        return result
    return (one.decision is Decision.ALLOW) - (other.decision is Decision.ALLOW)


def java(entries: Sequence[Entry], need: Need, source: str) -> Entry | None:
    found = [
        entry
        for entry in entries
        if entry.resource.covers(need.resource)
        and any(action in entry.actions or Action.ALL in entry.actions for action in need.actions)
        and comes_from(source, entry.sources)
    ]
    return min(found, key=cmp_to_key(compare)) if found else None


@given(acls, needs, addresses)
@examples(300)
def test_the_entry_that_decides_is_javas(acl: Acl, need: Need, source: str) -> None:
    """The first custom entry in Java's order counts, and default ones only where none matches."""
    expected = java(acl.custom, need, source) or java(acl.default, need, source)
    found = deciding_entry(acl, need, source)
    assert (found is None) == (expected is None)
    if found is not None and expected is not None:
        assert compare(found, expected) == 0
        assert found.decision is expected.decision


@given(acls, st.lists(needs, min_size=1, max_size=3), addresses, st.randoms())
@examples(200)
def test_the_order_of_entries_means_nothing(
    acl: Acl, wanted: list[Need], source: str, random: object
) -> None:
    """Whoever lists policies in another order has the same rights."""
    custom, default = list(acl.custom), list(acl.default)
    random.shuffle(custom)  # type: ignore[attr-defined]  # a Random
    random.shuffle(default)  # type: ignore[attr-defined]
    user, other = User("u", "p"), Acl("User:u", tuple(custom), tuple(default))
    assert (refusal(user, acl, wanted, source) is None) == (refusal(user, other, wanted, source) is None)


@given(acls, needs, addresses, entries)
@examples(200)
def test_one_more_denial_never_allows_more(acl: Acl, need: Need, source: str, entry: Entry) -> None:
    """A Deny that is added to the custom entries takes away at most."""
    denial = Entry(entry.resource, entry.actions, Decision.DENY, entry.sources)
    more = Acl(acl.subject, (*acl.custom, denial), acl.default)
    user = User("u", "p")
    if refusal(user, acl, [need], source) is not None:
        assert refusal(user, more, [need], source) is not None


@given(acls)
@examples(200)
def test_what_is_written_is_read_back(acl: Acl) -> None:
    """Records and files keep every entry, once for each resource."""
    merged = Acl(acl.subject).merged(acl)
    assert merged.is_empty or Acl.from_json(merged.to_json()) == merged
    names = [entry.resource for entry in merged.custom]
    assert len(set(names)) == len(names)
