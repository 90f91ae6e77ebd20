"""Where a query begins and ends: from `startingOffsets` and the like to one offset for each queue."""

from __future__ import annotations

from collections.abc import Mapping

from brokerset_spark.sources.option_values import OptionsError
from brokerset_spark.topics.brokers import Questions
from brokerset_spark.topics.following import Ends, Seen
from brokerset_spark.topics.offsets import EARLIEST, LATEST, QueueKey, all_of
from brokerset_spark.topics.options import COMMITTED, NAME, Offsets, SourceOptions
from brokerset_spark.topics.reading import DataLost


class BrokersSilent(RuntimeError):
    """Brokers that have queues of a query do not answer."""


def check_all_answer(seen: Seen, options: SourceOptions) -> None:
    """BrokersSilent if a broker with queues of the query cannot be asked, unless that may be passed over."""
    away = seen.silent | {(key.topic, key.broker) for key in seen.absent}
    if away and options.fail_on_data_loss:
        topic, broker = min(away)
        raise BrokersSilent(
            f"broker {broker}, which has queues of topic {topic}, does not answer, or has no master: try "
            "again when it does, or read what the others have with failOnDataLoss=false"
        )


def resolved(
    option: str,
    wanted: Offsets,
    ends: Mapping[QueueKey, Ends],
    committed: Mapping[QueueKey, int | None],
    *,
    fail_on_data_loss: bool,
) -> dict[QueueKey, int]:
    """An offset for each queue. OptionsError if some are not named, or named and not there.

    A number that a queue does not have any more is DataLost, or becomes the nearest that it has.
    """
    if isinstance(wanted, dict):
        wanted = _by_queue(wanted, ends)
        _check_names(option, wanted, ends)
    found = {}
    for key, has in ends.items():
        place = wanted[key] if isinstance(wanted, dict) else wanted
        if place == COMMITTED:
            group_place = committed.get(key)
            place = EARLIEST if group_place is None else group_place
        if place == EARLIEST:
            place = has.first
        elif place == LATEST:
            place = has.last
        if not has.first <= place <= has.last:
            said = f"{option}: {key} has {has.first} to {has.last}, and {place} is asked for"
            if fail_on_data_loss:
                raise DataLost(
                    f"{said}. Give another offset, or take what is there with failOnDataLoss=false"
                )
            place = min(max(place, has.first), has.last)
        found[key] = place
    return found


def _by_queue(wanted: Mapping[QueueKey, int], ends: Mapping[QueueKey, Ends]) -> dict[QueueKey, int]:
    """The same with an offset of its own for each queue of topics that have one for all."""
    whole = {key: wanted[all_of(key.topic)] for key in ends if all_of(key.topic) in wanted}
    topics = {key.topic for key in whole}
    return whole | {
        key: place for key, place in wanted.items() if key != all_of(key.topic) or key.topic not in topics
    }


def _check_names(option: str, wanted: Mapping[QueueKey, int], ends: Mapping[QueueKey, Ends]) -> None:
    for keys, said in (
        (sorted(set(ends) - set(wanted)), "it must name every queue (-2 earliest, -1 latest); missing"),
        (sorted(set(wanted) - set(ends)), "it names what is no queue of the query"),
    ):
        if keys:
            more = f" and {len(keys) - 3} more" if len(keys) > 3 else ""
            raise OptionsError(NAME, [f"{option}: {said}: {', '.join(map(str, keys[:3]))}{more}"])


async def first_offsets(
    questions: Questions, options: SourceOptions, ends: Mapping[QueueKey, Ends], default: int
) -> dict[QueueKey, int]:
    """Where a query begins in each queue; `default` (EARLIEST or LATEST) if nothing was said."""
    if options.starting_times is not None:
        times = _times("startingOffsetsByTimestamp", options.starting_times, ends)
        found = await questions.offsets_at(times, ends)
        late = sorted(key for key in found if found[key] >= ends[key].last)
        if late and not options.latest_if_no_time:
            raise OptionsError(
                NAME,
                [
                    f"{len(late)} queues have no record from their starting time on, one is "
                    f"{late[0]} at {times[late[0]]}: choose an earlier time, or begin such queues at their "
                    "end with "
                    "startingOffsetsByTimestampStrategy=latest"
                ],
            )
        return found
    wanted = default if options.starting is None else options.starting
    committed: Mapping[QueueKey, int | None] = {}
    if COMMITTED in (wanted.values() if isinstance(wanted, dict) else (wanted,)):
        committed = await questions.committed(options.group, ends)
    return resolved("startingOffsets", wanted, ends, committed, fail_on_data_loss=options.fail_on_data_loss)


async def last_offsets(
    questions: Questions, options: SourceOptions, ends: Mapping[QueueKey, Ends]
) -> dict[QueueKey, int]:
    """Where a batch query ends in each queue."""
    if options.ending_times is not None:
        return await questions.offsets_at(
            _times("endingOffsetsByTimestamp", options.ending_times, ends), ends
        )
    return resolved("endingOffsets", options.ending, ends, {}, fail_on_data_loss=options.fail_on_data_loss)


def _times(
    option: str, times: int | dict[QueueKey, int], ends: Mapping[QueueKey, Ends]
) -> dict[QueueKey, int]:
    if isinstance(times, int):
        return dict.fromkeys(ends, times)
    _check_names(option, times, ends)
    return times
