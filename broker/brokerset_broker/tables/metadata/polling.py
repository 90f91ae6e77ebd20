"""Asks a master for its tables, as a slave of RocketMQ does (Java: `SlaveSynchronize`)."""

from __future__ import annotations

from typing import Final

from brokerset_acl.access_book import AccessBook
from brokerset_acl.policies import Acl
from brokerset_acl.users import User
from brokerset_broker.tables.metadata.snapshot import MetadataState
from brokerset_broker.tables.offsets import is_replicated
from brokerset_broker.tables.pop.values import RequestMode, modes_of
from brokerset_broker.timers.progress import Progress
from brokerset_formats import fastjson
from brokerset_formats.config import (
    ConsumerOffsets,
    DataVersion,
    DelayOffsets,
    GroupTable,
    TopicTable,
    fields,
)
from brokerset_formats.errors import FormatError
from brokerset_formats.lazy_dataclasses import dataclass
from brokerset_formats.timer_files import TimerCheckpoint, decode_timer_checkpoint
from brokerset_protocol import headers
from brokerset_protocol.bodies.metadata import MessageRequestModeTable
from brokerset_protocol.codes import RequestCode, ResponseCode
from brokerset_protocol.commands import Command
from brokerset_protocol.errors import Rejected
from brokerset_runtime.peer_requests import Asker
from brokerset_runtime.remoting import ConnectionClosed, RequestTimeout

APPLIED_OFFSET_FIELD: Final = "brokersetAppliedOffset"
"""Field of our masters' answers: the table has everything below this offset of the log."""

TIMER_PROGRESS_FIELD: Final = "brokersetTimerProgress"
"""Field of our masters' answers to 60: the whole progress in hexadecimal, of which the body has a part."""

ASK_SECONDS: Final = 5.0
"""Time that the master has for each answer."""

PAGE: Final = 1_000
"""Topics or groups that are asked for at once."""

PAGES_MAX: Final = 1_000
"""Requests for one table, with those that started from scratch because the table changed meanwhile."""


FAILED_SECONDS: Final = 30.0
"""A master that has not told its tables for so long has more than a moment's trouble."""

FAILED_ADVICE: Final = (
    "look whether the master answers at its remoting port, and into its log; topics, groups and offsets that"
    " were changed since then are missing here: before this replica is made master, mend that, or make them"
    " again (`brokerset switchover` to a replica that has them)"
)


class PollFailed(Exception):
    """The master did not tell its tables: why."""


@dataclass(frozen=True, slots=True)
class Master:
    """Whom to ask."""

    address: str
    """Of its remoting port."""

    is_ours: bool
    """Whether it writes metadata into the log."""


@dataclass(frozen=True, slots=True)
class Polled:
    """What a master told."""

    state: MetadataState
    applied_offset: int | None
    """Everything below it in the log is in the state; `None` from a Java master."""

    timers: TimerCheckpoint | None = None
    """Where a Java master's timer messages are; a master of ours tells it in the state."""


class Polls:
    """How it goes with asking masters, so that people hear of what does not pass. Times are seconds of one
    clock."""

    def __init__(self) -> None:
        self._failing_since: float | None = None
        self._reason = ""
        self.failures = 0
        """Since the start."""

    def failed(self, reason: str, now: float) -> bool:
        """A master did not tell its tables; returns whether this reason is news, to be logged."""
        is_news = reason != self._reason
        self._reason = reason
        self.failures += 1
        if self._failing_since is None:
            self._failing_since = now
        return is_news

    def ended_well(self) -> None:
        """A master told its tables, or nobody has to be asked any more."""
        self._failing_since, self._reason = None, ""

    def problem(self, now: float) -> tuple[str, str] | None:
        """What is wrong for longer than it may be, and what to do; None when all is well."""
        since = self._failing_since
        if since is None or now - since < FAILED_SECONDS:
            return None
        return (
            f"for more than {FAILED_SECONDS:g} s topics, groups and offsets of the master could not be taken"
            f" over: {self._reason}",
            FAILED_ADVICE,
        )


async def poll(asker: Asker, address: str) -> Polled:
    """Ask for all tables. Raises `PollFailed`.

    In Java's order but for the offsets, which come first, so that their topics and groups are there.
    """
    applied: list[int | None] = []
    try:
        offsets_answer = await _ask(asker, address, RequestCode.GET_ALL_CONSUMER_OFFSET, {}, applied)
        delay_answer = await _ask(asker, address, RequestCode.GET_ALL_DELAY_OFFSET, {}, applied)
        groups = await _groups(asker, address, applied)
        topics = await _topics(asker, address, applied)
        progress, checkpoint = await _timers(asker, address)
        modes = await _request_modes(asker, address)
        access = await _access(asker, address)
        offsets = ConsumerOffsets.decode(offsets_answer.body).offsets
        delay = DelayOffsets.decode(delay_answer.body).offsets if delay_answer.body else {}
    except (ConnectionClosed, RequestTimeout, FormatError, Rejected) as error:
        raise PollFailed(f"master {address} did not tell its metadata: {error}") from error
    state = MetadataState(
        dict(topics.topics),
        dict(groups.groups),
        {group: dict(masks) for group, masks in groups.forbidden.items()},
        {key: dict(queues) for key, queues in offsets.items() if is_replicated(key)},
        {},
        dict(delay),
        timers=progress,
        request_modes=modes,
        access=access,
    )
    known = [offset for offset in applied if offset is not None]
    return Polled(state, min(known) if known and len(known) == len(applied) else None, checkpoint)


