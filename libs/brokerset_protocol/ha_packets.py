"""Packets of the HA port, by which slaves follow a master (Java: `AutoSwitchHAConnection` and `…Client`).

All integers are big-endian. Java indexes an array with the state, so other states than these must not be
sent to a Java peer. Decoders return None as long as bytes are missing, and raise `HaProtocolError` as soon as
what is there cannot become a packet; encoders raise it for values that no decoder would take.
"""

from __future__ import annotations

import struct
from typing import Final

import orjson

from brokerset_formats.lazy_dataclasses import dataclass

STATE_HANDSHAKE: Final = 1
STATE_TRANSFER: Final = 2

EXTENDED_FLAG: Final = 0x8000
"""Set in the `isAsyncLearner` short by our slaves when they know the master to be one of ours."""

EXTENDED_STATE: Final = 0x4000_0000
"""Set in the state of a master's handshake that has an extension behind its body."""

SLAVE_HANDSHAKE_SIZE: Final = 16
MASTER_HANDSHAKE_SIZE: Final = 20
EPOCH_SIZE: Final = 12
TRANSFER_HEADER_SIZE: Final = 36
ACK_SIZE: Final = 12

SLAVE_ID_MAX: Final = 0xFFFF_FFFF
"""Of a slave's id. In the upper half of its eight bytes RocketMQ 5.0 and 5.1.0 have an address's length."""

EPOCHS_MAX: Final = 1_000
"""Epochs of one handshake, as in Java."""

EXTENSION_SIZE_MAX: Final = 4_096
"""Bytes of one extension."""

BODY_SIZE_MAX: Final = 4 * 1024 * 1024 - TRANSFER_HEADER_SIZE
"""Bytes of one transfer: Java's slaves have a buffer of 4 MiB."""


class HaProtocolError(ValueError):
    """Bytes that are no packet, or not the one that is due; the connection is to be closed."""


@dataclass(frozen=True, slots=True)
class PeerIdentity:
    """Who is at the other end of a connection between our own brokers."""

    cluster_name: str
    broker_name: str
    broker_id: int
    nonce: str
    epoch: int
    """The master's epoch; of a slave, the highest one that it knows."""

    log_end: int = -1
    """End of the slave's log; -1 from a master."""

    incarnation: int | None = None
    """Which start of the replica this is, as the controllers count; None if they do not."""


@dataclass(frozen=True, slots=True)
class SlaveHandshake:
    """The first packet of a slave."""

    broker_id: int
    sync_from_last_file: bool = False
    async_learner: bool = False
    identity: PeerIdentity | None = None


@dataclass(frozen=True, slots=True)
class MasterHandshake:
    """The master's answer: the end of its log and all its epochs."""

    max_offset: int
    last_epoch: int
    epochs: tuple[tuple[int, int], ...]
    """(epoch, start offset), ascending."""

    identity: PeerIdentity | None = None


@dataclass(frozen=True, slots=True)
class TransferHeader:
    """What stands before the bytes of the log; without bytes it is a heartbeat."""

    offset: int
    """Of the first byte behind the header; of a heartbeat, the one that is sent next."""

    epoch: int
    epoch_start: int
    confirmed_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Ack:
    """A slave has everything below this offset."""

    offset: int


Buffer = bytes | bytearray | memoryview

_INT32_MAX: Final = 0x7FFF_FFFF
_INT64_MAX: Final = 0x7FFF_FFFF_FFFF_FFFF
_LEARNER: Final = 1
_SHOWN_BYTES_MAX: Final = 16
"""Bytes of a bad packet that a complaint repeats."""

_ADDRESS_SHOWN_MAX: Final = 64
"""Characters of an address that a complaint repeats."""

_STATE: Final = struct.Struct(">i")
_SLAVE_HANDSHAKE: Final = struct.Struct(">ihHq")
_MASTER_HANDSHAKE: Final = struct.Struct(">iiqi")
_EPOCH: Final = struct.Struct(">iq")
_EXTENSION_SIZE: Final = struct.Struct(">i")
_TRANSFER_HEADER: Final = struct.Struct(">iiqiqq")
_ACK: Final = struct.Struct(">iq")

SLAVE_HANDSHAKE_SIZE_MAX: Final = SLAVE_HANDSHAKE_SIZE + _EXTENSION_SIZE.size + EXTENSION_SIZE_MAX
MASTER_HANDSHAKE_SIZE_MAX: Final = (
    MASTER_HANDSHAKE_SIZE + EPOCHS_MAX * EPOCH_SIZE + _EXTENSION_SIZE.size + EXTENSION_SIZE_MAX
)


