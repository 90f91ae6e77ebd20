"""Which ports the processes of a local set listen on; decides, touches nothing."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from brokerset_spec.set_memory import ControllerMemory, SetMemory

NAMESRV_PORT: Final = 9876
BROKER_PORT: Final = 10911
HTTP_PORT: Final = 8080

CONTROLLER_PORT_STEP: Final = 10
"""Distance between the ports of two controllers."""

CONTROLLER_PORTS: Final = 3
"""A controller takes its name server's port, the next one for raft, and the one after it for itself."""

BROKER_PORT_STEP: Final = 10
"""Distance between the ports of two brokers; each has further listeners next to its first."""

SECOND_PORT_OFFSET: Final = 2
"""A broker also listens so far below its port, where Java's clients send to when they are told so."""

HA_PORT_OFFSET: Final = 1
"""Slaves connect so far above a broker's port (`haListenPort=0`)."""

PORT_TRIES_MAX: Final = 200
"""Ports that are tried before giving up."""

PORT_MAX: Final = 65_535


class PortsTaken(Exception):
    """A port that the plan needs is in use. `kept`: it cannot be replaced by another one."""

    def __init__(self, port: int, wanted_by: str, *, kept: bool = False) -> None:
        super().__init__(f"port {port}, which {wanted_by} needs, is in use")
        self.port = port
        self.wanted_by = wanted_by
        self.kept = kept


class PlanRefused(Exception):
    """What is wished for contradicts what the data folder keeps; `advice` says what to do."""

    def __init__(self, reason: str, advice: str) -> None:
        super().__init__(reason)
        self.reason = reason
        self.advice = advice


@dataclass(frozen=True, slots=True)
class PortWishes:
    """The first port of each kind. None takes the one of the last start, or RocketMQ's."""

    namesrv: int | None = None
    broker: int | None = None
    http: int | None = None


class PortChoice:
    """Takes ports one after the other, none of them twice. Everything raises `PortsTaken`, `PlanRefused`."""

    def __init__(self, wishes: PortWishes, is_free: Callable[[int], bool], *, ha: bool = True) -> None:
        """`ha`: brokers listen for slaves next to their ports."""
        self._wishes = wishes
        self._is_free = is_free
        self._next_to_broker = (-SECOND_PORT_OFFSET, *((HA_PORT_OFFSET,) if ha else ()))
        self._used: set[int] = set()

    def of_controllers(
        self, controllers: Sequence[ControllerMemory], first: int, *, movable: bool = False
    ) -> tuple[ControllerMemory, ...]:
        """Give ports to those that have none, from the wish or from `first` on, next to those that have some.

        `movable`: where no port was wished for, nobody looks for a name server at `first`, so that another
        one does as well.
        """
        kept = [each.namesrv_port for each in controllers if each.ports]
        base = min(kept) if kept else (self._wishes.namesrv or first)
        movable = movable and not self._wishes.namesrv
        for each in controllers:
            if each.ports:
                self._take(each.ports, f"controller-{each.node_id}", kept=True)
        found = []
        for number, each in enumerate(controllers):
            if each.ports:
                found.append(each)
                continue
            name = f"controller-{each.node_id}"
            if number == 0 and not movable:
                self._take([base], "the name server")
                self._take(range(base + 1, base + CONTROLLER_PORTS), name)
                port = base
            else:
                after = base if number == 0 else base + CONTROLLER_PORT_STEP
                port = self._next_free(after, CONTROLLER_PORT_STEP, name, range(CONTROLLER_PORTS))
            found.append(replace(each, namesrv_port=port, raft_port=port + 1, controller_port=port + 2))
        return tuple(found)

    def of_name_server(self, name: str, memory: SetMemory, first: int) -> int:
        """Of a name server without a controller: as last time, else as wished for, else `first`."""
        port = memory.namesrv_port or self._wishes.namesrv or first
        self._take([port], name, kept=bool(memory.namesrv_port))
        return port

    def keep_ledgers(self, names: Sequence[str], memory: SetMemory) -> None:
        """Take the ports by which members of DLedger groups know each other already."""
        for name in names:
            if name in memory.ledger_ports:
                self._take([memory.ledger_ports[name]], f"the DLedger of {name}", kept=True)

    def of_ledgers(
        self, names: Sequence[str], memory: SetMemory, brokers: Mapping[str, int]
    ) -> dict[str, int]:
        """By name of the process, after `keep_ledgers`; a new one is next to that of its broker."""
        return {
            name: memory.ledger_ports.get(name)
            or self._next_free(brokers[name] + HA_PORT_OFFSET, 1, f"the DLedger of {name}", (0,))
            for name in names
        }

    def of_brokers(self, names: Sequence[str], memory: SetMemory) -> dict[str, int]:
        """By name of the process, the last time's where they are free."""
        found: dict[str, int] = {}
        kept = memory.broker_ports if self._wishes.broker is None else {}
        for name in names:  # ports of the last time first, so that nobody else takes them
            if name in kept and self._try(self._all_of_broker(kept[name])):
                found[name] = kept[name]
        last = (self._wishes.broker or min(kept.values(), default=BROKER_PORT)) - BROKER_PORT_STEP
        for number, name in enumerate(names):
            if name in found:
                last = max(last, found[name])
            elif number == 0 and not kept:
                found[name] = last = self._wishes.broker or BROKER_PORT
                self._take(self._all_of_broker(last), f"broker {name}")
            else:
                last = self._next_free(
                    last + BROKER_PORT_STEP,
                    BROKER_PORT_STEP,
                    f"broker {name}",
                    (0, *self._next_to_broker),
                )
                found[name] = last
        return found

    def of_http(self, names: Sequence[str], memory: SetMemory) -> dict[str, int]:
        """Likewise, of every process."""
        kept = memory.http_ports if self._wishes.http is None else {}
        found = {name: kept[name] for name in names if name in kept and self._try([kept[name]])}
        first = self._wishes.http or min(memory.http_ports.values(), default=HTTP_PORT)
        for name in names:
            if name not in found:
                found[name] = self._next_free(first, 1, f"the HTTP endpoint of {name}", (0,))
        return found

    def _all_of_broker(self, port: int) -> tuple[int, ...]:
        return tuple(one for one in (port, *(port + n for n in self._next_to_broker)) if one > 0)

    def _take(self, ports: Sequence[int], wanted_by: str, *, kept: bool = False) -> None:
        if max(ports) > PORT_MAX:
            raise PlanRefused(
                f"{wanted_by} would need port {max(ports)}, and the last one is {PORT_MAX}",
                "choose smaller ones with --namesrv-port, --broker-port and --http-port",
            )
        for port in ports:
            if port in self._used or not self._is_free(port):
                raise PortsTaken(port, wanted_by, kept=kept)
        self._used.update(ports)

    def _try(self, ports: Sequence[int]) -> bool:
        try:
            self._take(ports, "")
        except PortsTaken:
            return False
        return True

    def _next_free(self, first: int, step: int, wanted_by: str, offsets: Collection[int]) -> int:
        for port in range(first, min(first + step * PORT_TRIES_MAX, PORT_MAX + 1 - max(offsets)), step):
            if self._try([port + offset for offset in offsets]):
                return port
        raise PortsTaken(first, wanted_by)
