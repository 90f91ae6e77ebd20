"""What clients of ordered subjects, and others, may ask of a controller that checks."""

from __future__ import annotations

import asyncio
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from brokerset_acl.access_book import AccessBook, Accounts
from brokerset_acl.policies import Acl, Action, Decision, Entry, Resource, ResourceType
from brokerset_acl.server_rules import CONTROLLER_RULES
from brokerset_acl.signatures import NO_NAME, WRONG_SIGNATURE, Credentials
from brokerset_acl.users import User, UserStatus, UserType
from brokerset_namesrv.administration import Administration
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.clock import ManualClock
from brokerset_runtime.remoting.password_checks import PasswordChecks
from brokerset_spec.controller_settings import ControllerSettings

APP, ROOT = Credentials("app", "app-key"), Credentials("root", "root-key")
ROUTE, PRODUCER = RequestCode.BROKERSET_SUBJECT_ROUTE, RequestCode.BROKERSET_START_PRODUCER
CONSUMER = RequestCode.BROKERSET_CONSUMER_HEARTBEAT
OF_CLIENTS = (ROUTE, PRODUCER, CONSUMER, RequestCode.BROKERSET_ASSIGNMENT_CHANGED)
REGISTER, LEADER = RequestCode.CONTROLLER_REGISTER_BROKER, RequestCode.CONTROLLER_GET_METADATA_INFO


class Controller:
    """Checks requests; `app` may send to `orders` and consume it as `shop`."""

    def __init__(self, *, policies: bool = True, refusals_max: int = 0) -> None:
        may = (
            Entry(Resource(ResourceType.TOPIC, "orders"), (Action.PUB, Action.SUB), Decision.ALLOW),
            Entry(Resource(ResourceType.GROUP, "shop"), (Action.SUB,), Decision.ALLOW),
        )
        users = {
            "app": User("app", "app-key"),
            "root": User("root", "root-key", UserType.SUPER),
            "off": User("off", "off-key", UserType.SUPER, UserStatus.DISABLE),
        }
        self.denied = Counter[str]()
        self.served: list[Command] = []
        self.closed: list[bool] = []
        self._connection: Any = SimpleNamespace(
            peer=("10.0.0.1", 5), state={}, close=lambda: self.closed.append(True)
        )
        self._handlers = Administration(
            ControllerSettings(
                authentication_enabled=True, authorization_enabled=policies, refusals_max=refusals_max
            ),
            CONTROLLER_RULES,
            checks=PasswordChecks(ManualClock()),
            clusters=lambda: ["east"],
            accounts=Accounts(AccessBook(users, {"User:app": Acl("User:app", may)})),
            denied=self.denied,
        ).around(dict.fromkeys((*OF_CLIENTS, REGISTER, LEADER), self._serve))

    def _serve(self, _connection: Any, command: Command) -> Command:
        self.served.append(command)
        return command.reply()

    def refusal(self, code: RequestCode, credentials: Credentials | None, **fields: str) -> str | None:
        """Why it is refused; None if it is served."""
        command = Command(code, dict(fields))
        if credentials is not None:
            credentials.sign(command)

        async def asked() -> str | None:
            try:
                self._handlers[code](self._connection, command)
            except Rejected as refused:
                return (
                    refused.remark if refused.code == ResponseCode.NO_PERMISSION else f"code {refused.code}"
                )
            finally:
                await asyncio.sleep(0)
            return None

        return asyncio.run(asked())


@pytest.mark.parametrize("code", OF_CLIENTS)
def test_clients_of_subjects_are_served_unsigned_only_where_policies_are_not_asked(code: RequestCode) -> None:
    """With policies each of their requests needs a signature, and rights on the topic and the group."""
    fields = {"subject": "orders", "consumerGroup": "shop"}

    assert Controller(policies=False).refusal(code, None, **fields) is None
    refused = Controller().refusal(code, None, **fields)
    assert refused is not None
    assert refused.startswith(NO_NAME)
    assert Controller().refusal(code, APP, **fields) is None
    refused = Controller().refusal(code, APP, **fields | {"subject": "bills"})
    assert refused is not None
    assert "no permission to access Topic:bills" in refused


def test_a_consumer_needs_the_right_to_its_group_too() -> None:
    """Else it would keep others of the group from their partitions."""
    refused = Controller().refusal(CONSUMER, APP, subject="orders", consumerGroup="bank")
    assert refused is not None
    assert "no permission to access Group:bank" in refused


def test_a_subject_is_made_on_the_way_for_who_may_create_it_alone() -> None:
    """The wish is dropped, and the request served, for everybody else."""
    for credentials, kept in ((APP, False), (ROOT, True)):
        controller = Controller()
        assert controller.refusal(ROUTE, credentials, subject="orders", create="true") is None
        assert ["create" in each.ext for each in controller.served] == [kept]


@pytest.mark.parametrize("policies", [True, False])
def test_who_registers_signs_as_an_enabled_super_user(policies: bool) -> None:
    """Whether policies are asked or not; who leads is said to everybody."""
    for credentials, reason in (
        (ROOT, None),
        (None, NO_NAME),
        (APP, ""),
        (Credentials("root", "wrong"), WRONG_SIGNATURE),
        (Credentials("off", "off-key"), "User:off is disabled."),
    ):
        refused = Controller(policies=policies).refusal(REGISTER, credentials)
        assert refused is None if reason is None else (refused or "no").startswith(reason or "User:app ")
    assert Controller(policies=policies).refusal(LEADER, None) is None


def test_refusals_are_counted_and_too_many_of_them_end_the_connection() -> None:
    """By their kind; what is served does not count."""
    controller = Controller(refusals_max=2)

    for credentials, subject, ends in ((APP, "orders", False), (None, "orders", False), (APP, "bills", True)):
        controller.refusal(PRODUCER, credentials, subject=subject)
        assert bool(controller.closed) == ends

    assert controller.denied == {"authentication": 1, "authorization": 1}
