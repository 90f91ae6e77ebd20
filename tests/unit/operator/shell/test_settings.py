from __future__ import annotations

import pytest

from brokerset_operator.settings import OperatorSettings
from brokerset_runtime.settings import SettingsError, load_settings


def loaded(**given: str) -> OperatorSettings:
    return load_settings(OperatorSettings, overrides=given)


def test_defaults_are_those_of_other_operators() -> None:
    """The Lease lasts 15 s, is renewed within 10 s, every 2 s."""
    settings = loaded(image="brokerset:1")

    assert (settings.lease_seconds, settings.renew_seconds, settings.retry_seconds) == (15, 10.0, 2.0)
    assert settings.namespace_list == ()


def test_namespaces_are_a_list_with_commas() -> None:
    """Spaces and repetitions do not matter."""
    assert loaded(image="x", namespaces=" shop, bank,,shop").namespace_list == ("shop", "bank")


def test_labels_are_pairs_with_commas() -> None:
    """Names have prefixes, as Kubernetes allows."""
    found = loaded(
        image="x", podNamespace="s", podLabels="app.kubernetes.io/name=o,tier=a-1"
    ).pod_label_values

    assert found == {"app.kubernetes.io/name": "o", "tier": "a-1"}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({}, "image: is empty"),
        ({"image": "x", "namespaces": "Shop"}, "'Shop' is no namespace"),
        ({"image": "x", "namespaces": ",".join(f"n{i}" for i in range(101))}, "more than 100"),
        ({"image": "x", "podNamespace": "s", "podLabels": "a"}, "'a' is no list of labels"),
        ({"image": "x", "podLabels": "a=b"}, "pod_namespace: is empty, and pod_labels is not"),
        ({"image": "x", "podNamespace": "s"}, "pod_labels: is empty, and pod_namespace is not"),
        ({"image": "x", "workers": "0"}, "must be from 1 to 64"),
        ({"image": "x", "worker": "1"}, "did you mean workers"),
    ],
)
def test_wrong_settings_are_named(given: dict[str, str], problem: str) -> None:
    """Each problem says which setting it is about."""
    with pytest.raises(SettingsError, match=problem):
        loaded(**given)
