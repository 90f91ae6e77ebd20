"""Nothing is confirmed that a member of a set that may be in force does not have, whatever happens."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from brokerset_broker.member.ha.in_sync import InSync
from brokerset_broker.member.ha.progress import Progress
from brokerset_rig.examples import examples

OWN = 1
OTHERS = (2, 3, 4)
LAG_SECONDS = 2.0


class Mastership(RuleBasedStateMachine):
    """A master with its core, replicas whose logs are numbers, and controllers that may answer or not."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.end = 0
        self.has = dict.fromkeys(OTHERS, 0)
        """What each replica really has."""
        self.connected: set[int] = set()
        self.late: list[tuple[frozenset[int], int]] = []
        """Proposals on their way to the controllers; they may arrive at any time, or never."""
        self.confirmed = 0
        self.true_set = frozenset((OWN,))
        self.true_epoch = 1
        self.boundaries = {0}

    @initialize(end=st.integers(0, 50))
    def begin(self, end: int) -> None:
        self.end = end
        self.boundaries = {0, end}
        self.in_sync = InSync(OWN, self.true_set, self.true_epoch)
        self.progress = Progress(OWN, log_end=end, confirmed=0)

    def observe(self) -> None:
        held = self.progress.hold(self.in_sync.electable(), self.confirmed, self.now)
        before = self.confirmed
        self.confirmed = self.progress.confirm(
            self.in_sync.electable() | held, self.end, self.end, self.confirmed
        )
        assert self.confirmed >= before, "never lowered"

    @rule(sizes=st.lists(st.integers(1, 9), min_size=1, max_size=3))
    def append_a_turn(self, sizes: list[int]) -> None:
        self.end += sum(sizes)
        self.boundaries.add(self.end)
        self.progress.appended(self.end)
        self.observe()

    @rule(broker_id=st.sampled_from(OTHERS), learner=st.booleans())
    def connect(self, broker_id: int, learner: bool) -> None:
        self.connected.add(broker_id)
        self.progress.connected(broker_id, self.now, learner=learner and broker_id == 4, is_ours=True)
        self.observe()

    @precondition(lambda self: self.connected)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        broker_id = data.draw(st.sampled_from(sorted(self.connected)))
        self.connected.remove(broker_id)
        self.progress.disconnected(broker_id)
        self.observe()

    @precondition(lambda self: self.connected)
    @rule(data=st.data(), everything=st.booleans())
    def acknowledge(self, data: st.DataObject, everything: bool) -> None:
        broker_id = data.draw(st.sampled_from(sorted(self.connected)))
        self.progress.sent(broker_id, self.now, self.end)
        has = self.has[broker_id]
        self.has[broker_id] = self.end if everything else data.draw(st.integers(has, self.end))
        assert self.progress.acknowledge(broker_id, self.has[broker_id], self.now, self.end) is None
        self.observe()

    @rule(seconds=st.sampled_from([0.01, 0.2, 1.0, 3.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.observe()

    @rule()
    def propose(self) -> None:
        states = self.progress.states(self.confirmed, self.now, LAG_SECONDS)
        wanted = self.in_sync.decide(self.now, states)
        if wanted is not None:
            self.in_sync.proposed(wanted)
            self.observe()
            self.late.append((wanted, self.in_sync.set_epoch))

    @precondition(lambda self: self.late)
    @rule(data=st.data())
    def carry_out(self, data: st.DataObject) -> None:
        wanted, based_on = self.late.pop(data.draw(st.integers(0, len(self.late) - 1)))
        if based_on == self.true_epoch and wanted != self.true_set:
            self.true_set, self.true_epoch = wanted, self.true_epoch + 1

    @precondition(lambda self: self.in_sync.in_flight)
    @rule(refused=st.booleans())
    def give_up(self, refused: bool) -> None:
        self.in_sync.ended(self.now, self.in_sync.pending[-1], refused=refused)

    @precondition(lambda self: not self.in_sync.in_flight)
    @rule()
    def ask(self) -> None:
        self.in_sync.adopt(self.true_set, self.true_epoch)
        self.progress.expect(self.true_set, self.now)
        self.observe()

    @invariant()
    def what_is_in_force_has_what_is_confirmed(self) -> None:
        """Whoever may be elected now has all that was ever confirmed."""
        for broker_id in sorted(self.true_set - {OWN}):
            assert self.has[broker_id] >= self.confirmed

    @invariant()
    def what_may_come_into_force_has_it_too(self) -> None:
        """A proposal that may still arrive would not make anybody electable who has less."""
        for wanted, based_on in self.late:
            if based_on == self.true_epoch:
                for broker_id in sorted(wanted - {OWN}):
                    assert self.has[broker_id] >= self.confirmed

    @invariant()
    def confirmed_lies_between_turns(self) -> None:
        assert self.confirmed in self.boundaries

    @invariant()
    def only_one_on_its_way(self) -> None:
        """No proposal is forgotten that may be in force."""
        if hasattr(self, "in_sync"):
            assert self.true_set in (self.in_sync.committed, *self.in_sync.pending)


Mastership.TestCase.settings = examples(300, stateful_step_count=40)
test_mastership = Mastership.TestCase
