"""Transactions and timer messages on top of what must hold for every DLedger group."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from brokerset_formats.names import TRANSACTION_GROUP
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_sim.deferred_plan import CHECK_MAX, CHECK_TIMEOUT_MS, PRECISION_MS, DeferredPlan
from brokerset_sim.history import Violation
from brokerset_sim.ledger_checker import SERVICES, LedgerChecker, Place
from brokerset_sim.log_records import HALF_TOPIC, WHEEL_TOPIC, LogRecord, log_record
from brokerset_sim.process import Process
from brokerset_sim.timer_oracle import TimerOracle
from brokerset_sim.transaction_oracle import End, TransactionOracle

if TYPE_CHECKING:
    from brokerset_broker.member.role import RoleState
    from brokerset_sim.ledger_node import LedgerNode, SimBroker
    from brokerset_sim.ledger_world import LedgerWorld

FORGED: Final = "an end names its own half"
RUN_SECONDS_MAX: Final = 30
"""No run is longer: so much clocks drift apart."""

NOTED_MS: Final = 1_500
"""So long before the last record of an epoch a delivery is noted by its master: once a second, or later."""


class DeferredChecker(LedgerChecker):
    """Gives to both oracles what leaves brokers, and what becomes committed."""

    def __init__(self, world: LedgerWorld, plan: DeferredPlan) -> None:
        super().__init__(world)
        self.transactions = TransactionOracle(
            check_max=CHECK_MAX,
            timeout_ms=CHECK_TIMEOUT_MS,
            skew_ms=10 + int(2_000 * plan.drift * RUN_SECONDS_MAX) + 2 * plan.clock_ms,
        )
        self.timers = TimerOracle(precision_ms=PRECISION_MS, noted_ms=NOTED_MS)
        self._fed = -1
        self._latest_ms = 0

    # -- what leaves processes ------------------------------------------------------------------------

    def reply_left(self, server: Process, request: Command, reply: Command, token: object) -> None:
        """A handler answered."""
        super().reply_left(server, request, reply, token)
        self.answered(server, request, reply)

    def answered(self, server: Process, request: Command, reply: Command) -> None:
        """Give to the oracles what an answer says."""
        if server.node is None or not server.alive or server.node.process is not server:
            return
        node: LedgerNode = server.node
        match request.code:
            case RequestCode.SEND_MESSAGE_V2:
                self._guard(lambda: self._sent(request, reply))
            case RequestCode.END_TRANSACTION if reply.code == ResponseCode.SUCCESS:
                self._guard(lambda: self._ended_transaction(node, request))
            case RequestCode.RECALL_MESSAGE if reply.code == ResponseCode.SUCCESS:
                self._guard(lambda: self._recalled(reply.ext["msgId"]))
            case _:
                pass

    def _sent(self, request: Command, reply: Command) -> None:
        key = _key(request)
        if key in self.transactions.transactions and reply.code == ResponseCode.SUCCESS:
            self.read_all()
            self.transactions.half_acknowledged(key)
        elif key in self.timers.messages:
            self.read_all()
            if reply.code == ResponseCode.SUCCESS:
                self.timers.acknowledged(key)
            elif reply.code == ResponseCode.MESSAGE_ILLEGAL:
                self.timers.refused(key)

    def _ended_transaction(self, node: LedgerNode, request: Command) -> None:
        key = request.ext["msgId"]
        if key not in self.transactions.transactions:
            raise Violation(FORGED, f"{node.name} has ended {key}, which is no transaction")
        self.read_all()
        end = End(int(request.ext["commitOrRollback"]))
        self.transactions.end_acknowledged(key, end, self._epoch(node))

    def _recalled(self, key: str) -> None:
        self.read_all()
        self.timers.recall_acknowledged(key, self.latest_ms())

    def check_left(self, server: Process, command: Command) -> None:
        """A broker asks a producer about a transaction."""
        node: LedgerNode = server.node
        self._guard(lambda: self._check_left(node, command))

    def _check_left(self, node: LedgerNode, command: Command) -> None:
        if not node.leads:
            raise Violation(SERVICES, f"{node.name} does not lead, and checks transactions")
        half = log_record(bytes(command.body), 0)
        assert half is not None, "the body of a check is a record"
        self.read_all()
        times = int(half.properties.get("TRANSACTION_CHECK_TIMES", "0"))
        now_ms = node.clock.now_ms()
        self.transactions.check_left(half.key, epoch=self._epoch(node), times=times, now_ms=now_ms)

    def check_arrived(self, command: Command, group: str) -> str:
        """A producer was asked; returns the key of the transaction."""
        half = log_record(bytes(command.body), 0)
        assert half is not None, "the body of a check is a record"
        self._guard(lambda: self.transactions.check_arrived(half.key, group))
        return half.key

    def _place(self, request: Command, reply: Command) -> Place:
        if _key(request) in self.transactions.transactions:
            return Place(HALF_TOPIC, 0, int(reply.ext["queueOffset"]))
        if "recallHandle" in reply.ext:
            return Place(WHEEL_TOPIC, 0, int(reply.ext["queueOffset"]))
        return super()._place(request, reply)

    # -- clocks ---------------------------------------------------------------------------------------

    def latest_ms(self) -> int:
        """The latest time that any broker's clock has ever shown."""
        shown = max(node.clock.now_ms() for node in self._world.nodes)
        self._latest_ms = max(self._latest_ms, shown)
        return self._latest_ms

    def clock_set(self, node: LedgerNode) -> None:
        """The clock of a host was set a moment ago; `latest_ms` was called before."""
        self.timers.clock_set(node.clock.now_ms())
        self.timers.stepped[self._epoch(node)] = None

    # -- logs and roles -------------------------------------------------------------------------------

    def read_all(self) -> None:
        """Read what has become committed. Raises `Violation`."""
        self.timers.now_ms = self.latest_ms()
        for node in self._world.nodes:
            if node.up and node.broker is not None:
                self._feed(node.broker)

    def _examine(self, node: LedgerNode, broker: SimBroker) -> None:
        super()._examine(node, broker)
        self.timers.now_ms = self.latest_ms()
        self._feed(broker)

    def _feed(self, broker: SimBroker) -> None:
        ledger = broker.store.ledger
        for index in range(max(self._fed + 1, ledger.begin_index, 0), ledger.committed_index + 1):
            self._fed = index
            entry = ledger.entry(index)
            record = log_record(bytes(entry.body), entry.term)
            if record is not None:
                self._became_committed(record)

    def _became_committed(self, record: LogRecord) -> None:
        """Give to the oracles what is in the log permanently, each record once, in its order."""
        self.timers.record(record)
        self.transactions.record(record)

    def _role_taken(self, node: LedgerNode, role: RoleState) -> None:
        super()._role_taken(node, role)
        if node.broker is not None:
            self._progress(node, node.broker)

    def _services_ended(self, node: LedgerNode, broker: SimBroker) -> None:
        super()._services_ended(node, broker)
        running = [
            name
            for name, runs in (
                ("transactions", broker.transactions._task is not None),
                ("timers", broker.timers._leads),
            )
            if runs
        ]
        if running:
            raise Violation(SERVICES, f"{node.name} does not lead, and runs {running}")

    def _progress(self, node: LedgerNode, broker: SimBroker) -> None:
        self.read_all()
        half_progress = broker.offsets.query(TRANSACTION_GROUP, HALF_TOPIC, 0)
        self.transactions.progress(node.name, half_progress or 0)

    def compare(self) -> None:
        """All members run, and nothing is on its way. Raises `Violation`."""
        super().compare()
        self.transactions.settled()
        self.timers.settled()
        for node in self._world.nodes:
            if node.broker is not None:
                self._progress(node, node.broker)


def _key(request: Command) -> str:
    """What the producer names a message by."""
    return request.ext["i"].partition("UNIQ_KEY\x01")[2].partition("\x02")[0]
