"""A client's TLS connection: made when the two ends have agreed, or not at all."""

from __future__ import annotations

import asyncio
import ssl

from brokerset_runtime.tls.client_tls import ClientTls
from brokerset_runtime.tls.contexts import MEMBER_AUTHORITY_KEY
from brokerset_runtime.tls.member_names import MemberPort
from brokerset_runtime.tls.session import TlsError, TlsSession
from brokerset_runtime.tls.transport import TlsTransport


async def connect_tls(
    tls: ClientTls,
    context: ssl.SSLContext,
    above: asyncio.Protocol,
    host: str,
    port: int,
    member_port: MemberPort | None = None,
) -> None:
    """Connect to `host:port`, and let `above` use it as soon as the two ends have agreed.

    `context` is one of `tls`. The certificate of the server must be for its `server_name`, else for `host`,
    if the context checks names, and `tls` must admit it, at a port of members if it is one. A
    server that asks for certificates may still refuse ours afterwards: then the connection is lost. Raises
    `TlsError`, `OSError`.
    """
    loop = asyncio.get_running_loop()
    agreed: asyncio.Future[None] = loop.create_future()

    def opened() -> None:
        if not agreed.done():
            agreed.set_result(None)

    def failed(reason: str) -> None:
        if not agreed.done():
            agreed.set_exception(TlsError(reason))

    def admit(transport: TlsTransport) -> str | None:
        return tls.admit(transport) if member_port is None else tls.admit_member(transport, member_port)

    name = (tls.server_name or host).removesuffix(".")  # no certificate has the dot
    layer = TlsTransport(
        TlsSession(context, server_side=False, server_name=name),
        above,
        on_opened=opened,
        on_failed=failed,
        admit=admit,
    )
    await loop.create_connection(lambda: layer, host, port)
    try:
        layer.begin()
        await agreed
    except BaseException:
        layer.abort()
        raise


async def connect_member(
    tls: ClientTls, above: asyncio.Protocol, host: str, port: int, member_port: MemberPort
) -> None:
    """Connect to a process of the same set: both ends show certificates of the authority of members.

    The names of members may be others at each kind of port. Plain if the process has `tls.enable=false`.
    Raises as `connect_tls`; a refused certificate is reported with the authority that had to sign it.
    """
    context = tls.client_of_members
    if context is None:
        await asyncio.get_running_loop().create_connection(lambda: above, host, port)
        return
    try:
        await connect_tls(tls, context, above, host, port, member_port)
    except TlsError as error:
        raise TlsError(
            f"{error}; members are whom {tls.member_authorities} has signed: give that process such a"
            f" certificate, for this name, or correct {MEMBER_AUTHORITY_KEY} here"
        ) from None
