"""Which of several objects for one topic was there first."""

from __future__ import annotations

from typing import Any

from brokerset_operator.claims import ClaimIndex
from brokerset_operator.reconcile_queue import Key


def _live(name: str, created: str, *, where: str = "shop", broker_set: str = "orders", **spec: Any) -> Any:
    metadata = {"name": name, "namespace": where, "creationTimestamp": created}
    return {"metadata": metadata, "spec": {"brokerSetRef": {"name": broker_set}, **spec}}


def test_the_older_object_wins_whatever_its_kind() -> None:
    """A Topic and a Subject of one name are one topic at the brokers."""
    index = ClaimIndex()
    index.saw("Subject", _live("events", "2026-01-02T00:00:00Z", subject="Events"))
    index.saw("Topic", _live("events", "2026-01-01T00:00:00Z", topicName="Events"))

    assert index.older(Key("Subject", "shop", "events")) == Key("Topic", "shop", "events")
    assert index.older(Key("Topic", "shop", "events")) is None


def test_of_two_that_were_made_in_one_second_one_wins_for_both() -> None:
    """The API server writes seconds: the names decide then."""
    index = ClaimIndex()
    for name in ("b", "a"):
        index.saw("Subject", _live(name, "2026-01-01T00:00:00Z", subject="Events"))

    assert index.older(Key("Subject", "shop", "a")) is None
    assert index.older(Key("Subject", "shop", "b")) == Key("Subject", "shop", "a")


def test_objects_of_other_sets_and_namespaces_are_in_nobodys_way() -> None:
    """Each set has subjects of its own, as far as an index can know."""
    index = ClaimIndex()
    index.saw("Subject", _live("events", "2026-01-02T00:00:00Z"))
    index.saw("Subject", _live("events", "2026-01-01T00:00:00Z", where="bank"))
    index.saw("Subject", _live("other", "2026-01-01T00:00:00Z", broker_set="bills", subject="events"))

    assert index.older(Key("Subject", "shop", "events")) is None
    assert index.of_set("shop", "orders") == (Key("Subject", "shop", "events"),)


def test_sets_that_share_controllers_have_their_users_in_common_and_not_their_topics() -> None:
    """Two objects for one user would set its password in turns."""
    index = ClaimIndex(serving=lambda namespace, name: {"bills": "orders"}.get(name, name))
    for kind in ("User", "Topic"):
        index.saw(kind, _live("mine", "2026-01-02T00:00:00Z", broker_set="bills"))
        index.saw(kind, _live("first", "2026-01-01T00:00:00Z", username="mine", topicName="mine"))

    assert index.older(Key("User", "shop", "mine")) == Key("User", "shop", "first")
    assert index.older(Key("Topic", "shop", "mine")) is None
