"""Users: made at the masters of their set, corrected when they drift, deleted with their objects."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
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
from brokerset_operator.access_users.status import Provided, applied_version, status_of
from brokerset_operator.brokers_view import BrokerSilent, master_address
from brokerset_operator.claim_reconciler import (
    ClaimReconciler,
    Stopped,
    at_masters,
    valid_manifest,
)
from brokerset_operator.controllers_view import ControllersView, controllers_of, own_groups
from brokerset_operator.model import claim_reasons, names
from brokerset_operator.model.verdict import WAIT_SECONDS, Verdict
from brokerset_operator.owners import ensure_ours
from brokerset_operator.reconcile_queue import Key
from brokerset_operator.set_access import query_groups, uids_of
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

PASSWORD_BYTES: Final = 24
"""Random bytes of a password that is made."""


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


class UserReconciler(ClaimReconciler[User, Provided]):
    """Reconciles one User at a time; details are where it is, and where its password."""

    KIND = kinds.USER
    FINALIZER = FINALIZER

    def _read(self, live: dict[str, Any]) -> User:
        return read_user(live)

    def _waits_for_deletion(self, manifest: User) -> bool:
        return True

    async def _serve(
        self, key: Key, live: Mapping[str, Any], manifest: User
    ) -> tuple[Verdict, Provided | None]:
        broker_set, of_set, signing = await self._checking_set(key, manifest)
        if manifest.username in signing.users:
            text = f"{manifest.username} is a user of Secret {secret_of(broker_set)}; choose another name"
            raise Stopped(reasons.NAME_RESERVED, text)
        secret = await self._secret(live, manifest)
        wanted = StoredUser(manifest.username, secret.password, manifest.user_type, manifest.user_status)
        overlap = Overlap(
            manifest.spec.password_overlap_seconds,
            applied_version(live) != secret.version,
            self.means.clock.now_ms(),
        )
        verdict, until = await self._at_set(live, manifest, wanted, overlap, broker_set, of_set)
        latest = max((until_ms for until_ms in until.values() if until_ms is not None), default=None)
        return verdict, Provided(secret.name, tuple(until), secret.version, latest)

    async def _checking_set(self, key: Key, user: User) -> tuple[Mapping[str, Any], BrokerSet, SetSigning]:
        """The set, if its users can be changed. Raises `Stopped` and `NotOurs`."""
        name = user.spec.broker_set_ref.name
        broker_set = await self._set_of(key, name)
        manifest = valid_manifest(broker_set)
        if manifest.spec.acl.secret_name is None:
            text = f"the BrokerSet {name} checks nobody, so anybody may do everything; set its acl.secretName"
            raise Stopped(reasons.ACCESS_OFF, text)
        signing = await signing_of(self.means.client, broker_set)
        if signing.sign is None:
            text = f"the operator cannot sign as administrator of {name}: {signing.problem}"
            raise Stopped(reasons.NO_CREDENTIALS, text, WAIT_SECONDS)
        return broker_set, manifest, signing

    # -- password -----------------------------------------------------------------------------------------

    async def _secret(self, live: Mapping[str, Any], user: User) -> _Secret:
        """The Secret with the password. Raises `Stopped`."""
        given = user.spec.password_secret
        try:
            if given is None:
                return await self._own_secret(live, user)
            namespace = live["metadata"]["namespace"]
            try:
                secret = await self.means.client.get(kinds.SECRET, given.name, namespace)
            except NotFound:
                text = f"there is no Secret {given.name}; create it with an entry {given.key}"
                raise Stopped(reasons.SECRET_MISSING, text, WAIT_SECONDS) from None
        except Forbidden as error:
            text = f"Secrets may not be read and written: {error.message}; {RIGHT_ADVICE}"
            raise Stopped(reasons.SECRETS_FORBIDDEN, text) from error
        password = entry_of(secret, given.key)
        problem = password_problem(password)
        if problem is not None or password is None:
            text = f"the entry {given.key} of Secret {given.name} {problem}; correct it"
            raise Stopped(reasons.SECRET_MISSING, text, WAIT_SECONDS)
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
            raise Stopped(reasons.SECRET_TAKEN, text, WAIT_SECONDS)
        password = None if found is None else entry_of(found, SECRET_KEY)
        made = password_problem(password) is not None or password is None
        if password is None or made:
            password = secrets.token_urlsafe(PASSWORD_BYTES)
        wanted = made_secret(live, user.username, password)
        if found is not None and found.get("data") == wanted["data"]:
            return _Secret(name, _version_of(found), password)
        self._ensure_leading()
        written: Mapping[str, Any]
        if found is None:
            try:
                written = await client.create(wanted)
            except AlreadyExists:
                text = f"Secret {name} was made by somebody else just now"
                raise Stopped(reasons.SECRET_TAKEN, text, WAIT_SECONDS) from None
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
    ) -> tuple[Verdict, Mapping[str, int | None]]:
        """Make the user what is wanted; returns the groups, too, where it is that, with until when the former
        password is accepted there."""
        view = await self._view_of(broker_set)
        groups = await self._own_groups(broker_set, view, manifest.broker_names)
        done: dict[str, int | None] = {}

        async def act(group: str, address: str) -> None:
            try:
                until_ms = await self._at_group(live, user, wanted, overlap, group, address, requests)
            except UserRefused as error:
                raise Stopped(reasons.REFUSED, f"{group}: {error}") from error
            done[group] = until_ms

        async with UserRequests(view.connecting) as requests:
            problems = await at_masters(manifest.broker_names, groups, act)
        if problems:
            text = "; ".join(text for _, text in problems)
            return Verdict(False, problems[0][0], text, WAIT_SECONDS), done
        text = f"{len(done)} groups have the user as wanted"
        if manifest.spec.acl.mode != ENFORCING:
            text += "; nobody is checked yet, as acl.mode of the set is permissive"
        return Verdict(True, claim_reasons.AS_WANTED, text), done

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
            self._ensure_leading()
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
        self._ensure_leading()
        problems: list[str] = []
        async with UserRequests(view.connecting) as requests:
            for group, state in groups.items():  # one that cannot be asked keeps nobody's user elsewhere
                master = None if state is None else master_address(state)
                try:
                    if master is None:
                        raise BrokerSilent(f"{group} has no living master, so {name} cannot be deleted yet")
                    await requests.delete(master, name)
                except (BrokerSilent, UserRefused) as error:
                    problems.append(str(error))
        if problems:
            raise BrokerSilent("; ".join(problems))
        log.info("user deleted", user=name, set=f"{key.namespace}/{set_name}")

    def _status(
        self, live: Mapping[str, Any], verdict: Verdict, moment: str, details: Provided | None
    ) -> dict[str, Any]:
        return status_of(live, _username(live), verdict, moment, details or Provided())

    async def _groups_of(
        self, broker_set: Mapping[str, Any], view: ControllersView, name: str
    ) -> dict[str, GroupState | None]:
        """The groups that have the user: those that the set has now; None for one of which nothing is known.

        Raises `BrokerSilent`.
        """
        if not view.agreed:
            serving = controllers_of(broker_set)
            raise BrokerSilent(f"no controller of {serving} leads, so {name} cannot be deleted yet")
        try:
            wanted: tuple[str, ...] = read_manifest(broker_set).broker_names
        except ManifestError:
            wanted = ()
        if view.by_members:  # they are the set's own pods, and say nothing of an owner
            return {**view.groups, **{each: None for each in wanted if each not in view.groups}}
        own = own_groups(view.groups, names_of_own=(), uids=await uids_of(broker_set, self.means))
        if not wanted:
            return dict(own)
        return {group: state for group, state in own.items() if group in wanted or master_address(state)}


def _username(live: Mapping[str, Any]) -> str:
    return str((live.get("spec") or {}).get("username") or live["metadata"]["name"])
