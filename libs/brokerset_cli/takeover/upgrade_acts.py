"""What an upgrade does itself, one thing at a time. Each may be repeated after a crash in its middle."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TakeNote:
    """Write down what only a running broker tells."""

    store: str
    address: str
    master: bool
    members: int


@dataclass(frozen=True, slots=True)
class SetPermission:
    """Change what clients may do at a broker; `was` is written down before."""

    address: str
    value: int
    was: int | None
    """What it allowed before; None when that is written down already."""

    store: str
    """The broker's, whose manifest keeps `was`."""

    closes: bool
    """Whether every send is turned away, too: brokerPermission alone stops few of them. Else that ends."""


@dataclass(frozen=True, slots=True)
class PutAside:
    """Rename a folder of the old controllers."""

    folder: str


@dataclass(frozen=True, slots=True)
class CutLog:
    """Cut a log where it parts from the future master's; what is cut is kept."""

    store: str
    offset: int


@dataclass(frozen=True, slots=True)
class Prepare:
    """Move the epochs aside and write the first one."""

    store: str
    empty: bool
    leader: str
    """The store whose broker leads first: which log was longest is not seen any more when brokers run."""


@dataclass(frozen=True, slots=True)
class StartBroker:
    """Start the new broker of a store with the command that was given."""

    store: str


Act = TakeNote | SetPermission | PutAside | CutLog | Prepare | StartBroker
