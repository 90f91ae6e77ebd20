"""Runs a command's work against a cluster; turns what can go wrong into errors that say what to do next."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any, Final, TypeVar

from brokerset_cli.options import namesrv_address, namesrv_options
from brokerset_cli.output import CommandFailed
from brokerset_client.admin import Admin
from brokerset_client.errors import (
    AnswerTimeout,
    BrokerUnreachable,
    ClientError,
    GroupOffline,
    MessageInvalid,
    NameServerUnavailable,
    NoQueue,
    ReplyTimeout,
    RequestRefused,
    SendFailed,
    TopicNotFound,
)
from brokerset_client.instance import ClientInstance
from brokerset_protocol.codes import ResponseCode
from brokerset_runtime.logs import configure_logs
from brokerset_runtime.remoting.signing import ACCESS_KEY_VARIABLE, SECRET_KEY_VARIABLE

T = TypeVar("T")

NO_PERMISSION_ADVICE: Final = (
    f"sign as a user that may, with {ACCESS_KEY_VARIABLE} and {SECRET_KEY_VARIABLE}; `brokerset acl list`"
    " shows who may what, `brokerset topic describe` what a topic allows"
)


def run(namesrv: str, work: Callable[[ClientInstance], Awaitable[T]]) -> T:
    """Connect to a cluster, do `work`, disconnect; ends the command when that fails."""

    # The client's log lines go to standard error, and only those that a person at a prompt must see.
    configure_logs("error", json=False)

    async def session() -> T:
        async with ClientInstance(namesrv) as instance:
            return await work(instance)

    try:
        return asyncio.run(session())
    except ClientError as error:
        raise CommandFailed(str(error), advice_for(error, namesrv)) from None
    except ValueError as error:  # names and addresses that the client refuses before it sends
        raise CommandFailed(str(error), "correct it and try again") from None


@dataclass(frozen=True, slots=True)
class Cluster:
    """The cluster that a command is for, as its options name it."""

    namesrv: str | None
    data: Path

    def run(self, work: Callable[[ClientInstance], Awaitable[T]]) -> T:
        """Do `work` as a client of the cluster; ends the command when that fails."""
        return run(namesrv_address(self.namesrv, self.data), work)

    def administer(self, work: Callable[[Admin], Awaitable[T]]) -> T:
        """Do `work` as an administrator of the cluster; ends the command when that fails."""
        return self.run(lambda instance: work(Admin(instance=instance)))


def cluster_options(function: Callable[..., None]) -> Callable[..., None]:
    """`--namesrv HOST:PORT` and `--data DIR`, which the command is given as `cluster`."""

    @wraps(function)
    def with_cluster(*, namesrv: str | None, data: Path, **others: Any) -> None:
        function(cluster=Cluster(namesrv, data), **others)

    return namesrv_options(with_cluster)


def advice_for(error: ClientError, namesrv: str) -> str:
    """Return what to do next about an error of the client."""
    match error:
        case NameServerUnavailable():
            return f"start a set with `brokerset up`, or name another one than {namesrv} with --namesrv"
        case TopicNotFound():
            return f"see `brokerset topic list`, or create it with `brokerset topic create {error.topic}`"
        case NoQueue():
            return (
                "see `brokerset status` whether its brokers run; `brokerset topic describe` shows its queues"
            )
        case BrokerUnreachable() | AnswerTimeout():
            return "see `brokerset status` whether it runs; whether the request was carried out is unknown"
        case ReplyTimeout(topic=topic):
            return f"start what replies, for a try `brokerset consume {topic} --reply TEXT`, or wait longer"
        case GroupOffline():
            return "start a consumer of the group"
        case MessageInvalid():
            return "nothing was sent; correct the message"
        case (
            RequestRefused(code=ResponseCode.NO_PERMISSION)
            | SendFailed(__cause__=RequestRefused(code=ResponseCode.NO_PERMISSION))
        ):
            return NO_PERMISSION_ADVICE
        case SendFailed():
            return "see `brokerset status`; a message that got no answer may be stored nevertheless"
        case RequestRefused(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, address=address):
            return f"{address or namesrv} does not serve this; check that it is the right address"
        case RequestRefused(address=address):
            more = f"; the log of {address} may say more" if address else ""
            return f"correct the request{more}"
        case _:
            return "see `brokerset status`"


def stop_event() -> asyncio.Event:
    """Return an event that Ctrl-C and SIGTERM set, for work that people end by hand."""
    event = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, event.set)
    return event
