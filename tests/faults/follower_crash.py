"""`kill -9` of a follower in the middle of receiving, and in the middle of a cut: `follower_crash.py [--runs 200] [--seed N]`.

Receiving: the follower is behind, is started under load, and killed while it catches up. What it has then must be the master's bytes up to
some place, and zeros behind that. Cutting: the slaves hang while the master takes sends that nobody can confirm; it is killed, another one leads,
and the old one has to cut what it has alone; it is killed at a random moment of that, several times. Its bytes below the place of the cut must
never change. After each few kills everybody must be in sync with the same logs, and the outside checker finds every acknowledged message.
"""

from __future__ import annotations

import argparse
import asyncio
import random
import signal
import struct
import sys
import time
from pathlib import Path

from brokerset_bench.log_comparison import chunks, first_difference
from brokerset_bench.probes import GroupView, Prober
from brokerset_bench.server_process import ServerProcess
from brokerset_rig import wire
from brokerset_rig.judged_load import judged_load
from brokerset_rig.own_group import OwnGroup
from brokerset_rig.stack import StackError
from brokerset_runtime.logs import configure_logs

KILLS_TOGETHER = 10
"""Kills of one kind before everybody has to be whole again."""

CUTS_TOGETHER = 4
"""Masters that are killed with something to cut before everybody has to be whole again."""

CUT_KILLS_MAX = 3
"""Kills of an old master while it cuts the same end of its log."""

RATE = 500
SETTINGS = ("haFlowControlEnable=true", "maxHaTransferByteInSecond=8000000")
"""So that catching up takes some time."""

BEHIND_BYTES = 4_000_000
FOLLOWS_SECONDS_MAX = 8.0
"""Longest time from the start of a process until it follows, or cuts."""

RECEIVING_SECONDS = 0.6
"""A follower is killed at most so long after it began to follow."""

CUTTING_SECONDS = 0.01
"""The same after it began to cut; nothing takes longer there than a disk's answer."""

FOLLOWS, CUTS = "following the master", "truncating the log"
"""What the log says at these moments."""

TAIL_MESSAGES = 400
TAIL_BODY_BYTES = 4_000
TAIL_SECONDS = 0.3
TOPIC = "tail"
MAGIC_BLANK = 0xCBD43194
"""Of the filler at the end of a file."""


def log_end(log: Path) -> int:
    """End of the last file, which is longer than what was written."""
    last = max(log.iterdir(), key=lambda path: path.name if path.name.isdigit() else "")
    return int(last.name) + last.stat().st_size


def log_begin(log: Path) -> int:
    """Offset of the first byte."""
    return min(int(path.name) for path in log.iterdir() if path.name.isdigit())


def zeros_from(log: Path, offset: int) -> bool:
    """Whether there is nothing but zeros behind an offset."""
    end = log_end(log)
    return offset >= end or all(not any(chunk) for chunk in chunks(log, offset, end))


def records_end(log: Path, limit: int) -> int:
    """End of the last record that ends at `limit` or before."""
    end = 0
    for path in sorted(path for path in log.iterdir() if path.name.isdigit()):
        end = int(path.name)
        data = path.read_bytes()
        position = 0
        while position + 8 <= len(data):
            size, magic = struct.unpack_from(">II", data, position)
            if magic not in (wire.MAGIC_V1, MAGIC_BLANK) or size < 8 or end + position + size > limit:
                return end + position
            position += size
        end += len(data)
    return end


def compare_prefix(master: Path, follower: Path) -> int:
    """End of a dead follower's whole records. Raises `StackError` when it has bytes that the master has not."""
    begin = max(log_begin(master), log_begin(follower))
    end = min(log_end(master), log_end(follower))
    same = first_difference([master, follower], begin, end)
    if not zeros_from(follower, same):
        # The kernel copies a page at a time: what was being received ends anywhere, and is followed by zeros.
        raise StackError(f"{follower} has other bytes than {master} from offset {same:,} on")
    return records_end(follower, same)


