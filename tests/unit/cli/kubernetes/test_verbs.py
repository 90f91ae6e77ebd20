"""The verbs that write annotations: what is written, what is waited for, and what is refused."""

from __future__ import annotations

import json
from contextlib import closing
from typing import Any

import pytest
from tests.unit.cli.kubernetes.conftest import FakeCluster, broker_set, condition, pod

from brokerset_cli.kubernetes import edits
from brokerset_cli.kubernetes.kube_api import ApiFailed, KubeApi, refusal
from brokerset_cli.kubernetes.sets import SetView

SWITCH_OVER = "brokerset.io/switchover"
FENCE = "brokerset.io/fence"
APPROVE = "brokerset.io/approve-switchover"
PAUSED = "brokerset.io/paused"
CONFIG_HASH = "brokerset.io/config-hash"


def request(value: str, state: str, message: str = "", **more: Any) -> dict[str, Any]:
    """An answer in the status."""
    return {"value": value, "state": state, "message": message, "since": 1.0, **more}


def with_roles(**roles: str) -> list[dict[str, Any]]:
    """Groups of the status in which brokers have other roles, as `b2="fenced"`."""
    groups: list[dict[str, Any]] = broker_set()["status"]["groups"]
    for each in groups[0]["brokers"]:
        each["role"] = roles.get(f"b{each['id']}", each["role"])
    return groups


# -- switchover --------------------------------------------------------------------------------------------


def test_a_switch_over_is_asked_for_and_its_answer_printed(cluster: FakeCluster) -> None:
    """The annotation is written, and the end comes when the operator says Done."""
    after = broker_set()["status"]["groups"]
    after[0] |= {"epoch": 4, "master": {"id": 2, "pod": "orders-0-1"}}
    cluster.operator(
        (
            {SWITCH_OVER: "orders-0/2"},
            {"requests": {"switchover": request("orders-0/2", "Accepted", "next")}},
        ),
        (
            {SWITCH_OVER: "orders-0/2"},
            {"requests": {"switchover": request("orders-0/2", "Waiting", "the master is asked")}},
        ),
        (
            {},
            {
                "groups": after,
                "requests": {"switchover": request("orders-0/2", "Done", "broker 2 is master")},
            },
        ),
    )

    result = cluster.run("switchover", "orders", "orders-0", "--to", "2")

    assert result.exit_code == 0, result.output
    assert "orders-0: Done: broker 2 is master (pod orders-0-1, epoch 4)" in result.output
    assert "… the master is asked" in result.output
    assert cluster.annotations == {SWITCH_OVER: "orders-0/2"}


def test_the_same_switch_over_can_be_asked_for_twice(cluster: FakeCluster) -> None:
    """A value is acted on once, so the old answer has to be gone before the value is written again."""
    cluster.set(broker_set(requests={"switchover": request("orders-0", "Done", "before")}))
    cluster.annotate(switchover="orders-0")
    cluster.operator(
        ({SWITCH_OVER: None}, {"requests": None}),
        ({SWITCH_OVER: "orders-0"}, {"requests": {"switchover": request("orders-0", "Done", "again")}}),
    )

    result = cluster.run("switchover", "orders", "orders-0")

    assert result.exit_code == 0, result.output
    assert "orders-0: Done: again" in result.output
    assert cluster.written == [{SWITCH_OVER: "orders-0"}, {}, {SWITCH_OVER: "orders-0"}]


def test_an_answer_that_is_no_success_is_an_error(cluster: FakeCluster) -> None:
    """Exit code 1 and the operator's words."""
    cluster.operator(
        (
            {SWITCH_OVER: "orders-0/2"},
            {"requests": {"switchover": request("orders-0/2", "Failed", "given up: not in sync")}},
        )
    )

    result = cluster.run("switchover", "orders", "orders-0", "--to", "2")

    assert result.exit_code == 1
    assert "orders-0: Failed: given up: not in sync" in result.output


