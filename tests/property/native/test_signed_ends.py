"""Signed ends of transactions leave the same with the native core and without, whoever signed them.

Right ones, altered and unsigned ones, by users and from addresses that may or may not send to the topic that
the end names, or to the one that its half is for; users and policies change in between.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from tests.property.native.test_end_lane import HALVES, Peer, _bench, _end, _halves, _trace

from brokerset_acl.access_book import AccessBook
from brokerset_acl.policies import Acl, Action, Decision, Entry, resource_of
from brokerset_acl.signatures import Credentials
from brokerset_acl.users import User, UserType
from brokerset_broker.requests.access_control import AccessControl
from brokerset_broker.requests.core_decisions import CoreDecisions
from brokerset_broker.requests.end_lane import EndLane
from brokerset_broker.requests.end_transactions import TransactionProcessor
from brokerset_broker.store.releases import Releases
from brokerset_formats import native
from brokerset_protocol.commands import FLAG_ONEWAY, Command, encode
from brokerset_protocol.errors import Rejected
from brokerset_rig.transaction_bench import TransactionBench
from brokerset_runtime.remoting import DEFERRED
from brokerset_runtime.remoting.connection import Reply
from brokerset_spec.broker_settings import BrokerSettings

pytestmark = pytest.mark.skipif(native.core is None, reason="there is no native core")

ENDS, CHUNKS = 90, 9
SEEDS = 20
MISTAKE_SEEDS = 60
CODE = 37
SOURCES = ("10.0.0.1", "10.0.0.2")
FIRST, LATER = "first-key", "later-key"
TOPICS = ("t", "u", "gone")


class SignedPeer(Peer):
    """A connection from an address."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.peer = (source, 54321)
        self.state: dict[str, Any] = {}


class Side:
    """A broker that checks users, with the native lane or without."""

    def __init__(self, folder: Path, seed: int, *, natively: bool) -> None:
        self.bench = bench = _bench(folder)
        self.halves = _halves(bench, random.Random(seed))
        self.book = AccessBook({"root": User("root", FIRST, UserType.SUPER), "app": User("app", FIRST)})
        self.allow(t=SOURCES, gone=SOURCES, u=SOURCES[1:])
        settings = BrokerSettings(authentication_enabled=True, authorization_enabled=True)
        self.control = AccessControl(settings, self.book, bench.clock)
        self.lane = self._lane(bench) if natively else None
        self.processor = TransactionProcessor(
            live=bench.live, log_of_transactions=bench.log, topics=bench.topics, ordered=bench.ordered,
            admission=bench.admission, clock=bench.clock, lane=self.lane,
            check_topic=self.control.checks_ends(),
        )  # fmt: skip
        self.handler = self.control.around({CODE: self._handle})[CODE]
        self.peers = tuple(SignedPeer(source) for source in SOURCES)

    def _lane(self, bench: TransactionBench) -> EndLane:
        assert native.core is not None
        lane = EndLane(
            Releases(native.core, bench.store, checks_signatures=True), log_of_transactions=bench.log,
            topics=bench.topics, ordered=bench.ordered, admission=bench.admission, book=self.book,
        )  # fmt: skip
        lane.is_open = lambda: True
        self.control.on_end = lane.allow
        for topic in TOPICS:
            lane.learn(topic)
        return lane

    def _handle(self, connection: Any, command: Command) -> Reply:
        return self.processor.end(connection, command)

    def allow(self, **sources: tuple[str, ...]) -> None:
        """What the user `app` may send to, and from where."""
        entries = []
        for topic, addresses in sources.items():
            resource = resource_of(f"Topic:{topic}")
            assert resource is not None
            entries.append(Entry(resource, (Action.PUB,), Decision.ALLOW, addresses))
        self.book.put({}, {"User:app": Acl("User:app", tuple(entries))})

    def change(self, chunk: int) -> None:
        """Users and policies of this time."""
        if chunk == 3:
            self.allow(t=SOURCES[:1], u=SOURCES)
        elif chunk == 5:
            self.book.put({"app": User("app", LATER)}, {})
        elif chunk == 7:
            self.book.put({"app": User("app", FIRST)}, {})

    def one(self, peer: SignedPeer, command: Command) -> None:
        """Serve a request by its handler."""
        try:
            reply = self.handler(peer, command)  # type: ignore[arg-type]  # the part of it that ends use
        except Rejected as refused:
            reply = command.reply(refused.code, refused.remark)
        if reply is not None and reply is not DEFERRED and not command.flag & FLAG_ONEWAY:
            assert isinstance(reply, Command)
            peer.answer(reply)

    def serve(self, peer: SignedPeer, commands: list[Command]) -> None:
        """Serve a chunk: as much as it can by the lane, and what that declines by the handler."""
        frames = [encode(command) for command in commands]
        commands = list(commands)
        while commands:
            served = 0
            if self.lane is not None:
                size = self.lane.serve(peer, b"".join(frames))  # type: ignore[arg-type]  # as above
                while size > 0:
                    size -= len(frames[served])
                    served += 1
                assert size == 0, "whole frames are served"
            if not served:
                self.one(peer, commands[0])
                served = 1
            del frames[:served], commands[:served]
        self.bench.log.write_ops()

    def seen(self) -> tuple[object, ...]:
        """All that a client or another broker can observe."""
        answers = [peer.answers for peer in self.peers]
        return answers, dict(self.control.denied), [peer.in_flight for peer in self.peers], _trace(self.bench)