# -- a slave's handshake ----------------------------------------------------------------------------------


def encode_slave_handshake(packet: SlaveHandshake) -> bytes:
    """16 bytes, with an identity also the extension. To be sent in one piece: a Java master begins to decode
    when 12 bytes are there."""
    _check_slave_handshake(packet)
    learner = _LEARNER if packet.async_learner else 0
    extension = b""
    if packet.identity is not None:
        learner |= EXTENDED_FLAG
        extension = _encode_extension(packet.identity, from_slave=True)
    head = _SLAVE_HANDSHAKE.pack(STATE_HANDSHAKE, int(packet.sync_from_last_file), learner, packet.broker_id)
    return head + extension


def decode_slave_handshake(buffer: Buffer) -> tuple[SlaveHandshake, int] | None:
    """The handshake at the beginning of `buffer`, and its size."""
    if len(buffer) >= _STATE.size and _STATE.unpack_from(buffer)[0] == 0:
        raise HaProtocolError(
            "the slave sends an offset where its handshake is due, as those do that follow without"
            " controllers (RocketMQ 4.x, or brokerRole=SLAVE): set enableControllerMode there, or keep it"
            " away from this group"
        )
    _check_state(buffer, STATE_HANDSHAKE, "a slave's handshake")
    if len(buffer) < SLAVE_HANDSHAKE_SIZE:
        return None
    _, last_file, learner, broker_id = _SLAVE_HANDSHAKE.unpack_from(buffer)
    if broker_id > SLAVE_ID_MAX:
        _refuse_address(buffer, broker_id >> 32)
    if last_file not in (0, 1) or learner & ~(EXTENDED_FLAG | _LEARNER):
        raise HaProtocolError(f"flags {last_file:#x} and {learner:#x} are none of a slave's handshake")
    end = SLAVE_HANDSHAKE_SIZE
    identity = None
    if learner & EXTENDED_FLAG:
        found = _decode_extension(buffer, end, from_slave=True)
        if found is None:
            return None
        identity, end = found
    packet = SlaveHandshake(broker_id, bool(last_file), bool(learner & _LEARNER), identity)
    _check_slave_handshake(packet)
    return packet, end


def _refuse_address(buffer: Buffer, size: int) -> None:
    """The id that was read is the length of an address and its first four bytes. Raises `HaProtocolError`."""
    begin = SLAVE_HANDSHAKE_SIZE - _STATE.size
    shown = bytes(buffer[begin : begin + min(size, _ADDRESS_SHOWN_MAX)])
    address = shown.decode("ascii", "backslashreplace")
    raise HaProtocolError(
        f"the slave names its address ({address!r}) where its id is due, as RocketMQ 5.0 and 5.1.0 do:"
        " upgrade it to 5.1.1 or later"
    )


def _check_slave_handshake(packet: SlaveHandshake) -> None:
    _check_number(packet.broker_id, 0, SLAVE_ID_MAX, "a slave's id")
    if packet.identity is not None and packet.identity.broker_id != packet.broker_id:
        raise HaProtocolError(
            f"a slave's handshake names two ids: {packet.broker_id} and {packet.identity.broker_id}"
        )


# -- the master's answer ----------------------------------------------------------------------------------


def encode_master_handshake(packet: MasterHandshake) -> bytes:
    """20 bytes and 12 for each epoch, with an identity also the extension."""
    _check_master_handshake(packet)
    state = STATE_HANDSHAKE
    extension = b""
    if packet.identity is not None:
        state |= EXTENDED_STATE
        extension = _encode_extension(packet.identity, from_slave=False)
    size = len(packet.epochs) * EPOCH_SIZE
    head = _MASTER_HANDSHAKE.pack(state, size, packet.max_offset, packet.last_epoch)
    return b"".join((head, *(_EPOCH.pack(*entry) for entry in packet.epochs), extension))


def decode_master_handshake(buffer: Buffer) -> tuple[MasterHandshake, int] | None:
    """The answer at the beginning of `buffer`, and its size."""
    if len(buffer) >= _STATE.size and _STATE.unpack_from(buffer)[0] != STATE_HANDSHAKE | EXTENDED_STATE:
        _check_state(buffer, STATE_HANDSHAKE, "a master's handshake")
    if len(buffer) < MASTER_HANDSHAKE_SIZE:
        return None
    state, size, max_offset, last_epoch = _MASTER_HANDSHAKE.unpack_from(buffer)
    if size % EPOCH_SIZE or not 0 <= size <= EPOCHS_MAX * EPOCH_SIZE:
        raise HaProtocolError(
            f"a master's handshake has {size} bytes of epochs, not up to {EPOCHS_MAX} times {EPOCH_SIZE}"
        )
    end = MASTER_HANDSHAKE_SIZE + size
    if len(buffer) < end:
        return None
    epochs = tuple(_EPOCH.iter_unpack(buffer[MASTER_HANDSHAKE_SIZE:end]))
    identity = None
    if state & EXTENDED_STATE:
        found = _decode_extension(buffer, end, from_slave=False)
        if found is None:
            return None
        identity, end = found
    packet = MasterHandshake(max_offset, last_epoch, epochs, identity)
    _check_master_handshake(packet)
    return packet, end