def test_a_time_out_tells_what_is_waited_for_and_how_to_take_it_back(cluster: FakeCluster) -> None:
    """The request stays: whoever gives up waiting must know that."""
    cluster.operator(
        (
            {SWITCH_OVER: "orders-0/3"},
            {"requests": {"switchover": request("orders-0/3", "Waiting", "broker 3 is not in sync")}},
        )
    )

    result = cluster.run("switchover", "orders", "orders-0", "--to", "3", "--timeout", "1")

    assert result.exit_code == 1
    assert "broker 3 is not in sync" in result.output
    assert f"kubectl annotate brokerset orders -n shop {SWITCH_OVER}-" in result.output


def test_without_an_operator_the_error_names_it(cluster: FakeCluster) -> None:
    """Nobody answers: the first thing to look at is whether it runs."""
    result = cluster.run("switchover", "orders", "orders-0", "--timeout", "1")

    assert result.exit_code == 1
    assert "the operator did not answer within" in result.output
    assert "app.kubernetes.io/name=brokerset-operator" in result.output


def test_another_switch_over_is_not_dropped_silently(cluster: FakeCluster) -> None:
    """Somebody waits for it; with --instead it goes."""
    cluster.set(broker_set(requests={"switchover": request("orders-0/3", "Waiting", "soon")}))
    cluster.annotate(switchover="orders-0/3")

    refused = cluster.run("switchover", "orders", "orders-0", "--to", "2")
    forced = cluster.run("switchover", "orders", "orders-0", "--to", "2", "--instead", "--timeout", "0")

    assert refused.exit_code == 1
    assert "still at another switchover of orders, orders-0/3: soon" in refused.output
    assert forced.exit_code == 0, forced.output
    assert cluster.annotations == {SWITCH_OVER: "orders-0/2"}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["nope"], "BrokerSet orders has no group 'nope'"),
        (["orders-0", "--to", "9"], "orders-0 has no broker 9"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    cluster: FakeCluster, arguments: list[str], says: str
) -> None:
    """The error names what there is."""
    result = cluster.run("switchover", "orders", *arguments)

    assert result.exit_code == 1
    assert says in result.output
    assert not cluster.kube.count("patch")


def test_who_is_master_already_is_not_asked_for(cluster: FakeCluster) -> None:
    """Nothing is written, and it is a success."""
    result = cluster.run("switchover", "orders", "orders-0", "--to", "1", "--json")

    assert result.exit_code == 0
    assert json.loads(result.output)["message"] == "broker 1 is master already"
    assert not cluster.kube.count("patch")


@pytest.mark.parametrize("verb", [["switchover", "orders", "orders-0"], ["fence", "orders", "orders-0", "2"]])
def test_a_paused_set_answers_nothing_so_nothing_is_asked(cluster: FakeCluster, verb: list[str]) -> None:
    """The operator would leave the request where it is."""
    cluster.annotate(paused="true")

    result = cluster.run(*verb)

    assert result.exit_code == 1
    assert "kubectl brokerset resume orders" in result.output


def test_a_manifest_that_is_not_valid_is_named(cluster: FakeCluster) -> None:
    """Requests are not looked at until it is corrected."""
    cluster.set(
        broker_set(conditions=[condition("Ready", "False", "InvalidSpec", "replicas: 12 is too many")]),
    )

    result = cluster.run("switchover", "orders", "orders-0")

    assert result.exit_code == 1
    assert "replicas: 12 is too many" in result.output


# -- fence, unfence ----------------------------------------------------------------------------------------


def test_fence_adds_to_the_list_and_waits_for_the_role(cluster: FakeCluster) -> None:
    """Entries of others stay in the annotation."""
    cluster.annotate(fence="other/7")
    value = "other/7,orders-0/2"
    cluster.operator(
        ({FENCE: value}, {"requests": {"fence": request(value, "Accepted", "is done next")}}),
        ({FENCE: value}, {"groups": with_roles(b2="fenced")}),
    )

    result = cluster.run("fence", "orders", "orders-0", "2")

    assert result.exit_code == 0, result.output
    assert "orders-0/2 is fenced" in result.output
    assert cluster.annotations == {FENCE: value}


