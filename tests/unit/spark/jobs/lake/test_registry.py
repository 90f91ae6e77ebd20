"""What a schema registry is asked, how often, and what its answers mean."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from brokerset_rig.schema_registry import SchemaRegistry, schema_registry
from brokerset_rig.stack import free_port
from brokerset_spark.jobs.lake.registry import Registry, avro_target
from brokerset_spark.jobs.report import JobFailed

RECORD = {"type": "record", "name": "Order", "fields": [{"name": "id", "type": "long"}]}
MONEY = {"type": "record", "name": "Money", "fields": [{"name": "cents", "type": "long"}]}


@pytest.fixture
def there() -> Iterator[SchemaRegistry]:
    with schema_registry() as found:
        yield found


class Time:
    """A clock that goes on by sleeping only."""

    now = 0.0

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def registry(url: str, time: Time, **environment: str) -> Registry:
    return Registry(url, environment, clock=time.clock, sleep=time.sleep)


def test_a_number_is_asked_once_also_one_that_nobody_has(there: SchemaRegistry) -> None:
    """What a registry says of a number never changes; a schema of another kind is no schema."""
    number, other = there.add("orders-value", RECORD), there.add("orders-json", {}, "JSON")
    found = registry(there.url, Time())

    for _ in range(3):
        assert found.writer(number) == [RECORD]
        assert found.writer(77) == "the registry has no schema 77"
    assert found.writer(other) == f"schema {other} is JSON, not AVRO"
    assert set(there.asked.values()) == {1}


def test_what_a_schema_refers_to_comes_before_it(there: SchemaRegistry) -> None:
    """By subject and version; one that is gone is a reason, no error."""
    there.add("money", MONEY)
    bill = {"type": "record", "name": "Bill", "fields": [{"name": "sum", "type": "Money"}]}
    number = there.add("bill", bill, references=[{"name": "Money", "subject": "money", "version": 1}])
    lost = there.add("bill", bill, references=[{"name": "Money", "subject": "money", "version": 2}])
    found = registry(there.url, Time())

    assert found.writer(number) == [MONEY, bill]
    assert found.writer(lost) == (
        f"schema {lost} refers to another one: the registry has no version 2 of subject money"
    )


def test_a_registry_that_is_busy_is_asked_again(there: SchemaRegistry) -> None:
    """For a minute; a rejected request is no reason to ask again."""
    number = there.add("orders-value", RECORD)
    there.refusals = [503, 500, 429]
    time = Time()
    found = registry(there.url, time)

    assert found.writer(number) == [RECORD]
    assert 0 < time.now < 10
    there.refusals = [400]
    with pytest.raises(JobFailed, match="400"):
        found.latest("orders-value")


def test_a_registry_that_is_down_is_an_error_that_says_so() -> None:
    """After a minute, with what to do."""
    time = Time()
    with pytest.raises(JobFailed, match="does not answer") as failed:
        registry(f"http://127.0.0.1:{free_port()}", time).writer(1)
    assert 60 <= time.now < 70
    assert "--registry" in failed.value.advice


def test_credentials_come_from_the_environment(there: SchemaRegistry) -> None:
    """A user with a password, or a token; without them the error names the variables."""
    number = there.add("orders-value", RECORD)
    there.authorization = "Basic YTpi"
    user = {"BROKERSET_REGISTRY_USER": "a", "BROKERSET_REGISTRY_PASSWORD": "b"}
    assert registry(there.url, Time(), **user).writer(number)
    there.authorization = "Bearer abc"
    assert registry(there.url, Time(), BROKERSET_REGISTRY_TOKEN="abc").writer(number)
    with pytest.raises(JobFailed, match="401") as failed:
        registry(there.url, Time()).writer(number)
    assert "BROKERSET_REGISTRY_USER" in failed.value.advice


def test_the_target_is_a_file_or_the_newest_of_a_subject(there: SchemaRegistry, tmp_path: Path) -> None:
    """The subject is the topic's by default; what cannot be is refused before anything is read."""
    there.add("orders-value", MONEY)
    there.add("orders-value", RECORD)
    file = tmp_path / "schema.avsc"
    file.write_text("{}")

    assert '"Order"' in avro_target(there.url, None, None, ["orders"]).schemas[0]
    assert avro_target(there.url, None, file, ["a", "b"]).schemas == ("{}",)
    with pytest.raises(JobFailed, match="no subject nothing"):
        avro_target(there.url, "nothing", None, ["orders"])
    for url, subject, path, topics in (
        (there.url, None, None, ["a", "b"]),
        (there.url, "a", file, ["a"]),
        ("http://user:secret@host", None, None, ["a"]),
        ("ftp://user:secret@host", None, None, ["a"]),
        ("http://host?token=secret", None, None, ["a"]),
        ("host:8081", None, None, ["a"]),
    ):
        with pytest.raises(ValueError, match=r"subject|URL") as refused:
            avro_target(url, subject, path, topics)
        assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "answer",
    [
        b"{}",
        b'{"schema": null}',
        b'{"schema": {"type": "string"}}',
        b'{"schema": "{"}',
        b'{"schema": "\\"int\\"", "references": 7}',
        b'{"schema": "\\"int\\"", "references": [7]}',
        b'{"schema": "\\"int\\"", "references": [{"name": "x"}]}',
        b'{"schema": "\\"int\\"", "references": {"a": 1}}',
    ],
)
def test_an_answer_of_another_shape_is_a_reason(there: SchemaRegistry, answer: bytes) -> None:
    """One schema that cannot be read stops no pass."""
    there.raw = [(200, {}, answer)]

    assert "schema 1 is no JSON" in registry(there.url, Time()).writer(1)


