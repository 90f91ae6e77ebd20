"""The commands that scenarios of a controller's decisions may use.

`NAME` stands for a broker group, `ID` for a replica. Words with `=` are options:

    next-id NAME                              1012
    apply NAME ID CODE [owner= expected= cluster=]                        1013
    register NAME ID ADDRESS [last= tried= next= owner= expected= epoch= offset= lost adopt]   1003
    elect NAME ID [designate] [unclean]       1002; ID -1 is the controller itself
    alter NAME MASTER EPOCH SET-EPOCH IDS     1001
    clean NAME [ids=1;2] [living] [cluster=]  1011
    rebuild NAME NEXT-ID EPOCH ID@ADDRESS,…   21006
    beat NAME ID [nonce= epoch= offset= confirm= timeout= priority= on= lost]  904
    close CONNECTION · pass SECONDS · answer NAME ID alive|dead (asks first)
    failover NAME                             the controller's own scan
    state NAME · info NAME (1004) · sync NAME (1006)
"""

from __future__ import annotations

from dataclasses import fields
from types import MappingProxyType

from brokerset_controller.liveness import PRIORITY_DEFAULT, Beat, Liveness, LiveView, ReplicaKey
from brokerset_controller.machine import ReplicasMachine
from brokerset_controller.replicas.codec import encode_event
from brokerset_controller.replicas.decide_cleaning import decide_clean, decide_rebuild
from brokerset_controller.replicas.decide_election import decide_elect, decide_failover
from brokerset_controller.replicas.decide_fencing import decide_fence
from brokerset_controller.replicas.decide_identity import decide_apply_id, decide_next_id, decide_register
from brokerset_controller.replicas.decide_sync_set import decide_alter_sync_state_set
from brokerset_controller.replicas.decisions import Decision
from brokerset_controller.replicas.describe import advice, decide_replica_info, describe_sync_states
from brokerset_controller.replicas.events import Applied, Event, GroupRebuilt
from brokerset_controller.replicas.state import Group, Replica
from brokerset_protocol.bodies.replicas import SyncStateSet
from brokerset_protocol.headers.controller import (
    AlterSyncStateSet,
    ApplyBrokerId,
    CleanControllerBrokerData,
    ElectMaster,
    FenceReplica,
    GetNextBrokerId,
    GetReplicaInfo,
    RegisterBrokerToController,
)

CLUSTER = "demo"


class _Words:
    """One command's words: positional ones, options and flags."""

    def __init__(self, words: list[str]) -> None:
        self.options = dict(word.split("=", 1) for word in words if "=" in word)
        self.plain = [word for word in words if "=" not in word]

    def number(self, position: int) -> int:
        return int(self.plain[position])

    def flag(self, name: str) -> bool:
        return name in self.plain

    def option(self, name: str) -> str | None:
        return self.options.get(name)

    def count(self, name: str, default: int) -> int:
        return int(self.options.get(name, default))


