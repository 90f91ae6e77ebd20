"""`brokerset controller rebuild`: gives controllers that lost everything the groups back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from brokerset_cli.controller_session import run
from brokerset_cli.folder import DataFolder
from brokerset_cli.options import controller_address, controller_options, json_option, namesrv_address
from brokerset_cli.output import CommandFailed, counted, write_columns, write_json
from brokerset_cli.takeover.adoption_journal import Journal
from brokerset_client.admin import Admin
from brokerset_client.controller_admin import BrokerObservation, ControllerAdmin
from brokerset_client.errors import ClientError
from brokerset_protocol.bodies.controllers import GroupState, ReplicaState
from brokerset_spec.setting_fields import address_problems


@dataclass(frozen=True, slots=True)
class RebuildPlan:
    """What would be proposed, and what people must know first."""

    groups: tuple[GroupState, ...]
    notes: tuple[str, ...]
    """What was left out, or may be missing."""

    obstacles: tuple[str, ...]
    """Why nothing can be proposed; empty when all is well."""


def plan_rebuild(observed: Sequence[BrokerObservation], known: Iterable[str]) -> RebuildPlan:
    """Decide what to propose: for each group the ids and the highest epoch that its brokers ever saw.

    `known` are the groups of which the controllers know replicas; they are not touched.
    """
    known = set(known)
    notes: list[str] = []
    obstacles: list[str] = []
    by_group: dict[str, list[BrokerObservation]] = {}
    for broker in _distinct(observed):
        if broker.identity.replica_id is None:
            notes.append(f"{broker.address} has no id yet and registers by itself")
        elif broker.broker_name in known:
            notes.append(
                f"{broker.address}: the controllers know the group {broker.broker_name}; it stays as it is"
                + _way_in(broker)
            )
        else:
            by_group.setdefault(broker.broker_name, []).append(broker)
    groups = []
    for name, members in by_group.items():
        obstacles += _contradictions(name, members)
        group = _group(name, members)
        if len(members) < group.expected_replicas:
            notes.append(
                f"{name}: {len(members)} of {group.expected_replicas} brokers were found; one that is "
                "missing now, and has an id above theirs or the newest messages, is not taken into account"
            )
        lost = [broker.address for broker in members if broker.identity.lost_cache]
        if lost:
            notes.append(
                f"{name}: {', '.join(lost)} lost its page cache; if it alone had acknowledged messages, they "
                "are gone: the first election records from which offset on"
            )
        groups.append(group)
    return RebuildPlan(tuple(groups), tuple(notes), tuple(obstacles))


def _distinct(observed: Sequence[BrokerObservation]) -> list[BrokerObservation]:
    """Each process once, sorted: one that was found at two of its addresses is not two replicas.

    Every process draws a nonce of its own, so the same id and nonce are the same process.
    """
    found: dict[tuple[str, int | None, str], BrokerObservation] = {}
    for broker in sorted(
        observed, key=lambda each: (each.broker_name, each.identity.replica_id or 0, each.address)
    ):
        process = broker.identity.nonce or broker.address
        found.setdefault((broker.broker_name, broker.identity.replica_id, process), broker)
    return list(found.values())


def _way_in(broker: BrokerObservation) -> str:
    """What to do when a broker with an id is kept out of a group that the controllers know."""
    state = broker.identity.registration
    if state is None or state.startswith("registered"):
        return ""
    return (
        f", but this broker, with id {broker.identity.replica_id}, is not in it: {state}. If what the group"
        " has are new, empty brokers that started before the rebuild, stop them, "
        f"`brokerset clean {broker.broker_name} --all`, and rebuild again; they can join with empty folders"
    )


def _contradictions(name: str, members: Sequence[BrokerObservation]) -> list[str]:
    found = []
    owners = sorted({broker.identity.owner_uid or "" for broker in members})
    if len(owners) > 1:
        found.append(f"{name}: its brokers belong to several sets ({', '.join(owners)}); stop those of one")
    clusters = sorted({broker.cluster_name for broker in members})
    if len(clusters) > 1:
        found.append(f"{name}: its brokers belong to several clusters ({', '.join(clusters)})")
    seen: dict[int, str] = {}
    for broker in members:
        replica_id = broker.identity.replica_id
        assert replica_id is not None
        if replica_id in seen:
            found.append(
                f"{name}: {seen[replica_id]} and {broker.address} both have the id {replica_id}; one is a "
                "copy: stop it, and `brokerset replica replace` its folder"
            )
        seen[replica_id] = broker.address
    return found


def _group(name: str, members: Sequence[BrokerObservation]) -> GroupState:
    identities = [broker.identity for broker in members]
    ids = [identity.replica_id or 0 for identity in identities]
    known = [identity.next_broker_id or 0 for identity in identities]
    epochs = [max(identity.group_epoch or 0, identity.log_epoch or 0) for identity in identities]
    return GroupState(
        cluster_name=members[0].cluster_name,
        broker_name=name,
        owner=identities[0].owner_uid or None,
        expected_replicas=max(identity.expected_replicas or 0 for identity in identities),
        next_broker_id=max(*known, *(n + 1 for n in ids)),
        master_id=None,
        master_epoch=max(epochs),
        sync_state_set=(),
        sync_state_set_epoch=0,
        suspects=(),
        losses=(),
        replicas=tuple(
            ReplicaState(
                broker_id=broker.identity.replica_id or 0,
                address=broker.address,
                check_code=broker.identity.check_code or "",
                incarnation=broker.identity.incarnation or 0,
                nonce=broker.identity.nonce,
                standing="unknown",
                log_epoch=broker.identity.log_epoch,
                max_offset=broker.identity.log_offset,
            )
            for broker in members
        ),
    )


@click.command()
@click.option(
    "--broker", "brokers", multiple=True, metavar="HOST:PORT", help="Also ask this broker; repeatable."
)
@click.option("--namesrv", metavar="HOST:PORT", help="Name servers that know brokers. [default: the set's]")
@click.option("--yes", is_flag=True, help="Do not ask before proposing.")
@controller_options
@json_option
def rebuild(
    brokers: tuple[str, ...],
    namesrv: str | None,
    yes: bool,
    controller: str | None,
    data: Path,
    as_json: bool,
) -> None:
    """Give controllers that lost all their data the groups back, from what the brokers hold.

    Brokers are looked for in the local set, at the name servers, and at the addresses that are given. Let all
    of them run first. Groups that the controllers know are never touched.
    """
    for address in brokers:
        if problems := address_problems(address):
            raise click.BadParameter("; ".join(problems), param_hint="--broker")

    async def gather(admin: ControllerAdmin) -> tuple[list[BrokerObservation], list[str], RebuildPlan]:
        known = [group.broker_name for group in await admin.groups() if group.replicas]
        addresses = dict.fromkeys([*brokers, *_local_brokers(data)])
        addresses |= dict.fromkeys(await _registered_brokers(namesrv_address(namesrv, data)))
        answers = await asyncio.gather(*(ask_broker(admin, address) for address in addresses))
        observed = [answer for answer in answers if isinstance(answer, BrokerObservation)]
        silent = [answer for answer in answers if isinstance(answer, str)]
        plan = plan_rebuild(observed, known)
        return observed, silent, replace(plan, groups=with_next_ids(plan.groups, *_left_behind(data)))

    target = controller_address(controller, data)
    observed, silent, plan = run(target, gather)
    if not as_json:
        _show(observed, plan)
    for text in (*silent, *plan.notes):
        click.secho(f"Note: {text}", fg="yellow", err=True)
    if plan.obstacles:
        raise CommandFailed("; ".join(plan.obstacles), "nothing was proposed; correct that and try again")
    if not plan.groups:
        if as_json:
            write_json({"rebuilt": []})
        raise CommandFailed(
            "there is nothing to rebuild",
            "start the brokers, or name them with --broker; see the notes above",
        )
    if not yes:
        click.confirm(f"Propose {counted(len(plan.groups), 'group')} to the controllers?", abort=True)

    run(target, lambda admin: propose(admin, plan.groups))
    if as_json:
        write_json({"rebuilt": [group.to_object() for group in plan.groups]})
    else:
        names = ", ".join(group.broker_name for group in plan.groups)
        click.echo(f"Rebuilt: {names}. Brokers register within seconds; see `brokerset status`.")


def with_next_ids(
    groups: Iterable[GroupState], next_ids: Mapping[str, int], owner: str
) -> tuple[GroupState, ...]:
    """The groups of `owner` so that no id is given again that another cluster's controllers have given.

    Brokers know only which ids there were when they got their own.
    """
    return tuple(
        replace(each, next_broker_id=max(each.next_broker_id, next_ids.get(each.broker_name, 0)))
        if each.owner == owner
        else each
        for each in groups
    )


def _left_behind(data: Path) -> tuple[Mapping[str, int], str]:
    """By group: the next id at the controllers that a folder's set is leaving (`adopt --finish`); its UID."""
    remembered = Journal(data).read()
    if remembered is None or remembered.finishing is None:
        return {}, ""
    return remembered.finishing.next_ids, DataFolder(data).memory().uid


