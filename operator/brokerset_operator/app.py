"""The operator as a process: stands by, leads, watches, runs reconciles, ends in order."""

from __future__ import annotations

import asyncio
import os
import random
import socket
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import structlog

from brokerset_kube import kinds
from brokerset_kube.client import KubeClient
from brokerset_kube.credentials import Access, load_access
from brokerset_kube.errors import KubeError
from brokerset_kube.kinds import Kind
from brokerset_kube.watching import Watch
from brokerset_operator.apply import Means
from brokerset_operator.audits import AUDIT, AuditReconciler
from brokerset_operator.certificates_view import secret_versions
from brokerset_operator.elector import Elector, ElectorSettings
from brokerset_operator.enqueueing import Enqueuer
from brokerset_operator.events import Events
from brokerset_operator.exports import EXPORT, ExportReconciler
from brokerset_operator.health import Health
from brokerset_operator.metrics import Measurements
from brokerset_operator.migrations import MIGRATION, MigrationReconciler
from brokerset_operator.model import names
from brokerset_operator.model.actions import Plan
from brokerset_operator.model.observed import Observed, Operator, OperatorPods
from brokerset_operator.observe import CLUSTER_SECONDS, ClusterFacts
from brokerset_operator.own_kinds import OwnKinds
from brokerset_operator.quiescence import QuiescentSets
from brokerset_operator.reconcile_queue import GONE, Key, Reconcile, ReconcileQueue
from brokerset_operator.set_reconciler import SetReconciler
from brokerset_operator.settings import OperatorSettings
from brokerset_operator.store_jobs import labels as job_labels
from brokerset_operator.subjects import SUBJECT, SubjectReconciler
from brokerset_operator.topics import TOPIC, TopicReconciler
from brokerset_operator.users import USER, UserReconciler
from brokerset_runtime.clock import Clock, SystemClock
from brokerset_runtime.http import HttpEndpoint
from brokerset_runtime.listening import listen_host
from brokerset_runtime.tls import Tls, tls_of_environment

log = structlog.get_logger(__name__)

CHILDREN: Final = (
    kinds.STATEFUL_SET,
    kinds.POD,
    kinds.CLAIM,
    kinds.SERVICE,
    kinds.ENDPOINT_SLICE,
    kinds.CONFIG_MAP,
    kinds.SERVICE_ACCOUNT,
    kinds.ROLE,
    kinds.ROLE_BINDING,
    kinds.DISRUPTION_BUDGET,
    kinds.NETWORK_POLICY,
)
"""Kinds whose events enqueue the set that their label names; their metadata alone is watched. The optional
kinds are watched too, for as long as the cluster has them."""

ENDING_SECONDS_MAX: Final = 10.0
"""Longest time that reconciles have to end when the process is told to stop; then they are broken off."""

OnEvent = Callable[[str, str, Mapping[str, Any]], None]
WatchSets = Callable[[KubeClient, Sequence[str], Sequence[Kind], OnEvent], Awaitable[None]]
"""Watches objects of these kinds until cancelled: `handlers.run_kopf`."""


