from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brokerset_kube.patches import covers, digest, merge_patch, quantity, same_quantity, substance

json_values = st.recursive(
    st.booleans() | st.integers(-5, 5) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=12,
)
objects = st.dictionaries(st.text(max_size=2), json_values, max_size=4)


def apply_patch(target: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    """RFC 7386, in the words of the RFC."""
    found = dict(target)
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, dict):
            before = found.get(key)
            found[key] = apply_patch(before if isinstance(before, dict) else {}, value)
        else:
            found[key] = value
    return found


@given(old=objects, new=objects)
def test_a_merge_patch_makes_the_old_into_the_new(old: dict[str, Any], new: dict[str, Any]) -> None:
    """What a server makes of the old object and the patch is the new one."""
    assert apply_patch(old, merge_patch(old, new)) == new


@given(value=objects)
def test_equal_objects_need_no_patch(value: dict[str, Any]) -> None:
    """There is nothing to write when nothing differs."""
    assert merge_patch(value, dict(value)) == {}


@given(wanted=objects, more=objects)
def test_an_object_with_more_fields_covers(wanted: dict[str, Any], more: dict[str, Any]) -> None:
    """Fields that somebody else added are no difference."""
    assert covers({**more, **wanted}, wanted)


@pytest.mark.parametrize(
    ("live", "wanted", "expected"),
    [
        ({"a": 1}, {"a": 1, "b": None}, True),
        ({"a": 1}, {"a": 2}, False),
        ({"a": {"b": 1, "c": 2}}, {"a": {"b": 1}}, True),
        ({"a": [1, 2]}, {"a": [1]}, False),
        ({"a": [{"n": "x", "defaulted": 1}]}, {"a": [{"n": "x"}]}, True),
        ({"cpu": "1"}, {"cpu": "1000m"}, True),
        ({"size": "1Gi"}, {"size": "1024Mi"}, True),
        ({"size": "1Gi"}, {"size": "1G"}, False),
        ({}, {"labels": {}}, True),
        ({}, {"list": []}, True),
        ({}, {"a": {"b": 1}}, False),
        ({"on": True}, {"on": 1}, False),
        ({}, {"on": False}, True),
        ({"a": "x"}, {"a": None}, False),
    ],
)
def test_covering_is_about_what_is_wanted_alone(live: Any, wanted: Any, expected: bool) -> None:
    """Wanted fields must be there with their value, quantities by amount; others do not matter."""
    assert covers(live, wanted) is expected


def test_quantities_are_amounts() -> None:
    """Units of Kubernetes stand for powers of ten and of two."""
    assert quantity("1Ki") == 1024
    assert quantity("500m") == quantity("0.5")
    assert quantity("x") is None
    assert same_quantity("2", 2)
    assert not same_quantity(True, 1)


def test_a_digest_does_not_depend_on_the_order_of_keys() -> None:
    """Equal values have equal digests."""
    assert digest({"a": 1, "b": {"c": 2, "d": 3}}) == digest({"b": {"d": 3, "c": 2}, "a": 1})
    assert digest({"a": 1}) != digest({"a": 2})


def test_the_substance_of_an_object_does_not_change_by_itself() -> None:
    """Status, versions and field managers are left out."""
    live = {
        "kind": "Pod",
        "metadata": {"name": "a", "resourceVersion": "5", "generation": 2, "managedFields": [1]},
        "spec": {"x": 1},
        "status": {"y": 1},
    }

    assert substance(live) == {"kind": "Pod", "metadata": {"name": "a"}, "spec": {"x": 1}}
