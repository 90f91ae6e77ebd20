"""The SQL92 filters of consumer groups, by group and topic, as heartbeats register them.

Source: `ConsumerFilterManager`, `ConsumerFilterData` of 5.5.0. There is such a table only with
`enablePropertyFilter`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import structlog

from brokerset_broker.filters import (
    BloomParameters,
    EvaluationFailed,
    FilterData,
    FilterError,
    FilterFile,
    SqlFilter,
    compile_filter,
)
from brokerset_broker.tables.config_files import ConfigDamaged, ConfigFile
from brokerset_formats.properties import Property, find_property
from brokerset_protocol.bodies.heartbeat import ExpressionType, SubscriptionData
from brokerset_runtime.clock import Clock
from brokerset_spec.broker_settings import BrokerSettings

if TYPE_CHECKING:
    from brokerset_native import FilterProgram

log = structlog.get_logger(__name__)

FILE_NAME: Final = "consumerFilter.json"

FILTERS_MAX: Final = 100_000
"""Filters of one broker; one more is not registered, so its group's pulls are refused."""

COMPILED_MAX: Final = 512
"""Compiled expressions that are kept for pulls that bring their own; emptied when full."""

COMPILED_SIZE_MAX: Final = 1_048_576
"""Characters of all these expressions; to compile the longest one takes tens of milliseconds."""

SWEEP_SECONDS: Final = 10.0
"""How often the table is written when it has changed, and searched for what has expired; as in Java."""

FAILURE_PAUSE_MS: Final = 60_000
"""Shortest time between two log lines about failed evaluations of one filter."""

UNITS_MAX: Final = 256
"""Messages that one pull examines at most: each costs a read of the log and an evaluation, together 3 us or
more, while every other client waits."""

UNIT_CHARACTERS: Final = 64_000
"""Characters of the expression, times messages, that one pull examines: 4 ms, as the cost grows with both."""

NATIVE_FACTOR: Final = 8
"""So many times more of both where the native core examines them: it takes a tenth of the time or less, and
what it leaves to Python is examined by Python's measure."""


PROPERTIES_MEAN: Final = 512
"""Bytes of properties that a message has by this measure: of longer ones one pull examines fewer."""


def is_sql(expression_type: str) -> bool:
    """Whether filters of this type are served here."""
    return expression_type == ExpressionType.SQL92


