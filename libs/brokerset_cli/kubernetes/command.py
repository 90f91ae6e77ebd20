"""`kubectl brokerset …`, the same as `brokerset kubernetes …`: the verbs for sets on Kubernetes."""

from __future__ import annotations

import click

from brokerset_cli.kubernetes.approval import approve, pause, resume
from brokerset_cli.kubernetes.fencing import fence, unfence
from brokerset_cli.kubernetes.logs import logs
from brokerset_cli.kubernetes.port_forward import port_forward
from brokerset_cli.kubernetes.report import report
from brokerset_cli.kubernetes.status import status
from brokerset_cli.kubernetes.switching import switchover


class InOrder(click.Group):
    """A group that lists its verbs in the order in which they were added."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, those that look on first."""
        return list(self.commands)


@click.group(cls=InOrder, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="brokerset", prog_name="kubectl brokerset")
def kubernetes() -> None:
    """BrokerSets on Kubernetes: look at them, and let the operator work on them.

    Everything is done with the context and the login of your kubeconfig. Options stand after the verb:
    `kubectl brokerset status orders -n shop`.
    """


for _verb in (status, logs, port_forward, switchover, fence, unfence, approve, pause, resume, report):
    kubernetes.add_command(_verb)