def _check_master_handshake(packet: MasterHandshake) -> None:
    _check_number(packet.max_offset, 0, _INT64_MAX, "the end of a master's log")
    _check_number(packet.last_epoch, -1, _INT32_MAX, "a master's last epoch")
    if len(packet.epochs) > EPOCHS_MAX:
        raise HaProtocolError(f"{len(packet.epochs)} epochs are more than {EPOCHS_MAX}")
    last = (-1, -1)
    for epoch, start in packet.epochs:
        _check_number(epoch, 0, _INT32_MAX, "an epoch")
        _check_number(start, 0, _INT64_MAX, "an epoch's start")
        if epoch <= last[0] or start <= last[1]:
            raise HaProtocolError(
                f"epoch {epoch} from {start} does not follow epoch {last[0]} from {last[1]}"
            )
        last = (epoch, start)


# -- the extension ----------------------------------------------------------------------------------------


def _encode_extension(identity: PeerIdentity, *, from_slave: bool) -> bytes:
    _check_identity(identity, from_slave=from_slave)
    fields: dict[str, object] = {
        "cluster": identity.cluster_name,
        "group": identity.broker_name,
        "replicaId": identity.broker_id,
        "nonce": identity.nonce,
        "epoch": identity.epoch,
    }
    if from_slave:
        fields["logEnd"] = identity.log_end
    if identity.incarnation is not None:
        fields["incarnation"] = identity.incarnation
    try:
        body = orjson.dumps(fields)
    except TypeError as error:
        raise HaProtocolError(f"a name cannot be written as JSON: {error}") from None
    if len(body) > EXTENSION_SIZE_MAX:
        raise HaProtocolError(f"an extension of {len(body)} bytes is longer than {EXTENSION_SIZE_MAX}")
    return _EXTENSION_SIZE.pack(len(body)) + body


def _decode_extension(buffer: Buffer, begin: int, *, from_slave: bool) -> tuple[PeerIdentity, int] | None:
    body_begin = begin + _EXTENSION_SIZE.size
    if len(buffer) < body_begin:
        return None
    (size,) = _EXTENSION_SIZE.unpack_from(buffer, begin)
    if not 0 < size <= EXTENSION_SIZE_MAX:
        raise HaProtocolError(f"an extension has {size} bytes, not 1 to {EXTENSION_SIZE_MAX}")
    end = body_begin + size
    if len(buffer) < end:
        return None
    try:
        fields = orjson.loads(buffer[body_begin:end])
    except orjson.JSONDecodeError as error:
        raise HaProtocolError(f"an extension is no JSON: {error}") from None
    if not isinstance(fields, dict):
        raise HaProtocolError("an extension is no JSON object")
    identity = PeerIdentity(
        cluster_name=_text(fields, "cluster"),
        broker_name=_text(fields, "group"),
        broker_id=_number(fields, "replicaId"),
        nonce=_text(fields, "nonce"),
        epoch=_number(fields, "epoch"),
        log_end=_number(fields, "logEnd") if from_slave else -1,
        incarnation=_number(fields, "incarnation") if "incarnation" in fields else None,
    )
    _check_identity(identity, from_slave=from_slave)
    return identity, end


def _check_identity(identity: PeerIdentity, *, from_slave: bool) -> None:
    _check_number(identity.broker_id, 0, _INT64_MAX, "an extension's replicaId")
    _check_number(identity.epoch, -1, _INT32_MAX, "an extension's epoch")
    _check_number(identity.log_end, 0 if from_slave else -1, _INT64_MAX if from_slave else -1, "logEnd")
    if identity.incarnation is not None:
        _check_number(identity.incarnation, 0, _INT64_MAX, "an extension's incarnation")


def _text(fields: dict[str, object], name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, str):
        raise HaProtocolError(f"an extension has no text {name!r}")
    return value