class OperatorProcess:
    """One operator; `run` it once."""

    def __init__(
        self,
        settings: OperatorSettings,
        *,
        access: Access,
        plan: Callable[[Observed], Plan],
        watch_sets: WatchSets,
        clock: Clock | None = None,
        randomness: random.Random | None = None,
    ) -> None:
        """Needs the running loop."""
        loop = asyncio.get_running_loop()
        self._settings = settings
        self._watch_sets = watch_sets
        self._random = randomness or random.Random()
        clock = clock or SystemClock()
        self.measurements = Measurements(loop.time)
        self.client = KubeClient(
            access,
            manager=names.FIELD_MANAGER,
            timeout=float(settings.api_timeout_seconds),
            on_call=self.measurements.call,
        )
        identity = settings.identity or socket.gethostname()
        lease_namespace = settings.lease_namespace or access.namespace
        installation = f"{lease_namespace}/{settings.lease_name}"
        self.elector = Elector(
            self.client,
            ElectorSettings(
                namespace=lease_namespace,
                name=settings.lease_name,
                identity=f"{identity}_{os.urandom(4).hex()}",
                lease_seconds=float(settings.lease_seconds),
                renew_seconds=settings.renew_seconds,
                retry_seconds=settings.retry_seconds,
            ),
            clock,
            randomness=self._random,
        )
        means = Means(
            client=self.client,
            events=Events(self.client, clock, identity),
            clock=clock,
            leads=lambda: self.elector.leads,
            installation=installation,
        )
        self._facts = ClusterFacts(self.client, clock)
        self.queue = ReconcileQueue(
            self._reconcile, workers=settings.workers, on_reconciled=self.measurements.reconciled
        )
        self.measurements.watch_queue(self.queue)
        self.quiescent = QuiescentSets(
            clock,
            self._watching,
            self._facts.optional_kinds,
            self._random,
            partial(secret_versions, self.client),
        )
        self.enqueuer = Enqueuer(
            self.queue, self.quiescent, lambda kind: self.measurements.events.labels(kind).inc()
        )
        self.own_kinds = OwnKinds(
            self.client,
            self._namespaces,
            know=self.enqueuer.know,
            gone=self.enqueuer.kind_gone,
            on_served=lambda kind, served: self.measurements.kind_served.labels(kind).set(served),
        )
        resync = float(settings.resync_seconds)
        self._sets = SetReconciler(
            means,
            self._facts,
            Operator(
                image=settings.image,
                installation=installation,
                runbooks=settings.runbooks.rstrip("/"),
                ip_family="IPv6" if ":" in settings.pod_ip else "IPv4",
                trust_spread_seconds=float(settings.trust_spread_seconds),
                pods=_pods_of(settings),
            ),
            plan,
            resync,
            self.enqueuer.groups_changed,
            self.measurements.status,
            self.quiescent,
            randomness=self._random,
        )
        self._topics = TopicReconciler(
            means, self.enqueuer.claims, resync, self.measurements.status, randomness=self._random
        )
        self._subjects = SubjectReconciler(
            means, self.enqueuer.claims, resync, self.measurements.status, randomness=self._random
        )
        self._users = UserReconciler(
            means, self.enqueuer.claims, resync, self.measurements.status, randomness=self._random
        )
        self._audits = AuditReconciler(
            means,
            self.enqueuer.audits,
            resync,
            settings.spark_image,
            settings.spark_role,
            self.measurements.audit,
            self.enqueuer.enqueue,
            randomness=self._random,
        )
        self._migrations = MigrationReconciler(
            means,
            resync,
            settings.spark_image,
            settings.spark_role,
            self.measurements.migration,
            randomness=self._random,
        )
        self._exports = ExportReconciler(
            means,
            resync,
            settings.spark_image,
            settings.spark_role,
            self.measurements.export,
            randomness=self._random,
        )
        self._reconcilers: dict[str, Reconcile] = {
            TOPIC: self._topics.reconcile,
            SUBJECT: self._subjects.reconcile,
            USER: self._users.reconcile,
            AUDIT: self._audits.reconcile,
            MIGRATION: self._migrations.reconcile,
            EXPORT: self._exports.reconcile,
        }
        self.health = Health(
            leads=lambda: self.elector.leads,
            lease_seconds=self.elector.asked_seconds_ago,
            oldest_seconds=lambda: self.queue.schedule.oldest_seconds(loop.time()),
        )
        self.http_port = 0
        """The port of probes and measurements, once it runs; 0 without one."""

    async def run(self, stop: asyncio.Event) -> None:
        """Stand by and lead until `stop` is set.

        Raises, also in a group, `LeaseLost` and what `watch_sets` raises: the process must end then, and a
        new one begin; `SettingsError` for files of TLS.
        """
        settings = self._settings
        file = settings.tls_config_file
        tls = None if file is None else await asyncio.to_thread(Tls, file)
        endpoint = HttpEndpoint(
            alive=self.health.alive_problems,
            ready=self.health.ready_problems,
            metrics=lambda: self.measurements.registry,
        )
        self.client.start()
        try:
            if settings.http_port:
                self.http_port = await endpoint.start(
                    listen_host(settings.bind_address, settings.pod_ip), settings.http_port, tls
                )
            async with asyncio.TaskGroup() as group:
                while_it_runs = [group.create_task(self.health.run())]
                if tls is not None:
                    while_it_runs.append(group.create_task(tls.watch(), name="follow own certificate"))
                leading = group.create_task(self.elector.run(self._lead))
                stopping = group.create_task(self._stop_when(stop, leading))
                await asyncio.wait([leading])
                for task in (*while_it_runs, stopping):
                    task.cancel()
        finally:
            await endpoint.close()
            await self.client.close()
        log.info("operator has ended")

    async def _stop_when(self, stop: asyncio.Event, leading: asyncio.Task[None]) -> None:
        await stop.wait()
        self.health.ending = True
        log.info("operator is told to stop", rounds=len(self.queue.running))
        if not self.elector.leads:
            leading.cancel()
            return
        self.queue.stop()
        await asyncio.wait([leading], timeout=ENDING_SECONDS_MAX)
        leading.cancel()

    async def _lead(self) -> None:
        """Everything that only the leader does, until the queue is stopped."""
        self.health.starting = True
        self.measurements.leads.set(1)
        try:
            await self.own_kinds.begin()
            watched = [*CHILDREN, kinds.JOB, *([kinds.SECRET] if self._settings.watch_secrets else [])]
            watches = [watch for kind in watched for watch in self._watches(kind)]
            self.health.watches = watches
            self.health.starting = False
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(watch.run(), name=f"watch {watch.name}") for watch in watches]
                tasks.append(group.create_task(self._watch_optional(watches), name="watch optional kinds"))
                tasks.append(
                    group.create_task(self.own_kinds.watch(self._watch_own), name="watch sets and topics")
                )
                tasks.append(group.create_task(self.own_kinds.follow(), name="follow kinds"))
                tasks.append(group.create_task(self._compare(), name="compare"))
                tls = tls_of_environment()
                if tls is not None:
                    tasks.append(group.create_task(tls.watch(), name="follow certificates"))
                await self.queue.run()
                for task in tasks:
                    task.cancel()
        finally:
            self.measurements.leads.set(0)
            self.health.watches = ()

    def _watches(self, kind: Kind) -> list[Watch]:
        on_object, labels = {
            kinds.JOB: (self.enqueuer.job_event, job_labels.STORE_JOB),
            kinds.SECRET: (self.enqueuer.secret_event, None),
        }.get(kind, (self.enqueuer.child_event(kind), names.SET_LABEL))
        return [
            Watch(
                self.client,
                kind,
                on_object,
                namespace=namespace,
                labels=labels,
                on_listed=self.enqueuer.listed,
                randomness=self._random,
            )
            for namespace in self._namespaces
        ]

    async def _watch_own(self, served: Sequence[Kind]) -> None:
        namespaces = self._settings.namespace_list
        await self._watch_sets(self.client, namespaces, served, self.enqueuer.set_or_topic_event)

    async def _watch_optional(self, always: Sequence[Watch]) -> None:
        """Watch the optional kinds for as long as the cluster has them."""
        running: dict[Kind, tuple[list[Watch], list[asyncio.Task[None]]]] = {}
        async with asyncio.TaskGroup() as group:
            while True:
                try:
                    known = await self._facts.optional_kinds()
                except KubeError as error:
                    log.warning("cluster cannot be asked what it knows", reason=str(error))
                else:
                    for kind in [kind for kind in running if kind not in known]:
                        for task in running.pop(kind)[1]:
                            task.cancel()
                    for kind in known:
                        if kind not in running:
                            watches = self._watches(kind)
                            tasks = [
                                group.create_task(one.run(), name=f"watch {one.name}") for one in watches
                            ]
                            running[kind] = watches, tasks
                    self.health.watches = [
                        *always,
                        *(one for watches, _ in running.values() for one in watches),
                    ]
                await asyncio.sleep(CLUSTER_SECONDS)

    async def _compare(self) -> None:
        """See now and then whether kopf has told everything: sets of which nothing is heard rest on it."""
        while True:
            await asyncio.sleep(self._settings.resync_seconds)
            for kind in self.own_kinds.served:
                before = self.enqueuer.known(kind.kind)
                try:
                    listings = [
                        await self.client.list(kind, namespace, metadata_only=True)
                        for namespace in self._namespaces
                    ]
                except KubeError as error:
                    log.warning("sets and topics cannot be compared", reason=str(error))
                    continue
                late = self.enqueuer.compare(
                    kind.kind, (item for listing in listings for item in listing.items), before
                )
                if late:
                    log.info("changes were found before their events came", kind=kind.kind, objects=late)

    @property
    def _namespaces(self) -> Sequence[str | None]:
        return self._settings.namespace_list or (None,)

    def _watching(self) -> bool:
        now = asyncio.get_running_loop().time()
        return all(watch.lack(now) is None for watch in self.health.watches)

    async def _reconcile(self, key: Key) -> float | None:
        again = await self._reconcilers.get(key.kind, self._sets.reconcile)(key)
        if again == GONE:
            self.enqueuer.gone(key)
        return again


def _pods_of(settings: OperatorSettings) -> OperatorPods | None:
    labels = settings.pod_label_values
    return OperatorPods(namespace=settings.pod_namespace, labels=labels) if labels else None


def access_of(settings: OperatorSettings) -> Access:
    """How to reach the API server. Raises `CredentialsProblem`."""
    return load_access(settings.kubeconfig)
