"""Consumer offsets: how far each group is in each queue, kept in consumerOffset.json.

Source: `ConsumerOffsetManager`. A commit is two dictionary steps; the file is written on a timer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType

import structlog

from brokerset_broker.live_settings import LiveSettings
from brokerset_broker.tables.broadcast_offsets import BROADCAST_SUFFIX, BroadcastOffsets
from brokerset_broker.tables.config_files import ConfigFile
from brokerset_broker.tables.metadata.journal import Journal
from brokerset_broker.tables.reset_fences import ResetFences
from brokerset_formats import fastjson
from brokerset_formats.config import ConsumerOffsets, DataVersion, LightOffsets
from brokerset_formats.names import TRANSACTION_GROUP
from brokerset_runtime.clock import Clock

log = structlog.get_logger(__name__)

VERSION_STEP = 500
"""Commits after which the data version grows (`consumerOffsetUpdateVersionStep`)."""

QUEUE_ID_MAX = 65_535
"""A larger queue id is no queue: the commit is ignored."""

BROKER = "broker"
"""Client of commits that the broker itself makes. The progress of transactions is its own: a client that
moved it would have open ones never checked again."""

PRETTY_KEYS_MAX = 1_000
"""Above so many keys the file is written on one line, which is a hundred times quicker."""

_Table = dict[str, dict[int, int]]
_NONE: Mapping[int, int] = MappingProxyType({})


class OffsetManager:
    """Offsets by `topic@group` and queue id: always the queue offset to consume next."""

    keys_max = 200_000
    """Pairs of topic and group; commits of further ones are ignored, with a warning, but for the broker's
    own."""

    def __init__(self, settings: LiveSettings, clock: Clock) -> None:
        self._settings = settings
        self._clock = clock
        self._offsets: _Table = {}
        self._pulled: _Table = {}
        self._resets: _Table = {}
        self._reset_fences = ResetFences(clock)
        self._topics_of: dict[str, dict[str, None]] = {}
        self._groups_of: dict[str, dict[str, None]] = {}
        self._version = DataVersion(0, 0, clock.now_ms())
        self._commits = 0
        self._full = False
        self.broadcast = BroadcastOffsets()
        self.on_back: Callable[[str, str, int, int], None] = lambda _group, _topic, _queue_id, _offset: None
        """Called with group, topic, queue and offset when somebody outside sets an offset back."""
        self.state_version = 0
        """Epoch of the master, in controller mode; it goes into the data version."""
        self.frozen = False
        """Whether offsets change by the log alone, because this broker follows a master."""
        self.journal: Journal | None = None
        """Notes what changed, for the log."""
        self._held: dict[str, int] = {}
        path = settings.current.store_path_root_dir / "config" / "consumerOffset.json"
        self._file = ConfigFile(path, self._encoder)
        self._light_file = ConfigFile(path.with_name("lmqConsumerOffset.json"), self._light_encoder)
        """Java has this one instead with `enableLmq`; here both are written then."""
        self._has_light = settings.current.enable_lmq

    # -- file ---------------------------------------------------------------------------------------------

    def load(self) -> None:
        """Read the file that was written last. Raises `ConfigDamaged`."""
        saved: ConsumerOffsets | None
        if self._light_file.changed_ns > self._file.changed_ns:
            saved = self._light_file.load(LightOffsets.decode)
        else:
            saved = self._file.load(ConsumerOffsets.decode)
        if saved is not None:
            self.replace_all(saved)
        log.info("loaded consumer offsets", keys=len(self._offsets))

    def persist(self) -> None:
        """Write the file now, in this thread."""
        self._watch_broadcasts()
        if self._has_light:
            self._light_file.persist()
        self._file.persist()

    async def saved(self) -> None:
        """Return when every commit so far is on the disk."""
        if self._has_light and self._file.unsaved:
            self._light_file.touch()
            await self._light_file.saved()
        await self._file.saved()

    async def run(self) -> None:
        """Write the offsets down every `flushConsumerOffsetInterval`, for as long as this task runs."""
        while True:
            await asyncio.sleep(self._settings.current.flush_consumer_offset_interval / 1000)
            self._watch_broadcasts()
            try:
                await self.saved()
            except OSError as error:
                log.error("consumer offsets cannot be written", reason=str(error))

    # -- commits and questions ----------------------------------------------------------------------------

    def commit(self, group: str, topic: str, queue_id: int, offset: int, client: str = "") -> bool:
        """Note where a group is; return whether it was taken. Going back is allowed, and logged.

        While a reset waits for a pull, the commit is ignored: the client does not know of the reset yet. The
        same goes for one that was on its way when a pull was answered with the reset.
        """
        if offset < 0 or not 0 <= queue_id <= QUEUE_ID_MAX or self.frozen:
            return False
        if group == TRANSACTION_GROUP and client != BROKER:
            return False
        key = f"{topic}@{group}"
        if self._held and self.is_held(group, topic):
            return True
        if self._resets and queue_id in self._resets.get(key, ()):
            return True
        if self._reset_fences.by_key and self._reset_fences.ignores(key, queue_id, offset):
            return True
        table = self._offsets.get(key)
        if table is None:
            table = self._new_key(group, topic)
            if table is None:
                return False
        before = table.get(queue_id)
        if before == offset:
            return True
        if before is not None and offset < before:
            log.info(
                "consumer offset goes back", group=group, topic=topic, queue_id=queue_id,
                before=before, offset=offset, client=client,
            )  # fmt: skip
            if client != BROKER:
                self.on_back(group, topic, queue_id, offset)
        table[queue_id] = offset
        if self.journal is not None and not group.endswith(BROADCAST_SUFFIX):
            self.journal.offset_changed(key, queue_id)
        self._commits += 1
        if self._commits % VERSION_STEP == 0:
            self._version = self._version.next(self._clock.now_ms(), self.state_version)
        self._file.touch()
        return True

    def commit_pull(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Note what a pull will ask for next; it shows what is in flight and is written along."""
        key = f"{topic}@{group}"
        table = self._pulled.get(key)
        if table is None:
            if len(self._pulled) >= self.keys_max:
                return
            table = self._pulled[key] = {}
        if 0 <= queue_id <= QUEUE_ID_MAX:
            table[queue_id] = offset

    def broadcast_pulled(self, group: str, topic: str, queue_id: int, client_id: str, offset: int) -> None:
        """Note what a member of a broadcasting group asks for next."""
        self.broadcast.pulled(group, topic, queue_id, client_id, offset, self._clock.monotonic())

    def query(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset to consume next, `None` if nothing was committed; a reset that waits counts."""
        key = f"{topic}@{group}"
        if self._resets:
            pending = self._resets.get(key, {}).get(queue_id)
            if pending is not None:
                return pending
        table = self._offsets.get(key)
        return table.get(queue_id) if table is not None else None

    def committed(self, group: str, topic: str) -> Mapping[int, int]:
        """The live table of a group's offsets of a topic, by queue; resets that wait do not count."""
        return self._offsets.get(f"{topic}@{group}", _NONE)

    def query_pull(self, group: str, topic: str, queue_id: int) -> int | None:
        """What the group's last pull will ask for next."""
        return self._pulled.get(f"{topic}@{group}", {}).get(queue_id)

    def topics_of(self, group: str) -> list[str]:
        """Topics of which the group has offsets."""
        return list(self._topics_of.get(group, ()))

    def groups_of(self, topic: str) -> list[str]:
        """Groups that have offsets of the topic; broadcasting ones are not among them."""
        return [group for group in self._groups_of.get(topic, ()) if "@" not in group]

    def table(self) -> ConsumerOffsets:
        """Everything, as it is now: later commits do not show in it."""
        return ConsumerOffsets(self._version, _copy(self._offsets), _copy(self._pulled))

    # -- resets -------------------------------------------------------------------------------------------

    def reset(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Set an offset from outside: the next pull is told, and commits before that are ignored."""
        self.take_reset(group, topic, queue_id)
        self._reset_fences.drop(f"{topic}@{group}", queue_id)
        if not self.commit(group, topic, queue_id, offset, "reset"):
            return False
        self._resets.setdefault(f"{topic}@{group}", {})[queue_id] = offset
        return True

    def has_reset(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a reset waits for the next pull of the queue."""
        return bool(self._resets) and queue_id in self._resets.get(f"{topic}@{group}", {})

    def must_move(self, group: str, topic: str, queue_id: int, pulled_from: int) -> bool:
        """Whether a pull has to be answered with a reset. If not, it may show that its consumer has moved."""
        if not self._resets and not self._reset_fences.by_key:  # what nearly every pull finds
            return False
        if self.has_reset(group, topic, queue_id):
            return True
        self._reset_fences.pulled(f"{topic}@{group}", queue_id, pulled_from)
        return False

    def ignores_commit(self, group: str, topic: str, queue_id: int, offset: int) -> bool:
        """Whether a commit of `offset` would be ignored, because it comes from before a reset."""
        return self.has_reset(group, topic, queue_id) or (
            bool(self._reset_fences.by_key)
            and self._reset_fences.ignores(f"{topic}@{group}", queue_id, offset)
        )

    def take_reset(
        self, group: str, topic: str, queue_id: int, *, pulled_from: int | None = None
    ) -> int | None:
        """The reset that waits for this pull, once.

        `pulled_from` is where a pull that can be answered with the reset begins; whoever sends its consumer
        nothing leaves it out. Who follows a master takes none, and says nothing of it: what it knows is late,
        and a consumer that has moved long ago would move a second time when the master dies.
        """
        if not self._resets:
            if self._reset_fences.by_key and pulled_from is not None:
                self._reset_fences.pulled(f"{topic}@{group}", queue_id, pulled_from)
            return None
        key = f"{topic}@{group}"
        table = self._resets.get(key)
        if table is None or queue_id not in table:
            if self._reset_fences.by_key and pulled_from is not None:
                self._reset_fences.pulled(key, queue_id, pulled_from)
            return None
        if self.frozen:
            return None
        if self.is_held(group, topic):
            # Told, but not taken: what a record on its way sets must not be taken together with it.
            return table.get(queue_id)
        offset = table.pop(queue_id)
        if not table:
            del self._resets[key]
        if self.journal is not None:
            self.journal.reset_taken(key, queue_id)
        if pulled_from is not None:
            self._reset_fences.put(key, queue_id, offset)
        return offset

    # -- by way of the log --------------------------------------------------------------------------------

    def hold(
        self, *, keys: Iterable[str] = (), topics: Iterable[str] = (), groups: Iterable[str] = ()
    ) -> None:
        """Ignore commits of these until `release`: the log has a record that will overwrite them."""
        for name in _held_names(keys, topics, groups):
            self._held[name] = self._held.get(name, 0) + 1

    def release(
        self, *, keys: Iterable[str] = (), topics: Iterable[str] = (), groups: Iterable[str] = ()
    ) -> None:
        """Undo one `hold`; what is not held is passed over."""
        for name in _held_names(keys, topics, groups):
            if self._held.get(name, 0) > 1:
                self._held[name] -= 1
            else:
                self._held.pop(name, None)

    def release_all(self) -> None:
        """Undo every `hold`."""
        self._held.clear()

    def is_held(self, group: str, topic: str) -> bool:
        """Whether commits are ignored at the moment, because a record is on its way that overwrites them."""
        held = self._held
        return bool(held) and (f"{topic}@{group}" in held or f"{topic}@" in held or f"@{group}" in held)

    @property
    def replicated(self) -> Mapping[str, Mapping[int, int]]:
        """The live table; keys that `is_replicated` refuses are this broker's own."""
        return self._offsets

    @property
    def resets(self) -> Mapping[str, Mapping[int, int]]:
        """The live table of resets that wait for a pull."""
        return self._resets

    def put(self, offsets: Mapping[str, Mapping[int, int]]) -> None:
        """Set offsets that the log has."""
        for key, queues in offsets.items():
            if self._reset_fences.by_key:
                for queue_id, offset in queues.items():
                    self._reset_fences.was_set(key, queue_id, offset)
            table = self._offsets.get(key)
            if table is None:
                topic, _, group = key.partition("@")
                table = self._offsets[key] = {}
                self._note_key(group, topic)
            table.update(queues)
        self._commits += 1
        self._file.touch()

    def put_resets(self, resets: Mapping[str, Mapping[int, int]]) -> None:
        """Set offsets from outside, as the log has them: the next pull of each queue is told."""
        self.put(resets)
        for key, queues in resets.items():
            self._resets.setdefault(key, {}).update(queues)

    def drop_resets(self, taken: Mapping[str, Iterable[int]]) -> None:
        """Forget resets that consumers were told."""
        for key, queues in taken.items():
            table = self._resets.get(key, {})
            for queue_id in queues:
                table.pop(queue_id, None)
            if not table:
                self._resets.pop(key, None)

    def take_over(
        self, offsets: Mapping[str, Mapping[int, int]], resets: Mapping[str, Mapping[int, int]]
    ) -> bool:
        """Have these offsets, and keep those that are this broker's own; whether anything differed."""
        table = self._offsets
        gone = [key for key in table if key not in offsets and is_replicated(key)]
        changed = [key for key, queues in offsets.items() if table.get(key) != queues]
        self._resets = _copy(resets)
        self._reset_fences.clear()
        if not gone and not changed:
            return False
        for key in gone:
            del table[key]
        count = len(table)
        for key in changed:
            table[key] = dict(offsets[key])
        if gone or len(table) != count:
            self._note_keys()
        self._version = self._version.next(self._clock.now_ms(), self.state_version)
        self._file.touch()
        return True

    # -- whole tables -------------------------------------------------------------------------------------

    def clone(self, source: str, target: str, topic: str) -> None:
        """Let `target` go on where `source` is in a topic."""
        for queue_id, offset in list(self._offsets.get(f"{topic}@{source}", {}).items()):
            self.commit(target, topic, queue_id, offset, "clone")

    def forget_topic(self, topic: str) -> None:
        """Drop the offsets of a deleted topic."""
        self._forget((topic, group) for group in list(self._groups_of.get(topic, ())))
        self._forget_watched(lambda key: key.startswith(f"{topic}@"))

    def forget_group(self, group: str) -> None:
        """Drop the offsets of a deleted group."""
        for name in (group, f"{group}@broadcast"):
            self._forget((topic, name) for topic in list(self._topics_of.get(name, ())))
        self._forget_watched(lambda key: key.partition("@")[2] == group)

    def replace_all(self, table: ConsumerOffsets) -> None:
        """Take over the table of a file."""
        self._offsets = _copy(table.offsets)
        self._pulled = _copy(table.pull_offsets)
        self._version = table.data_version
        self._note_keys()

    # -- inside -------------------------------------------------------------------------------------------

    def _note_keys(self) -> None:
        self._topics_of = {}
        self._groups_of = {}
        for key in self._offsets:
            topic, _, group = key.partition("@")
            self._note_key(group, topic)

    def _new_key(self, group: str, topic: str) -> dict[int, int] | None:
        if len(self._offsets) >= self.keys_max and group != TRANSACTION_GROUP:
            if not self._full:
                log.error("consumer offsets are full: commits of new groups are ignored", keys=self.keys_max)
            self._full = True
            return None
        table = self._offsets[f"{topic}@{group}"] = {}
        self._note_key(group, topic)
        return table

    def _note_key(self, group: str, topic: str) -> None:
        self._topics_of.setdefault(group, {})[topic] = None
        self._groups_of.setdefault(topic, {})[group] = None

    def _forget(self, pairs: Iterable[tuple[str, str]]) -> None:
        for topic, group in pairs:
            self._offsets.pop(f"{topic}@{group}", None)
            self._resets.pop(f"{topic}@{group}", None)
            self._reset_fences.drop_key(f"{topic}@{group}")
            for table, outer, inner in ((self._topics_of, group, topic), (self._groups_of, topic, group)):
                table[outer].pop(inner, None)
                if not table[outer]:
                    del table[outer]
            self._full = False
            self._file.touch()

    def _forget_watched(self, gone: Callable[[str], bool]) -> None:
        for key in [key for key in self._pulled if gone(key)]:
            del self._pulled[key]
            self._file.touch()

    def _watch_broadcasts(self) -> None:
        for group, topic, queue_id, offset in self.broadcast.slowest(self._clock.monotonic()):
            self.commit(group, topic, queue_id, offset, "broadcast")

    def _encoder(self) -> Callable[[], bytes]:
        return _encoder_of(self.table())

    def _light_encoder(self) -> Callable[[], bytes]:
        table = self.table()
        return _encoder_of(LightOffsets(table.data_version, table.offsets, table.pull_offsets))


def _encoder_of(table: ConsumerOffsets) -> Callable[[], bytes]:
    if len(table.offsets) + len(table.pull_offsets) <= PRETTY_KEYS_MAX:
        return table.encode
    return lambda: fastjson.dumps(table.to_json())


def is_replicated(key: str) -> bool:
    """Whether an offset key goes into the log; what broadcasting groups have pulled does not."""
    return not key.endswith(BROADCAST_SUFFIX)


def _held_names(keys: Iterable[str], topics: Iterable[str], groups: Iterable[str]) -> list[str]:
    return [*keys, *(f"{topic}@" for topic in topics), *(f"@{group}" for group in groups)]


def _copy(table: Mapping[str, Mapping[int, int]]) -> _Table:
    return {key: dict(queues) for key, queues in table.items()}
