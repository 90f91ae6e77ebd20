"""The cases of a broker that demands TLS and checks users and policies, each next to Java's with the same.

The load generator signs each request (`tests/peers/loadgen/secure.go`) as a user whose policies let it send and consume; an
administrator makes the topics. Certificates are of elliptic curves, and both makes have the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from tests.bench import cases, pop_cases
from tests.bench.cases import BODY, Case, Context, e2e_old_topic, pulls, sends
from tests.bench.sides import Running, Side

from brokerset_rig import stack, wire
from brokerset_rig.access_group import JAVA_PROVIDERS
from brokerset_rig.certificates import Certificates

AUTH_CREATE_USER, AUTH_CREATE_ACL = 3001, 3006
ADMINISTRATOR: Final = ("root", "root-password")
USER: Final = ("bench", "bench-password")


class Secured:
    """The certificates of one run, and what brokers and the load generator need of them."""

    def __init__(self, folder: Path) -> None:
        certificates = Certificates(folder, "bench")
        folder = certificates.folder
        # Java takes paths from where it was started.
        self._file = certificates.config(
            tls_server_certPath=str(folder / "both.pem"), tls_server_keyPath=str(folder / "both.key"),
            tls_enable="", tls_client_trustCertPath="",
        )  # fmt: skip
        authority = folder / "authority.pem"
        self.administrator = wire.Access(*ADMINISTRATOR, authority)
        name, password = USER
        self.flags: Mapping[str, object] = {"user": name, "password": password, "authority": authority}

    @property
    def settings(self) -> dict[str, str]:
        """Of brokers of both makes."""
        name, password = ADMINISTRATOR
        return {
            "authenticationEnabled": "true",
            "authorizationEnabled": "true",
            "initAuthenticationUser": json.dumps({"username": name, "password": password}),
            "innerClientAuthenticationCredentials": json.dumps({"accessKey": name, "secretKey": password}),
        }

    def side(self, side: Side) -> Side:
        """The same side with TLS; Java's has it by properties of its machine."""
        if side.make == "ours":
            return replace(side, settings={**side.settings, "tlsConfigFile": str(self._file)})
        options = f"-Dtls.enable=false -Dtls.test.mode.enable=false -Dtls.server.mode=enforcing -Dtls.config.file={self._file}"
        return replace(
            side,
            settings={**side.settings, **JAVA_PROVIDERS},
            environment={**side.environment, "JAVA_OPT_EXT": options},
        )


def make_user(running: Running) -> None:
    """Create the user of the load, and let it send and consume. Raises `StackError`."""
    name, password = USER
    entries = [
        {"resource": each, "actions": actions, "decision": "Allow"}
        for each, actions in (
            ("Topic:*", ["Pub", "Sub", "Get"]),
            ("Group:*", ["Pub", "Sub", "Get"]),
            ("Cluster:*", ["Get"]),
        )
    ]
    subject = f"User:{name}"
    requests = (
        (
            AUTH_CREATE_USER,
            {"username": name},
            {"username": name, "password": password, "userType": "Normal"},
        ),
        (AUTH_CREATE_ACL, {"subject": subject}, {"subject": subject, "policies": [{"entries": entries}]}),
    )
    with wire.Client(running.server.port, access=running.access) as client:
        for code, ext, body in requests:
            answer = client.call(code, ext, json.dumps(body).encode())
            if answer.code:
                raise stack.StackError(f"{subject} was refused with {answer.code}: {answer.remark}")


def prewarm(running: Running, context: Context) -> None:
    """As `cases.prewarm`, by the new user."""
    make_user(running)
    cases.prewarm(running, context)
    pop_cases.prewarm_pops(running, context)


SECURE_CASES: Final = (
    Case("secure-send-1k-1", sends(size=BODY, window=1)),
    Case("secure-send-1k-4x64", sends(size=BODY, window=64, conns=4)),
    Case("secure-send-100b-64", sends(size=100, window=64)),
    Case("secure-batch-1k", sends(size=BODY, window=4, batch=32)),
    Case("secure-pull-1k", pulls),
    Case("secure-pop-ack", pop_cases.pops("one")),
    Case("secure-e2e", e2e_old_topic),
)