def _number(fields: dict[str, object], name: str) -> int:
    value = fields.get(name)
    if type(value) is not int:
        raise HaProtocolError(f"an extension has no number {name!r}")
    return value


# -- transfers and acknowledgements -----------------------------------------------------------------------


def encode_transfer_header(header: TransferHeader) -> bytes:
    """36 bytes; the log's bytes follow."""
    _check_transfer_header(header)
    return _TRANSFER_HEADER.pack(
        STATE_TRANSFER,
        header.size,
        header.offset,
        header.epoch,
        header.epoch_start,
        header.confirmed_offset,
    )


def decode_transfer_header(buffer: Buffer, position: int = 0) -> TransferHeader | None:
    """The 36 bytes at `position`. A Java master with an empty log sends heartbeats with -1 for offsets."""
    if len(buffer) - position < TRANSFER_HEADER_SIZE:
        _check_state(buffer, STATE_TRANSFER, "a transfer", position)
        return None
    state, size, offset, epoch, start, confirmed = _TRANSFER_HEADER.unpack_from(buffer, position)
    if state != STATE_TRANSFER:
        _check_state(buffer, STATE_TRANSFER, "a transfer", position)
    header = TransferHeader(offset, epoch, start, confirmed, size)
    _check_transfer_header(header)
    return header


def _check_transfer_header(header: TransferHeader) -> None:
    if not 0 <= header.size <= BODY_SIZE_MAX:
        raise HaProtocolError(f"a transfer of {header.size} bytes is not up to {BODY_SIZE_MAX}")
    low = 0 if header.size else -1
    _check_number(header.offset, low, _INT64_MAX - header.size, "a transfer's offset")
    _check_number(header.epoch, low, _INT32_MAX, "a transfer's epoch")
    _check_number(header.epoch_start, low, _INT64_MAX, "the start of a transfer's epoch")
    _check_number(header.confirmed_offset, -1, _INT64_MAX, "a confirmed offset")


def encode_ack(packet: Ack) -> bytes:
    """12 bytes."""
    _check_number(packet.offset, 0, _INT64_MAX, "an acknowledged offset")
    return _ACK.pack(STATE_TRANSFER, packet.offset)


class AckDecoder:
    """Reads what a slave sends after its handshake, in any pieces; keeps less than one packet.

    A Java slave repeats its handshake until it has the master's whole answer: `repeated` is that packet, and
    is passed over. Our slaves send theirs once.
    """

    def __init__(self, repeated: SlaveHandshake | None = None) -> None:
        self._repeated = b""
        if repeated is not None and repeated.identity is None:
            self._repeated = encode_slave_handshake(repeated)
        self._rest = b""

    def feed(self, data: Buffer) -> Ack | None:
        """The last acknowledgement that `data` completes: each one covers those before it."""
        if len(data) == ACK_SIZE and not self._rest:  # as nearly always
            state, value = _ACK.unpack(data)
            if state == STATE_TRANSFER and value >= 0:
                return Ack(value)
        if self._rest:
            data = self._rest + bytes(data)
        position, offset = 0, -1
        while len(data) - position >= ACK_SIZE:
            state, value = _ACK.unpack_from(data, position)
            if state == STATE_TRANSFER:
                _check_number(value, 0, _INT64_MAX, "an acknowledged offset")
                offset = value
                position += ACK_SIZE
            elif self._repeated and bytes(data[position : position + ACK_SIZE]) == self._repeated[:ACK_SIZE]:
                piece = bytes(data[position : position + SLAVE_HANDSHAKE_SIZE])
                if len(piece) < SLAVE_HANDSHAKE_SIZE:
                    break
                if piece != self._repeated:
                    raise HaProtocolError("a slave's handshake was followed by another one")
                position += SLAVE_HANDSHAKE_SIZE
            else:
                _check_state(data, STATE_TRANSFER, "an acknowledgement", position)
        self._rest = bytes(data[position:])
        return Ack(offset) if offset >= 0 else None


# -- checks -----------------------------------------------------------------------------------------------


def _check_state(buffer: Buffer, state: int, what: str, position: int = 0) -> None:
    """As soon as the first four bytes are there, they must be this state."""
    if len(buffer) - position >= _STATE.size and _STATE.unpack_from(buffer, position)[0] != state:
        shown = bytes(buffer[position : position + _SHOWN_BYTES_MAX]).hex(" ", 4)
        raise HaProtocolError(f"{what} was due, which begins with state {state}, but {shown} came")


def _check_number(value: int, low: int, high: int, what: str) -> None:
    if not low <= value <= high:
        raise HaProtocolError(f"{what} is {value}, not {low} to {high}")