class ControllerScript:
    """One controller whose events are committed at once, on a clock that only `pass` moves."""

    def __init__(self) -> None:
        self._machine = ReplicasMachine()
        self._liveness = Liveness()
        self._now = 100.0
        self._index = 0

    def handle(self, command: str) -> str:
        """Carry out one command; returns what it printed."""
        verb, *rest = command.split()
        words = _Words(rest)
        match verb:
            case "close":
                return self._suspects(self._liveness.closed(words.plain[0], self._now))
            case "pass":
                self._now += float(words.plain[0])
                return self._suspects(self._liveness.silent(self._now))
        name = words.plain[0]
        group = self._machine.group(name)
        view = self._view(name)
        match verb:
            case "next-id":
                header = GetNextBrokerId(cluster_name=words.option("cluster") or CLUSTER, broker_name=name)
                return self._carry_out(decide_next_id(group, header))
            case "apply":
                return self._carry_out(decide_apply_id(group, _apply_header(words)))
            case "register":
                return self._register(words)
            case "elect":
                request = ElectMaster(
                    broker_name=name,
                    broker_id=words.number(1),
                    designate_elect=words.flag("designate"),
                    unclean=words.flag("unclean") or None,
                    handover_epoch=words.count("handover", 0) or None,
                )
                return self._carry_out(decide_elect(group, request, view, unclean_allowed=False))
            case "failover":
                decision = decide_failover(group, view, unclean_allowed=words.flag("unclean"))
                return self._carry_out(decision) if decision else f"nobody: {advice(group, view)}\n"
            case "alter":
                alter = AlterSyncStateSet(
                    broker_name=name, master_broker_id=words.number(1), master_epoch=words.number(2)
                )
                body = SyncStateSet(_ids(words.plain[4]), words.number(3))
                return self._carry_out(decide_alter_sync_state_set(group, alter, body, view))
            case "clean":
                clean = CleanControllerBrokerData(
                    cluster_name=words.option("cluster") or CLUSTER,
                    broker_name=name,
                    broker_controller_ids_to_clean=words.option("ids"),
                    is_clean_living_broker=words.flag("living"),
                )
                return self._carry_out(decide_clean(group, clean, view))
            case "fence" | "unfence":
                fence = FenceReplica(
                    broker_name=name,
                    broker_id=words.number(1),
                    fenced=verb == "fence",
                    force=words.flag("force") or None,
                )
                return self._carry_out(decide_fence(group, fence))
            case "lead":
                self._liveness.leads(words.number(1), self._now)
                return ""
            case "lease":
                key = ReplicaKey(name, words.number(1))
                return f"{self._liveness.lease_granted(key, '', 2_000, self._now)} ms\n"
            case "rebuild":
                return self._carry_out(decide_rebuild(group, _wanted(words)))
            case "beat":
                self._heard(name, words.number(1), _beat(words), words.option("on") or f"c{words.number(1)}")
                return ""
            case "answer":
                key = ReplicaKey(name, words.number(1))
                return self._answer(key, words.flag("alive"), surely=words.flag("refused"))
            case "info":
                return self._carry_out(decide_replica_info(group, GetReplicaInfo(broker_name=name)))
            case "sync":
                groups = [group] if group else []
                return describe_sync_states(groups, self._view).to_json().decode() + "\n"
            case "state":
                return _describe(group, view) if group else "no such group\n"
            case _:
                raise ValueError(f"unknown command: {command}")

    def _register(self, words: _Words) -> str:
        name, broker_id, address = words.plain[0], words.number(1), words.plain[2]
        header = RegisterBrokerToController(
            cluster_name=words.option("cluster") or CLUSTER,
            broker_name=name,
            broker_id=broker_id,
            broker_address=address,
            last_nonce=words.option("last"),
            tried_nonces=words.option("tried"),
            next_nonce=words.option("next"),
            owner_uid=words.option("owner"),
            expected_replicas=words.count("expected", 0) or None,
            log_epoch=words.count("epoch", -1),
            log_offset=words.count("offset", 0),
            lost_cache=words.flag("lost") or None,
            adopt=words.flag("adopt") or None,
        )
        decision = decide_register(self._machine.group(name), header, self._view(name))
        out = self._commit(decision.event)
        if decision.event is not None:
            decision = decide_register(self._machine.group(name), header, self._view(name))
        if decision.accepted:
            beat = Beat(
                address,
                header.next_nonce,
                words.count("epoch", -1),
                words.count("offset", 0),
                timeout_ms=2_000,
                lost_cache=words.flag("lost") and not words.flag("adopt"),
            )
            self._heard(name, broker_id, beat, f"c{broker_id}")
        return out + self._carry_out(decision)

    def _heard(self, name: str, broker_id: int, beat: Beat, connection: str) -> None:
        self._liveness.heard(ReplicaKey(name, broker_id), beat, connection, self._now)

    def _answer(self, key: ReplicaKey, alive: bool, *, surely: bool) -> str:
        group = self._machine.group(key.broker_name)
        address = group.replicas[key.broker_id].address if group else ""
        questions = self._liveness.to_ask(self._now, [(key, address)])
        for question in questions:
            self._liveness.answered(question, alive, self._now, surely=surely)
        return "" if questions else "nobody needs to ask\n"

    def _view(self, name: str) -> LiveView:
        return self._liveness.view(name, self._now)

    def _suspects(self, keys: tuple[ReplicaKey, ...]) -> str:
        return "".join(f"suspected: {key.broker_name} {key.broker_id}\n" for key in keys)

    def _commit(self, event: Event | None) -> str:
        if event is None:
            return ""
        self._index += 1
        outcome = self._machine.apply(self._index, encode_event(event))
        assert isinstance(outcome, Applied)
        if isinstance(event, GroupRebuilt):
            return "  GroupRebuilt\n"
        values = {field.name: getattr(event, field.name) for field in fields(event)}
        shown = [
            f"{name}={_shown(value)}"
            for name, value in values.items()
            if value not in (None, False) and name not in ("cluster_name", "broker_name", "loss")
        ]
        return f"  {type(event).__name__} {' '.join(shown)}".rstrip() + "\n"

    def _carry_out(self, decision: Decision) -> str:
        out = self._commit(decision.event) + f"{decision.code}"
        ext = decision.header.to_ext() if decision.header else {}
        out += "".join(
            f" {key}={value}" for key, value in ext.items() if key not in ("clusterName", "brokerName")
        )
        out += f"\n  {decision.body.to_json().decode()}" if decision.body else ""
        return out + (f"\n  {decision.remark}\n" if decision.remark else "\n")


