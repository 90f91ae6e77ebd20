"""A schema registry for tests: the part of Confluent's REST interface that readers ask, over real HTTP."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote


@dataclass(slots=True)
class SchemaRegistry:
    """What is registered, and who asked for what."""

    url: str = ""
    answers: list[dict[str, Any]] = field(default_factory=list)
    """Of the numbers from 1 on."""
    subjects: dict[str, list[int]] = field(default_factory=dict)
    asked: Counter[str] = field(default_factory=Counter)
    refusals: list[int] = field(default_factory=list)
    """Status codes of the next answers."""
    authorization: str | None = None
    """What requests must bring."""
    raw: list[tuple[int, dict[str, str], bytes]] = field(default_factory=list)
    """The next answers as they are: status, headers, body."""
    brought: list[str | None] = field(default_factory=list)
    """Header Authorization of each request."""

    def add(self, subject: str, schema: Any, kind: str = "AVRO", references: Sequence[Any] = ()) -> int:
        """Register a version of a subject; its number."""
        answer: dict[str, Any] = {"schema": json.dumps(schema)}
        if kind != "AVRO":  # as the real one says it
            answer["schemaType"] = kind
        if references:
            answer["references"] = list(references)
        self.answers.append(answer)
        self.subjects.setdefault(subject, []).append(len(self.answers))
        return len(self.answers)

    def answer(self, path: str) -> dict[str, Any] | None:
        """To a request for a path; None: there is no such thing."""
        match [unquote(each) for each in path.strip("/").split("/")]:
            case ["schemas", "ids", number] if 0 < int(number) <= len(self.answers):
                return self.answers[int(number) - 1]
            case ["subjects", subject, "versions", version] if subject in self.subjects:
                numbers = self.subjects[subject]
                at = len(numbers) if version == "latest" else int(version)
                if 0 < at <= len(numbers):
                    more = {"subject": subject, "version": at, "id": numbers[at - 1]}
                    return self.answers[numbers[at - 1] - 1] | more
        return None


@contextmanager
def schema_registry() -> Iterator[SchemaRegistry]:
    """A registry on loopback, as long as the context lasts."""
    registry = SchemaRegistry()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            registry.asked[self.path] += 1
            registry.brought.append(self.headers.get("Authorization"))
            if registry.raw:
                self._give(*registry.raw.pop(0))
                return
            status, found = 200, registry.answer(self.path)
            if registry.refusals:
                status, found = registry.refusals.pop(0), None
            elif registry.authorization not in (None, self.headers.get("Authorization")):
                status, found = 401, None
            elif found is None:
                status = 404
            body = json.dumps(found or {"error_code": status * 100, "message": "no"}).encode()
            self._give(status, {"Content-Type": "application/vnd.schemaregistry.v1+json"}, body)

        def _give(self, status: int, headers: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in ({"Content-Length": str(len(body))} | headers).items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        registry.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield registry
        finally:
            server.shutdown()
            thread.join()
