"""A client's TLS connection: made when the two ends have agreed, or not at all."""

from __future__ import annotations

import asyncio
import ssl

from brokerset_runtime.tls.client_tls import ClientTls
from brokerset_runtime.tls.contexts import MEMBER_AUTHORITY_KEY
from brokerset_runtime.tls.session import TlsError, TlsSession
from brokerset_runtime.tls.transport import TlsTransport


async def connect_tls(
    tls: ClientTls, context: ssl.SSLContext, above: asyncio.Protocol, host: str, port: int
) -> None:
    """Connect to `host:port`, and let `above` use it as soon as the two ends have agreed.

    `context` is one of `tls`. The certificate of the server must be for its `server_name`, else for `host`,
    if the context checks names, and `tls` must admit it. A
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

    name = (tls.server_name or host).removesuffix(".")  # no certificate has the dot
    layer = TlsTransport(
        TlsSession(context, server_side=False, server_name=name),
        above,
        on_opened=opened,
        on_failed=failed,
        admit=tls.admit,
    )
    await loop.create_connection(lambda: layer, host, port)
    try:
        layer.begin()
        await agreed
    except BaseException:
        layer.abort()
        raise


async def connect_member(tls: ClientTls, above: asyncio.Protocol, host: str, port: int) -> None:
    """Connect to a process of the same set: both ends show certificates of the authority of members.

    Plain if the process has `tls.enable=false`. Raises as `connect_tls`; a refused certificate is
    reported with the authority that had to sign it.
    """
    context = tls.client_of_members
    if context is None:
        await asyncio.get_running_loop().create_connection(lambda: above, host, port)
        return
    try:
        await connect_tls(tls, context, above, host, port)
    except TlsError as error:
        raise TlsError(
            f"{error}; members are whom {tls.member_authorities} has signed: give that process such a"
            f" certificate, for this name, or correct {MEMBER_AUTHORITY_KEY} here"
        ) from None