def test_an_entry_that_somebody_adds_at_the_same_moment_is_not_lost(cluster: FakeCluster) -> None:
    """The list is read and written as one step, with the object's version; else it is read again."""
    cluster.conflicts, cluster.annotations_of_others = 1, {FENCE: "orders-0/3"}

    result = cluster.run("fence", "orders", "orders-0", "2", "--timeout", "0")

    assert result.exit_code == 0, result.output
    assert cluster.annotations == {FENCE: "orders-0/3,orders-0/2"}
    assert cluster.kube.count("patch") == 2


def test_an_object_that_never_stands_still_is_given_up(cluster: FakeCluster) -> None:
    """The number of tries has an end."""
    cluster.conflicts = 100

    result = cluster.run("fence", "orders", "orders-0", "2", "--timeout", "0")

    assert result.exit_code == 1
    assert "was changed by others 10 times" in result.output


def test_a_master_is_not_fenced(cluster: FakeCluster) -> None:
    """Another one has to be master first, and the command for that is named."""
    result = cluster.run("fence", "orders", "orders-0", "1")

    assert result.exit_code == 1
    assert "kubectl brokerset switchover orders orders-0" in result.output
    assert not cluster.kube.count("patch")


def test_a_fence_that_waits_says_why(cluster: FakeCluster) -> None:
    """The operator's reason, and how to take the request back."""
    cluster.operator(
        ({FENCE: "orders-0/2"}, {"requests": {"fence": request("orders-0/2", "Waiting", "only the master")}})
    )

    result = cluster.run("fence", "orders", "orders-0", "2", "--timeout", "1")

    assert result.exit_code == 1
    assert "orders-0/2 was not fenced within 1 s: only the master" in result.output
    assert "kubectl brokerset unfence orders GROUP ID" in result.output


def test_unfence_takes_one_entry_out_and_leaves_the_rest(cluster: FakeCluster) -> None:
    """Also one that is written with the StatefulSet's name, or with spaces."""
    item = broker_set(requests={"fence": request("x", "Done", fenced=["orders-0/2", "other/7"])})
    item["status"]["groups"] = with_roles(b2="fenced")
    cluster.set(item)
    cluster.annotate(fence="orders-0/2 , other/7")
    cluster.operator(
        ({FENCE: "other/7"}, {"requests": {"fence": request("other/7", "Accepted")}}),
        ({FENCE: "other/7"}, {"groups": with_roles()}),
    )

    result = cluster.run("unfence", "orders", "orders-0", "2")

    assert result.exit_code == 0, result.output
    assert "orders-0/2 takes part again" in result.output
    assert cluster.annotations == {FENCE: "other/7"}


def test_the_last_entry_takes_the_annotation_with_it(cluster: FakeCluster) -> None:
    """And the operator's answer goes with it, which is an answer too."""
    item = broker_set(requests={"fence": request("orders-0/2", "Done", fenced=["orders-0/2"])})
    item["status"]["groups"] = with_roles(b2="fenced")
    cluster.set(item)
    cluster.annotate(fence="orders-0/2")
    cluster.operator(({FENCE: None}, {"requests": None, "groups": with_roles()}))

    result = cluster.run("unfence", "orders", "orders-0", "2", "--json")

    assert result.exit_code == 0, result.output
    assert json.loads(result.output)["fenced"] is False
    assert cluster.annotations == {}


def test_unfence_of_a_broker_that_is_not_fenced_does_nothing(cluster: FakeCluster) -> None:
    """It can be repeated."""
    result = cluster.run("unfence", "orders", "orders-0", "2")

    assert result.exit_code == 0
    assert "orders-0/2 is not fenced." in result.output
    assert not cluster.kube.count("patch")


def test_a_fence_of_somebody_else_is_not_taken_for_ours(cluster: FakeCluster) -> None:
    """The operator takes in only what it has fenced; the way out is named."""
    cluster.set(broker_set(groups=with_roles(b2="fenced")))

    result = cluster.run("unfence", "orders", "orders-0", "2")

    assert result.exit_code == 1
    assert "kubectl brokerset fence orders orders-0 2" in result.output


# -- approve, pause, resume --------------------------------------------------------------------------------