class Crashes:
    """One group and what was done to it."""

    def __init__(self, group: OwnGroup, prober: Prober, source: random.Random) -> None:
        self._group = group
        self._prober = prober
        self._source = source
        self.received = 0
        self.between = 0
        """Kills that met a follower that had received something since its start, and not everything."""
        self.cuts = 0
        self.in_cut = 0
        """Kills that left a cut which was begun and not finished."""
        self.after_cut = 0
        """Kills that came too late for the cut."""

    async def receiving(self, kills: int) -> None:
        """Kill a slave again and again while it catches up under load."""
        group, source = self._group, self._source
        look = await group.all_in_sync(self._prober)
        master = group.set.process(look.master)
        slave = source.choice([broker for broker in group.set.brokers if broker is not master])
        logs = group.commit_log(master), group.commit_log(slave)
        slave.send(signal.SIGKILL)
        before = compare_prefix(*logs)
        for _ in range(kills):
            await asyncio.to_thread(fill, master.address, TOPIC, BEHIND_BYTES)
            await self._kill_after(slave, FOLLOWS, RECEIVING_SECONDS)
            has = compare_prefix(*logs)
            if has < before:
                raise StackError(f"{slave.name} had the log up to {before:,}, and up to {has:,} after a kill")
            self.received += 1
            self.between += before < has < await self._prober.log_end(master.address)
            before = has
        slave.start()

    async def cutting(self) -> None:
        """Let the master have what nobody else has, and kill it while it cuts that."""
        group = self._group
        look = await group.all_in_sync(self._prober)
        master = group.set.process(look.master)
        slaves = [broker for broker in group.set.brokers if broker is not master]
        for slave in slaves:
            slave.send(signal.SIGSTOP)
        try:
            sender = asyncio.create_task(asyncio.to_thread(send_in_vain, master.address))
            await asyncio.sleep(TAIL_SECONDS)
        finally:
            master.send(signal.SIGKILL)
            for slave in slaves:
                slave.send(signal.SIGCONT)
        await sender
        led = await self._next_master(look)
        log, new_log = group.commit_log(master), group.commit_log(led)
        common = await self._common(log, new_log)
        for _ in range(CUT_KILLS_MAX):
            if not await self._kill_after(master, CUTS, CUTTING_SECONDS):
                break
            self.cuts += 1
            self.in_cut += (log.parent / "removal").exists()
            if first_difference([log, new_log], log_begin(log), common) != common:
                raise StackError(
                    f"{master.name} has lost bytes below {common:,}, where its log was to be cut"
                )
            self.after_cut += compare_is_prefix(new_log, log)
        master.start()

    async def _kill_after(self, process: ServerProcess, words: str, seconds_max: float) -> bool:
        """Start a process and kill it a moment after its log says `words`; False if it follows without saying them."""
        begin = process.log_file.stat().st_size
        process.start()
        deadline = time.monotonic() + FOLLOWS_SECONDS_MAX
        with process.log_file.open("rb") as stream:
            stream.seek(begin)
            text = b""
            while time.monotonic() < deadline:
                text += stream.read()
                if words.encode() in text or FOLLOWS.encode() in text:
                    break
                await asyncio.sleep(0.001)
        await asyncio.sleep(self._source.uniform(0.0, seconds_max))
        process.send(signal.SIGKILL)
        return words.encode() in text

    async def _next_master(self, before: GroupView) -> ServerProcess:
        group = self._group
        look = await group.until_led(self._prober, before)
        return group.set.process(look.master)

    async def _common(self, old: Path, new: Path) -> int:
        """End of the last record that two logs share, once something new is in the second one."""
        begin = max(log_begin(old), log_begin(new))
        same = first_difference([old, new], begin, min(log_end(old), log_end(new)))
        if zeros_from(old, same):
            return max(begin, records_end(new, same))  # the old master has nothing of its own
        deadline = time.monotonic() + 10
        while zeros_from(new, same) and time.monotonic() < deadline:  # noqa: ASYNC110  # a file sets no event
            await asyncio.sleep(0.05)
        # Records begin alike (length, magic), so bytes agree for a little longer than records do.
        return max(begin, records_end(new, first_difference([old, new], begin, same)))


