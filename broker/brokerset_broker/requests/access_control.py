"""Who sends a request, and whether that user may: before the handlers, where a request is carried out.

A broker that passes a request on leaves both to its master. It signs that it did so, and from where the
request came, with the credentials that all brokers of the group have. The client's own signature stays.

Source: RocketMQ's `AuthenticationPipeline`, `AuthorizationPipeline`, `DefaultAuthenticationHandler`.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final
from weakref import WeakKeyDictionary

import structlog

from brokerset_acl.access_book import AccessBook, Accounts, configured_users
from brokerset_acl.deciding import Need, refusal
from brokerset_acl.former_passwords import FormerUses
from brokerset_acl.needs import check_number, needs_of, topic_need
from brokerset_acl.policies import Action
from brokerset_acl.signatures import (
    ACCESS_KEY,
    FORWARDER,
    FORWARDER_SIGNATURE,
    NO_NAME,
    SIGNATURE,
    WRONG_SIGNATURE,
    Credentials,
    Sign,
    added_by_old_clients,
    content,
    is_way_signed_by,
    way_signature,
)
from brokerset_acl.users import User, UserStatus
from brokerset_broker.requests.request_classes import (
    BORN_HOST,
    DENIED,
    FORWARDED,
    forwarded_peer,
    is_forwarded,
)
from brokerset_broker.tables.channels import Channel
from brokerset_formats.names import DERIVED_TOPIC_SIZE_MAX, is_retry_topic
from brokerset_formats.records import Record
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import Clock
from brokerset_runtime.log_throttle import LogThrottle
from brokerset_runtime.remoting import Connection, Handler
from brokerset_runtime.remoting.connection import Reply
from brokerset_runtime.remoting.password_checks import PasswordChecks
from brokerset_runtime.remoting.refusals import RefusalBound
from brokerset_spec.broker_settings import BrokerSettings

log = structlog.get_logger(__name__)

CheckTopic = Callable[[Connection, Command, str], None]
"""Raises `Rejected` unless whoever sent a request may access a topic."""

CheckRecord = Callable[[Connection, Command, Record], None]
"""Raises `Rejected` unless whoever sent a request may access the topic of a record, which it named by its
offset in the log."""

FindUnit = Callable[[str, int, int], tuple[int, int, int] | None]
"""Offset, size and tags code that a queue has for one message; None if it is not there."""

UNPROVEN: Final = "no broker of the group has signed that it passed this request on."

NO_RECORD: Final = "no queue has a message at this offset."

_MARKS: Final = frozenset({FORWARDED, BORN_HOST, FORWARDER, FORWARDER_SIGNATURE})

_SENDS: Final = frozenset({RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE})
"""Codes whose requests need the right to their topic (field `b`) and nothing else."""

_PULLS: Final = frozenset({RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE})
"""Codes whose requests need the right to their topic and group and nothing else."""

_ACKS: Final = frozenset({RequestCode.ACK_MESSAGE})
"""The same, of which a topic may be a retry topic of POP."""

_ENDS: Final = frozenset({RequestCode.END_TRANSACTION})
"""Codes whose requests need the right to send to the topic that they name, if they do, and to that of the
half, for which there is `checks_ends`."""

_KINDS: Final = (_SENDS, _PULLS, _ACKS, _ENDS)
"""Requests that go past the handlers when their like was let through."""

TEXT_MAX: Final = 128
"""Characters of a name that somebody claims, in texts and log lines."""


OnSend = Callable[[User, str, str], None]
"""Gets user, topic and address of a send that was let through."""

OnConsumer = Callable[[User, str, str, str], None]
"""Gets user, group, topic and address of a pull or an ack that was let through."""


class Denied(Rejected):
    """Access control refused a request."""


class AccessControl:
    """Checks requests against the users and policies of a book."""

    def __init__(self, settings: BrokerSettings, book: AccessBook, clock: Clock) -> None:
        inner = settings.inner_credentials()
        self.accounts = Accounts(
            book,
            configured_users(settings.first_user(), None if inner is None else Credentials(*inner)),
            None if inner is None else inner[0],
        )
        self.denied: Counter[str] = Counter()
        """Refused requests since the start: `authentication`, `authorization`."""
        self._checks = PasswordChecks(clock)
        self._clock = clock
        self._authenticates = settings.authentication_enabled
        self._authorizes = settings.authorization_enabled
        self._unsigned = _codes(settings.authentication_whitelist)
        self._unlimited = _codes(settings.authorization_whitelist)
        self.on_send: OnSend | None = None
        """Hears of sends whose like may be let through without a decision, until users or policies change.
        None are of retry topics, of codes in a white list, or passed on by a broker."""
        self.on_pull: OnConsumer | None = None
        """Hears of pulls in the same way, also from retry topics."""
        self.on_ack: OnConsumer | None = None
        """Hears of acks of POP in the same way, also of retry topics."""
        self.on_end: OnSend | None = None
        """Hears of topics whose transactions a user may end, in the same way, also of retry topics."""
        free = self._unsigned | self._unlimited
        self._kept = frozenset[int]().union(*(kind for kind in _KINDS if kind.isdisjoint(free)))
        self._cluster = settings.broker_cluster_name
        self._throttle = LogThrottle()
        self._bound = RefusalBound(settings.refusals_max)
        self._users: WeakKeyDictionary[Channel, str] = WeakKeyDictionary()
        """Who sent the last heartbeat of a connection."""

    def around(self, handlers: Mapping[int, Handler]) -> dict[int, Handler]:
        """The handlers with the checks before them."""
        return {code: partial(self._checked, handler) for code, handler in handlers.items()}

    @property
    def former_uses(self) -> FormerUses:
        """Requests that were signed with former passwords."""
        return self._checks.uses

    def is_super(self, command: Command) -> bool:
        """Whether a Super user sent a request that was let through; without authentication everybody is."""
        if not self._authenticates:
            return True
        user = self.accounts.user(command.ext.get(ACCESS_KEY, ""))
        return user is not None and user.is_super

    def shows_passwords(self, command: Command) -> bool:
        """Whether whoever sent a request may see passwords."""
        return self.is_proven_super(command)

    def is_proven_super(self, command: Command) -> bool:
        """Whether a Super user signed a request that was let through; without authentication nobody has."""
        return self._authenticates and self.is_super(command)

    def checks(self, *actions: Action) -> CheckTopic | None:
        """What checks whether the sender of a request, which was let through, may do one of the actions on a
        topic that only its handler finds out; None where nobody is checked."""
        if not self._authorizes:
            return None

        def check(connection: Connection, command: Command, topic: str) -> None:
            if command.code not in self._unlimited:
                user = self.accounts.user(command.ext.get(ACCESS_KEY, ""))
                self._authorize(connection, command, user, [topic_need(topic, actions)])

        return check

    def checks_ends(self) -> CheckTopic | None:
        """`checks` for the end of a transaction and the topic of its half; `on_end` hears of what is let
        through. None where nobody is checked."""
        check_topic = self.checks(Action.PUB)
        if not self._authenticates:
            return check_topic

        def check(connection: Connection, command: Command, topic: str) -> None:
            if check_topic is not None:
                check_topic(connection, command, topic)
            user = self.accounts.user(command.ext.get(ACCESS_KEY, ""))
            if user is not None and command.code in self._kept and not is_forwarded(command.ext):
                self._remember_end(user, topic, connection.peer[0])

        return check

    def checks_records(self, unit: FindUnit, *actions: Action) -> CheckRecord | None:
        """`checks` for what a request names by its offset. The bytes there may be part of somebody's message
        that look like a record of any topic, and reach over messages of others: its queue has to have it."""
        check_topic = self.checks(*actions)
        if check_topic is None:
            return None

        def check(connection: Connection, command: Command, record: Record) -> None:
            check_topic(connection, command, record.topic)
            if command.code in self._unlimited or self.is_super(command):
                return
            found = unit(record.topic, record.queue_id, record.queue_offset)
            if found is None or found[:2] != (record.offset, record.size):
                raise self._refused("authorization", connection, command, NO_RECORD)

        return check

    def may_send(self, channel: Channel, topic: str) -> bool:
        """Whether a client, by its last heartbeat, may send to a topic, and so see a half message of it."""
        if not self._authorizes or RequestCode.END_TRANSACTION in self._unlimited:
            return True
        user = self.accounts.user(self._users.get(channel, ""))
        if user is None or user.status is UserStatus.DISABLE:
            return False
        need = topic_need(topic, (Action.PUB,))
        return refusal(user, self.accounts.acl(user.username), [need], channel.peer[0]) is None

    def count_refusal(self, connection: Connection) -> None:
        """One more that was refused elsewhere, to where it was passed on."""
        self._bound.count(connection)

    # -- checks -------------------------------------------------------------------------------------------

    def _checked(self, handler: Handler, connection: Connection, command: Command) -> Reply:
        if not is_forwarded(command.ext):
            self._check(connection, command)
            return handler(connection, command)
        self._check_forwarder(connection, command)
        try:
            self._check(connection, command)
            return handler(connection, command)
        except Denied as denied:
            return command.reply(denied.code, denied.remark, ext={DENIED: "1"})

    def _check(self, connection: Connection, command: Command) -> None:
        """Raises `Rejected`."""
        user = None
        if ACCESS_KEY in command.ext or command.code not in self._unsigned:
            user = self._authenticated(connection, command)
        if self._authorizes and command.code not in self._unlimited and not (user and user.is_super):
            needs = [] if user is None else needs_of(command, self._cluster)
            check_number(needs)
            self._authorize(connection, command, user, needs)
        if user is not None and command.code == RequestCode.HEART_BEAT:
            self._users[connection] = user.username
        if user is not None and command.code in self._kept and not is_forwarded(command.ext):
            self._remember(connection, command, user)

    def _remember(self, connection: Connection, command: Command, user: User) -> None:
        ext, code, source = command.ext, command.code, connection.peer[0]
        group, topic = ext.get("consumerGroup", ""), ext.get("b" if code in _SENDS else "topic", "")
        if len(group) > DERIVED_TOPIC_SIZE_MAX or len(topic) > DERIVED_TOPIC_SIZE_MAX:
            return  # the handler refuses them; they must not be kept
        if code in _SENDS:
            if self.on_send is not None and topic and not is_retry_topic(topic):
                self.on_send(user, topic, source)
        elif code in _ENDS:
            self._remember_end(user, topic, source)
        else:
            on_consumer = self.on_pull if code in _PULLS else self.on_ack
            if on_consumer is not None:
                on_consumer(user, group, topic, source)

    def _remember_end(self, user: User, topic: str, source: str) -> None:
        """The user may send to this topic, so may end its transactions. Of a blank one nobody has decided."""
        if self.on_end is not None and topic.strip() and len(topic) <= DERIVED_TOPIC_SIZE_MAX:
            self.on_end(user, topic, source)

    def _check_forwarder(self, connection: Connection, command: Command) -> None:
        """Only brokers of the group may say where a request came from."""
        broker = self.accounts.user(command.ext.get(FORWARDER, ""))
        is_broker = broker is not None and broker.is_super and broker.status is UserStatus.ENABLE
        passwords = () if broker is None or not is_broker else broker.passwords(self._clock.now_ms())
        if not any(is_way_signed_by(password, command) for password in passwords):
            raise self._refused("authentication", connection, command, UNPROVEN)

    def _authenticated(self, connection: Connection, command: Command) -> User:
        """Who signed the request. Raises `Rejected`."""
        ext = command.ext
        name = ext.get(ACCESS_KEY)
        if not name:
            raise self._refused("authentication", connection, command, NO_NAME)
        user = self.accounts.user(name)
        if user is None:
            raise self._refused(
                "authentication", connection, command, f"User:{name[:TEXT_MAX]} is not found."
            )
        if user.status is UserStatus.DISABLE:
            raise self._refused("authentication", connection, command, f"User:{name} is disabled.")
        left_out = added_by_old_clients(command)
        if is_forwarded(ext):
            left_out |= _MARKS
        signed, peer = content(ext, command.body, left_out), forwarded_peer(ext) or connection.peer
        if not self._checks.is_right(user, signed, ext.get(SIGNATURE), peer):
            raise self._refused("authentication", connection, command, WRONG_SIGNATURE)
        return user

    def _authorize(
        self, connection: Connection, command: Command, user: User | None, needs: list[Need]
    ) -> None:
        if user is None:
            raise self._refused("authorization", connection, command, NO_NAME)
        if user.is_super:
            return
        source = (forwarded_peer(command.ext) or connection.peer)[0]
        text = refusal(user, self.accounts.acl(user.username), needs, source)
        if text is not None:
            raise self._refused("authorization", connection, command, text)

    def _refused(self, kind: str, connection: Connection, command: Command, text: str) -> Denied:
        """Count and log a refusal, with no more lines than a log can bear."""
        self.denied[kind] += 1
        # The connection of a broker that passes requests on is many clients': it counts them itself.
        if text == UNPROVEN or not is_forwarded(command.ext):
            self._bound.count(connection)
        suppressed = self._throttle.admit(asyncio.get_running_loop().time())
        if suppressed is not None:
            log.warning(
                "request denied",
                kind=kind,
                user=command.ext.get(ACCESS_KEY, "")[:TEXT_MAX],
                peer=forwarded_peer(command.ext) or connection.peer,
                code=command.code,
                reason=text,
                suppressed=suppressed,
            )
        return Denied(ResponseCode.NO_PERMISSION, text)


def broker_sign(settings: BrokerSettings) -> Sign | None:
    """Signs requests of a broker; None without `innerClientAuthenticationCredentials`."""
    inner = settings.inner_credentials()
    return None if inner is None else partial(sign_as_broker, Credentials(*inner))


def sign_as_broker(credentials: Credentials, command: Command) -> None:
    """Sign a request of a broker. One that it passes on keeps the client's signature, or has none: the rights
    of the broker are not the client's."""
    if not is_forwarded(command.ext):
        credentials.sign(command)
        return
    command.ext[FORWARDER] = credentials.access_key
    command.ext[FORWARDER_SIGNATURE] = way_signature(credentials.secret_key, command)


def _codes(text: str) -> frozenset[int]:
    return frozenset(int(code) for code in text.split(",") if code.strip())