@pytest.mark.parametrize(
    ("status", "answer"),
    [
        (200, b""),
        (200, b"<html>"),
        (200, b"[]"),
        (404, b"<html>no such page</html>"),
        (404, b"{}"),
        (404, b""),
    ],
)
def test_what_is_no_answer_of_a_registry_ends_the_pass(
    there: SchemaRegistry, status: int, answer: bytes
) -> None:
    """A proxy before it that knows no way would make misfits of all messages, for good."""
    there.raw = [(status, {}, answer)]

    with pytest.raises(JobFailed) as failed:
        registry(there.url, Time()).writer(1)
    assert "--registry" in failed.value.advice


def test_an_answer_that_breaks_off_is_asked_again(there: SchemaRegistry) -> None:
    """As one that does not come."""
    number = there.add("orders-value", RECORD)
    there.raw = [(200, {"Content-Length": "1000", "Connection": "close"}, b'{"schema": ')]

    assert registry(there.url, Time()).writer(number) == [RECORD]


def test_an_answer_without_end_is_none(there: SchemaRegistry) -> None:
    """It is not read into memory as a whole."""
    there.raw = [(200, {}, b" " * (17 << 20))]

    with pytest.raises(JobFailed, match="no answer of a schema registry"):
        registry(there.url, Time()).writer(1)


def test_schemas_that_refer_to_each_other_are_a_reason(there: SchemaRegistry) -> None:
    """Also a thousand in a chain, and each is asked once: two references of each would double with each."""

    def refer(*subjects: str) -> list[dict[str, object]]:
        return [{"name": each, "subject": each, "version": 1} for each in subjects]

    first = there.add("a", RECORD, references=refer("b"))
    there.add("b", RECORD, references=refer("a"))
    assert "refers to itself" in registry(there.url, Time()).writer(first)

    for at in range(12):
        there.add(f"c{at}", {**RECORD, "name": f"C{at}"}, references=refer(f"c{at - 1}", "d") if at else ())
    there.add("d", {**RECORD, "name": "D"}, references=refer("c9"))
    there.asked.clear()
    last = there.add("e", {**RECORD, "name": "E"}, references=refer("c9", "c8"))
    found = registry(there.url, Time()).writer(last)
    assert "refers to itself" in found
    for at in range(12):
        there.add(f"f{at}", {**RECORD, "name": f"F{at}"},
                  references=refer(f"f{at - 1}", f"f{max(at - 2, 0)}") if at else ())  # fmt: skip
    there.asked.clear()
    last = there.add("g", {**RECORD, "name": "G"}, references=refer("f11", "f10"))
    whole: Any = registry(there.url, Time()).writer(last)
    assert [each["name"] for each in whole] == [*(f"F{at}" for at in range(12)), "G"]
    assert set(there.asked.values()) == {1}


def test_numbers_that_no_registry_gives_are_not_asked(there: SchemaRegistry) -> None:
    """Some registries refuse them as wrong requests, which would end the pass for a body of four bytes."""
    assert registry(there.url, Time()).writer(2**31) == f"no schema has the number {2**31}"
    assert not there.asked


def test_credentials_are_not_sent_to_where_a_redirection_leads(there: SchemaRegistry) -> None:
    """It may be somebody else's server."""
    number = there.add("orders-value", RECORD)
    with schema_registry() as other:
        other.add("orders-value", RECORD)
        there.raw = [(302, {"Location": f"{other.url}/schemas/ids/{number}"}, b"")]

        assert registry(there.url, Time(), BROKERSET_REGISTRY_TOKEN="abc").writer(number) == [RECORD]
        assert (there.brought, other.brought) == (["Bearer abc"], [None])


def test_an_empty_kind_is_avro(there: SchemaRegistry) -> None:
    """Some registries name it always, and have none."""
    there.raw = [(200, {}, b'{"schema": "\\"int\\"", "schemaType": null}')]

    assert registry(there.url, Time()).writer(1) == ["int"]
