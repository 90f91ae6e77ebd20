"""What looks secret is taken out before anything is handed to somebody else. Pure.

Secrets themselves are never read. This is about the rest: values in the open where a reference to a Secret
should be, addresses with a password in them, tokens in a log. What people may write freely (variables of
pods, annotations of unknown owners) goes in any case; elsewhere a name decides where there is one, and a
value is looked at too. What cannot be recognized stays, so people are told to look through a report.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

MASK: Final = "[left out]"

DROPPED: Final = ("managedFields",)
"""Fields that are long and help nobody."""

SHOWN_ANNOTATIONS: Final = re.compile(
    r"(?:[\w-]+\.)*(?:brokerset\.io|kubernetes\.io|k8s\.io|helm\.sh|prometheus\.io)/.+"
)
"""Annotations whose values are shown, if their names are harmless; of all others only the names are."""

COPIES: Final = re.compile(r"last-applied|/original$|/applied$", re.IGNORECASE)
"""Annotations with a second copy of the whole manifest, as `kubectl apply` and others keep one."""

SHOWN_VARIABLES: Final = re.compile(r"(?:BROKERSET|POD)_\w+|PYTHON\w+|TZ|LANG|LC_\w+")
"""Variables that the operator or the chart sets, or that are no secret; all others lose their value."""

_CERTAIN: Final = re.compile(r"secret|passw|pwd|passphrase|pincode|credential|cookie|jaas")
"""In names whose values are never harmless, not even as numbers."""

_LIKELY: Final = re.compile(
    r"token|private-?key|access-?key|api-?key|auth(?!ors?(?:-|$))|signature|salt|session-?id|bearer"
    r"|(?:^|-)(?:key|sig|pin|pass|cred|creds|dsn)$"
)

_HARMLESS: Final = re.compile(
    r"names?|refs?|enabled?|seconds|path|file|type|count|size|mode|interval|timeout|ms|version|expir(?:y|es)|length"
    r"|max|min|limit|policy"
)
"""Last words of names that are about a secret without being one, as `secretName`."""

_HARMLESS_NAMES: Final = frozenset(("key", "topology-key", "automount-service-account-token", "auth-uri"))

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")

_VALUES: Final = (
    re.compile(r"-----BEGIN [A-Z ]*PRIVATE KEY-----.*?(?:-----END [A-Z ]*PRIVATE KEY-----|\Z)", re.DOTALL),
    re.compile(r"(?<![\w-])eyJ[\w-]{8,}\.[\w-]{8,}\.[\w-]*"),
    re.compile(r"\b(?:AKIA|ASIA|LTAI)[A-Za-z0-9]{12,}\b"),
    re.compile(r"\b(?:gh[pousr]_|github_pat_|glpat-|xox[abeprs]-|AIza|ya29\.)[\w.-]{16,}"),
    re.compile(r"(?<=://)[^/\s\"'<>]+(?=@)"),
    re.compile(r"(?i)(?<=bearer )[\w.~+/=-]{8,}"),
    re.compile(r"(?i)(?<=basic )[\w+/=-]{8,}"),
)
"""Values that are secret wherever they stand: keys, tokens, users and passwords in addresses."""

_ASSIGNMENT: Final = re.compile(
    r"""(?P<quote>\\{0,8}["']?)(?<![\w.-])(?P<name>[\w.-]+)(?P=quote)[ \t]*[=:][ \t]*"""
)
"""`name=`, `name: `, `"name": ` inside a text, also in JSON that is a string of JSON.

A name begins where a word does: else a long word would be looked at again from each of its letters.
"""

_ASSIGNED: Final = re.compile(
    r"""\\{1,8}"[^"\\]*\\{1,8}"|"(?:[^"\\]|\\.)*"|'[^']*'|[^\s&"'}\]]+""",
)
"""The value behind one."""

_LINE: Final = re.compile(
    r"(?m)^(?P<before>[ \t]*(?P<name>[\w.-]+)[ \t]*[=:][ \t]*)(?P<value>[^\s\[\"'{].*)$"
)
"""A line of a file of settings; what stands behind `=` or `:` is one value, with blanks in it or not."""

_HEADER: Final = re.compile(
    r"(?i)\b((?:proxy-)?authorization|(?:set-)?cookie)(\\{0,8}[\"']?[ \t]*[:=][ \t]*)[^\s\"'][^\r\n\"']*"
)
"""Headers of HTTP: a value has several words."""

_OPTION: Final = re.compile(
    r"(?<![\w-])(?P<before>--?(?P<name>[A-Za-z][\w.-]*)[ \t]+)(?P<value>(?!-)[^\s\"']+)"
)
"""`--name value` of a command line."""

_SHORT_DIGITS: Final = 5


def is_secret_name(name: str) -> bool:
    """Whether what has this name is probably secret."""
    return _rating(name) > 0


@lru_cache(4096)
def _rating(name: str) -> int:
    """0 for an ordinary name, 1 for one that is likely a secret's, 2 for one that surely is."""
    words = [word.lower() for word in _WORD.findall(name)]
    joined = "-".join(words)
    if not words or joined in _HARMLESS_NAMES or _HARMLESS.fullmatch(words[-1]):
        return 0
    if _CERTAIN.search("".join(words)):
        return 2
    return int(bool(_LIKELY.search(joined)))


def redact_text(text: str) -> str:
    """A log, a file of settings or any other text without what looks secret."""
    for pattern in _VALUES:
        text = pattern.sub(MASK, text)
    text = _HEADER.sub(rf"\1\2{MASK}", text)
    text = _LINE.sub(_masked_line, text)
    text = _OPTION.sub(_masked_rest, text)
    found, position = [], 0
    while assignment := _ASSIGNMENT.search(text, position):
        # A value that stays may itself have an assignment in it: `reason: password=x`.
        end = assignment.end()
        found.append(text[position:end])
        rating = _rating(assignment["name"])
        value = _ASSIGNED.match(text, end) if rating else None
        if value is not None:
            found.append(_masked(value.group(), rating))
            end = value.end()
        position = end
    return "".join((*found, text[position:]))


def redact(value: Any, name: str = "") -> Any:
    """An object of Kubernetes without what looks secret; `name` is that of the field that has it."""
    if isinstance(value, Mapping):
        return _redact_mapping(value)
    if isinstance(value, list):
        return list(_redact_list(value, name))
    if isinstance(value, str):
        if value and is_secret_name(name):
            return MASK
        return redact_text(value)
    if isinstance(value, int | float) and not isinstance(value, bool) and _rating(name) > 1:
        return MASK
    return value


def _redact_list(given: Sequence[Any], name: str) -> Iterator[Any]:
    """In a command's words the value of an option may be the next word."""
    before = ""
    for each in given:
        option = re.fullmatch(r"--?([A-Za-z][\w.-]*)", before)
        follows = option is not None and isinstance(each, str) and not each.startswith("-")
        yield MASK if follows and option is not None and is_secret_name(option[1]) else redact(each, name)
        before = each if isinstance(each, str) else ""


def _redact_mapping(given: Mapping[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in given.items():
        if key in DROPPED:
            continue
        if key == "annotations":
            found |= {key: _annotations(value)} if isinstance(value, Mapping) else {}
        elif key == "env" and isinstance(value, list):
            found[key] = [_variable(each) for each in value]
        else:
            found[key] = redact(value, key)
    # `{name: X, value: Y}` and `{key: X, value: Y}`: X is the name of Y.
    named = (given.get("name"), given.get("key"))
    if found.get("value") and any(isinstance(each, str) and is_secret_name(each) for each in named):
        found["value"] = MASK
    return found


def _annotations(given: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: redact(value, key.rpartition("/")[2]) if SHOWN_ANNOTATIONS.fullmatch(key) else MASK
        for key, value in given.items()
        if not COPIES.search(key)
    }


def _variable(given: Any) -> Any:
    """A container's variable; people may put anything into one of their own."""
    found = redact(given)
    if (
        isinstance(found, dict)
        and found.get("value")
        and not SHOWN_VARIABLES.fullmatch(str(found.get("name")))
    ):
        found["value"] = MASK
    return found


def _masked(value: str, rating: int) -> str:
    """What is written in the place of a value, in the same quotes."""
    quoted = re.match(r"""\\*["']""", value)
    mark = quoted.group() if quoted is not None else ""
    bare = value.strip("\\\"'")
    return value if not bare or _may_stay(bare, rating, quoted=bool(mark)) else f"{mark}{MASK}{mark}"


def _masked_line(found: re.Match[str]) -> str:
    """A line of settings without its value; one of a log has several, which are looked at one by one."""
    several = _rating(found["name"]) < 2 and re.search(r"[ \t][\w.-]+=", found["value"])
    return found.group() if several else _masked_rest(found)


def _masked_rest(found: re.Match[str]) -> str:
    """A line of settings, or an option, without its value."""
    rating = _rating(found["name"])
    if not rating or _may_stay(found["value"].strip(), rating):
        return found.group()
    return f"{found['before']}{MASK}"


def _may_stay(value: str, rating: int, *, quoted: bool = False) -> bool:
    """Whether what stands next to such a name is a switch or a limit, or was left out before."""
    bare = value.rstrip(",;")
    if bare.startswith(MASK.split()[0]):
        return True
    if quoted:
        return False
    if bare in ("true", "false", "null", "None", "{}", "[]"):
        return True
    return rating == 1 and bare.isdecimal() and len(bare) <= _SHORT_DIGITS


def to_json(value: Any) -> str:
    """An object without what looks secret, as JSON that people can read."""
    return json.dumps(redact(value), indent=2, ensure_ascii=False) + "\n"
