"""Users: made at the masters of their set, corrected when they drift, deleted with their objects."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from brokerset_acl.users import User as StoredUser
from brokerset_kube import kinds
from brokerset_kube.errors import AlreadyExists, Forbidden, NotFound
from brokerset_operator.access_users import reasons
from brokerset_operator.access_users.plan import Overlap, UpdateUser, plan_user
from brokerset_operator.access_users.secret import (
    SECRET_KEY,
    is_owned_by,
    made_secret,
    password_problem,
    secret_name,
)
from brokerset_operator.access_users.status import Verdict, applied_version, status_of
from brokerset_operator.apply import Means, NotLeading, write_status
from brokerset_operator.brokers_view import BrokerSilent, master_address
from brokerset_operator.claims import ClaimIndex
from brokerset_operator.controllers_view import ControllersView, controllers_of, own_groups
from brokerset_operator.model import names
from brokerset_operator.owners import NotOurs, ensure_ours
from brokerset_operator.reconcile_queue import GONE, Key, RetryAfter
from brokerset_operator.set_access import (
    foreign_groups,
    has_finalizer,
    query_groups,
    set_finalizer,
    uids_of,
)
from brokerset_operator.set_reconciler import RESYNC_SPREAD
from brokerset_operator.set_signing import RIGHT_ADVICE, SetSigning, entry_of, secret_of, signing_of
from brokerset_operator.user_requests import UserRefused, UserRequests
from brokerset_protocol.bodies.controllers import GroupState
from brokerset_spec.manifest import BrokerSet, ManifestError, read_manifest
from brokerset_spec.set_parts import ENFORCING
from brokerset_spec.user_manifest import User, read_user

log = structlog.get_logger(__name__)

USER: Final = "User"
"""Kind of the keys of these reconciles."""

FINALIZER: Final = f"{names.DOMAIN}/user"
"""Keeps a User until brokers let in nobody of that name."""

WAIT_SECONDS: Final = 5.0
"""Pause before brokers are asked again that do not answer, or a Secret that is not there."""

DELETE_SECONDS: Final = 20.0
"""Time-out of deleting a user at all groups of a set; it is tried again then."""

PASSWORD_BYTES: Final = 24
"""Random bytes of a password that is made."""


class Refused(Exception):
    """Nothing can be done for the user; the verdict says why."""

    def __init__(self, reason: str, message: str, again_seconds: float | None = None) -> None:
        super().__init__(message)
        self.verdict = Verdict(False, reason, message, again_seconds=again_seconds)


@dataclass(frozen=True, slots=True)
class _Secret:
    """The Secret of a User as it was read or written."""

    name: str
    version: str
    """Another one after each change."""

    password: str = field(repr=False)


def _version_of(secret: Mapping[str, Any]) -> str:
    metadata = secret["metadata"]
    return f"{metadata.get('uid', '')}/{metadata.get('resourceVersion', '')}"


@dataclass(slots=True)
class UserReconciler:
    """Reconciles one User at a time."""

    means: Means
    index: ClaimIndex
    resync_seconds: float
    on_status: Callable[[Key, Mapping[str, Any]], None] = lambda key, status: None
    """Called with the status of a User after each reconcile that has found one."""

    randomness: random.Random = field(default_factory=random.Random)

    async def reconcile(self, key: Key) -> float | None:
        """Do what is to be done now; returns after how many seconds to do it again, or `GONE`.

        Raises `RetryAfter` or a `KubeError` for what may be better next time.
        """
        try:
            try:
                live = await self.means.client.get(kinds.USER, key.name, key.namespace)
            except NotFound:
                self.index.forget(key)
                return GONE
            self.index.saw(USER, live)
            if live["metadata"].get("deletionTimestamp"):
                try:
                    await self._delete(key, live)
                except (BrokerSilent, UserRefused) as error:
                    await self._tell(key, live, Verdict(False, reasons.DELETION_WAITS, str(error)))
                    raise RetryAfter(str(error)) from error
                return None
            return await self._reconcile(key, live)
        except NotOurs:
            return self.resync_seconds
        except TimeoutError as error:
            raise RetryAfter(f"deleting took longer than {DELETE_SECONDS:g} s") from error

    async def _reconcile(self, key: Key, live: Mapping[str, Any]) -> float:
        try:
            user = read_user(dict(live))
        except ManifestError as error:
            verdict = Verdict(False, reasons.INVALID_SPEC, str(error))
        else:
            if not has_finalizer(live, FINALIZER):
                live = await set_finalizer(kinds.USER, live, FINALIZER, True, self.means)
            try:
                verdict = await self._verdict(key, live, user)
            except Refused as refused:
                verdict = refused.verdict
        await self._tell(key, live, verdict)
        regular = self.resync_seconds * (1 - RESYNC_SPREAD * self.randomness.random())
        return regular if verdict.again_seconds is None else min(regular, verdict.again_seconds)

    async def _tell(self, key: Key, live: Mapping[str, Any], verdict: Verdict) -> None:
        moment = datetime.fromtimestamp(self.means.clock.now_ms() // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        status = status_of(live, _username(live), verdict, moment)
        await write_status(kinds.USER, live, status, self.means)
        self.on_status(key, status)

    async def _verdict(self, key: Key, live: Mapping[str, Any], user: User) -> Verdict:
        older = self.index.older(key)
        if older is not None:
            text = f"User {older.name} was there first for {user.username}; delete one of the two"
            raise Refused(reasons.NAME_TAKEN, text)
        broker_set, manifest, signing = await self._set_of(key, user)
        if user.username in signing.users:
            text = f"{user.username} is a user of Secret {secret_of(broker_set)}; choose another name"
            raise Refused(reasons.NAME_RESERVED, text)
        secret = await self._secret(live, user)
        wanted = StoredUser(user.username, secret.password, user.user_type, user.user_status)
        overlap = Overlap(
            user.spec.password_overlap_seconds,
            applied_version(live) != secret.version,
            self.means.clock.now_ms(),
        )
        verdict = await self._at_set(live, user, wanted, overlap, broker_set, manifest)
        return replace(verdict, secret=secret.name, secret_version=secret.version)

    async def _set_of(self, key: Key, user: User) -> tuple[Mapping[str, Any], BrokerSet, SetSigning]:
        """The set, if its users can be changed. Raises `Refused`."""
        name = user.spec.broker_set_ref.name
        try:
            broker_set = await self.means.client.get(kinds.BROKER_SET, name, key.namespace)
            ensure_ours(broker_set, self.means)
            manifest = read_manifest(broker_set)
        except NotFound:
            text = f"there is no BrokerSet {name} in namespace {key.namespace}; create it, or correct "
            raise Refused(reasons.SET_MISSING, f"{text}brokerSetRef") from None
        except ManifestError:
            text = f"the BrokerSet {name} is invalid; see its condition Ready"
            raise Refused(reasons.SET_INVALID, text) from None
        if manifest.spec.acl.secret_name is None:
            text = f"the BrokerSet {name} checks nobody, so anybody may do everything; set its acl.secretName"
            raise Refused(reasons.ACCESS_OFF, text)
        signing = await signing_of(self.means.client, broker_set)
        if signing.sign is None:
            text = f"the operator cannot sign as administrator of {name}: {signing.problem}"
            raise Refused(reasons.NO_CREDENTIALS, text, WAIT_SECONDS)
        return broker_set, manifest, signing

    # -- password -----------------------------------------------------------------------------------------

    async def _secret(self, live: Mapping[str, Any], user: User) -> _Secret:
        """The Secret with the password. Raises `Refused`."""
        given = user.spec.password_secret
        try:
            if given is None:
                return await self._own_secret(live, user)
            namespace = live["metadata"]["namespace"]
            try:
                secret = await self.means.client.get(kinds.SECRET, given.name, namespace)
            except NotFound:
                text = f"there is no Secret {given.name}; create it with an entry {given.key}"
                raise Refused(reasons.SECRET_MISSING, text, WAIT_SECONDS) from None
        except Forbidden as error:
            text = f"Secrets may not be read and written: {error.message}; {RIGHT_ADVICE}"
            raise Refused(reasons.SECRETS_FORBIDDEN, text) from error
        password = entry_of(secret, given.key)
        problem = password_problem(password)
        if problem is not None or password is None:
            text = f"the entry {given.key} of Secret {given.name} {problem}; correct it"
            raise Refused(reasons.SECRET_MISSING, text, WAIT_SECONDS)
        return _Secret(given.name, _version_of(secret), password)

    async def _own_secret(self, live: Mapping[str, Any], user: User) -> _Secret:
        """That of the Secret which the operator makes; a new one where there is none."""
        client, name = self.means.client, secret_name(user.metadata.name)
        try:
            found: Mapping[str, Any] | None = await client.get(
                kinds.SECRET, name, live["metadata"]["namespace"]
            )
        except NotFound:
            found = None
        if found is not None and not is_owned_by(found, live["metadata"]["uid"]):
            text = f"Secret {name} is there and not this User's; delete it, or name it in passwordSecret"
            raise Refused(reasons.SECRET_TAKEN, text, WAIT_SECONDS)
        password = None if found is None else entry_of(found, SECRET_KEY)
        made = password_problem(password) is not None or password is None
        if password is None or made:
            password = secrets.token_urlsafe(PASSWORD_BYTES)
        wanted = made_secret(live, user.username, password)
        if found is not None and found.get("data") == wanted["data"]:
            return _Secret(name, _version_of(found), password)
        if not self.means.leads():
            raise NotLeading("this operator leads no more")
        written: Mapping[str, Any]
        if found is None:
            try:
                written = await client.create(wanted)
            except AlreadyExists:
                text = f"Secret {name} was made by somebody else just now"
                raise Refused(reasons.SECRET_TAKEN, text, WAIT_SECONDS) from None
        else:
            metadata = found["metadata"]
            written = await client.merge_patch(
                kinds.SECRET,
                name,
                metadata["namespace"],
                {"data": wanted["data"]},
                resource_version=metadata["resourceVersion"],
            )
        if made:
            await self.means.events.emit(live, "PasswordMade", f"made a password, in Secret {name}")
        log.info("secret of a user written", secret=f"{live['metadata']['namespace']}/{name}", new=made)
        return _Secret(name, _version_of(written), password)

    # -- brokers ------------------------------------------------------------------------------------------

    async def _at_set(
        self,
        live: Mapping[str, Any],
        user: User,
        wanted: StoredUser,
        overlap: Overlap,
        broker_set: Mapping[str, Any],
        manifest: BrokerSet,
    ) -> Verdict:
        view = await query_groups(broker_set, self.means)
        if not view.agreed:
            serving = controllers_of(broker_set)
            text = f"no controller of {serving} leads; see the BrokerSet's condition ControllersReady"
            raise Refused(reasons.CONTROLLERS_SILENT, text, WAIT_SECONDS)
        groups = {name: view.groups[name] for name in manifest.broker_names if name in view.groups}
        foreign = await foreign_groups(broker_set, groups, self.means)
        if foreign:
            where = f"see condition IdentityConflict of {manifest.metadata.name}"
            text = f"not of this set: {', '.join(foreign)}; {where}"
            raise Refused(reasons.SET_INVALID, text, WAIT_SECONDS)
        problems: list[tuple[str, str]] = []
        done: dict[str, int | None] = {}
        async with UserRequests(view.connecting) as requests:
            for group in manifest.broker_names:
                state = groups.get(group)
                address = None if state is None else master_address(state)
                if address is None:
                    problems.append((reasons.NO_MASTER, f"{group} has no living master"))
                    continue
                try:
                    until_ms = await self._at_group(live, user, wanted, overlap, group, address, requests)
                except BrokerSilent as error:
                    problems.append((reasons.BROKER_SILENT, str(error)))
                except UserRefused as error:
                    problems.append((reasons.REFUSED, f"{group}: {error}"))
                else:
                    done[group] = until_ms
        if problems:
            text = "; ".join(text for _, text in problems)
            return Verdict(False, problems[0][0], text, tuple(done), again_seconds=WAIT_SECONDS)
        text = f"{len(done)} groups have the user as wanted"
        if manifest.spec.acl.mode != ENFORCING:
            text += "; nobody is checked yet, as acl.mode of the set is permissive"
        latest = max((until_ms for until_ms in done.values() if until_ms is not None), default=None)
        return Verdict(True, reasons.AS_WANTED, text, tuple(done), former_until_ms=latest)

    async def _at_group(
        self,
        live: Mapping[str, Any],
        user: User,
        wanted: StoredUser,
        overlap: Overlap,
        group: str,
        address: str,
        requests: UserRequests,
    ) -> int | None:
        """Make one group's user what is wanted; until when the former password is accepted there."""
        known, there = await requests.known(address, user.username)
        until_ms = None if known is None else known.former_until_ms
        decided = plan_user(wanted, user.acl, known, there, overlap)
        for request in decided.requests:
            if not self.means.leads():
                raise NotLeading("this operator leads no more")
            found = await requests.carry_out(address, request)
            if isinstance(request, UpdateUser):
                until_ms = found
        if decided.text:
            text = f"{user.username} at {group}: {decided.text}"
            await self.means.events.emit(live, decided.event, text)
            log.info(
                "user changed",
                user=user.username,
                broker=address,
                what=decided.text,
                former_until_ms=until_ms,
            )
        return until_ms

    # -- deletion -----------------------------------------------------------------------------------------

    async def _delete(self, key: Key, live: Mapping[str, Any]) -> None:
        """Delete the user at all groups, then let the object go."""
        if not has_finalizer(live, FINALIZER):
            return
        if not await self._is_kept(key):
            async with asyncio.timeout(DELETE_SECONDS):
                await self._delete_at_set(key, live)
        await set_finalizer(kinds.USER, live, FINALIZER, False, self.means)
        self.index.forget(key)

    async def _is_kept(self, key: Key) -> bool:
        """Whether another object stands for the same user; asked for, since its event may be on its way."""
        listing = await self.means.client.list(kinds.USER, key.namespace)
        for item in listing.items:
            self.index.saw(USER, item)
        return bool(self.index.others(key))

    async def _delete_at_set(self, key: Key, live: Mapping[str, Any]) -> None:
        name = _username(live)
        set_name = str(((live.get("spec") or {}).get("brokerSetRef") or {}).get("name") or "")
        try:
            broker_set = await self.means.client.get(kinds.BROKER_SET, set_name, key.namespace)
        except NotFound:
            return  # its brokers are gone, or let nobody in that they do not know
        ensure_ours(broker_set, self.means)
        if name in (await signing_of(self.means.client, broker_set)).users:
            return  # the set's own, which this object never was
        view = await query_groups(broker_set, self.means)
        groups = await self._groups_of(broker_set, view, name)
        if not self.means.leads():
            raise NotLeading("this operator leads no more")
        problems = []
        async with UserRequests(view.connecting) as requests:
            for group, state in groups.items():  # one that cannot be asked keeps nobody's user elsewhere
                master = master_address(state)
                try:
                    if master is None:
                        raise BrokerSilent(f"{group} has no living master, so {name} cannot be deleted yet")
                    await requests.delete(master, name)
                except (BrokerSilent, UserRefused) as error:
                    problems.append(str(error))
        if problems:
            raise BrokerSilent("; ".join(problems))
        log.info("user deleted", user=name, set=f"{key.namespace}/{set_name}")

    async def _groups_of(
        self, broker_set: Mapping[str, Any], view: ControllersView, name: str
    ) -> dict[str, GroupState]:
        """The groups that have the user: those that the set has now. Raises `BrokerSilent`."""
        if not view.agreed:
            serving = controllers_of(broker_set)
            raise BrokerSilent(f"no controller of {serving} leads, so {name} cannot be deleted yet")
        own = own_groups(view.groups, names_of_own=(), uids=await uids_of(broker_set, self.means))
        try:
            wanted = read_manifest(broker_set).broker_names
        except ManifestError:
            return own
        return {group: state for group, state in own.items() if group in wanted or master_address(state)}


def _username(live: Mapping[str, Any]) -> str:
    return str((live.get("spec") or {}).get("username") or live["metadata"]["name"])