def _signed_end(halves: list[Any], draw: random.Random, opaque: int) -> Command:
    """An end of somebody, who may have signed it rightly."""
    command = _end(halves, draw, opaque)
    topic = draw.choice(("", "t", "t", "u", "gone", "none", " "))
    if topic or draw.random() < 0.3:
        command.ext["topic"] = topic
    name, password = draw.choice((("app", FIRST),) * 5 + (("app", LATER), ("root", FIRST), ("bob", FIRST)))
    if draw.random() < 0.05:
        command.body = b"body"
    Credentials(name, password).sign(command)
    if draw.random() < 0.1:
        field = draw.choice(("topic", "msgId", "Signature", "AccessKey", "commitLogOffset", "body", "none"))
        if field == "body":
            command.body += b"x"
        else:
            command.ext[field] = draw.choice(("", "t", "u", "root", "1"))
    if draw.random() < 0.05:
        del command.ext[draw.choice(("AccessKey", "Signature"))]
    return command


def _run(side: Side, seed: int) -> tuple[object, ...]:
    draw = random.Random(~seed)
    try:
        for chunk in range(CHUNKS):
            side.change(chunk)
            first = chunk * ENDS
            commands = [_signed_end(side.halves, draw, first + number) for number in range(ENDS // CHUNKS)]
            side.serve(draw.choice(side.peers), commands)
        return side.seen()
    finally:
        side.bench.close()


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_drawn_signed_ends_leave_the_same_trace_on_both_paths(tmp_path: Path, seed: int) -> None:
    """Whatever the core declines goes the other way, in that order."""
    ours = Side(tmp_path / "native", seed, natively=True)
    theirs = Side(tmp_path / "python", seed, natively=False)

    assert _run(ours, seed) == _run(theirs, seed)

    assert ours.control.denied["authorization"] > 0
    assert ours.control.denied["authentication"] > 0


async def test_ends_are_served_by_the_core_once_their_like_was_let_through(tmp_path: Path) -> None:
    """Or the test above compares Python with itself."""
    side = Side(tmp_path, 1, natively=True)
    assert side.lane is not None
    commands = []
    for number, half in enumerate(side.halves[: HALVES // 2]):
        fields = {
            "producerGroup": "pg", "tranStateTableOffset": str(half.queue_offset), "topic": "t",
            "commitLogOffset": str(half.offset), "commitOrRollback": "8", "msgId": f"k{number}",
        }  # fmt: skip
        commands.append(Command(CODE, fields, opaque=number))
        Credentials("root", FIRST).sign(commands[-1])

    side.serve(side.peers[0], commands)

    assert side.lane.served > HALVES // 4
    side.bench.close()


@contextmanager
def _keeps_old_decisions(_side: Side) -> Iterator[None]:
    with mock.patch.object(CoreDecisions, "drop_old"):
        yield


@contextmanager
def _allows_every_topic(side: Side) -> Iterator[None]:
    """Whoever may send to one topic ends transactions of all."""
    assert side.lane is not None
    allow = side.lane.allow

    def allow_all(user: User, _topic: str, source: str) -> None:
        for topic in TOPICS:
            allow(user, topic, source)

    side.control.on_end = allow_all
    yield


@contextmanager
def _forgets_addresses(side: Side) -> Iterator[None]:
    """Whoever may end from one address may from all."""
    assert side.lane is not None
    allow = side.lane.allow

    def allow_all(user: User, topic: str, _source: str) -> None:
        for source in SOURCES:
            allow(user, topic, source)

    side.control.on_end = allow_all
    yield


@pytest.mark.parametrize("broken", [_keeps_old_decisions, _allows_every_topic, _forgets_addresses])
async def test_a_wrong_broker_is_noticed(
    tmp_path: Path, broken: Callable[[Side], AbstractContextManager[None]]
) -> None:
    """One that goes by old decisions, and ones that ask too little."""
    for seed in range(MISTAKE_SEEDS):
        ours = Side(tmp_path / f"native-{seed}", seed, natively=True)
        theirs = Side(tmp_path / f"python-{seed}", seed, natively=False)
        seen = None
        with broken(ours), suppress(AssertionError):
            seen = _run(ours, seed)
        if seen != _run(theirs, seed):
            return
    pytest.fail("nobody noticed")