def made(name: str, config_hash: str) -> dict[str, Any]:
    """A pod that was made from settings with this hash."""
    found: dict[str, Any] = pod(name)
    found["metadata"]["annotations"] = {CONFIG_HASH: config_hash}
    return found


def half_rolled(cluster: FakeCluster) -> None:
    """Let the slaves be new, and the master not."""
    hashes = {"orders-0-0": "old", "orders-0-1": "new", "orders-0-2": "new"}
    cluster.pods([made(name, config_hash) for name, config_hash in hashes.items()])


def waiting_for_approval() -> dict[str, Any]:
    """The set as it is while a supervised update waits."""
    message = "all slaves of a group are new, and people read this"
    item = broker_set(conditions=[condition("Progressing", "True", "WaitingForApproval", message)])
    item["spec"]["update"] = {"strategy": "supervised"}
    return item


def test_approve_writes_group_and_epoch_and_drops_what_is_over(cluster: FakeCluster) -> None:
    """An approval counts in one epoch; the update then goes on."""
    cluster.set(waiting_for_approval())
    half_rolled(cluster)
    cluster.annotate(approve_switchover="orders-0/2")
    going = [condition("Progressing", "True", "Rolling", "the master of orders-0 hands over to broker 2")]
    cluster.operator(({APPROVE: "orders-0/3"}, {"conditions": going}))

    result = cluster.run("approve", "orders", "orders-0")

    assert result.exit_code == 0, result.output
    assert (
        "orders-0 may hand over in epoch 3: the master of orders-0 hands over to broker 2." in result.output
    )
    assert cluster.annotations == {APPROVE: "orders-0/3"}


def test_what_waits_for_nobody_is_not_approved_in_advance(cluster: FakeCluster) -> None:
    """An approval that lies about would let the next update through unseen."""
    automatic = cluster.run("approve", "orders", "orders-0")
    item = broker_set()
    item["spec"]["update"] = {"strategy": "supervised"}
    cluster.set(item)
    supervised = cluster.run("approve", "orders", "orders-0")

    assert automatic.exit_code == supervised.exit_code == 1
    assert "the operator asks nobody" in automatic.output
    assert "condition Progressing is Done" in supervised.output
    assert not cluster.kube.count("patch")


@pytest.mark.parametrize("hashes", ["old old old", "new new new", "old old new"])
def test_a_group_whose_turn_it_is_not_is_not_approved(cluster: FakeCluster, hashes: str) -> None:
    """Another group waits: this one has not begun, is done, or still has old slaves."""
    cluster.set(waiting_for_approval())
    cluster.pods([made(f"orders-0-{n}", each) for n, each in enumerate(hashes.split())])

    result = cluster.run("approve", "orders", "orders-0")

    assert result.exit_code == 1
    assert "nothing of orders-0 waits for approval" in result.output
    assert "people read this" in result.output, "which one waits is in the operator's words"
    assert not cluster.kube.count("patch")


def test_a_group_of_one_broker_is_approved_when_something_waits(cluster: FakeCluster) -> None:
    """It has no slave to compare its master with."""
    cluster.set(waiting_for_approval())
    cluster.pods([made("orders-0-0", "old")])

    result = cluster.run("approve", "orders", "orders-0", "--timeout", "0")

    assert result.exit_code == 0, result.output
    assert cluster.annotations == {APPROVE: "orders-0/3"}


def test_a_new_image_is_a_change_too(cluster: FakeCluster) -> None:
    """Settings may have stayed the same."""
    cluster.set(waiting_for_approval())
    pods = [made(f"orders-0-{n}", "same") for n in range(3)]
    pods[0]["spec"]["containers"][0]["image"] = "brokerset:0"
    cluster.pods(pods)

    assert cluster.run("approve", "orders", "orders-0", "--timeout", "0").exit_code == 0


def test_commands_that_are_told_have_the_namespace_in_them(cluster: FakeCluster) -> None:
    """What is copied from a message works, wherever the context looks."""
    paused = cluster.run("pause", "orders", "--timeout", "0")
    asked = cluster.run("switchover", "orders", "orders-0")

    assert "kubectl brokerset resume orders -n shop" in paused.output
    assert "`kubectl brokerset resume orders -n shop` first" in asked.output


