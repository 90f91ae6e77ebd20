"""What happened for good: the commands that were committed, and the groups after each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from brokerset_controller.replicas.state import Group


class Violation(AssertionError):
    """Something that must never happen did; `invariant` is its number and name."""

    def __init__(self, invariant: str, text: str) -> None:
        super().__init__(f"{invariant}: {text}")
        self.invariant = invariant


@dataclass(slots=True)
class History:
    """Committed commands in order. A look back names a *moment*: how many commands were committed then."""

    indexes: list[int] = field(default_factory=list)
    datas: list[bytes] = field(default_factory=list)
    states: list[dict[str, Group]] = field(default_factory=lambda: [{}])
    """The groups after so many commands."""

    moment_of_index: dict[int, int] = field(default_factory=dict)

    @property
    def moment(self) -> int:
        """Now."""
        return len(self.datas)

    @property
    def groups(self) -> dict[str, Group]:
        """The newest groups."""
        return self.states[-1]

    def append(self, index: int, data: bytes, groups: Mapping[str, Group]) -> None:
        """A command was applied for the first time."""
        self.indexes.append(index)
        self.datas.append(data)
        self.states.append(dict(groups))
        self.moment_of_index[index] = len(self.datas)

    def any_state(self, name: str, since: int, holds: Callable[[Group | None], bool]) -> bool:
        """Whether a group was such at some moment from `since` until now."""
        last: Group | None = None
        for number, group in enumerate(self._of(name, since)):
            if number and group is last:
                continue
            if holds(group):
                return True
            last = group
        return False

    def _of(self, name: str, since: int) -> Iterator[Group | None]:
        for state in self.states[since:]:
            yield state.get(name)
