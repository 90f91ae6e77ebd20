"""Identity and mastership, checked on every change of a group, every answer, every role of a broker."""

from __future__ import annotations

from dataclasses import dataclass, field

from brokerset_controller.replicas.events import (
    BrokerIdApplied,
    Event,
    FencingChanged,
    GroupRebuilt,
    MasterElected,
    ReplicaAdopted,
    ReplicasCleaned,
    ReplicaStarted,
    SyncStateSetAltered,
)
from brokerset_controller.replicas.state import Group
from brokerset_sim.history import Violation
from brokerset_sim.survivors import Survived

ID_FOR_EVER = "1 an id belongs to one check code permanently"
ID_USED = "2 an id that was granted is used"
ID_ONCE = "1 ids are given once"
IDENTITY_FILES = "2 identity files are whole or absent"
ONE_IDENTITY = "2 one folder, one id"
INCARNATION = "3 incarnations are recognised"
ONE_MASTER = "4 one master per epoch"
EPOCHS_GROW = "4 epochs grow"
NEW_PROCESS = "4 a new process gets a new epoch"
IN_SYNC_SET = "5 the in-sync set changes as decided"
ELECTED_IN_SYNC = "6 masters come from the in-sync set"
ELECTED_PROCESS = "4 a mastership goes to the process that was chosen"
OWN_GROUP = "an event changes its own group only"
LOST_CACHE = "6 lost page caches count"
READS = "4 reads are linearizable"
REPLIES = "14 a success reply means committed"


