"""What this command and the operator say to each other is spelled the same on both sides."""

from __future__ import annotations

import pytest

from brokerset_cli.kubernetes import fencing, names, tree
from brokerset_cli.kubernetes.sets import GroupView
from brokerset_operator.model import names as operator_names
from brokerset_operator.model import tls_stages
from brokerset_operator.plan import reasons, requests
from brokerset_operator.resources import tls_files


@pytest.mark.parametrize(
    "name", ["SET_LABEL", "GROUP_LABEL", "COMPONENT_LABEL", "PAUSED", "SWITCH_OVER", "FENCE", "APPROVE"]
)
def test_labels_and_annotations_are_the_operators(name: str) -> None:
    """Neither program may import the other, so the names exist twice."""
    assert getattr(names, name) == getattr(operator_names, name)


def test_whom_to_trust_is_named_as_the_operator_names_it() -> None:
    """Annotation and stage of pods, ConfigMap, its entry, and the name that certificates are for."""
    assert names.TLS == tls_stages.ANNOTATION
    alone = [stage for stage in tls_stages.TlsStage if stage >= tls_stages.TlsStage.ENFORCING]
    assert {stage.name.lower() for stage in alone} == names.TLS_ALONE
    assert names.AUTHORITIES_ENTRY == tls_files.AUTHORITIES_FILE
    assert names.authority("orders") == operator_names.authority("orders")
    assert names.server_name("orders", "shop") == tls_files.server_name("orders", "shop")


def test_states_and_reasons_are_the_operators() -> None:
    """A state that one side renames would be waited for in vain."""
    assert requests.OPEN == names.OPEN
    assert requests.FINISHED == names.FINISHED
    assert requests.PATIENCE_SECONDS == names.PATIENCE_SECONDS
    assert requests.FENCED_MAX == fencing.FENCED_MAX
    assert (reasons.READY, reasons.PROGRESSING) == (names.READY, names.PROGRESSING)
    assert reasons.PAUSED == names.REASON_PAUSED
    assert reasons.INVALID_SPEC == names.REASON_INVALID
    assert reasons.WAITING_FOR_APPROVAL == names.REASON_APPROVAL
    assert operator_names.HASH_ANNOTATION == names.CONFIG_HASH


def test_conditions_are_good_here_as_the_operator_means_them() -> None:
    """Of all conditions that it sets two are good when they hold."""
    assert set(tree.GOOD) == {reasons.READY, reasons.CONTROLLERS_READY} <= set(reasons.ALWAYS)


def test_the_operator_reads_what_this_command_writes() -> None:
    """Entries of the list are targets as the operator understands them."""
    group = GroupView("payments", "orders-1", 4, 1, "orders-1-0", (1, 2), ())

    value = fencing.with_entry("orders-0/2", group, 3)

    assert [requests.read_target(each) for each in value.split(",")] == [
        requests.Target("orders-0", 2),
        requests.Target("payments", 3),
    ]