def _local_brokers(data: Path) -> list[str]:
    state = DataFolder(data).read_state()
    return [p.address for p in (state.processes if state else ()) if p.kind == "broker" and p.alive]


async def _registered_brokers(namesrv: str) -> list[str]:
    """Brokers that a name server knows; none when it does not answer, as brokers may be named otherwise."""
    try:
        async with Admin(namesrv=namesrv) as admin:
            table = (await admin.cluster_info()).broker_addr_table
    except ClientError:
        return []
    return sorted(address for data in table.values() for address in data.broker_addrs.values())


async def propose(admin: ControllerAdmin, groups: Iterable[GroupState]) -> None:
    """Let the controllers take these groups in (21006), one after the other. Raises `RequestRefused`."""
    for group in groups:
        await admin.rebuild(group)


async def ask_broker(admin: ControllerAdmin, address: str) -> BrokerObservation | str:
    """Who a broker says it is, or why it says nothing."""
    try:
        return await admin.broker(address)
    except ClientError as error:
        return str(error)


def _show(observed: Sequence[BrokerObservation], plan: RebuildPlan) -> None:
    click.echo("Found:")
    write_columns(
        observed,
        {
            "broker": "address",
            "group": "broker_name",
            "id": lambda broker: broker.identity.replica_id,
            "starts": lambda broker: broker.identity.incarnation,
            "log epoch": lambda broker: broker.identity.log_epoch,
            "log end": lambda broker: broker.identity.log_offset,
            "page cache": lambda broker: "lost" if broker.identity.lost_cache else "kept",
            "next id told": lambda broker: broker.identity.next_broker_id,
            "epoch told": lambda broker: broker.identity.group_epoch,
        },
        empty="no broker",
    )
    click.echo("\nTo be proposed:")
    write_columns(
        plan.groups,
        {
            "group": "broker_name",
            "ids": lambda group: ", ".join(str(replica.broker_id) for replica in group.replicas),
            "next id": "next_broker_id",
            "epoch": "master_epoch",
            "master": lambda _: "the best of them is elected",
        },
    )