async def _timers(asker: Asker, address: str) -> tuple[Progress | None, TimerCheckpoint | None]:
    """The progress of timer messages, whole from a master of ours, as a checkpoint from one of Java; neither
    from one that has no timers. Raises FormatError."""
    answer = await asker.ask(address, Command(RequestCode.GET_TIMER_CHECK_POINT), ASK_SECONDS)
    if answer.code != ResponseCode.SUCCESS:
        return None, None
    text = answer.ext.get(TIMER_PROGRESS_FIELD)
    if text is None:
        is_ours = APPLIED_OFFSET_FIELD in answer.ext
        return None, None if is_ours else decode_timer_checkpoint(answer.body)
    try:
        return Progress.decode(bytes.fromhex(text)), None
    except ValueError as error:
        raise FormatError(f"field {TIMER_PROGRESS_FIELD} is not hexadecimal: {error}") from error


async def _request_modes(asker: Asker, address: str) -> dict[str, RequestMode]:
    """How groups get messages; nothing from a master without POP. Raises `PollFailed`, `Rejected`."""
    code = RequestCode.GET_ALL_MESSAGE_REQUEST_MODE
    answer = await asker.ask(address, Command(code), ASK_SECONDS)
    if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED or not answer.body:
        return {}
    if answer.code != ResponseCode.SUCCESS:
        raise PollFailed(f"master {address} answered request {int(code)} with {answer.code}: {answer.remark}")
    return modes_of(MessageRequestModeTable.from_json(answer.body))


async def _access(asker: Asker, address: str) -> AccessBook | None:
    """Users and policies; None from a master that has none or does not show passwords. Raises FormatError."""
    listed = headers.ListUsers(former_passwords=True)
    users = await asker.ask(address, Command(RequestCode.AUTH_LIST_USER, listed.to_ext()), ASK_SECONDS)
    if users.code != ResponseCode.SUCCESS:
        return None
    acls = await asker.ask(address, Command(RequestCode.AUTH_LIST_ACL), ASK_SECONDS)
    if acls.code != ResponseCode.SUCCESS:
        return None
    found = [_object_list(answer.body) for answer in (users, acls)]
    if any("password" not in user for user in found[0]):
        return None
    book = AccessBook()
    book.put(
        {user.username: user for user in map(User.from_json, found[0])},
        {acl.subject: acl for acl in map(Acl.from_json, found[1])},
    )
    return book


def _object_list(body: bytes) -> list[dict[str, object]]:
    """A list of objects as JSON; Java answers without a body where there are none."""
    items = fields.parse_object(b'{"items":' + (body or b"[]") + b"}").get("items")
    return [fields.as_object(item, "an item") for item in items] if isinstance(items, list) else []


async def _topics(asker: Asker, address: str, applied: list[int | None]) -> TopicTable:
    found: dict[str, object] = {}
    version: DataVersion | None = None
    for _ in range(PAGES_MAX):
        ext = {"topicSeq": str(len(found)), "maxTopicNum": str(PAGE)}
        answer = await _ask(asker, address, RequestCode.GET_ALL_TOPIC_CONFIG, _with(ext, version), applied)
        page = fields.parse_object(answer.body)
        version, found, complete = _add(page, "topicConfigTable", version, found, answer, "totalTopicNum")
        if complete:
            return TopicTable.from_json({**page, "topicConfigTable": found})
    raise PollFailed(f"master {address} changes its topics faster than they can be read")


async def _groups(asker: Asker, address: str, applied: list[int | None]) -> GroupTable:
    found: dict[str, object] = {}
    forbidden: dict[str, object] = {}
    version: DataVersion | None = None
    for _ in range(PAGES_MAX):
        ext = {"groupSeq": str(len(found)), "maxGroupNum": str(PAGE)}
        answer = await _ask(
            asker, address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, _with(ext, version), applied
        )
        page = fields.parse_object(answer.body)
        before = version
        version, found, complete = _add(
            page, "subscriptionGroupTable", version, found, answer, "totalGroupNum"
        )
        if before != version:
            forbidden = {}
        forbidden.update(fields.get_object(page, "forbiddenTable"))
        if complete:
            table = {**page, "subscriptionGroupTable": found, "forbiddenTable": forbidden}
            return GroupTable.from_json(table)
    raise PollFailed(f"master {address} changes its groups faster than they can be read")


def _add(
    page: dict[str, object],
    name: str,
    version: DataVersion | None,
    found: dict[str, object],
    answer: Command,
    total_name: str,
) -> tuple[DataVersion, dict[str, object], bool]:
    """Version, what was found so far, whether that is all. A changed table begins again with this page."""
    now = DataVersion.of_table(page)
    entries = fields.get_object(page, name)
    asked_from_start = not found
    if version is not None and now != version:
        found = {}
        if not asked_from_start:  # the master started from scratch, too, when it saw the old version
            return now, dict(entries), _is_all(entries, entries, answer, total_name)
    found = {**found, **entries}
    return now, found, _is_all(found, entries, answer, total_name)


def _is_all(found: dict[str, object], page: dict[str, object], answer: Command, total_name: str) -> bool:
    total = answer.ext.get(total_name)
    return total is None or not page or len(found) >= int(total)


def _with(ext: dict[str, str], version: DataVersion | None) -> dict[str, str]:
    if version is None:
        return ext
    return {**ext, "dataVersion": fastjson.dumps(version.to_json()).decode()}


async def _ask(
    asker: Asker, address: str, code: RequestCode, ext: dict[str, str], applied: list[int | None]
) -> Command:
    answer = await asker.ask(address, Command(code, ext), ASK_SECONDS)
    if answer.code != ResponseCode.SUCCESS:
        raise PollFailed(f"master {address} answered request {int(code)} with {answer.code}: {answer.remark}")
    text = answer.ext.get(APPLIED_OFFSET_FIELD)
    applied.append(int(text) if text is not None and text.isdigit() else None)
    return answer
