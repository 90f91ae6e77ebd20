"""The port of a member in `dLegerPeers`: over it the members of a group talk to each other."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Final, Protocol

from brokerset_acl.signatures import Sign
from brokerset_runtime.peer_requests import Asker, PoolRequester
from brokerset_runtime.remoting import ConnectionPool, Handler, RemotingServer
from brokerset_runtime.tls import Tls

DRAIN_SECONDS: Final = 0.2
"""How long answers to other members may take at the end."""


class MemberPort(Protocol):
    """What a member has of the network; a protocol, so that a simulated one can stand in for sockets."""

    @property
    def asker(self) -> Asker:
        """Asks brokers of the group where clients ask them, too."""

    @property
    def member_asker(self) -> Asker:
        """Asks the other members at their ports in `dLegerPeers`."""

    async def serve(self, handlers: Mapping[int, Handler]) -> None:
        """Answer the other members, until cancelled. The table may grow meanwhile."""

    async def close(self) -> None:
        """Let answers that are on their way leave, and end all connections."""


class TcpMemberPort:
    """The real one: `listener` is bound to the port."""

    def __init__(self, listener: socket.socket, tls: Tls | None = None, sign: Sign | None = None) -> None:
        """`sign` signs requests to other members.

        With `tls` both ends of a connection show to be members, as for replication in controller mode; as
        there, `tls.ha.enable=false` leaves this port plain.
        """
        self._listener = listener
        self._tls = tls if tls is not None and tls.at_ha_port else None
        self._pool = ConnectionPool(tls=tls, sign=sign)
        self._member_pool = ConnectionPool(tls=self._tls, sign=sign, to_members=True)
        self._server: RemotingServer | None = None
        self.asker: Asker = PoolRequester(self._pool)
        self.member_asker: Asker = PoolRequester(self._member_pool)

    async def serve(self, handlers: Mapping[int, Handler]) -> None:
        self._server = RemotingServer(handlers, tls=self._tls, members_only=True)
        await self._server.listen_on(self._listener)
        await self._server.sweep_idle()

    async def close(self) -> None:
        if self._server is not None:
            await self._server.close(DRAIN_SECONDS)
        await self._member_pool.close()
        await self._pool.close()
        self._listener.close()