def _apply_header(words: _Words) -> ApplyBrokerId:
    return ApplyBrokerId(
        cluster_name=words.option("cluster") or CLUSTER,
        broker_name=words.plain[0],
        applied_broker_id=words.number(1),
        register_check_code=words.plain[2],
        owner_uid=words.option("owner"),
        expected_replicas=words.count("expected", 0) or None,
    )


def _beat(words: _Words) -> Beat:
    return Beat(
        words.option("at") or f"h{words.number(1)}:1",
        words.option("nonce"),
        words.count("epoch", -1),
        words.count("offset", -1),
        words.count("confirm", -1),
        words.count("timeout", 2_000),
        words.count("priority", PRIORITY_DEFAULT),
        words.count("waits", 0) or None,
        False if words.flag("alone") else None,
        lost_cache=words.flag("lost"),
    )


def _wanted(words: _Words) -> Group:
    replicas = {}
    for part in words.plain[3].split(","):
        broker_id, address = part.split("@")
        replicas[int(broker_id)] = Replica(int(broker_id), address, "", words.option(f"nonce{broker_id}"))
    return Group(
        CLUSTER,
        words.plain[0],
        owner=words.option("owner"),
        expected_replicas=words.count("expected", 0),
        next_broker_id=words.number(1),
        replicas=MappingProxyType(replicas),
        master_epoch=words.number(2),
    )


def _ids(text: str) -> frozenset[int]:
    return frozenset(map(int, filter(None, text.split(","))))


def _shown(value: object) -> str:
    return str(sorted(value)) if isinstance(value, frozenset) else str(value)


def _describe(group: Group, view: LiveView) -> str:
    lines = [
        f"{group.broker_name} of {group.cluster_name}, owner {group.owner}, expects"
        f" {group.expected_replicas}, next id {group.next_broker_id}",
        f"master {group.master_id} in epoch {group.master_epoch},"
        f" in sync {sorted(group.sync_state_set)} in set epoch {group.sync_state_set_epoch},"
        f" suspects {sorted(group.suspects)}",
    ]
    lines += [
        f"{replica.broker_id}: {replica.address} nonce {replica.nonce} incarnation {replica.incarnation}"
        f" {view.standing(replica.broker_id).value}"
        for replica in group.replicas.values()
    ]
    if group.fenced:
        lines.append(f"fenced {sorted(group.fenced)}")
    lines += [
        f"lost from {loss.from_offset} in epoch {loss.master_epoch}: {loss.reason}" for loss in group.losses
    ]
    why = advice(group, view)
    return "".join(f"{line}\n" for line in lines) + (f"advice: {why}\n" if why else "")
