"""The byte work of a broker, in Rust. `brokerset_formats.native` imports it, nothing else does."""

from collections.abc import Mapping
from typing import Any, Final

INTERFACE: Final[int]
"""Number of the interface between the Python code and this module; both sides must have the same."""

__version__: Final[str]

# The cursors are described where their Python twins are: `brokerset_formats.cursors`.
class LogCursor: ...
class QueueCursor: ...
class IndexCursor: ...

class SendLane:
    """Serves plain sends to topics and queues that it was told of. See `native/DESIGN.md`."""

    def __init__(self, log: Any, config: Mapping[str, Any]) -> None:
        """`log` is a `LogCursor`; `config` has what records and answers depend on (`send_lane.py`)."""

    def configure(self, config: Mapping[str, Any]) -> None:
        """Go by other settings."""

    def learn(
        self,
        name: str,
        config: object,
        facts: object,
        queue_id: int,
        cursor: Any,
        topic_field: bytes,
        magic: int,
    ) -> None:
        """Serve sends to this queue from now on, for as long as the table of topics has this `config`."""

    def forget(self, name: str) -> None:
        """Serve no sends to a topic until it is learnt again."""

    def forget_all(self) -> None:
        """Serve no sends to any topic until it is learnt again."""

    def take(self) -> list[tuple[Any, int, int, int, list[tuple[int, int]]]]:
        """What was stored since the last call, for each topic: facts, requests, messages, bytes, and records
        by class of size."""

    def serve(
        self,
        data: bytes,
        now: int,
        born_host: bytes,
        index: Any,
        topics: Mapping[str, Any],
        queues: Mapping[tuple[str, int], Any],
        waiting_max: int,
        replies_max: int,
    ) -> tuple[int, int, int, bytes, int, list[Any] | None] | None:
        """Serve the plain sends at the beginning of `data`, which begins with a frame.

        `now`: milliseconds; `born_host`: the client's; `index`: the file that is written, None without an
        index; `topics`, `queues`: the tables by name and by (name, queue id); `waiting_max`: requests that
        may wait for an answer; `replies_max`: bytes of answers at which it stops. None
        if the first frame is not one; else bytes served, messages stored, answers, their frames, the end of
        the log, and the queues that have arrivals since (None: no new ones).
        """
