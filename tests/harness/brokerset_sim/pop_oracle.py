"""What must hold of popped messages, seen from outside: what holders were given, and what the log has.

It reads check points and acks as they are in the log of the group, with decoding of its own, and keeps which
message is whose by the clock of the world.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from brokerset_sim.history import Violation
from brokerset_sim.log_records import LogRecord
from brokerset_sim.pop_unpopped import RETRY_PREFIX, QueuePlace, Unpopped

ONE_HOLDER: Final = "a message has one holder within its invisible time"
AGAIN: Final = "no acknowledged message is given out again"
LOST: Final = "every message is acknowledged in the end"
TRUTHFUL: Final = "0 is answered only to what is in the log"
COUNTED: Final = "a message that comes back is counted once more"
REVIVED_ONCE: Final = "a message comes back once for each pop of it"
POPPED_ONCE: Final = "a place of a queue is popped once"
COPIED: Final = "a copy of a check point says what was acknowledged"
ASKED: Final = "what nobody acknowledges comes back"
WHOLE: Final = "a message comes back as it was sent"
CLOSED: Final = "nothing is out at the end"

REVIVE_PREFIX: Final = "rmq_sys_REVIVE_LOG_"
FOR_ALL: Final = ""
"""In place of a group: what lies in the topic."""


@dataclass(slots=True)
class _Entry:
    """A message is out, as a check point says."""

    pop_time: int
    suspend: bool
    put_in: int | None = None
    """The epoch in which it was put into a retry topic; its ack follows."""


@dataclass(slots=True)
class _Hold:
    """Who has a message, by the clock of the world."""

    until: float = 0.0
    """Its invisible time does not end before."""

    server: tuple[str, int] = ("", 0)
    """Process and epoch that gave it out."""

    acknowledged_at: float | None = None


class PopOracle:
    """All groups and messages of one topic."""

    def __init__(self, topic: str, groups: tuple[str, ...]) -> None:
        self.topic = topic
        self.counts: Counter[str] = Counter()
        self._groups = groups
        self._retry_topics = {
            f"{RETRY_PREFIX}{group}{mark}{topic}": group for group in groups for mark in "_+"
        }
        self._asked: dict[tuple[str, QueuePlace, int], None] = {}
        """Acks that were sent, by group, place and pop time of the handle."""

        self._answered: dict[tuple[str, QueuePlace, int], tuple[str, int]] = {}
        """Who has answered, by group, place and pop time; a broker that passes answers on does so again."""

        self._holds: dict[tuple[str, str], _Hold] = {}
        self.unpopped = Unpopped()
        self.forget_log()

    def forget_log(self) -> None:
        """The log is read from its beginning again; what was asked and answered counts on."""
        self.unpopped.forget()
        self.sent: dict[str, bytes] = {}
        """Bodies of messages that are in the topic, by their keys."""

        self._keys: dict[QueuePlace, str] = {}
        self._times: dict[QueuePlace, int] = {}
        self._places: dict[tuple[str, str], list[QueuePlace]] = {}
        """Where messages lie, by group and key: in the group's retry topics, or for all in the topic."""

        self._open: dict[tuple[str, QueuePlace], dict[int, _Entry]] = {}
        self._points: dict[tuple[str, QueuePlace, int], None] = {}
        """Check points by group, start, and pop time."""

        self._pops: dict[tuple[str, QueuePlace], dict[int, None]] = {}
        self._put_entries: dict[int, tuple[tuple[str, str], _Entry]] = {}
        self._acked: dict[tuple[str, str], None] = {}
        """Group and key of what is acknowledged in the log."""

        self._doubled: dict[tuple[str, str], None] = {}
        """Group and key of what came back, and has no ack for that in the log of its epoch: the next master
        lets it come back once more."""

        self._epoch = 0

    # -- the log ------------------------------------------------------------------------------------------

    def record(self, record: LogRecord) -> None:
        """The next record that is in the log permanently. Raises `Violation`."""
        if record.epoch != self._epoch:
            self._epoch = record.epoch
            for which, _ in self._put_entries.values():
                self._double(which)
            self._put_entries = {}
        if record.topic == self.topic:
            self._sent(record)
        elif record.topic in self._retry_topics:
            self._put(self._retry_topics[record.topic], record)
        elif record.topic.startswith(REVIVE_PREFIX):
            body = json.loads(record.body)
            if body["t"] != self.topic and body["t"] not in self._retry_topics:
                return
            if record.properties["TAGS"] == "ck":
                self._point(body)
            else:
                self._acks(body)

    def _double(self, which: tuple[str, str]) -> None:
        self.counts["pop: came back twice"] += which not in self._doubled
        self._doubled[which] = None

    @staticmethod
    def key_of(body: bytes) -> str:
        """What a producer has named a message by."""
        return bytes(body).split(b" ", 1)[0].decode()

    def _sent(self, record: LogRecord) -> None:
        key = self.key_of(record.body)
        if key in self.sent:  # a delayed message that was delivered twice
            for group in self._groups:
                self._double((group, key))
        self.sent[key] = record.body
        self.unpopped.add(self._groups, self._at(record, FOR_ALL, key))

    def _at(self, record: LogRecord, group: str, key: str) -> QueuePlace:
        place = QueuePlace(record.topic, record.queue_id, record.queue_offset)
        self._keys[place] = key
        self._times[place] = record.reconsume_times
        self._places.setdefault((group, key), []).append(place)
        return place

    def _put(self, group: str, record: LogRecord) -> None:
        key = self.key_of(record.body)
        if record.body != self.sent.get(key):
            raise Violation(WHOLE, f"{group} gets {record.body[:20]!r} back, which is not what was sent")
        outs = [
            (place, entry)
            for place in self._lies_at(group, key)
            for entry in self._open.get((group, place), {}).values()
            if entry.put_in != self._epoch
        ]
        if not outs:
            raise Violation(REVIVED_ONCE, f"{key} comes back to {group}, and no pop of it is open")
        counted = [
            entry
            for place, entry in outs
            if self._times[place] + (not entry.suspend) == record.reconsume_times
        ]
        if not counted:
            known = [(self._times[place], entry.suspend) for place, entry in outs]
            raise Violation(COUNTED, f"{key} comes back to {group} as {record.reconsume_times}: {known}")
        entry = min(counted, key=lambda each: each.pop_time)
        entry.put_in = self._epoch
        self._put_entries[id(entry)] = (group, key), entry
        self.unpopped.add((group,), self._at(record, group, key))
        self.counts["pop: came back"] += 1

    def _lies_at(self, group: str, key: str) -> Iterator[QueuePlace]:
        yield from self._places.get((group, key), ())
        yield from self._places.get((FOR_ALL, key), ())

    def _point(self, body: dict[str, Any]) -> None:
        group, pop_time, start = body["c"], body["pt"], QueuePlace(body["t"], body["q"], body["so"])
        distances, bits = body["d"], body["bm"]
        places = [QueuePlace(start.topic, start.queue_id, start.queue_offset + each) for each in distances]
        if not places:
            self.counts["pop: went back"] += 1
            return
        if (group, start, pop_time) in self._points:
            self._copy(group, pop_time, places, bits)
            return
        self._points[group, start, pop_time] = None
        is_change = len(places) == 1 and places[0] == start and bool(self._open.get((group, start)))
        for place in places:
            if place not in self._keys:
                raise Violation(POPPED_ONCE, f"{group} pops {place}, and there is nothing")
            which = group, self._keys[place]
            if which in self._acked and which not in self._doubled:
                raise Violation(AGAIN, f"{which} is acknowledged in the log, and popped behind that: {place}")
            if (group, place) in self._pops and not is_change:
                raise Violation(
                    POPPED_ONCE,
                    f"{group} has popped {place} at {[*self._pops[group, place]]}, and {pop_time}",
                )
            self._pops.setdefault((group, place), {})[pop_time] = None
            self.unpopped.take(group, place)
            entry = _Entry(pop_time, bool(body.get("sp")))
            self._open.setdefault((group, place), {})[pop_time] = entry
        self.counts["pop: changed" if is_change else "pop: check point"] += 1

    def _copy(self, group: str, pop_time: int, places: list[QueuePlace], bits: int) -> None:
        self.counts["pop: copied"] += 1
        for number, place in enumerate(places):
            is_open = pop_time in self._open.get((group, place), {})
            if is_open == bool(bits >> number & 1):
                raise Violation(
                    COPIED, f"message {number} of {group} at {place} is {is_open=}, a copy says {bits:b}"
                )

    def _acks(self, body: dict[str, Any]) -> None:
        group, pop_time = body["c"], body["pt"]
        for offset in body.get("aol") or [body["ao"]]:
            place = QueuePlace(body["t"], body["q"], offset)
            entries = self._open.get((group, place), {})
            entry = entries.pop(pop_time, None)
            if entry is None:
                self.counts["pop: acked again"] += 1
                continue
            if not entries:
                self._open.pop((group, place), None)
            if entry.put_in == self._epoch:
                self._put_entries.pop(id(entry), None)
                continue
            if any(other > pop_time for other in entries):
                continue  # its invisible time was changed
            if (group, place, pop_time) not in self._asked:
                if self._other_came_back(group, self._keys[place]):
                    continue
                raise Violation(ASKED, f"{group} has not acknowledged {place}, popped at {pop_time}")
            self._acked[group, self._keys[place]] = None
            self.counts["pop: acked"] += 1

    def _other_came_back(self, group: str, key: str) -> bool:
        """Whether what came back was taken for another pop of the message, which is there twice."""
        for place in self._lies_at(group, key):
            for entry in self._open.get((group, place), {}).values():
                if entry.put_in == self._epoch:
                    entry.put_in = None
                    self._put_entries.pop(id(entry), None)
                    return True
        return False

    # -- holders ------------------------------------------------------------------------------------------

    def given(
        self,
        group: str,
        place: QueuePlace,
        body: bytes,
        *,
        pop_time: int,
        now: float,
        since: float,
        until: float,
        server: tuple[str, int],
        early: float,
    ) -> None:
        """A message is given out. Raises `Violation`.

        It was popped between `since` and `now`, and is invisible until `until` at least. Another master may
        end the time of an earlier pop by `early` seconds too soon, because of its clock.
        """
        key = self.key_of(body)
        which = group, key
        if body != self.sent.get(key):
            raise Violation(WHOLE, f"{group} gets {body[:20]!r}, which is not what was sent")
        if pop_time not in self._pops.get((group, place), {}):
            raise Violation(TRUTHFUL, f"{server} gives {key} to {group}: no check point says {pop_time}")
        if (group, place, pop_time) in self._answered:
            return
        self._answered[group, place, pop_time] = server
        hold = self._holds.setdefault(which, _Hold())
        if which not in self._doubled:
            if hold.acknowledged_at is not None and since > hold.acknowledged_at:
                raise Violation(
                    AGAIN, f"{server} gives {key} to {group}, acknowledged at {hold.acknowledged_at:.4f}"
                )
            if now < hold.until - (early if server != hold.server else 0.0):
                raise Violation(
                    ONE_HOLDER,
                    f"{server} gives {key} to {group}, which {hold.server} gave until {hold.until:.4f}",
                )
        hold.until, hold.server = until, server
        self.counts["pop: given"] += 1

    def ack_asked(self, group: str, place: QueuePlace, pop_time: int) -> None:
        """A holder sends an ack; from now on that may count."""
        self._asked[group, place, pop_time] = None

    def change_asked(self, group: str, place: QueuePlace, until: float) -> None:
        """A holder wants another end; from now on that may count."""
        hold = self._holds.get((group, self._keys.get(place, "")))
        if hold is not None:
            hold.until = min(hold.until, until)

    def changed(
        self, group: str, place: QueuePlace, pop_time: int, until: float, server: tuple[str, int]
    ) -> None:
        """A change was answered with 0. Raises `Violation`."""
        if pop_time not in self._pops.get((group, place), {}):
            raise Violation(TRUTHFUL, f"{server} changes {place} of {group}: no check point says {pop_time}")
        if (group, place, pop_time) in self._answered:
            return
        self._answered[group, place, pop_time] = server
        hold = self._holds[group, self._keys[place]]
        hold.until, hold.server = until, server

    def acknowledged(
        self, group: str, place: QueuePlace, pop_time: int, now: float, server: tuple[str, int]
    ) -> None:
        """An ack was answered with 0. Raises `Violation`.

        What is not out any more when another master begins, that one may take for acknowledged: of what was
        done long before it has no record.
        """
        which = group, self._keys.get(place, "")
        if which not in self._acked:
            if (
                pop_time not in self._open.get((group, place), {})
                and self._answered.get((group, place, pop_time), server) != server
            ):
                self.counts["pop: taken for acked"] += 1
                return
            raise Violation(TRUTHFUL, f"{server} answers 0 to an ack of {which} at {place}: it is not acked")
        hold = self._holds.setdefault(which, _Hold())
        if hold.acknowledged_at is None:
            hold.acknowledged_at = now

    # -- the end ------------------------------------------------------------------------------------------

    def missing(self) -> list[tuple[str, str]]:
        """Group and key of what is not acknowledged."""
        return [
            (group, key) for group in self._groups for key in self.sent if (group, key) not in self._acked
        ]

    def still_out(self) -> list[tuple[str, QueuePlace]]:
        """Group and place of what is out."""
        return list(self._open)

    def settled(self) -> None:
        """Nothing more will come. Raises `Violation`."""
        missing, out = self.missing(), self.still_out()
        if missing:
            raise Violation(LOST, f"{len(missing)} are not, such as {missing[:3]}")
        if out:
            raise Violation(CLOSED, f"{len(out)} are, such as {out[:3]}")