def test_pause_and_resume_wait_until_the_operator_has_heard(cluster: FakeCluster) -> None:
    """A pause that was not heard yet would not be one."""
    paused = [condition("Progressing", "False", "Paused", "nothing is changed")]
    cluster.operator(({PAUSED: "true"}, {"conditions": paused}))
    first = cluster.run("pause", "orders")
    during = cluster.annotations
    cluster.operator(({PAUSED: None}, {"conditions": [condition("Progressing", "False", "Done")]}))
    second = cluster.run("resume", "orders")
    third = cluster.run("resume", "orders")

    assert (first.exit_code, second.exit_code, third.exit_code) == (0, 0, 0), first.output + second.output
    assert during == {PAUSED: "true"}
    assert cluster.annotations == {}
    assert "orders is not paused." in third.output


def test_a_pause_that_nobody_hears_is_an_error(cluster: FakeCluster) -> None:
    """The annotation stays; whether it is heard is not known."""
    result = cluster.run("pause", "orders", "--timeout", "1")

    assert result.exit_code == 1
    assert "the operator did not answer within 1 s" in result.output


# -- while it is waited ------------------------------------------------------------------------------------


def test_an_outage_of_the_api_server_does_not_end_the_wait(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request is written; that nobody can look for a moment changes nothing."""
    cluster.operator(({PAUSED: "true"}, {"conditions": [condition("Progressing", "False", "Paused")]}))
    real, looks = edits.fetch_set, 0

    def fetch_set(api: KubeApi, name: str) -> SetView:
        nonlocal looks
        looks += 1
        if looks == 2:
            raise refusal(503, b"")
        return real(api, name)

    monkeypatch.setattr(edits, "fetch_set", fetch_set)

    result = cluster.run("pause", "orders")

    assert result.exit_code == 0, result.output
    assert looks == 3


def test_a_set_that_is_deleted_meanwhile_ends_the_wait(cluster: FakeCluster) -> None:
    """Nobody will answer any more."""

    def check(_seen: SetView) -> None:
        cluster.remove("brokersets")

    with closing(KubeApi()) as api, pytest.raises(ApiFailed, match="has no BrokerSet 'orders'"):
        edits.wait_for(api, "orders", check, 30.0)


def test_a_request_that_somebody_replaces_is_not_waited_for(cluster: FakeCluster) -> None:
    """What was done then is somebody else's."""
    accepted = {"requests": {"switchover": request("orders-0/2", "Accepted", "is done next")}}
    cluster.operator(({SWITCH_OVER: "orders-0/2"}, accepted))
    looks = 0
    real = edits.fetch_set

    def fetch_set(api: KubeApi, name: str) -> SetView:
        nonlocal looks
        looks += 1
        seen = real(api, name)
        if looks == 3:
            cluster.annotate(switchover="orders-0/3")
        return seen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(edits, "fetch_set", fetch_set)
        result = cluster.run("switchover", "orders", "orders-0", "--to", "2")

    assert result.exit_code == 1
    assert "somebody took the request for orders-0/2 back: the annotation is orders-0/3 now" in result.output


def test_an_approval_can_be_repeated(cluster: FakeCluster) -> None:
    """What is approved already is a success, and nothing is written."""
    cluster.set(broker_set(conditions=[condition("Progressing", "True", "Rolling", "goes on")]))
    cluster.annotate(approve_switchover="orders-0/3")

    result = cluster.run("approve", "orders", "orders-0")

    assert result.exit_code == 0, result.output
    assert "orders-0 may hand over in epoch 3: goes on." in result.output
    assert not cluster.kube.count("patch")


def test_an_approval_that_nobody_hears_is_an_error(cluster: FakeCluster) -> None:
    """The annotation stays, and counts as soon as the operator runs."""
    cluster.set(waiting_for_approval())
    half_rolled(cluster)

    result = cluster.run("approve", "orders", "orders-0", "--timeout", "1")

    assert result.exit_code == 1
    assert "the operator did not answer within 1 s to the approval of orders-0" in result.output
    assert cluster.annotations == {APPROVE: "orders-0/3"}