@dataclass(slots=True)
class GroupChecker:
    """Knows every id, election and start of one broker group since the beginning, also across rebuilds."""

    name: str
    codes: dict[int, str] = field(default_factory=dict)
    elected: dict[int, int] = field(default_factory=dict)
    """By master epoch: the id."""

    elected_nonces: dict[int, str | None] = field(default_factory=dict)
    """By master epoch: the start that it was given to."""

    masters: dict[int, object] = field(default_factory=dict)
    """By master epoch: the process that acted."""

    starts: dict[str, int] = field(default_factory=dict)
    """By nonce: the group's master epoch right after that start was committed."""

    known_nonces: dict[str, frozenset[str]] = field(default_factory=dict)
    """By next nonce: what its process said it knew of earlier starts."""

    lost: dict[int, frozenset[str]] = field(default_factory=dict)
    """Ids whose log lost its page cache since their last committed start, with the nonces until then."""

    rolled_back: dict[int, None] = field(default_factory=dict)
    """Ids whose volume was rolled back since their last committed start, to a copy from since that start."""

    owners: dict[int, object] = field(default_factory=dict)
    """By id: the folder that has it, whatever became of its copies."""

    epoch_max: int = 0
    next_id_max: int = 1

    def changed(self, before: Group | None, after: Group | None, event: Event) -> None:
        """An event took effect."""
        if after is None:
            raise Violation(ID_ONCE, f"{self.name}: the group and its next id were forgotten by {event}")
        was = before or Group(after.cluster_name, after.broker_name)
        if isinstance(event, GroupRebuilt):
            self._rebuilt(after)
        self._check_numbers(was, after, event)
        self._check_ids(was, after, event)
        match event:
            case SyncStateSetAltered():
                self._check_altered(was, after, event)
            case MasterElected():
                self._check_elected(was, after, event)
            case ReplicaStarted():
                self._check_started(was, after, event)
            case FencingChanged():
                self._check_fenced(was, after, event)
            case ReplicaAdopted():
                self.starts.setdefault(event.nonce, after.master_epoch)
            case ReplicasCleaned():
                if after.replicas and was.sync_state_set and not after.sync_state_set:
                    raise Violation(IN_SYNC_SET, f"{self.name}: the last in-sync replica was cleaned")
            case _:
                pass
        allowed = isinstance(
            event, SyncStateSetAltered | MasterElected | ReplicasCleaned | GroupRebuilt | FencingChanged
        ) or (isinstance(event, ReplicaStarted) and (event.lost_cache or event.unclean))
        if was.sync_state_set != after.sync_state_set and not allowed:
            raise Violation(IN_SYNC_SET, f"{self.name}: {event} changed the in-sync set")

    def _rebuilt(self, after: Group) -> None:
        """Starts that were committed before the loss count in the epochs of the rebuilt group."""
        self.starts = {nonce: min(epoch, after.master_epoch) for nonce, epoch in self.starts.items()}
        for replica in after.replicas.values():
            if replica.nonce is not None:
                self.starts.setdefault(replica.nonce, after.master_epoch)

    def controllers_lost(self, survived: Survived) -> None:
        """The controllers forgot everything: what counts is what the group's brokers know at this moment.

        An epoch is on its master's disk before the master acts. So it is gone only when that folder was
        emptied, or rolled back to before it, and no other broker heard of it; the same with an id. Nobody can
        know such a number then: it may be given again. No number up to what one broker knows may.
        """
        self.epoch_max, self.next_id_max = survived.epoch, survived.next_id
        self.owners = {key: owner for key, owner in self.owners.items() if key < survived.next_id}
        self.codes = {key: code for key, code in self.codes.items() if key in self.owners}
        self.masters = {key: process for key, process in self.masters.items() if key <= survived.epoch}
        self.elected = {key: chosen for key, chosen in self.elected.items() if key <= survived.epoch}
        self.rolled_back.clear()
        self.lost.clear()  # after a rebuild nobody counts as in sync

    def owns(self, broker_id: int, lineage: object) -> None:
        """A folder, or a copy of it, has this id on its disk."""
        known = self.owners.setdefault(broker_id, lineage)
        if known is not lineage:
            raise Violation(
                ID_ONCE, f"{self.name}: the folders of {known} and {lineage} both have the id {broker_id}"
            )

    def _check_numbers(self, was: Group, after: Group, event: Event) -> None:
        for what, old, new in (
            ("master epoch", max(was.master_epoch, self.epoch_max), after.master_epoch),
            ("next id", max(was.next_broker_id, self.next_id_max), after.next_broker_id),
            ("set epoch", was.sync_state_set_epoch, after.sync_state_set_epoch),
        ):
            if new < old:
                raise Violation(
                    EPOCHS_GROW if what != "next id" else ID_ONCE, f"{self.name}: {what} {old} became {new}"
                )
        if isinstance(event, GroupRebuilt):
            pass
        elif was.master_id != after.master_id and after.master_epoch <= was.master_epoch:
            raise Violation(EPOCHS_GROW, f"{self.name}: another master in its epoch: {event}")
        elif (
            was.sync_state_set != after.sync_state_set
            and after.sync_state_set_epoch <= was.sync_state_set_epoch
        ):
            raise Violation(EPOCHS_GROW, f"{self.name}: another in-sync set in its epoch: {event}")
        self.epoch_max = after.master_epoch
        self.next_id_max = after.next_broker_id

    def _check_ids(self, was: Group, after: Group, event: Event) -> None:
        for broker_id, replica in after.replicas.items():
            if broker_id >= after.next_broker_id:
                raise Violation(ID_ONCE, f"{self.name}: id {broker_id} is at or above the next id")
            code = self.codes.get(broker_id)
            if broker_id in was.replicas:
                if was.replicas[broker_id].check_code != replica.check_code:
                    raise Violation(ID_FOR_EVER, f"{self.name}: id {broker_id} changed hands by {event}")
            elif code is None:
                self.codes[broker_id] = replica.check_code
            elif isinstance(event, GroupRebuilt):
                if code != replica.check_code and not replica.check_code.startswith("adopted;"):
                    raise Violation(ID_FOR_EVER, f"{self.name}: id {broker_id} was rebuilt for another code")
            else:
                raise Violation(ID_ONCE, f"{self.name}: id {broker_id} was given again by {event}")
        if isinstance(event, BrokerIdApplied):
            replica = after.replicas[event.broker_id]
            if replica.check_code != event.check_code:
                raise Violation(
                    ID_FOR_EVER, f"{self.name}: {event} took effect on an id of {replica.check_code}"
                )
        if isinstance(event, ReplicaAdopted):
            known = was.replicas.get(event.broker_id)
            if known is not None and known.nonce not in (None, event.nonce):
                raise Violation(INCARNATION, f"{self.name}: {event} took over a replica that is ours")

    def _check_fenced(self, was: Group, after: Group, event: FencingChanged) -> None:
        """Fencing takes one replica out of the set, never the last one or the master; nothing else."""
        gone = was.sync_state_set - after.sync_state_set
        if after.sync_state_set - was.sync_state_set or not gone <= {event.broker_id}:
            raise Violation(IN_SYNC_SET, f"{self.name}: {event} made {after.sync_state_set} of {was}")
        if gone and (not event.fenced or not after.sync_state_set or event.broker_id == was.master_id):
            raise Violation(IN_SYNC_SET, f"{self.name}: {event} took {gone} out of the in-sync set of {was}")

    def _check_altered(self, was: Group, after: Group, event: SyncStateSetAltered) -> None:
        if after == was:
            return
        if (was.master_id, was.master_epoch) != (event.master_id, event.master_epoch):
            raise Violation(
                IN_SYNC_SET,
                f"{self.name}: {event} took effect while {was.master_id} was master of {was.master_epoch}",
            )
        if was.sync_state_set_epoch != event.sync_state_set_epoch:
            raise Violation(
                IN_SYNC_SET, f"{self.name}: {event} took effect on set {was.sync_state_set_epoch}"
            )
        if not event.new_set <= set(was.replicas) or event.master_id not in event.new_set:
            raise Violation(IN_SYNC_SET, f"{self.name}: {event} names strangers or not its master")
        if after.sync_state_set != event.new_set:
            raise Violation(IN_SYNC_SET, f"{self.name}: {event} made the set {sorted(after.sync_state_set)}")

    def _check_elected(self, was: Group, after: Group, event: MasterElected) -> None:
        if after == was:
            return
        chosen = event.master_id
        if after.master_epoch in self.elected:
            raise Violation(
                ONE_MASTER, f"{self.name}: epoch {after.master_epoch} was given twice, now by {event}"
            )
        self.elected[after.master_epoch] = chosen
        self.elected_nonces[after.master_epoch] = (
            after.replicas[chosen].nonce if chosen in after.replicas else None
        )
        if (event.expected_master_epoch, event.expected_set_epoch) != (
            was.master_epoch,
            was.sync_state_set_epoch,
        ):
            raise Violation(ELECTED_IN_SYNC, f"{self.name}: {event} was decided on another state than {was}")
        if chosen not in was.replicas:
            raise Violation(ELECTED_IN_SYNC, f"{self.name}: {event} names a stranger")
        if was.replicas[chosen].nonce != event.expected_nonce:
            raise Violation(
                ELECTED_PROCESS,
                f"{self.name}: {event} was decided on another process than {was.replicas[chosen].nonce}",
            )
        recorded = len(after.losses) > len(was.losses) or (bool(after.losses) and after.losses != was.losses)
        if was.virgin:
            return
        if event.unclean and recorded:
            return
        if chosen in was.suspects:
            some_kept_all = was.suspects <= was.unproven
            if not was.sync_state_set <= was.suspects or not (recorded or some_kept_all):
                raise Violation(ELECTED_IN_SYNC, f"{self.name}: {event} chose a suspect of {was}")
            return
        if chosen not in was.sync_state_set:
            raise Violation(
                ELECTED_IN_SYNC, f"{self.name}: {event} chose from outside {sorted(was.sync_state_set)}"
            )

    def _check_started(self, was: Group, after: Group, event: ReplicaStarted) -> None:
        old = was.replicas.get(event.broker_id)
        if old is None:
            raise Violation(INCARNATION, f"{self.name}: {event} of a replica that is not there")
        if old.nonce == event.nonce:
            return
        if event.nonce not in self.known_nonces:
            raise Violation(INCARNATION, f"{self.name}: nobody asked for {event}")
        if old.nonce is not None and old.nonce not in self.known_nonces[event.nonce]:
            raise Violation(
                INCARNATION, f"{self.name}: {event} does not know of the start {old.nonce} before it"
            )
        if event.nonce in self.starts:
            raise Violation(INCARNATION, f"{self.name}: {event} brings an older start back")
        if was.master_id == event.broker_id and (
            after.master_id is not None or after.master_epoch <= was.master_epoch
        ):
            raise Violation(
                NEW_PROCESS, f"{self.name}: {event} left a new process master of epoch {was.master_epoch}"
            )
        self.starts[event.nonce] = after.master_epoch
        self.rolled_back.pop(event.broker_id, None)
        before_loss = self.lost.get(event.broker_id)
        if before_loss is not None and event.nonce not in before_loss:
            if not event.lost_cache:
                raise Violation(LOST_CACHE, f"{self.name}: {event} does not say that the page cache is gone")
            if event.broker_id in after.sync_state_set and len(after.sync_state_set) > 1:
                raise Violation(
                    LOST_CACHE, f"{self.name}: {event} left the replica in {after.sync_state_set}"
                )
            if event.broker_id in was.sync_state_set and event.broker_id not in after.suspects:
                raise Violation(LOST_CACHE, f"{self.name}: {event} made no suspect")
            del self.lost[event.broker_id]

    def acts_as_master(self, process: object, broker_id: int, epoch: int, nonce: str | None) -> None:
        """A process serves writes in an epoch."""
        known = self.masters.setdefault(epoch, process)
        if known is not process:
            raise Violation(ONE_MASTER, f"{self.name}: {known} and {process} are masters of epoch {epoch}")
        if self.elected.get(epoch) != broker_id:
            raise Violation(
                ONE_MASTER,
                f"{self.name}: {process} (id {broker_id}) acts in {epoch}, not {self.elected.get(epoch)}",
            )
        if nonce is not None and self.elected_nonces.get(epoch) != nonce:
            raise Violation(
                ONE_MASTER,
                f"{self.name}: {process} acts in {epoch}, which another process with its id got",
            )
        if nonce is not None and (nonce not in self.starts or epoch <= self.starts[nonce]):
            raise Violation(
                NEW_PROCESS,
                f"{self.name}: {process} acts in epoch {epoch}; it started in {self.starts.get(nonce)}",
            )
