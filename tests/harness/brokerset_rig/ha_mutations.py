"""Packets of the HA port, whole and spoilt: what a strange slave says, and what a connection does to real ones.

The layout is written down once more here, so that the product is not judged by its own codec.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field

SLAVE_HANDSHAKE = struct.Struct(">ihHq")
MASTER_HANDSHAKE = struct.Struct(">iiqi")
EPOCH = struct.Struct(">iq")
TRANSFER = struct.Struct(">iiqiqq")
ACK = struct.Struct(">iq")
EXTENDED_FLAG, EXTENDED_STATE = 0x8000, 0x4000_0000
HANDSHAKE_STATE, TRANSFER_STATE = 1, 2
STRANGER_ID = 1_000
"""Ids of slaves that nobody registered begin here."""

ODD_NUMBERS = (-(2**63), -(2**31), -1, 0, 1, 2, 12, 36, 4_095, 4_096, 2**31 - 1, 2**31, 2**40, 2**63 - 1)


# -- what a strange slave says ----------------------------------------------------------------------------------


def stranger(source: random.Random, cluster: str, group: str, epoch: int, log_end: int) -> bytes:
    """A readable handshake of a slave that is not of the group, or says odd things; some are accepted."""
    broker_id = STRANGER_ID + source.randrange(50)
    flags = source.choice((0, 0, 0, 1))
    head = (HANDSHAKE_STATE, source.choice((0, 0, 1)), flags, broker_id)
    if source.random() < 0.4:
        return SLAVE_HANDSHAKE.pack(*head)
    fields: dict[str, object] = {
        "cluster": cluster, "group": group, "replicaId": broker_id, "nonce": "nobody", "epoch": epoch, "logEnd": log_end,
    }  # fmt: skip
    if source.random() < 0.5:
        odd: tuple[object, ...] = (None, -1, 1.5, 2**70, "x" * 5_000, [], {}, True, "ü", 0)
        fields[source.choice(sorted(fields))] = source.choice(odd)
    text = json.dumps(fields).encode()
    size = len(text) if source.random() < 0.9 else source.choice(ODD_NUMBERS) % 2**31
    return (
        SLAVE_HANDSHAKE.pack(head[0], head[1], flags | EXTENDED_FLAG, head[3])
        + struct.pack(">i", size)
        + text
    )


def ack(source: random.Random, offset: int) -> bytes:
    """An acknowledgement, mostly of what was received."""
    return ACK.pack(
        TRANSFER_STATE, offset if source.random() < 0.9 else source.choice((*ODD_NUMBERS, offset + 1))
    )


def spoil(packet: bytes, source: random.Random) -> bytes:
    """The packet with flipped bits, odd numbers, pieces cut out or put in, or noise instead."""
    spoilt = bytearray(packet)
    kind = source.randrange(6)
    if kind == 0:
        for _ in range(source.randrange(1, 5)):
            spoilt[source.randrange(len(spoilt))] ^= 1 << source.randrange(8)
    elif kind == 1:
        at = source.randrange(max(1, len(spoilt) // 4)) * 4
        spoilt[at : at + 4] = struct.pack(">I", source.choice(ODD_NUMBERS) % 2**32)
    elif kind == 2:
        del spoilt[source.randrange(len(spoilt)) :]
    elif kind == 3:
        at = source.randrange(len(spoilt))
        spoilt[at:at] = source.randbytes(source.randrange(1, 40))
    elif kind == 4:
        spoilt *= 2
    else:
        return source.randbytes(source.randrange(1, 200))
    return bytes(spoilt)


# -- the packets of a connection ----------------------------------------------------------------------------------


@dataclass(slots=True)
class Packet:
    """One packet of a master: its head, and how many bytes of the log follow."""

    head: bytes
    body: int = 0
    is_handshake: bool = False


@dataclass(slots=True)
class MasterStream:
    """Finds the heads of the packets in what a master sends; bodies are passed on as they come."""

    buffer: bytearray = field(default_factory=bytearray)
    shaken: bool = False
    left: int = 0

    def feed(self, data: bytes) -> Iterator[Packet | bytes]:
        """Heads as packets, bytes of the log as bytes."""
        self.buffer += data
        while self.buffer:
            if self.left:
                part = bytes(self.buffer[: self.left])
                del self.buffer[: len(part)]
                self.left -= len(part)
                yield part
                continue
            size = self._head_size()
            if size is None or len(self.buffer) < size:
                return
            head = bytes(self.buffer[:size])
            del self.buffer[:size]
            if not self.shaken:
                self.shaken = True
                yield Packet(head, is_handshake=True)
                continue
            self.left = int(TRANSFER.unpack(head)[1])
            yield Packet(head, self.left)

    def _head_size(self) -> int | None:
        if self.shaken:
            return TRANSFER.size
        if len(self.buffer) < MASTER_HANDSHAKE.size:
            return None
        state, epochs, _, _ = MASTER_HANDSHAKE.unpack_from(self.buffer)
        size: int = MASTER_HANDSHAKE.size + epochs
        if state & EXTENDED_STATE:
            if len(self.buffer) < size + 4:
                return None
            size += 4 + int(struct.unpack_from(">i", self.buffer, size)[0])
        return size


def lie(packet: Packet, source: random.Random) -> bytes:
    """Another head: readable, with one field that is not what it was, or spoilt.

    The number of bytes behind a head stays what it is in most: with another one, heads become bytes of the log, which is what a damaged
    disk looks like.
    """
    if source.random() < 0.3:
        return spoil(packet.head, source)
    if packet.is_handshake:
        return _other_handshake(packet.head, source)
    fields = list(TRANSFER.unpack(packet.head))
    at = source.choice((0, 2, 2, 3, 3, 4, 4, 5)) if source.random() < 0.95 else 1
    low, high = ((-(2**31), 2**31 - 1)) if at in (0, 1, 3) else (-(2**63), 2**63 - 1)
    near = fields[at] + source.choice((-100, -1, 1, 100))
    value = near if source.random() < 0.5 else source.choice(ODD_NUMBERS)
    fields[at] = min(max(value, low), high)
    return TRANSFER.pack(*fields)


def _other_handshake(head: bytes, source: random.Random) -> bytes:
    state, size, end, last_epoch = MASTER_HANDSHAKE.unpack_from(head)
    epochs = list(EPOCH.iter_unpack(head[MASTER_HANDSHAKE.size : MASTER_HANDSHAKE.size + size]))
    rest = head[MASTER_HANDSHAKE.size + size :]
    kind = source.randrange(7)
    if kind == 0:
        end = source.choice([each for each in ODD_NUMBERS if abs(each) < 2**63])
    elif kind == 1:
        last_epoch = source.choice((-1, 0, last_epoch + 1, last_epoch - 1, 2**31 - 1))
    elif kind == 2 and epochs:
        del epochs[source.randrange(len(epochs)) :]
    elif kind == 3 and epochs:
        at = source.randrange(len(epochs))
        epochs[at] = (epochs[at][0], max(0, epochs[at][1] + source.choice((-500, -1, 1, 500, 2**40))))
    elif kind == 4 and epochs:
        at = source.randrange(len(epochs))
        epochs[at] = (min(2**31 - 1, epochs[at][0] + source.choice((1, 2, 1_000))), epochs[at][1])
    elif kind == 5:
        state ^= EXTENDED_STATE
    else:
        epochs = epochs * source.randrange(2, 200)
    packed = b"".join(EPOCH.pack(*each) for each in epochs)
    return MASTER_HANDSHAKE.pack(state, len(packed), end, last_epoch) + packed + rest
