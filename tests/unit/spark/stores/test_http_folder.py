"""Reading a store from a server that breaks off, is busy, or answers nonsense."""

from __future__ import annotations

import base64
import hashlib
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import orjson
import pytest

from brokerset_spark.stores.folder import read_all
from brokerset_spark.stores.http_folder import ATTEMPTS_MAX, HttpFolder, StreamFailed, StreamRefused
from brokerset_spark.stores.layout import look
from brokerset_spark.stores.opening import open_folder

CONTENT = bytes(range(256)) * 400
LOG = "commitlog/00000000000000000000"
Answer = Callable[[BaseHTTPRequestHandler, int], None]


def whole(
    handler: BaseHTTPRequestHandler, keep: int | None = None, *, tag: str = "a", content: bytes = CONTENT
) -> None:
    """Answer a range as a broker does; with `keep` break off after so many bytes."""
    found = re.fullmatch(r"bytes=(\d+)-(\d+)", handler.headers["Range"] or "")
    assert found is not None
    start, end = int(found[1]), min(int(found[2]) + 1, len(CONTENT))
    if start >= len(CONTENT):
        refuse(handler, 416, b'{"error": "behind-the-end"}')
        return
    handler.send_response(206)
    handler.send_header("Content-Length", str(end - start))
    handler.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(CONTENT)}")
    handler.send_header("ETag", f'"{tag}"')
    handler.end_headers()
    handler.wfile.write(content[start:end][:keep])
    if keep is not None:
        handler.close_connection = True


def refuse(handler: BaseHTTPRequestHandler, status: int, body: bytes = b"") -> None:
    handler.send_response(status)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


class Stream:
    """A server whose answers are scripted: the last one is repeated."""

    def __init__(self) -> None:
        self.answers: list[Answer] = []
        self.requests: list[tuple[str, str | None]] = []
        self.connections = 0
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def setup(self) -> None:
                super().setup()
                outer.connections += 1

            def do_GET(self) -> None:
                number = len(outer.requests)
                outer.requests.append((self.path, self.headers["Authorization"]))
                outer.answers[min(number, len(outer.answers) - 1)](self, number)

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}/store"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))
        self.thread.start()

    def close(self) -> None:
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def served() -> Iterator[Stream]:
    """A scripted server."""
    with closing(Stream()) as stream:
        yield stream


@pytest.fixture
def slept() -> list[float]:
    """The pauses that a folder made."""
    return []


@pytest.fixture
def folder(served: Stream, slept: list[float]) -> Iterator[HttpFolder]:
    """A folder that does not really wait."""
    with closing(HttpFolder(served.url, sleep=slept.append)) as opened:
        yield opened


def read(folder: HttpFolder, position: int = 0, size: int = len(CONTENT) + 10) -> bytes:
    target = bytearray(size)
    return bytes(target[: folder.read_into(LOG, position, memoryview(target))])


def test_pieces_come_over_one_connection(served: Stream, folder: HttpFolder) -> None:
    """The connection stays open, and reads end where the file does."""
    served.answers = [lambda handler, _: whole(handler)]

    assert read(folder) == CONTENT
    assert read(folder, 300, 20) == CONTENT[300:320]
    assert read(folder, len(CONTENT)) == b""
    assert served.connections == 1
    assert len(served.requests) == 3


def test_a_reading_that_breaks_off_goes_on_where_it_was(served: Stream, folder: HttpFolder) -> None:
    """However often a connection breaks, as long as each brings something all of it arrives, once."""
    served.answers = [
        *(lambda handler, _: whole(handler, 5_000) for _ in range(3 * ATTEMPTS_MAX)),
        lambda handler, _: whole(handler),
    ]

    assert read(folder) == CONTENT
    assert len(served.requests) == 3 * ATTEMPTS_MAX + 1


def test_two_states_of_a_file_are_never_mixed(served: Stream, folder: HttpFolder) -> None:
    """A file that has changed when a broken reading goes on is read from the beginning of the piece."""
    served.answers = [
        lambda handler, _: whole(handler, 5_000, content=b"?" * len(CONTENT)),
        lambda handler, _: whole(handler, tag="b"),
    ]

    assert read(folder) == CONTENT
    assert len(served.requests) == 3


def test_a_file_that_always_changes_is_given_up(served: Stream, folder: HttpFolder) -> None:
    """Beginning a piece again is bounded, also when each connection brings something."""
    served.answers = [lambda handler, number: whole(handler, 5_000, tag=str(number))]

    with pytest.raises(StreamFailed, match="changes whenever"):
        read(folder)

    assert len(served.requests) == 2 * ATTEMPTS_MAX


def test_a_server_that_brings_nothing_is_given_up(
    served: Stream, folder: HttpFolder, slept: list[float]
) -> None:
    """The attempts and their pauses are bounded, and the error says what to look at."""
    served.answers = [lambda handler, _: whole(handler, 0)]

    with pytest.raises(StreamFailed, match="storeStreamEnable"):
        read(folder)

    assert len(served.requests) == ATTEMPTS_MAX
    assert slept == sorted(slept)
    assert len(slept) == ATTEMPTS_MAX - 1


