"""Signatures of requests, with vectors of Java's own tests and of a Java 5.5 client."""

from __future__ import annotations

from dataclasses import replace

import pytest

from brokerset_acl.signatures import (
    ACCESS_KEY,
    FORWARDER,
    FORWARDER_SIGNATURE,
    SIGNATURE,
    Credentials,
    added_by_old_clients,
    content,
    is_signed_by,
    is_way_signed_by,
    signature,
    way_signature,
)
from brokerset_protocol.commands import Command


def test_the_vector_of_javas_signer() -> None:
    """`AclSignerTest`: the text RocketMQ with the key 12345678."""
    assert signature("12345678", b"RocketMQ") == "IUc8rrO/0gDch8CjObLQsW2rsiA="


def test_the_vector_of_a_request() -> None:
    """Fields are taken in the order of their names, and the body follows."""
    ext = {"topic": "T", "queueId": "1", ACCESS_KEY: "ak", "a": "x"}
    signed = content(ext, b"hello")
    assert signed == b"akx1Thello"
    assert signature("sk", signed) == "y5ki8qO/uJBjFukSmxjXfMXVxls="


def test_the_content_of_javas_builder() -> None:
    """`DefaultAuthenticationContextBuilderTest.build2`: the signature is no part of what is signed."""
    ext = {
        "topic": "topic-test",
        "queueId": "0",
        "bornTimestamp": "117036786441330",
        "bname": "brokerName-1",
        ACCESS_KEY: "abc",
        SIGNATURE: "ZG26exJ5u9q1fwZlO4DCmz2Rs88=",
    }
    assert content(ext, b"") == b"abcbrokerName-11170367864413300topic-test"


def test_credentials_sign_once() -> None:
    """A request that is signed already, as one that is passed on, keeps its signature."""
    command = Command(310, {"b": "t"}, b"x")
    Credentials("ak", "sk").sign(command)
    first = dict(command.ext)
    Credentials("other", "key").sign(command)
    assert command.ext == first
    assert is_signed_by("sk", content(first, b"x"), first[SIGNATURE])


@pytest.mark.parametrize("claimed", [None, "", "x", "é", "y5ki8qO/uJBjFukSmxjXfMXVxls"])
def test_what_is_no_signature_is_refused(claimed: str | None) -> None:
    """Also without a signature at all, and one that is no ASCII."""
    assert not is_signed_by("sk", b"akx1Thello", claimed)


def test_secrets_are_not_shown() -> None:
    """A log line that shows credentials by mistake has no key in it."""
    assert "secret" not in repr(Credentials("ak", "secret"))


def test_fields_that_old_clients_add_afterwards_do_not_count() -> None:
    """Up to 4.9.3 the field for queries by unique key comes when everything is signed."""
    ext = {"topic": "t", "_UNIQUE_KEY_QUERY": "true"}
    old, new = Command(12, ext, version=399), Command(12, ext, version=400)
    assert content(ext, b"", added_by_old_clients(old)) == b"t"
    assert content(ext, b"", added_by_old_clients(new)) == b"truet"


def passed_on(**changes: str) -> Command:
    ext = {"a": "x", "b": "yz", ACCESS_KEY: "app", SIGNATURE: "s", FORWARDER: "broker"}
    return Command(10, ext | changes, b"body")


def test_the_signature_of_a_way_tells_all_apart() -> None:
    """Other than clients' signatures it covers the code, the names, and where each text ends."""
    command = passed_on()
    command.ext[FORWARDER_SIGNATURE] = way_signature("key", command)
    assert is_way_signed_by("key", command)
    assert not is_way_signed_by("other", command)
    for change in ({"a": "xy", "b": "z"}, {"b": "yzb"}, {SIGNATURE: "t"}, {"c": ""}):
        assert not is_way_signed_by("key", replace(command, ext=command.ext | change))
    assert not is_way_signed_by("key", replace(command, code=11))
    assert not is_way_signed_by("key", replace(command, body=b"bod"))


def test_the_signature_of_a_way_signs_no_request() -> None:
    """Clients choose what is signed there, so nobody may take it for a signature of the broker itself."""
    command = passed_on()
    way = way_signature("key", command)
    assert not is_signed_by("key", content(command.ext, command.body), way)
    assert len(way) != len(signature("key", b""))
    assert not is_way_signed_by("key", passed_on())
