"""Which name servers the brokers of a local set know, and how they are told of others."""

from __future__ import annotations

from pathlib import Path

from brokerset_cli.name_server_news import NameServerNews
from brokerset_runtime.supervision import Child, ChildSpec


def _child(name: str, pid: int) -> Child:
    return Child(ChildSpec(name, ("run",), Path("log")), "running", pid)


def test_only_name_servers_that_lead_to_every_broker_are_named() -> None:
    news = NameServerNews()
    one, other = _child("a", 7), _child("b", 8)
    news.on_start(one, "n:1;n:2")
    news.on_start(other, "n:1;n:2;n:3")

    assert news.known_to_all("n:1;n:2;n:3", [one, other]) == "n:1;n:2"
    assert news.known_to_all("n:2;n:3", [one, other]) == "n:2"
    assert news.known_to_all("n:1;n:2;n:3", [other]) == "n:1;n:2;n:3"


def test_a_process_knows_what_stood_in_its_file_when_it_was_started() -> None:
    news = NameServerNews()
    child = _child("a", 7)
    news.on_start(child, "n:1")
    news.on_start(child, "n:1;n:2")  # it is heard of again, for another reason

    before = news.known_to_all("n:1;n:2", [child])
    child.pid = 9
    news.on_start(child, "n:1;n:2")

    assert before == "n:1"
    assert news.known_to_all("n:1;n:2", [child]) == "n:1;n:2"


def test_a_broker_that_does_not_run_hides_no_name_server() -> None:
    """It reads the new file when it is started again."""
    news = NameServerNews()
    child = _child("a", 7)
    news.on_start(child, "n:1")
    child.pid = 0

    assert news.known_to_all("n:1;n:2", [child]) == "n:1;n:2"


def test_where_the_brokers_have_none_in_common_all_name_servers_are_named() -> None:
    news = NameServerNews()
    child = _child("a", 7)
    news.on_start(child, "n:1")

    assert news.known_to_all("n:2;n:3", [child]) == "n:2;n:3"