def test_nobody_there_is_an_error_after_a_few_attempts(slept: list[float]) -> None:
    """A refused connection is tried again, not permanently."""
    with closing(Stream()) as gone:
        url = gone.url

    with (
        closing(HttpFolder(url, sleep=slept.append)) as folder,
        pytest.raises(StreamFailed, match="not answer"),
    ):
        folder.state()

    assert len(slept) == ATTEMPTS_MAX - 1


def test_a_busy_broker_is_asked_again(served: Stream, folder: HttpFolder, slept: list[float]) -> None:
    """503 with `busy` is no failure, however often it comes; another 503 is one at once."""
    busy: Answer = lambda handler, _: refuse(handler, 503, b'{"error": "busy", "message": "wait"}')  # noqa: E731
    served.answers = [busy] * 20 + [lambda handler, _: whole(handler)]

    assert read(folder) == CONTENT
    assert len(slept) == 20

    served.answers = [
        lambda handler, _: refuse(handler, 503, b'{"error": "no-token", "message": "no token"}')
    ]
    with pytest.raises(StreamFailed, match="no token"):
        read(folder)
    assert len(slept) == 20


@pytest.mark.parametrize(
    ("status", "body", "error", "text"),
    [
        (401, b'{"message": "who are you"}', StreamRefused, "BROKERSET_STORE_TOKEN"),
        (403, b"", StreamRefused, "Forbidden"),
        (404, b'{"error": "expired", "message": "was deleted"}', FileNotFoundError, "was deleted"),
        (404, b"404: Not Found", StreamFailed, "storeStreamEnable"),
        (500, b"\xff\xfe", StreamFailed, "HTTP 500"),
        (200, b"all of it", StreamFailed, "HTTP 200"),
    ],
)
def test_refusals_say_what_to_do(
    served: Stream, folder: HttpFolder, status: int, body: bytes, error: type[Exception], text: str
) -> None:
    """Each answer that is no data becomes one clear error, at once."""
    served.answers = [lambda handler, _: refuse(handler, status, body)]

    with pytest.raises(error, match=text):
        read(folder)

    assert len(served.requests) == 1


def test_an_answer_with_other_bytes_is_refused(served: Stream, folder: HttpFolder) -> None:
    """A server that answers another range than asked for corrupts nothing."""

    def shifted(handler: BaseHTTPRequestHandler, _: int) -> None:
        handler.send_response(206)
        handler.send_header("Content-Length", "10")
        handler.send_header("Content-Range", "bytes 1-10/100")
        handler.end_headers()
        handler.wfile.write(b"0123456789")

    served.answers = [shifted]

    with pytest.raises(StreamFailed, match="other bytes"):
        read(folder)


def test_a_small_file_is_read_as_it_was_at_one_moment(served: Stream, folder: HttpFolder) -> None:
    """Reading it in pieces asks once; reading it again asks again; a missing one is None."""
    served.answers = [
        lambda handler, number: refuse(handler, 200, b"%d" % number * 70_000),
        lambda handler, number: refuse(handler, 200, b"%d" % number * 70_000),
        lambda handler, _: refuse(handler, 404, b'{"error": "no-such-file", "message": "none"}'),
    ]

    assert read_all(folder, "config/topics.json") == b"0" * 70_000
    assert read_all(folder, "config/topics.json") == b"1" * 70_000
    assert read_all(folder, "config/topics.json") is None
    assert len(served.requests) == 3


