"""Requests that are signed and then changed, and a judge of signatures that shares no code with the product.

RocketMQ signs the values of the header fields in the order of their names, then the body. A change that leaves these
bytes as they were is none that a broker can see: `is_signed` finds it, and `tests/faults/signed_fuzz.py` leaves it out.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import random
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from brokerset_rig.mutations import GROUP, ODD_TEXTS, TOPIC, Request, mutate_body, mutate_bytes

ACCESS_KEY, SIGNATURE = "AccessKey", "Signature"
FORWARDED: Final = "brokersetForwarded"
MARKS: Final = (FORWARDED, "brokersetBornHost", "brokersetForwarder", "brokersetForwarderSignature")
"""Fields of a request that a broker passes on; here none was."""

ADDED_LATER: Final = "_UNIQUE_KEY_QUERY"
OLD_VERSION: Final = 399
"""Clients up to this one add the field above after they have signed."""

VERSION: Final = 479


@dataclass(frozen=True, slots=True)
class Signer:
    """A user with the password that makes signatures."""

    name: str
    password: str = field(repr=False)

    def sign(self, request: Request) -> Request:
        """The request with the fields that say who signed it, and the signature."""
        ext = {**request.ext, ACCESS_KEY: self.name}
        return replace(request, ext={**ext, SIGNATURE: signature(self.password, ext, request.body)})


def signature(password: str, ext: Mapping[str, str], body: bytes) -> str:
    """What a client sends as the signature of these fields and this body."""
    values = "".join(ext[name] for name in sorted(ext) if name != SIGNATURE)
    digest = hmac.digest(password.encode(), values.encode("utf-8", "replace") + body, hashlib.sha1)
    return base64.b64encode(digest).decode()


def is_signed(frame: bytes, passwords: Mapping[str, str], *, passed_on: bool = False) -> bool:
    """Whether a frame can be read, and has the right signature of one of these users.

    `passed_on`: by a slave, which writes the fields about its way itself: what somebody put there is gone.
    """
    found = _read(frame)
    if found is None:
        return False
    version, ext, body = found
    password = passwords.get(ext.get(ACCESS_KEY, ""))
    if password is None or FORWARDED in ext:  # no broker has signed that it passed the request on
        return False
    if version <= OLD_VERSION:
        ext.pop(ADDED_LATER, None)
    if passed_on:
        ext = {name: text for name, text in ext.items() if name not in MARKS}
    return signature(password, ext, body) == ext.get(SIGNATURE)


def is_readable(frame: bytes) -> bool:
    """Whether a frame has a header that can be read, so that its connection stays open."""
    found = _read(frame)
    try:
        return found is not None and bool("".join(found[1].values()).encode() or True)
    except UnicodeEncodeError:  # half of a surrogate pair
        return False


def _read(frame: bytes) -> tuple[int, dict[str, str], bytes] | None:
    """Version, fields and body; of a name that comes twice the last counts. None for what is no frame."""
    if len(frame) < 8 or int.from_bytes(frame[:4], "big") != len(frame) - 4:
        return None
    end = 8 + int.from_bytes(frame[5:8], "big")
    if end > len(frame):
        return None
    try:
        version, ext = (_read_json, _read_binary)[frame[4]](frame[8:end])
    except (ValueError, IndexError, KeyError, TypeError, AttributeError, struct.error, RecursionError):
        return None
    return version, ext, frame[end:]


def _read_json(data: bytes) -> tuple[int, dict[str, str]]:
    header = json.loads(data.decode())
    given = header.get("extFields") or {}
    texts = {
        name: value if isinstance(value, str) else json.dumps(value, separators=(",", ":"))
        for name, value in given.items()
        if value is not None
    }
    return int(header.get("version", 0)), texts


def _read_binary(data: bytes) -> tuple[int, dict[str, str]]:
    version, remark = struct.unpack_from(">xxxhxxxxxxxxi", data)
    at = 17 + remark
    end = at + 4 + struct.unpack_from(">i", data, at)[0]
    at += 4
    ext = {}
    while at < end:
        size = struct.unpack_from(">H", data, at)[0]
        value_size = struct.unpack_from(">I", data, at + 2 + size)[0]
        value_at = at + 6 + size
        if value_at + value_size > len(data):
            raise ValueError("a value leaves the header")
        if size and value_size:
            ext[data[at + 2 : at + 2 + size].decode()] = data[value_at : value_at + value_size].decode()
        at = value_at + value_size
    return version, ext


def access_requests(names: Sequence[str]) -> list[Request]:
    """What administrators send to change users and policies; `names` are the users there."""
    everything = {"resource": "*", "actions": ["All"], "sourceIps": [], "decision": "Allow"}
    user = {"username": "intruder", "password": "p", "userType": "Super", "userStatus": "enable"}
    acl = {"subject": "User:intruder", "policies": [{"policyType": "Custom", "entries": [everything]}]}
    found = [Request(3001, {"username": "intruder"}, json.dumps(user).encode())]
    for name in names:
        changed = json.dumps({**user, "username": name}).encode()
        subject = f"User:{name}"
        found += [
            Request(3002, {"username": name}, changed),
            Request(3003, {"username": name}),
            Request(3004, {"username": name}),
            Request(3006, {"subject": subject}, json.dumps({**acl, "subject": subject}).encode()),
            Request(3007, {"subject": subject}, json.dumps({**acl, "subject": subject}).encode()),
            Request(3008, {"subject": subject, "policyType": "Custom"}),
            Request(3009, {"subject": subject}),
        ]
    return [*found, Request(3005, {"filter": ""}), Request(3010, {"subjectFilter": "", "resourceFilter": ""})]


@dataclass(slots=True)
class Draft:
    """A frame that is being made: its fields may come twice, and have any type."""

    code: int
    pairs: list[tuple[str, Any]]
    body: bytes
    signer: Signer
    version: int = VERSION
    flag: int = 0

    def value(self, name: str) -> Any:
        """The last value of a field; an empty text without it."""
        return dict(self.pairs).get(name, "")

    def put(self, name: str, value: Any) -> None:
        """Change a field where it stands, or add it."""
        at = [index for index, pair in enumerate(self.pairs) if pair[0] == name]
        for index in at:
            self.pairs[index] = name, value
        if not at:
            self.pairs.append((name, value))

    def frame(self, opaque: int, source: random.Random) -> bytes:
        """Its bytes, with either header."""
        return self._binary(opaque) if source.random() < 0.25 else self._json(opaque, source.random() < 0.5)

    def _json(self, opaque: int, ascii_only: bool) -> bytes:
        def text(value: object) -> str:
            return json.dumps(value, ensure_ascii=ascii_only)

        fields = ",".join(f"{text(name)}:{text(value)}" for name, value in self.pairs)
        header = (
            f'{{"code":{self.code},"language":"JAVA","version":{self.version},"opaque":{opaque},'
            f'"flag":{self.flag},"extFields":{{{fields}}},"serializeTypeCurrentRPC":"JSON"}}'
        ).encode("utf-8", "surrogatepass")
        return struct.pack(">II", 4 + len(header) + len(self.body), len(header)) + header + self.body

    def _binary(self, opaque: int) -> bytes:
        parts = []
        for name, value in self.pairs:
            key = name.encode("utf-8", "surrogatepass")
            data = (value if isinstance(value, str) else json.dumps(value)).encode("utf-8", "surrogatepass")
            parts.append(struct.pack(">H", len(key)) + key + struct.pack(">I", len(data)) + data)
        fields = b"".join(parts)
        fixed = struct.pack(
            ">HBhiiiI", self.code & 0x7FFF, 0, self.version, opaque, self.flag, 0, len(fields)
        )
        header = fixed + fields
        return (
            struct.pack(">II", 4 + len(header) + len(self.body), 1 << 24 | len(header)) + header + self.body
        )


class Mutator:
    """Signs requests and spoils them, by one source of random numbers."""

    def __init__(self, requests: Sequence[Request], signers: Sequence[Signer], source: random.Random) -> None:
        self._requests = requests
        self._signers = signers
        self._source = source
        self._kinds: tuple[Callable[[Draft], None], ...] = (
            self._other_text, self._other_text, self._part_of_a_text, self._dropped, self._added, self._exchanged,
            self._other_name, self._other_body, self._other_body, self._other_signature, self._other_signature,
            self._other_user, self._other_user, self._forged, self._twice, self._odd_letters, self._other_type, self._passed_on,
            self._other_version,
        )  # fmt: skip
        self._kinds_of_content: tuple[Callable[[Draft], None], ...] = (
            self._other_text,
            self._part_of_a_text,
            self._dropped,
            self._exchanged,
            self._other_body,
        )

    def draft(self, signer: Signer) -> Draft:
        """A request that is signed as it should be."""
        request = signer.sign(self._source.choice(self._requests))
        pairs: list[tuple[str, Any]] = list(request.ext.items())
        self._source.shuffle(pairs)
        return Draft(request.code, pairs, request.body, signer)

    def spoilt(self, signer: Signer, opaque: int) -> bytes:
        """A frame of a signed request with one to three changes, or with spoilt bytes."""
        source = self._source
        draft = self.draft(signer)
        by_bytes = source.random() < 0.2
        for _ in range(0 if by_bytes else source.randrange(1, 4)):
            source.choice(self._kinds)(draft)
        if source.random() < 0.1:
            draft.code = source.choice(self._requests).code
        if source.random() < 0.1:
            draft.flag = 2  # no answer is wanted
        frame = draft.frame(opaque, source)
        return mutate_bytes(frame, source)[0] if by_bytes else frame

    def signed_last(self, signer: Signer, opaque: int) -> bytes:
        """A frame of a request that was changed or not, and then signed as it should be."""
        source = self._source
        draft = self.draft(signer)
        for _ in range(source.randrange(3)):
            source.choice(self._kinds_of_content)(draft)
        draft.put(ACCESS_KEY, signer.name)
        ext = {name: value for name, value in draft.pairs if isinstance(value, str)}
        draft.put(SIGNATURE, signature(signer.password, ext, draft.body))
        return draft.frame(opaque, source)

    # -- changes ------------------------------------------------------------------------------------------

    def _name(self, draft: Draft) -> str:
        return self._source.choice([name for name, _ in draft.pairs] or [TOPIC])

    def _other_text(self, draft: Draft) -> None:
        draft.put(self._name(draft), self._source.choice([*ODD_TEXTS, TOPIC, GROUP, "intruder"]))

    def _part_of_a_text(self, draft: Draft) -> None:
        """One character more, less, or another one."""
        name = self._name(draft)
        text = str(draft.value(name))
        at = self._source.randrange(len(text) + 1)
        draft.put(name, text[:at] + self._source.choice(("", "0", " ", "\0", "a")) + text[at + 1 :])

    def _dropped(self, draft: Draft) -> None:
        name = self._name(draft)
        draft.pairs = [pair for pair in draft.pairs if pair[0] != name]

    def _added(self, draft: Draft) -> None:
        name = self._source.choice(
            ("topic", "b", "consumerGroup", "username", "0", "zz", "Zz", ADDED_LATER, *MARKS)
        )
        draft.pairs.append((name, self._source.choice([*ODD_TEXTS, "true", TOPIC])))

    def _exchanged(self, draft: Draft) -> None:
        """The values of two fields change places."""
        one, other = self._name(draft), self._name(draft)
        first, second = draft.value(one), draft.value(other)
        draft.put(one, second)
        draft.put(other, first)

    def _other_name(self, draft: Draft) -> None:
        """A value under another name, which may come elsewhere in the order."""
        if draft.pairs:
            at = self._source.randrange(len(draft.pairs))
            new = self._source.choice(
                (draft.pairs[at][0].upper(), "A", "zz", "topic", f"{draft.pairs[at][0]} ")
            )
            draft.pairs[at] = new, draft.pairs[at][1]

    def _other_body(self, draft: Draft) -> None:
        draft.body = mutate_body(draft.body, self._source)

    def _other_signature(self, draft: Draft) -> None:
        """Truncated, longer, of another alphabet, of nothing, of another request, of spoilt bits."""
        source, text = self._source, str(draft.value(SIGNATURE))
        foreign = draft.signer.sign(source.choice(self._requests)).ext[SIGNATURE]
        bits = bytearray(
            hmac.digest(draft.signer.password.encode(), text.encode("utf-8", "replace"), hashlib.sha1)
        )
        bits[source.randrange(len(bits))] ^= 1 << source.randrange(8)
        new = (
            text[: source.randrange(len(text) + 1)], text.rstrip("="), text + "=", text + "\n", " " + text, text * 2,
            text.swapcase(), text.replace("+", "-").replace("/", "_"), "", "=", "A" * 27 + "=", foreign,
            base64.b64encode(bits).decode(), text[:-1] + "\ud800", text + "\0", "*", "null",
        )  # fmt: skip
        draft.put(SIGNATURE, source.choice(new))

    def _other_user(self, draft: Draft) -> None:
        """Who is said to have signed did not."""
        name = self._source.choice(self._signers).name
        draft.put(
            ACCESS_KEY,
            self._source.choice((name, name.upper(), name + " ", name + "\0", "", "nobody", "*", "х")),
        )

    def _forged(self, draft: Draft) -> None:
        """Somebody signs as another user, with the own password."""
        claimed, forger = self._source.sample(list(self._signers), 2)
        draft.put(ACCESS_KEY, claimed.name)
        ext = {name: value for name, value in dict(draft.pairs).items() if isinstance(value, str)}
        draft.put(SIGNATURE, signature(forger.password, ext, draft.body))

    def _twice(self, draft: Draft) -> None:
        """A field comes twice, with two values, in either order."""
        if draft.pairs:
            name, value = self._source.choice(draft.pairs)
            new = name, self._source.choice([*ODD_TEXTS, value])
            draft.pairs.insert(self._source.choice((0, len(draft.pairs))), new)

    def _odd_letters(self, draft: Draft) -> None:
        """Halves of surrogate pairs, and letters that are not what they seem."""
        name = self._name(draft)
        odd = self._source.choice(
            ("\ud800", "\udfff", "\udc00\ud800", "\u200b", "\ufeff", "е", "\u0000", "😀")
        )
        text = str(draft.value(name))
        at = self._source.randrange(len(text) + 1)
        draft.put(name, text[:at] + odd + text[at:])

    def _other_type(self, draft: Draft) -> None:
        draft.put(
            self._name(draft), self._source.choice((0, -1, 2**40, 1.5, True, None, [], ["a"], {"a": 1}))
        )

    def _passed_on(self, draft: Draft) -> None:
        """As if a broker had passed it on, with signatures that are none of a broker's."""
        forger = self._source.choice(self._signers)
        text = str(draft.value(SIGNATURE))
        values = (
            "true",
            "10.0.0.1:7",
            forger.name,
            self._source.choice((text, "", signature(forger.password, {}, b""))),
        )
        for name, value in zip(MARKS, values, strict=True):
            if name == FORWARDED or self._source.random() < 0.8:
                draft.put(name, value)

    def _other_version(self, draft: Draft) -> None:
        """Of old clients one field is not signed: only that one."""
        draft.version = self._source.choice((0, OLD_VERSION, OLD_VERSION + 1, -1))
        if self._source.random() < 0.5:
            draft.put(self._source.choice((ADDED_LATER, ADDED_LATER.lower(), "topic")), "true")
