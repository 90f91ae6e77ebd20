"""What `python -m brokerset_operator` runs, with its options."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

import structlog

from brokerset_kube.credentials import CredentialsProblem
from brokerset_operator.app import OperatorProcess, access_of
from brokerset_operator.elector import LeaseLost
from brokerset_operator.handlers import KopfEnded, run_kopf
from brokerset_operator.plan.deciding import plan
from brokerset_operator.settings import OperatorSettings
from brokerset_runtime.program import Program
from brokerset_runtime.settings import SettingsError
from brokerset_runtime.signals import stop_on_signals

log = structlog.get_logger(__name__)


async def serve(settings: OperatorSettings) -> None:
    """Run an operator until a signal. Raises `PROGRAM.failures`."""
    stop = asyncio.Event()
    stop_on_signals(stop)
    access = access_of(settings)
    watch_sets = partial(run_kopf, take_signals=partial(stop_on_signals, stop))
    process = OperatorProcess(settings, access=access, plan=plan, watch_sets=watch_sets)
    log.info(
        "operator starts",
        server=access.server,
        namespaces=list(settings.namespace_list) or "all",
        image=settings.image,
        workers=settings.workers,
    )
    await process.run(stop)


PROGRAM: Final = Program(
    module="brokerset_operator",
    what="The operator: makes of BrokerSets, Topics and jobs in Kubernetes what they say",
    settings_class=OperatorSettings,
    serve=serve,
    failures=(CredentialsProblem, LeaseLost, KopfEnded, OSError, SettingsError),
    failed="operator cannot run",
    shortcuts={"-n": "namespaces"},
)
