"""Settings of the operator's process."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from brokerset_operator.model.names import RUNBOOKS
from brokerset_spec.setting_fields import PORT_MAX, number, range_problems

NAMESPACES_MAX: Final = 100
"""Most namespaces that are watched one by one; more are better watched as a whole cluster."""

_LABEL: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_ROLE: Final = re.compile(r"(Cluster)?Role/[a-z0-9][a-z0-9:.-]{0,250}")
_POD_LABEL: Final = re.compile(r"[a-z0-9A-Z]([-./_a-zA-Z0-9]*)=[a-zA-Z0-9]([-._a-zA-Z0-9]{0,62})")
_URL: Final = re.compile(r"https?://[^ \"']+")


@dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings:
    """Everything that can be set on an operator."""

    image: str = ""
    """Image of brokers and controllers where a BrokerSet names none; normally the operator's own."""

    spark_image: str = ""
    """Image of the jobs of objects that name none; empty: each must name one."""

    spark_role: str = ""
    """Role of jobs with Spark executors, `ClusterRole/<name>` or `Role/<name>`; empty: there are none."""

    watch_secrets: bool = False
    """Whether a change of a Secret that a BrokerSet or User names is acted on at once, by a watch of the
    metadata of Secrets; it needs the right to read them. Without it they are read at regular reconciles."""

    namespaces: str = ""
    """Namespaces to look after, with commas between; empty: all, which takes rights in the whole cluster."""

    runbooks: str = RUNBOOKS
    """Where the page of each alert is: in the rules of each BrokerSet its name follows, behind a slash."""

    workers: int = number(8, low=1, high=64)
    """BrokerSets and Topics that are worked on at the same time."""

    resync_seconds: int = number(300, low=5, high=86_400)
    """Longest time between two reconciles of a BrokerSet about which nothing was heard."""

    trust_spread_seconds: int = number(300, low=30, high=86_400)
    """How long a new authority of a set is trusted by everybody before it signs, and the former one after it
    does not: as long as it takes at most until pods and clients have read a changed Secret or ConfigMap. The
    kubelet needs a minute or two."""

    http_port: int = number(8080, high=PORT_MAX)
    """Port of `/metrics`, `/healthz` and `/readyz`; 0 switches it off."""

    tls_config_file: Path | None = None
    """File with RocketMQ's keys of TLS (`tls.server.mode` and others) for that port; empty means plain. It
    and the certificate that it names are read again when they change."""

    pod_ip: str = ""
    """Address of the operator's own pod: where that is IPv6 the cluster is, and so are masters' Services."""

    pod_namespace: str = ""
    """Namespace of the operator's own pods: with `podLabels` NetworkPolicies of sets let them in by it."""

    pod_labels: str = ""
    """Labels that the operator's own pods have, and no others of the namespace, as `name=value,name=value`.
    Empty: it runs in no pod that policies can name, and port 9878 of controllers is open to everybody."""

    bind_address: str = "0.0.0.0"
    """Address of the network interface to listen on for these."""

    lease_name: str = "brokerset-operator"
    """Name of the Lease by which one of several operators leads."""

    lease_namespace: str | None = None
    """Namespace of that Lease; empty means the operator's own."""

    lease_seconds: int = number(15, low=3, high=300)
    """How long an operator that has died keeps another one from leading."""

    identity: str | None = None
    """Name of this process in the Lease and in Events; empty means the host's name, which is the pod's."""

    kubeconfig: Path | None = None
    """How to reach the API server; empty means the pod's own account, or else `KUBECONFIG`."""

    api_timeout_seconds: int = number(10, low=1, high=60)
    """Time-out of one request to the API server."""

    def problems(self) -> list[str]:
        """Return everything that is wrong, one text for each problem."""
        found = range_problems(self)
        names = self.namespace_list
        if not self.image:
            found.append("image: is empty; name the image that brokers and controllers run")
        if self.spark_role and not _ROLE.fullmatch(self.spark_role):
            advice = "write ClusterRole/<name> or Role/<name>"
            found.append(f"spark_role: {self.spark_role!r} is no role; {advice}")
        if len(names) > NAMESPACES_MAX:
            found.append(
                f"namespaces: lists {len(names)}, more than {NAMESPACES_MAX}; leave it empty for all"
            )
        for name in names:
            if not _LABEL.fullmatch(name):
                found.append(f"namespaces: {name!r} is no namespace")
        if self.pod_labels and not all(_POD_LABEL.fullmatch(each) for each in self.pod_labels.split(",")):
            found.append(f"pod_labels: {self.pod_labels!r} is no list of labels; write name=value,name=value")
        if bool(self.pod_labels) != bool(self.pod_namespace):
            missing, given = sorted(
                ("pod_labels", "pod_namespace"), key=lambda name: bool(getattr(self, name))
            )
            found.append(f"{missing}: is empty, and {given} is not; give both or none")
        if not _URL.fullmatch(self.runbooks):
            found.append(f"runbooks: {self.runbooks!r} is no address that begins with http:// or https://")
        return found

    @property
    def namespace_list(self) -> tuple[str, ...]:
        """The namespaces one by one; empty for all."""
        return tuple(dict.fromkeys(name.strip() for name in self.namespaces.split(",") if name.strip()))

    @property
    def pod_label_values(self) -> dict[str, str]:
        """`pod_labels` one by one."""
        return dict(each.split("=", 1) for each in self.pod_labels.split(",") if each)

    @property
    def renew_seconds(self) -> float:
        """Who leads and could not renew the Lease for so long stops: two thirds of what it lasts."""
        return self.lease_seconds * 2 / 3

    @property
    def retry_seconds(self) -> float:
        """Pause between two renewals: a fifth of the time that they may take, as 2 of 10 s."""
        return self.renew_seconds / 5
