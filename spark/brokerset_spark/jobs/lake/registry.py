"""A schema registry's REST interface: schemas by number, and the newest of a subject."""

from __future__ import annotations

import base64
import http.client
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlsplit

import orjson

from brokerset_spark.jobs.lake.avro_columns import AvroTarget
from brokerset_spark.jobs.report import JobFailed

PATIENCE_SECONDS: Final = 60.0
"""How long a registry that does not answer is asked again."""

TIMEOUT_SECONDS: Final = 10.0
PAUSE_SECONDS: Final = 0.5
AGAIN: Final = (408, 425, 429, 500, 502, 503, 504)
NUMBER_MAX: Final = 2**31 - 1
"""Numbers of schemas are Java's integers; registries refuse others in several ways."""

REFERENCES_MAX: Final = 1000
"""Schemas that one refers to, also through others."""

ANSWER_BYTES_MAX: Final = 16 << 20
ACCEPT: Final = "application/vnd.schemaregistry.v1+json, application/json"


class Registry:
    """Asks one registry; what it says of a number is kept, since that never changes.

    Credentials come from the environment: BROKERSET_REGISTRY_USER and BROKERSET_REGISTRY_PASSWORD, or
    BROKERSET_REGISTRY_TOKEN.
    """

    def __init__(
        self,
        url: str,
        environment: Mapping[str, str] = os.environ,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._url = url.rstrip("/")
        self._authorization = _authorization(environment)
        self._patience, self._clock, self._sleep = patience_seconds, clock, sleep
        self._known: dict[int, Sequence[Any] | str] = {}

    def writer(self, number: int) -> Sequence[Any] | str:
        """The schemas of a number, as `fastavro` takes them: what it refers to, then itself; or why there is
        none.

        JobFailed if the registry does not answer.
        """
        if number > NUMBER_MAX:
            return f"no schema has the number {number}"
        if number not in self._known:
            self._known[number] = self._found(f"/schemas/ids/{number}", f"schema {number}")
        return self._known[number]

    def latest(self, subject: str) -> Sequence[Any]:
        """The same of a subject's newest version. JobFailed if there is none."""
        found = self._found(f"/subjects/{quote(subject, safe='')}/versions/latest", f"subject {subject}")
        if isinstance(found, str):
            raise JobFailed(
                f"{found} ({self._url})", "register a schema, name another --subject, or give --schema-file"
            )
        return found

    def _found(self, path: str, what: str) -> Sequence[Any] | str:
        """The schemas behind a path, or why there are none."""
        return self._with_references(path, what, {})

    def _with_references(
        self, path: str, what: str, asked: dict[str, Sequence[Any] | str]
    ) -> Sequence[Any] | str:
        """The same; `asked` has what is known of the paths of this schema, and a reason for those that are on
        the way to it."""
        answer = self._get(path)
        if answer is None:
            return f"the registry has no {what}"
        kind = answer.get("schemaType") or "AVRO"
        if kind != "AVRO":
            return f"{what} is {kind}, not AVRO"
        asked[path] = f"{what} refers to itself"
        made: list[Any] = []
        try:
            for each in answer.get("references") or ():
                subject, version = str(each["subject"]), each["version"]
                further = f"/subjects/{quote(subject, safe='')}/versions/{quote(str(version), safe='')}"
                if further not in asked:
                    if len(asked) > REFERENCES_MAX:
                        return f"{what} refers to more than {REFERENCES_MAX} others"
                    asked[further] = self._with_references(
                        further, f"version {version} of subject {subject}", asked
                    )
                found = asked[further]
                if isinstance(found, str):
                    return f"{what} refers to another one: {found}"
                made += [schema for schema in found if schema not in made]
            return [*made, orjson.loads(answer["schema"])]
        except (KeyError, TypeError, orjson.JSONDecodeError):
            return f"{what} is no JSON, or its references are none"
        except RecursionError:
            return f"{what} refers to others in a chain that is too long"

    def _get(self, path: str) -> dict[str, Any] | None:
        """The answer; None if the registry says that there is no such thing. JobFailed if there is none in
        time, or if it is refused."""
        deadline = self._clock() + self._patience
        request = urllib.request.Request(f"{self._url}{path}", headers={"Accept": ACCEPT})
        for name, value in self._authorization.items():
            request.add_unredirected_header(name, value)  # wherever a redirection leads, it is not sent there
        while True:
            try:
                with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
                    text = answer.read(ANSWER_BYTES_MAX + 1)
                    if len(text) <= ANSWER_BYTES_MAX and answer.length:
                        raise http.client.IncompleteRead(text, answer.length)
                    return self._value(path, text)
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 404 and "error_code" in self._value(path, error.read(ANSWER_BYTES_MAX)):
                        return None
                if error.code not in AGAIN:
                    raise JobFailed(
                        f"the schema registry {self._url} answered {error.code} {error.reason} to {path}",
                        "check --registry, and BROKERSET_REGISTRY_USER and BROKERSET_REGISTRY_PASSWORD, or "
                        "BROKERSET_REGISTRY_TOKEN",
                    ) from error
                problem = f"{error.code} {error.reason}"
            except (OSError, http.client.HTTPException) as error:
                problem = str(error) or repr(error)
            if self._clock() >= deadline:
                raise JobFailed(
                    f"the schema registry {self._url} does not answer: {problem}",
                    "check --registry and whether it runs, then run the export again: it adds nothing now",
                )
            self._sleep(PAUSE_SECONDS)

    def _value(self, path: str, text: bytes) -> dict[str, Any]:
        """An answer's body. JobFailed for anything but an object: a page of a proxy says nothing of a
        schema."""
        try:
            found = orjson.loads(text) if len(text) <= ANSWER_BYTES_MAX else None
        except orjson.JSONDecodeError:
            found = None
        if not isinstance(found, dict):
            raise JobFailed(f"{self._url}{path} is no answer of a schema registry", "check --registry")
        return found


def registry_problem(url: str) -> str | None:
    """What is wrong with a registry's URL."""
    parts = urlsplit(url)
    if "@" in url or parts.query or parts.fragment:
        return (
            "the registry's URL has a user or a query in it, and stands in reports: give "
            "BROKERSET_REGISTRY_USER and BROKERSET_REGISTRY_PASSWORD, or BROKERSET_REGISTRY_TOKEN, in the "
            "environment"
        )
    if parts.scheme not in ("http", "https") or not parts.hostname:
        return f"registry {url!r} is no URL: write http://HOST:PORT"
    return None


def _authorization(environment: Mapping[str, str]) -> dict[str, str]:
    token, user = environment.get("BROKERSET_REGISTRY_TOKEN"), environment.get("BROKERSET_REGISTRY_USER")
    if token:
        return {"Authorization": f"Bearer {token}"}
    if user:
        both = f"{user}:{environment.get('BROKERSET_REGISTRY_PASSWORD', '')}"
        return {"Authorization": f"Basic {base64.b64encode(both.encode()).decode()}"}
    return {}


def avro_target(url: str, subject: str | None, file: Path | None, topics: Sequence[str]) -> AvroTarget:
    """What bodies are read as: a file's schema, or the newest of a subject, which is the topic's by default.

    ValueError for options that cannot be, JobFailed as `Registry.latest`.
    """
    problem = registry_problem(url)
    if problem is not None:
        raise ValueError(problem)
    if file is not None:
        if subject is not None:
            raise ValueError("--subject and --schema-file name two schemas: give one of them")
        return AvroTarget(url, (file.read_text(),))
    if subject is None and len(topics) != 1:
        raise ValueError("there is not one topic, so no TOPIC-value: give --subject or --schema-file")
    found = Registry(url).latest(subject or f"{topics[0]}-value")
    return AvroTarget(url, tuple(orjson.dumps(each).decode() for each in found))
