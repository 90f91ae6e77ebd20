"""The routes of topics as name servers tell them, for the clients whose queues the broker allocates.

Source: `TopicRouteInfoManager`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import structlog

from brokerset_protocol.bodies.queues import MessageQueue
from brokerset_protocol.bodies.routes import TopicRouteData
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_protocol.headers.namesrv import GetRouteInfo
from brokerset_protocol.queue_allocation import readable_queues
from brokerset_runtime.clock import Clock
from brokerset_runtime.remoting import Connection, ConnectionClosed, RequestTimeout

log = structlog.get_logger(__name__)

ASK_SECONDS: Final = 3.0
"""Time that a name server has for its answer."""

FRESH_SECONDS: Final = 5.0
"""Age up to which a route is not asked for again. Clients ask for their queues every 20 s."""

TOPICS_MAX: Final = 10_000
"""Routes that are kept; the oldest goes first."""


class _Route(NamedTuple):
    queues: tuple[MessageQueue, ...]
    asked: float


class TopicRoutes:
    """Asks one name server after the other; questions for one topic at the same time are one."""

    def __init__(self, servers: Callable[[], Sequence[Connection]], clock: Clock) -> None:
        """`servers`: open connections to the name servers."""
        self._servers = servers
        self._clock = clock
        self._routes: dict[str, _Route] = {}
        self._asking: dict[str, asyncio.Task[_Route | None]] = {}

    async def queues(self, topic: str) -> tuple[MessageQueue, ...] | None:
        """The readable queues of all brokers; None if no name server knows the topic, or answers.

        When none answers, what was known last counts.
        """
        known = self._routes.get(topic)
        if known is not None and self._clock.monotonic() - known.asked < FRESH_SECONDS:
            return known.queues
        asking = self._asking.get(topic)
        if asking is None:
            asking = self._asking[topic] = asyncio.get_running_loop().create_task(self._ask(topic, known))
            asking.add_done_callback(lambda _: self._asking.pop(topic, None))
        route = await asyncio.shield(asking)
        return None if route is None else route.queues

    async def _ask(self, topic: str, known: _Route | None) -> _Route | None:
        header = GetRouteInfo(topic=topic).to_ext()
        for server in self._servers():
            try:
                command = Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, header)
                answer = await server.call(command, ASK_SECONDS)
                if answer.code == ResponseCode.TOPIC_NOT_EXIST:
                    self._routes.pop(topic, None)
                    return None
                if answer.code == ResponseCode.SUCCESS:
                    data = TopicRouteData.from_json(answer.body)
                    return self._keep(topic, tuple(readable_queues(topic, data.queue_datas)))
                log.debug("no route", topic=topic, code=answer.code, remark=answer.remark)
            except (ConnectionClosed, RequestTimeout, Rejected) as error:
                log.debug("no route", topic=topic, reason=str(error))
        return known

    def _keep(self, topic: str, queues: tuple[MessageQueue, ...]) -> _Route:
        self._routes.pop(topic, None)  # the youngest is the last
        if len(self._routes) >= TOPICS_MAX:
            del self._routes[next(iter(self._routes))]
        route = self._routes[topic] = _Route(queues, self._clock.monotonic())
        return route