def test_the_token_comes_from_the_environment(
    served: Stream, folder: HttpFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Text or file; a token that was given counts first, and travels with the folder."""
    served.answers = [lambda handler, _: whole(handler)]
    (tmp_path / "token").write_text(" from-file\n")

    read(folder)
    monkeypatch.setenv("BROKERSET_STORE_TOKEN_FILE", str(tmp_path / "token"))
    read(folder)
    monkeypatch.setenv("BROKERSET_STORE_TOKEN", "from-text")
    read(folder)
    with closing(pickle.loads(pickle.dumps(HttpFolder(served.url, token="given")))) as given:
        read(given)
        assert given.url == folder.url

    tokens = [token for _, token in served.requests]
    assert tokens == [None, "Bearer from-file", "Bearer from-text", "Bearer given"]


def test_a_token_that_cannot_be_sent_is_told_and_not_shown(
    served: Stream, folder: HttpFolder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A missing token file is no missing file of the store, and no error has the token in it."""
    served.answers = [lambda handler, _: whole(handler)]
    monkeypatch.setenv("BROKERSET_STORE_TOKEN_FILE", str(tmp_path / "nothing"))
    with pytest.raises(StreamRefused, match="nothing, which BROKERSET_STORE_TOKEN_FILE names"):
        read(folder)

    monkeypatch.setenv("BROKERSET_STORE_TOKEN", "secret\r\nX-Other: 1")
    with pytest.raises(StreamRefused, match="control character") as caught:
        read(folder)
    assert "secret" not in str(caught.value)
    assert served.requests == []

    monkeypatch.setenv("BROKERSET_STORE_TOKEN", "sécret")
    assert read(folder) == CONTENT
    assert served.requests[0][1] == "Bearer sécret".encode().decode("latin-1")


def test_an_answer_without_bytes_ends_the_reading(served: Stream, folder: HttpFolder) -> None:
    """A server that answers ranges with nothing is not asked permanently."""

    def empty(handler: BaseHTTPRequestHandler, _: int) -> None:
        handler.send_response(206)
        handler.send_header("Content-Length", "0")
        handler.send_header("Content-Range", "bytes 0-0/100")
        handler.end_headers()

    refused: Answer = lambda handler, _: refuse(handler, 500)  # noqa: E731
    served.answers = [empty, refused]

    with pytest.raises(StreamFailed, match="other bytes"):
        read(folder)


@pytest.mark.parametrize("listing", [b"{}", b'{"files": [{}], "next": null}', b'{"files": 5, "next": null}'])
def test_a_listing_that_is_none_is_told(served: Stream, folder: HttpFolder, listing: bytes) -> None:
    """JSON of another kind is an error that says where it came from."""
    served.answers = [lambda handler, _: refuse(handler, 200, listing)]

    with pytest.raises(StreamFailed, match="/files tells no"):
        folder.files("commitlog")


def test_topics_are_escaped(served: Stream, folder: HttpFolder) -> None:
    """Names with `%`, blanks and other letters ask for the right path."""
    served.answers = [lambda handler, _: whole(handler)]

    folder.read_into("consumequeue/%RETRY%ä b/0/00000000000000000000", 0, memoryview(bytearray(5)))

    assert served.requests[0][0] == "/store/files/consumequeue/%25RETRY%25%C3%A4%20b/0/00000000000000000000"


@pytest.mark.parametrize(
    "url", ["ftp://h/store", "http:///store", "http://u:p@h/store", "http://h/other", "http://h/store?x=1",
            "s3:/h/store"]
)  # fmt: skip
def test_other_urls_are_refused(url: str) -> None:
    """Only the address of a stream is one; a password in it would end up in reports."""
    with pytest.raises(ValueError, match=r"must be|is at /store|A store is"):
        open_folder(url)


def test_the_url_needs_no_path() -> None:
    """`http://host:8080` means its `/store`."""
    assert (
        open_folder("http://broker:8080").url
        == "http://broker:8080/store"
        == open_folder("http://broker:8080/store/").url
    )


def small(handler: BaseHTTPRequestHandler, content: bytes, said: bytes) -> None:
    """Answer with a small file and the digest of `said`."""
    digest = base64.b64encode(hashlib.sha256(said).digest()).decode()
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(content)))
    handler.send_header("Repr-Digest", f"sha-256=:{digest}:")
    handler.end_headers()
    handler.wfile.write(content)


def test_a_small_file_is_read_again_until_it_has_its_digest(served: Stream, folder: HttpFolder) -> None:
    """What arrives must be what the broker read; if it never is, the error says so."""
    served.answers = [
        lambda handler, _: small(handler, b"torn", b"whole"),
        lambda handler, _: small(handler, b"whole", b"whole"),
    ]  # fmt: skip

    assert read_all(folder, "checkpoint") == b"whole"
    assert len(served.requests) == 2
    served.answers = [lambda handler, _: small(handler, b"torn", b"whole")]
    with pytest.raises(StreamFailed, match="checkpoint has not the digest that the broker tells"):
        read_all(folder, "checkpoint")


def test_a_look_at_a_store_lists_it_once(served: Stream, folder: HttpFolder) -> None:
    """However many kinds of files are looked for; until whoever needs newer names says so."""
    paths = [LOG, "consumequeue/orders/0/00000000000000000000", "index/20261122000000000", "abort"]
    listing = {"files": [{"path": each, "size": 40, "mtime": 1} for each in paths], "next": None}

    def answer(handler: BaseHTTPRequestHandler, _: int) -> None:
        if handler.path.startswith("/store/files?"):
            refuse(handler, 200, orjson.dumps(listing))
        else:
            refuse(handler, 404, b'{"error": "no-such-file", "message": "none"}')

    served.answers = [answer]

    facts = look(folder)

    assert [each.path for each in facts.commit_log.files] == [LOG]
    assert [(each.topic, each.queue_id) for each in facts.queues] == [("orders", 0)]
    assert [each.path for each in facts.index_files] == ["index/20261122000000000"]
    assert facts.aborted
    assert len([path for path, _ in served.requests if path.startswith("/store/files?")]) == 1

    assert folder.folders("consumequeue/orders") == ["0"]
    assert len([path for path, _ in served.requests if path.startswith("/store/files?")]) == 1
    folder.forget_names()
    assert folder.folders("consumequeue/orders") == ["0"]
    assert len([path for path, _ in served.requests if path.startswith("/store/files?")]) == 2