def compare_is_prefix(master: Path, follower: Path) -> bool:
    """Whether a dead follower has nothing that the master has not."""
    try:
        compare_prefix(master, follower)
    except StackError:
        return False
    return True


def fill(address: str, topic: str, size: int) -> None:
    """Send so many bytes to a master, in large messages."""
    body = b"f" * 60_000
    with wire.Client(int(address.rpartition(":")[2]), 20.0) as client:
        for number in range(max(1, size // len(body))):
            answer = client.call(wire.SEND_V2, wire.send_ext(topic, number % 4, "WAIT\x01true\x02"), body)
            if answer.code not in (0, 12):  # stored, whether or not all in-sync replicas have it in time
                raise StackError(f"{address} answers {answer.code} {answer.remark}")


def send_in_vain(address: str) -> None:
    """Pipeline messages to a master whose slaves hang, until it dies."""
    try:
        with wire.Client(int(address.rpartition(":")[2]), 5.0) as client:
            for number in range(TAIL_MESSAGES):
                ext = wire.send_ext(TOPIC, number % 4, "WAIT\x01true\x02")
                client.socket.sendall(wire.frame(wire.SEND_V2, ext, b"v" * TAIL_BODY_BYTES, number))
            client.socket.settimeout(5.0)
            while client.socket.recv(1 << 16):
                pass
    except OSError:
        return


async def run(options: argparse.Namespace, group: OwnGroup) -> None:
    """All kills, in turns of both kinds. Raises `StackError` with what is wrong."""
    source = random.Random(options.seed)
    acked = 0
    async with Prober() as prober:
        crashes = Crashes(group, prober, source)
        turn = 0
        while crashes.received + crashes.cuts < options.runs:
            left = options.runs - crashes.received - crashes.cuts
            async with judged_load(group, prober, f"crash-{turn}", writers=1, rate=RATE) as load:
                await asyncio.to_thread(make_topic, (await group.look(prober)).master)
                await crashes.receiving(min(KILLS_TOGETHER, max(1, left - CUTS_TOGETHER)))
                await group.all_in_sync(prober)
                await load.more_acknowledged()
                for _ in range(CUTS_TOGETHER):
                    await crashes.cutting()
                    await group.all_in_sync(prober)
                    await load.more_acknowledged()
            acked += load.verdict.acked
            turn += 1
            print(
                f"{crashes.received} kills while receiving, {crashes.between} of them in the middle; {crashes.cuts} at a cut, "
                f"{crashes.in_cut} of them in the middle, {crashes.after_cut} after it; {load}",
                flush=True,
            )
    if wrong := group.tracebacks():
        raise StackError(f"unexpected exceptions are in {', '.join(wrong)}")
    print(
        f"{crashes.received + crashes.cuts} kills of followers, {acked:,} acknowledged messages, none missing, all logs the same"
    )


def make_topic(address: str) -> None:
    """The topic of what is sent next to the judged load."""
    ext = {"topic": TOPIC, "defaultTopic": "TBW102", "readQueueNums": "4", "writeQueueNums": "4", "perm": "6",
           "topicFilterType": "SINGLE_TAG", "topicSysFlag": "0", "order": "false"}  # fmt: skip
    with wire.Client(int(address.rpartition(":")[2]), 10.0) as client:
        answer = client.call(wire.CREATE_TOPIC, ext)
        if answer.code:
            raise StackError(f"{address} answers {answer.code} {answer.remark}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--seed", type=int, default=time.time_ns() % 1_000_000)
    parser.add_argument("--port", type=int, default=0, help="first of 300 ports; free ones otherwise")
    options = parser.parse_args()
    print(f"follower crash: {options.runs} kills, seed {options.seed}", flush=True)
    configure_logs("error", json=False)
    with OwnGroup("follower-crash", port=options.port, settings=SETTINGS) as group:
        asyncio.run(run(options, group))
    return 0


if __name__ == "__main__":
    sys.exit(main())
