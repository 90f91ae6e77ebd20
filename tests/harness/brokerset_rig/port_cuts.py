"""Cuts single ports of a set off that runs at one address of a network of its own, its clients in namespaces.

The kernel's rules of routing let packets vanish: nothing is closed, what was connected falls silent, and clients that
connect hear nothing. Only what connects from the set's own address fails at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from brokerset_bench.network import BRIDGE, run_ip

CUTS, LOCAL = "50", "100"
"""Preference of the rules of cuts, and of that for the machine's own addresses, which otherwise comes first."""


class PortCuts:
    """Only for a process that runs in the network of its own, in which the set listens."""

    def __init__(self, clients: Sequence[str]) -> None:
        """`clients` are the addresses of their namespaces."""
        self._clients = tuple(clients)
        self._rules: list[tuple[str, ...]] = []
        run_ip("rule", "add", "pref", LOCAL, "lookup", "local")
        run_ip("rule", "del", "pref", "0")

    def cut_from_clients(self, ports: Iterable[int]) -> None:
        """Let everything between clients and these ports vanish, both ways."""
        for port in ports:
            self._add("iif", BRIDGE, "ipproto", "tcp", "dport", str(port))
            for address in self._clients:
                self._add("to", address, "ipproto", "tcp", "sport", str(port))

    def cut_from_all(self, port: int) -> None:
        """Let everything to and from a port vanish."""
        self._add("ipproto", "tcp", "dport", str(port))
        self._add("ipproto", "tcp", "sport", str(port))

    def mend(self) -> None:
        """Let everything through again."""
        while self._rules:
            run_ip("rule", "del", *self._rules.pop())

    def _add(self, *words: str) -> None:
        rule = ("pref", CUTS, *words, "blackhole")
        run_ip("rule", "add", *rule)
        self._rules.append(rule)
