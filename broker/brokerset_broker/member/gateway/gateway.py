"""The table of handlers that the server uses, as the broker's role wants it.

Changing the mode swaps entries of the table, so a broker that serves pays nothing for this. Only with a lease
are reads wrapped, because their permission can end between two turns of the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from brokerset_broker.member.gateway.forwarding import Forwarder
from brokerset_broker.member.gateway.waiting_requests import HELD_SECONDS_MAX, Holding, Refusal
from brokerset_broker.member.service_mode import SERVE, Mode, ModeKind, Modes
from brokerset_broker.requests.request_classes import CLASSES, NOT_HERE, RequestClass, is_forwarded
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import FLAG_ONEWAY, Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.remoting import Connection, Handler
from brokerset_runtime.remoting.connection import Reply

FORWARDED_HOLD_SECONDS: Final = 1.0
"""How long a request that another broker passed on is held by one that is not master (yet)."""

LAPSED_TEXT: Final = "the lease of this master has run out, and another one may be master; try again"

_CLASSES: Final = (
    RequestClass.WRITE,
    RequestClass.COMMIT,
    RequestClass.LOCK,
    RequestClass.PROGRESS,
    RequestClass.ENDS,
    RequestClass.READ,
)
_NOT_HERE: Final = ((NOT_HERE, "1"),)

Guard = Callable[[Mapping[int, Handler]], Mapping[int, Handler]]
"""Checks requests before the handlers that carry them out, where they are carried out."""


class Gateway:
    """Serves, holds, forwards or refuses by `Modes`; serves everything at first."""

    def __init__(
        self,
        handlers: Mapping[int, Handler] | None = None,
        *,
        forwarder: Forwarder | None = None,
        lease_ok: Callable[[], bool] | None = None,
        on_lapse: Callable[[], None] | None = None,
        holding: Holding | None = None,
    ) -> None:
        """`lease_ok` is asked before guarded requests; when it says no, `on_lapse` should set other modes."""
        self.handlers: dict[int, Handler] = {}
        """For the server; always the same object."""
        self._behind: dict[int, Handler] = {}
        self.guard: Guard | None = None
        """Put around every handler that is registered from now on."""
        self._forwarder = forwarder
        self._lease_ok = lease_ok
        self._on_lapse = on_lapse
        self.holding = Holding() if holding is None else holding
        self.refused = 0
        """Requests refused because of the mode, at once or after a hold."""
        self._modes = Modes()
        self._now: dict[RequestClass, Mode] = dict.fromkeys(_CLASSES, SERVE)
        self._leaving: set[RequestClass] = set()
        self.register(handlers or {})

    def register(self, handlers: Mapping[int, Handler]) -> None:
        """Serve with these. Raises `ValueError` for a handler whose code is not classified."""
        unknown = sorted(int(code) for code in handlers if code not in CLASSES)
        if unknown:
            raise ValueError(f"no request class for codes {unknown}: add them to requests/request_classes.py")
        if self.guard is not None:
            handlers = self.guard(handlers)
        self._behind |= handlers
        self.handlers |= handlers
        if (unregister := handlers.get(RequestCode.UNREGISTER_CLIENT)) is not None:
            self.handlers[RequestCode.UNREGISTER_CLIENT] = partial(self._unregister, unregister)
        for kind in _CLASSES:
            self._swap(kind)

    @property
    def modes(self) -> Modes:
        """The modes that were set last."""
        return self._modes

    def mode_of(self, kind: RequestClass) -> Mode:
        """What happens to requests of this class now."""
        return SERVE if kind is RequestClass.OPEN else self._now[kind]

    def use(self, modes: Modes) -> None:
        """Treat requests like this from now on; what is held leaves in its order, if it may."""
        guards = (self._modes.guard_reads, self._modes.guard_writes)
        self._modes = modes
        if self._forwarder is not None:
            self._forwarder.target = modes.forward_to
        for kind in _CLASSES:
            mode = modes.of(kind)
            if mode != self._now[kind] or guards != (modes.guard_reads, modes.guard_writes):
                self._change(kind, mode)

    def serves_writes(self) -> bool:
        """Whether a send that comes now is served at once, and nothing waits to be served before it."""
        return self._serves(RequestClass.WRITE, self._modes.guard_writes)

    def serves_reads(self) -> bool:
        """The same for a pull."""
        return self._serves(CLASSES[RequestCode.PULL_MESSAGE], self._modes.guard_reads)

    def _serves(self, kind: RequestClass, guarded: bool) -> bool:
        if self._now[kind].kind is not ModeKind.SERVE or kind in self._leaving:
            return False
        return self._lease_ok is None or not guarded or self._lease_ok()

    def closed(self, connection: Connection) -> None:
        """Forget what is held for a connection; for the server's `on_close`."""
        self.holding.drop(connection)

    def close(self, remark: str = "the broker shuts down") -> None:
        """Refuse everything but open requests, and what is held, at once."""
        mode = Mode(ModeKind.REFUSE, ResponseCode.SERVICE_NOT_AVAILABLE, remark, not_here=True)
        self.use(Modes(writes=mode, commits=mode, locks=mode, progress=mode, ends=mode, reads=mode))
        self.holding.release_all()
        self.holding.close()

    # -- modes --------------------------------------------------------------------------------------------

    def _change(self, kind: RequestClass, mode: Mode) -> None:
        self._now[kind] = mode
        lane, forwarded = _lanes(kind)
        holding = self.holding
        if mode.kind is ModeKind.HOLD:
            leaving, staying = [], [lane, forwarded]
        elif mode.kind is ModeKind.FORWARD and self._forwarder is not None:
            leaving, staying = [lane], [forwarded]
        else:
            leaving, staying = [lane, forwarded], []
        for name in staying:
            holding.keep(name)
        leaving = [name for name in leaving if not holding.is_empty(name)]
        if leaving:
            self._leaving.add(kind)
        else:
            self._leaving.discard(kind)
        self._swap(kind)
        for name in leaving:
            holding.release(name, partial(self._left, kind))

    def _left(self, kind: RequestClass) -> None:
        """A lane has become empty."""
        lane, forwarded = _lanes(kind)
        stays = self._now[kind].kind is ModeKind.FORWARD
        empty = self.holding.is_empty
        if kind in self._leaving and empty(lane) and (stays or empty(forwarded)):
            self._leaving.discard(kind)
            self._swap(kind)

    def _swap(self, kind: RequestClass) -> None:
        """Put the handlers of a class into the table."""
        shared = self._shared(kind)
        for code, behind in self._behind.items():
            if CLASSES[code] is kind:
                handler = shared or self._guarded(kind, behind)
                self.handlers[code] = (
                    partial(self._in_turn, kind, handler) if kind in self._leaving else handler
                )

    def _shared(self, kind: RequestClass) -> Handler | None:
        """The handler for the whole class; None when each code has its own."""
        mode = self._now[kind]
        match mode.kind:
            case ModeKind.SERVE:
                return None
            case ModeKind.HOLD:
                return partial(self._hold, kind)
            case ModeKind.FORWARD if self._forwarder is not None:
                return partial(self._forward, kind, self._forwarder)
            case _:
                return partial(self._refuse, kind)

    # -- handlers -----------------------------------------------------------------------------------------

    def _guarded(self, kind: RequestClass, handler: Handler) -> Handler:
        """The handler, behind a check of the lease if that is needed."""
        lease_ok = self._lease_ok
        modes = self._modes
        wanted = modes.guard_writes if kind is RequestClass.WRITE else modes.guard_reads
        if lease_ok is None or not wanted:
            return handler

        def guarded(connection: Connection, command: Command) -> Reply:
            if lease_ok():
                return handler(connection, command)
            return self._lapsed(guarded, connection, command)

        return guarded

    def _lapsed(self, guarded: Handler, connection: Connection, command: Command) -> Reply:
        """The lease has ended, and nobody has noticed."""
        if self._on_lapse is not None:
            self._on_lapse()
            now = self.handlers[command.code]
            if now is not guarded:
                return now(connection, command)
        self.refused += 1
        raise Rejected(ResponseCode.SERVICE_NOT_AVAILABLE, LAPSED_TEXT)

    def _in_turn(
        self, kind: RequestClass, handler: Handler, connection: Connection, command: Command
    ) -> Reply:
        """Let a request wait behind the held ones of its connection, which are about to leave."""
        lane, forwarded = _lanes(kind)
        if self.holding.has(lane, connection):
            return self._hold_in(lane, kind, connection, command)
        if is_forwarded(command.ext) and self.holding.has(forwarded, connection):
            return self._hold_in(forwarded, kind, connection, command)
        return handler(connection, command)

    def _unregister(self, handler: Handler, connection: Connection, command: Command) -> Reply:
        """UNREGISTER_CLIENT: its answer says that the offsets a consumer has just committed are safe.

        It goes the way that they went: behind those that are held, or to the master, which answers it.
        """
        if command.is_oneway or "consumerGroup" not in command.ext:
            return handler(connection, command)
        lane, passed_on = _lanes(RequestClass.COMMIT)
        forwarded = is_forwarded(command.ext)
        way = passed_on if forwarded else lane
        if self.holding.has(way, connection):
            return self._hold_in(way, RequestClass.COMMIT, connection, command)
        follows = self._now[RequestClass.COMMIT].kind is ModeKind.FORWARD
        if self._forwarder is None or forwarded or not follows:
            return handler(connection, command)
        handler(connection, replace(command, flag=command.flag | FLAG_ONEWAY))  # the master answers
        return self._forwarder.forward(connection, command, self.holding.arrived(command))

    def _hold(self, kind: RequestClass, connection: Connection, command: Command) -> Reply:
        return self._hold_in(_lanes(kind)[0], kind, connection, command)

    def _hold_in(
        self,
        lane: str,
        kind: RequestClass,
        connection: Connection,
        command: Command,
        seconds: float = HELD_SECONDS_MAX,
    ) -> Reply:
        mode = self._now[kind]
        code, remark = mode.code, mode.remark
        if mode.kind is ModeKind.SERVE:
            code, remark = ResponseCode.SERVICE_NOT_AVAILABLE, "held for too long; try again"
        not_here = mode.not_here and is_forwarded(command.ext)
        refusal = Refusal(code, remark, _NOT_HERE if not_here else ())
        return self.holding.hold(lane, connection, command, refusal, seconds)

    def _forward(
        self, kind: RequestClass, forwarder: Forwarder, connection: Connection, command: Command
    ) -> Reply:
        if is_forwarded(command.ext):
            if self.holding.was_held(command):  # the mastership that it waited for has ended
                return self._not_here(command)
            # whoever sent it takes this broker for the master, which it may become
            return self._hold_in(_lanes(kind)[1], kind, connection, command, FORWARDED_HOLD_SECONDS)
        return forwarder.forward(connection, command, self.holding.arrived(command))

    def _not_here(self, command: Command) -> Command:
        """Whoever passed it on looks for the master again, and has heard of it by then."""
        self.refused += 1
        return command.reply(
            ResponseCode.SERVICE_NOT_AVAILABLE, "this broker is not master any more", ext=dict(_NOT_HERE)
        )

    def _refuse(self, kind: RequestClass, connection: Connection, command: Command) -> Command:
        self.refused += 1
        mode = self._now[kind]
        if mode.not_here and is_forwarded(command.ext):
            return command.reply(mode.code, mode.remark, ext=dict(_NOT_HERE))
        raise Rejected(mode.code, mode.remark)


def _lanes(kind: RequestClass) -> tuple[str, str]:
    """Where requests of a class wait: those of clients, and those that other brokers passed on."""
    return _LANES[kind]


_LANES: Final = {kind: (kind.value, f"{kind.value} passed on") for kind in _CLASSES}
