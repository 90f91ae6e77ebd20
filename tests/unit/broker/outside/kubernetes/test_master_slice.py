"""Which change of an EndpointSlice makes a `-master` Service lead to its master."""

from __future__ import annotations

from typing import Any

import pytest

from brokerset_broker.outside.kubernetes.master_slice import (
    EPOCH_ANNOTATION,
    Change,
    InPlace,
    Overtaken,
    decide_slice,
)


def _slice(epoch: str | None, *addresses: str, ready: bool = True) -> dict[str, Any]:
    annotations = {} if epoch is None else {EPOCH_ANNOTATION: epoch}
    return {
        "metadata": {"namespace": "shop", "resourceVersion": "17", "annotations": annotations},
        "endpoints": [{"addresses": [each], "conditions": {"ready": ready}} for each in addresses],
    }


def _decide(found: dict[str, Any], epoch: int = 4) -> Change | InPlace | Overtaken:
    return decide_slice(found, pod="orders-0-1", pod_ip="10.1.2.3", epoch=epoch)


@pytest.mark.parametrize(
    "found",
    [
        _slice(None),
        _slice("3", "10.1.2.9"),
        _slice("3", "10.1.2.3"),
        _slice("4", "10.1.2.9"),
        _slice("4", "10.1.2.3", ready=False),
        _slice("4", "10.1.2.3", "10.1.2.9"),
        _slice("x", "10.1.2.9"),
        {"metadata": {"namespace": "shop", "resourceVersion": "17"}},
        {"metadata": {"namespace": "shop", "resourceVersion": "17", "annotations": None}, "endpoints": None},
    ],
)
def test_the_master_writes_its_address_and_epoch_where_they_are_not(found: dict[str, Any]) -> None:
    """Whatever an earlier epoch left there; the patch holds only for the slice as it was read."""
    decision = _decide(found)

    assert isinstance(decision, Change)
    assert decision.patch["metadata"] == {"resourceVersion": "17", "annotations": {EPOCH_ANNOTATION: "4"}}
    (endpoint,) = decision.patch["endpoints"]
    assert endpoint["addresses"] == ["10.1.2.3"]
    assert endpoint["conditions"]["ready"] is True
    assert endpoint["targetRef"] == {"kind": "Pod", "name": "orders-0-1", "namespace": "shop"}


def test_nothing_is_written_when_it_is_in_place() -> None:
    """An idle master costs the API server one read now and then."""
    assert _decide(_slice("4", "10.1.2.3")) == InPlace()


def test_a_former_master_takes_nothing_back() -> None:
    """The slice leads to the master of a later epoch."""
    assert _decide(_slice("5", "10.1.2.9")) == Overtaken(5)
    assert _decide(_slice("5", "10.1.2.3")) == Overtaken(5)