class CompiledFilter:
    """An expression that messages are examined by; what cannot be evaluated does not match, and is logged."""

    __slots__ = (
        "_clock",
        "_silent_until_ms",
        "_sql",
        "native_properties_max",
        "native_units_max",
        "program",
        "properties_max",
        "units_max",
    )

    def __init__(self, sql: SqlFilter, clock: Clock) -> None:
        self._sql = sql
        self._clock = clock
        self._silent_until_ms = 0.0
        self.units_max = max(1, min(UNITS_MAX, UNIT_CHARACTERS // max(1, len(sql.expression))))
        """Messages that one pull may examine."""
        self.properties_max = self.units_max * PROPERTIES_MEAN
        """Bytes of their properties, the last message's not counted."""
        self.program = sql.program
        self.native_units_max = self.units_max * NATIVE_FACTOR
        """The same where the native core examines them by `program`."""
        self.native_properties_max = self.properties_max * NATIVE_FACTOR

    @property
    def expression(self) -> str:
        """The text that was compiled."""
        return self._sql.expression

    def matches(self, properties: bytes) -> bool:
        """Whether a message with these raw properties is wanted."""
        result = self._sql.evaluate(properties)
        if isinstance(result, EvaluationFailed):
            self._failed(result)
            return False
        return result is True

    def _failed(self, result: EvaluationFailed) -> None:
        now_ms = self._clock.monotonic() * 1000
        if now_ms >= self._silent_until_ms:
            self._silent_until_ms = now_ms + FAILURE_PAUSE_MS
            log.warning(
                "filter cannot be evaluated for a message",
                expression=self.expression[:200],
                reason=result.reason,
            )


class RegisteredFilter:
    """A group's filter of a topic. Another object stands for it when the group has another expression."""

    __slots__ = ("compiled", "data")

    def __init__(self, data: FilterData, compiled: CompiledFilter | None = None) -> None:
        self.data = data
        self.compiled = compiled
        """None until a pull needs it, of what was read from the file."""


class ConsumerFilters:
    """All registered filters of a broker, and compiled ones of pulls."""

    def __init__(self, settings: BrokerSettings, clock: Clock) -> None:
        self._clock = clock
        self._bloom = BloomParameters.of_settings(
            settings.max_error_rate_of_bloom_filter, settings.expect_consumer_num_use_filter
        )
        self._kept_ms = settings.filter_data_clean_time_span
        self._file = ConfigFile(settings.store_path_root_dir / "config" / FILE_NAME, self._snapshot)
        self._groups: dict[str, dict[str, RegisteredFilter]] = {}
        self._count = 0
        self._compiled: dict[str, CompiledFilter] = {}
        self._compiled_size = 0

    def __len__(self) -> int:
        return self._count

    # -- file ---------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file. One that is damaged keeps no broker from starting: heartbeats bring it all again."""
        try:
            saved = self._file.load(FilterFile.decode)
        except ConfigDamaged as damaged:
            log.error("filters of consumers are lost until their heartbeats", reason=str(damaged))
            return
        if saved is None:
            return
        now_ms = self._clock.now_ms()
        for groups in saved.filters.values():
            for data in groups.values():
                if is_sql(data.expression_type) and self._count < FILTERS_MAX:
                    self._put(RegisteredFilter(data.loaded(now_ms)))
        log.info("loaded filters of consumers", filters=self._count)

    async def saved(self) -> None:
        """Return when every change so far is on the disk."""
        await self._file.saved()

    async def run(self, exists: Callable[[str, str], bool]) -> None:
        """Expire and write down, for as long as this task runs; see `expire`."""
        while True:
            await asyncio.sleep(SWEEP_SECONDS)
            self.expire(exists)
            try:
                await self.saved()
            except OSError as error:
                log.error("filters of consumers cannot be written", reason=str(error))

    # -- changes ------------------------------------------------------------------------------------------

    def register(self, group: str, wanted: Iterable[SubscriptionData]) -> None:
        """Note what a connected group wants by now, of all topics.

        A bad expression is logged, and then the group has no filter of the topic; nor has it one of a topic
        that it wants by tags. Its filters of topics that it does not want any more count as left.
        """
        filtered: dict[str, SubscriptionData] = {}
        for data in wanted:
            if data.expression_type not in ("", ExpressionType.TAG):
                filtered[data.topic] = data
            elif group in self._groups:
                self._remove(data.topic, group)
        for topic, entry in self._groups.get(group, {}).items():
            if topic not in filtered:
                self._leave(entry)
        for topic, data in filtered.items():
            self._register(group, topic, data)

    def _register(self, group: str, topic: str, wanted: SubscriptionData) -> None:
        entry = self.get(topic, group)
        if entry is not None:
            data = entry.data
            if not data.is_dead and wanted.sub_version <= data.client_version:
                return
            if data.expression == wanted.sub_string and is_sql(wanted.expression_type):
                if data.is_dead or data.client_version != wanted.sub_version:
                    entry.data = replace(data, client_version=wanted.sub_version, dead_ms=0)
                    self._file.touch()
                return
        try:
            if not is_sql(wanted.expression_type):
                raise FilterError(f"There are no filters of the type {wanted.expression_type[:100]}")
            compiled = self.compile(wanted.sub_string)
            if entry is None and self._count >= FILTERS_MAX:
                raise FilterError(f"There are {FILTERS_MAX} filters already")
        except FilterError as error:
            log.warning("filter not registered", group=group, topic=topic, reason=error.reason)
            self._remove(topic, group)
            return
        data = FilterData(
            topic=topic, group=group, expression=wanted.sub_string, client_version=wanted.sub_version,
            born_ms=self._clock.now_ms(), bloom=self._bloom.bits_of(group, topic),
        )  # fmt: skip
        self._put(RegisteredFilter(data, compiled))
        self._file.touch()
        log.info("filter registered", group=group, topic=topic, expression=wanted.sub_string[:200])

    def left(self, group: str) -> None:
        """The group has no connected member any more; its filters are kept for a while."""
        for entry in self._groups.get(group, {}).values():
            self._leave(entry)

    def expire(self, exists: Callable[[str, str], bool]) -> None:
        """Remove filters of groups that left long ago, or of which topic or group was deleted.

        `exists` is asked with a topic and a group whether both are there.
        """
        now_ms = self._clock.now_ms()
        gone = [
            (topic, group)
            for group, held in self._groups.items()
            for topic, entry in held.items()
            if entry.data.is_dead
            and (entry.data.is_expired(now_ms, self._kept_ms) or not exists(topic, group))
        ]
        for topic, group in gone:
            self._remove(topic, group)
            log.info("filter removed", group=group, topic=topic)

    # -- queries ------------------------------------------------------------------------------------------

    def get(self, topic: str, group: str) -> RegisteredFilter | None:
        """The group's filter of a topic, compiled; also of a group that has left."""
        held = self._groups.get(group)
        entry = held.get(topic) if held is not None else None
        if entry is not None and entry.compiled is None:
            try:
                entry.compiled = self.compile(entry.data.expression)
            except FilterError as error:
                log.warning("saved filter is not usable", group=group, topic=topic, reason=error.reason)
                self._remove(topic, group)
                return None
        return entry

    def compile(self, expression: str) -> CompiledFilter:
        """A filter by an expression. Raises `FilterError`."""
        compiled = self._compiled.get(expression)
        if compiled is None:
            sql = compile_filter(expression)
            if sql.ignored:
                log.warning("end of a filter's expression is ignored", expression=expression[:200])
            compiled = CompiledFilter(sql, self._clock)
            self._compiled_size += len(expression)
            if len(self._compiled) >= COMPILED_MAX or self._compiled_size > COMPILED_SIZE_MAX:
                self._compiled.clear()
                self._compiled_size = len(expression)
            self._compiled[expression] = compiled
        return compiled

    # -- inside -------------------------------------------------------------------------------------------

    def _put(self, entry: RegisteredFilter) -> None:
        held = self._groups.setdefault(entry.data.group, {})
        self._count += entry.data.topic not in held
        held[entry.data.topic] = entry

    def _remove(self, topic: str, group: str) -> None:
        held = self._groups.get(group, {})
        if held.pop(topic, None) is not None:
            self._count -= 1
            self._file.touch()
            if not held:
                del self._groups[group]

    def _leave(self, entry: RegisteredFilter) -> None:
        if not entry.data.is_dead:
            entry.data = entry.data.left(max(self._clock.now_ms(), entry.data.born_ms))
            self._file.touch()

    def _snapshot(self) -> Callable[[], bytes]:
        topics: dict[str, dict[str, FilterData]] = {}
        for group, held in self._groups.items():
            for topic, entry in held.items():
                topics.setdefault(topic, {})[group] = entry.data
        return lambda: FilterFile(topics).encode()


class RetryFilter:
    """Examines a group's retry topic by the filters that it has of the topics whence the messages came."""

    __slots__ = (
        "_filters",
        "_group",
        "native_properties_max",
        "native_units_max",
        "program",
        "properties_max",
        "units_max",
    )

    def __init__(self, filters: ConsumerFilters, group: str) -> None:
        self._filters = filters
        self._group = group
        self.units_max = self.native_units_max = UNITS_MAX
        self.properties_max = self.native_properties_max = UNITS_MAX * PROPERTIES_MEAN
        self.program: FilterProgram | None = None

    def matches(self, properties: bytes) -> bool:
        """Whether a message is wanted; one of a topic without a filter is."""
        topic = find_property(properties, _RETRY_TOPIC)
        entry = None if topic is None else self._filters.get(topic.decode("utf-8", "replace"), self._group)
        return entry is None or entry.compiled is None or entry.compiled.matches(properties)


_RETRY_TOPIC: Final = Property.RETRY_TOPIC.encode()
