"""Handing over and fencing: what is refused before anybody is asked, and what a refusal says."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from brokerset_cli.output import CommandFailed
from brokerset_cli.switchover import fence_replica, hand_over, step_down
from brokerset_client.controller_admin import ControllerAdmin
from brokerset_client.errors import AnswerTimeout, ClientError, RequestRefused
from brokerset_protocol.bodies.controllers import GroupState, ReplicaState
from brokerset_protocol.headers.controller import SwitchOverResponse

REPLICAS = tuple(ReplicaState(n, f"h:{n}", "", 1, None, "alive") for n in (1, 2, 3))
GROUP = GroupState("C", "orders-0", None, 3, 4, 1, 7, (1, 2), 9, (), (), REPLICAS)
DONE = SwitchOverResponse(master_broker_id=2, master_address="h:2", master_epoch=8, pause_ms=30)


class Admin(ControllerAdmin):
    """Controllers and brokers that answer as they are told to, and remember what they were asked."""

    def __init__(
        self,
        group: GroupState = GROUP,
        *,
        refuses: ClientError | None = None,
        fence_refuses: ClientError | None = None,
    ) -> None:
        super().__init__("127.0.0.1:1")
        self.group = group
        self.asked: list[str] = []
        self._refuses = refuses
        self._fence_refuses = fence_refuses

    async def groups(self, names: object = ()) -> tuple[GroupState, ...]:
        return (self.group,)

    async def switch_over(
        self, group: str, broker_id: int | None = None, *, timeout: float = 5.0
    ) -> SwitchOverResponse:
        self.asked.append(f"switch over to {broker_id}")
        if self._refuses is not None:
            raise self._refuses
        self.group = replace(self.group, master_id=2, master_epoch=8)
        return DONE

    async def fence(self, group: str, broker_id: int, *, fenced: bool = True, force: bool = False) -> None:
        self.asked.append(f"{'fence' if fenced else 'unfence'} {broker_id}{' by force' if force else ''}")
        if self._fence_refuses is not None:
            raise self._fence_refuses


@pytest.mark.parametrize(
    ("group", "to", "says"),
    [
        (
            replace(GROUP, master_id=None, advice="start replica 1"),
            None,
            "has no master that could hand over",
        ),
        (GROUP, 3, "orders-0/3 is not in sync with master 1; nothing was changed"),
        (GROUP, 9, "orders-0 has no replica 9, only: 1, 2, 3"),
        (replace(GROUP, sync_state_set=(1,)), None, "no other replica of orders-0 is in sync with master 1"),
    ],
    ids=["no-master", "behind", "unknown", "alone"],
)
def test_nobody_is_asked_to_hand_over_to_one_who_cannot_take_over(
    group: GroupState, to: int | None, says: str
) -> None:
    admin = Admin(group)

    with pytest.raises(CommandFailed, match=says) as caught:
        asyncio.run(hand_over(admin, group, to))

    assert caught.value.advice
    assert admin.asked == []


@pytest.mark.parametrize(
    ("problem", "says", "advice"),
    [
        (
            RequestRefused(1, "nobody caught up", "h:1"),
            "orders-0/1 did not hand over",
            "it is master as before",
        ),
        (AnswerTimeout("no answer in 5 s"), "orders-0/1 at h:1 gave no answer", "who is master now"),
    ],
    ids=["refused", "silent"],
)
def test_a_hand_over_that_fails_says_what_is_so_now(problem: ClientError, says: str, advice: str) -> None:
    with pytest.raises(CommandFailed, match=says) as caught:
        asyncio.run(hand_over(Admin(refuses=problem), GROUP, 2))

    assert advice in caught.value.advice


def test_only_a_master_steps_down() -> None:
    said: list[str] = []
    admin = Admin()

    slave = asyncio.run(step_down(admin, GROUP, 2, said.append))
    master = asyncio.run(step_down(admin, GROUP, 1, said.append))

    assert (slave.master_id, master.master_id) == (1, 2)
    assert admin.asked == ["switch over to None"]
    assert said == ["orders-0/1 was master; orders-0/2 is master now"]


def test_a_master_hands_over_before_it_is_fenced() -> None:
    admin = Admin()

    asyncio.run(fence_replica(admin, "orders-0", 1, force=False, say=lambda _: None))

    assert admin.asked == ["switch over to None", "fence 1"]


def test_a_master_that_cannot_hand_over_is_fenced_by_force_only() -> None:
    said: list[str] = []
    alone = replace(GROUP, sync_state_set=(1,))
    careful, forced = Admin(alone), Admin(alone)

    with pytest.raises(CommandFailed, match="is master, and could not hand over") as caught:
        asyncio.run(fence_replica(careful, "orders-0", 1, force=False, say=said.append))
    asyncio.run(fence_replica(forced, "orders-0", 1, force=True, say=said.append))

    assert "--force" in caught.value.advice
    assert (careful.asked, forced.asked) == ([], ["fence 1 by force"])
    assert "it is fenced by force" in said[0]


def test_a_fence_that_the_controllers_refuse_names_the_way_out() -> None:
    admin = Admin(fence_refuses=RequestRefused(1, "1 would stay in sync of at least 2", "h:9"))

    with pytest.raises(CommandFailed, match=r"orders-0/2 was not fenced: .*1 would stay in sync") as caught:
        asyncio.run(fence_replica(admin, "orders-0", 2, force=False, say=lambda _: None))

    assert "--force" in caught.value.advice
