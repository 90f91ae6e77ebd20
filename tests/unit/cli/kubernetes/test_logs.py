"""`kubectl brokerset logs`: several logs as one, once and while they grow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.cli.kubernetes.conftest import FakeCluster, pod

from brokerset_cli.kubernetes import logs
from brokerset_cli.kubernetes.kube_api import ApiFailed, KubeApi
from brokerset_cli.kubernetes.log_lines import BEGINNING, Line, Stamp, merged, read_line, read_lines
from brokerset_cli.kubernetes.sets import PodView, read_pod


def test_lines_of_all_pods_come_in_the_order_in_which_they_were_written(cluster: FakeCluster) -> None:
    """Also when nodes write other zones or leave zeros out, and each line says whose it is."""
    cluster.log("orders-0-0", "2026-01-01T10:00:00.1Z first\n2026-01-01T10:00:02Z fourth\n")
    cluster.log("orders-0-1", "2026-01-01T11:00:00.25+01:00 second\n  at the same moment\n")
    cluster.log("orders-0-2", "2026-01-01T10:00:01.000000001Z third\n")

    result = cluster.run("logs", "orders", "orders-0")

    assert result.output.splitlines() == [
        "orders-0-0  first",
        "orders-0-1  second",
        "orders-0-1    at the same moment",
        "orders-0-2  third",
        "orders-0-0  fourth",
    ]
    assert cluster.queries("log")[0] == {"timestamps": "true", "tailLines": "200", "container": "broker"}


def test_options_are_handed_on(cluster: FakeCluster) -> None:
    """With --since everything newer is shown; with --timestamps also when."""
    for n in range(3):
        cluster.log(f"orders-controller-{n}", f"2026-01-01T10:00:0{n}Z hello\n")

    result = cluster.run("logs", "orders", "--controllers", "--since", "5m", "--timestamps")

    assert result.output.splitlines()[0] == "orders-controller-0  2026-01-01T10:00:00Z hello"
    assert len(result.output.splitlines()) == 3
    assert cluster.queries("log")[0] == {
        "timestamps": "true",
        "sinceSeconds": "300",
        "container": "controller",
    }


def test_a_pod_that_is_gone_is_a_remark(cluster: FakeCluster) -> None:
    """The logs of the others are shown nevertheless."""
    cluster.log("orders-0-1", "2026-01-01T10:00:00Z alive\n")
    cluster.kube.on_call = lambda call: (
        cluster.kube.remove("pods", call.name, "shop")
        if call.subresource == "log" and call.name == "orders-0-0"
        else None
    )

    result = cluster.run("logs", "orders", "orders-0")

    assert result.exit_code == 0
    assert "orders-0-1  alive" in result.output
    assert 'pods "orders-0-0" not found' in result.output


def test_no_log_at_all_is_an_error(cluster: FakeCluster) -> None:
    """As when containers before a restart are asked for, and none has started again."""
    result = cluster.run("logs", "orders", "orders-0", "-p")

    assert result.exit_code == 1
    assert "no terminated container of orders-0-2" in result.output


@pytest.mark.parametrize(
    ("span", "seconds"), [("30s", "30"), ("1h30m", "5400"), ("1.5m", "90"), ("100ms", "1")]
)
def test_a_span_is_asked_for_in_seconds(cluster: FakeCluster, span: str, seconds: str) -> None:
    """The API server takes whole ones, and at least one."""
    cluster.run("logs", "orders", "orders-0", f"--since={span}")

    assert cluster.queries("log")[0]["sinceSeconds"] == seconds


@pytest.mark.parametrize("span", ["soon", "5", "-5m", "5 m", ""])
def test_a_span_that_is_none_is_a_wrong_command_line(cluster: FakeCluster, span: str) -> None:
    """Otherwise nothing would be said about it."""
    result = cluster.run("logs", "orders", "orders-0", f"--since={span}")

    assert result.exit_code == 2
    assert "write 30s, 5m, 2h or 1h30m" in result.output
    assert not cluster.kube.calls


def test_a_missing_right_is_an_error(cluster: FakeCluster) -> None:
    """Reading pods and reading their logs are two rights."""
    cluster.kube.forbidden.add(("get", "pods/log"))

    result = cluster.run("logs", "orders", "orders-0")

    assert result.exit_code == 1
    assert "docs/kubectl-plugin.md" in result.output


def test_what_has_ended_cannot_be_followed(cluster: FakeCluster) -> None:
    """The two options contradict each other."""
    assert cluster.run("logs", "orders", "orders-0", "-f", "-p").exit_code == 2


def test_following_goes_on_after_the_newest_line_and_finds_new_pods(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A log that ends is taken up again without repeating lines; a pod that comes later is followed too."""
    monkeypatch.setattr(logs, "RECHECK_SECONDS", 0.01)
    old, new = (read_pod({"metadata": {"name": name, "uid": name}}) for name in ("old", "new"))
    cluster.put(pod("old"), pod("new"))
    cluster.log("old", "2026-01-01T10:00:00.5Z known\n2026-01-01T10:00:00.7Z one\n")
    cluster.log("new", "2026-01-01T10:00:03Z hello\n")
    shown: list[str] = []
    looks = 0

    class Enough(Exception):
        pass

    def choose() -> list[PodView]:
        nonlocal looks
        looks += 1
        if looks == 3:
            cluster.kube.logs["old"] += "2026-01-01T10:00:05Z two\n"
        return [old] if looks < 3 else [old, new]

    def show(line: Line) -> None:
        shown.append(f"{line.pod} {line.text}")
        if len(shown) == 3:
            raise Enough

    newest: dict[str, Stamp] = {"old": read_line("old", "2026-01-01T10:00:00.5Z known").stamp}
    with closing(KubeApi()) as api, pytest.raises(ExceptionGroup) as raised:
        asyncio.run(asyncio.wait_for(logs._follow(api, choose, show, newest), 60))

    assert raised.group_contains(Enough)
    assert sorted(shown) == ["new hello", "old one", "old two"]
    assert cluster.queries("log")[0]["sinceTime"] == "2026-01-01T10:00:00Z"


@pytest.mark.parametrize(("options", "code"), [(["-f"], 0), ([], 1)])
def test_an_end_by_ctrl_c_is_a_success_of_following(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, options: list[str], code: int
) -> None:
    """At any moment, also while what was written before is shown."""

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(logs, "read_logs", interrupted)

    assert cluster.run("logs", "orders", *options).exit_code == code


def test_following_begins_after_what_was_shown(cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the newest line of each pod on."""
    cluster.log("orders-0-0", "2026-01-01T10:00:01Z a\n2026-01-01T10:00:02Z b\n")
    seen: dict[str, Stamp] = {}

    async def follow(_api: object, _choose: object, _show: object, newest: dict[str, Stamp]) -> None:
        seen.update(newest)

    monkeypatch.setattr(logs, "_follow", follow)

    assert cluster.run("logs", "orders", "orders-0", "-f").exit_code == 0
    uids = {name: cluster.kube.get("pods", name, "shop") for name in ("orders-0-0", "orders-0-1")}
    stamp = read_line("", "2026-01-01T10:00:02Z b").stamp
    assert [seen[pod["metadata"]["uid"]] for pod in uids.values() if pod] == [stamp, BEGINNING]


def test_a_failure_while_following_ends_with_its_advice(cluster: FakeCluster) -> None:
    """Rights do not come by waiting."""
    cluster.log("orders-0-0", "2026-01-01T10:00:00Z x\n")
    cluster.kube.forbidden.add(("get", "pods/log"))
    pods = [read_pod({"metadata": {"name": "orders-0-0", "uid": "a"}})]

    with closing(KubeApi()) as api, pytest.raises(ExceptionGroup) as raised:
        asyncio.run(asyncio.wait_for(logs._follow(api, lambda: pods, print, {}), 60))

    assert isinstance(logs._first(raised.value), ApiFailed)


def test_of_a_line_without_an_end_the_beginning_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept of a line has a bound, also when its end never comes; lines are cut at no other place."""
    monkeypatch.setattr(logs, "LINE_BYTES_MAX", 6)

    async def lines(*parts: bytes) -> list[bytes]:
        async def given() -> AsyncIterator[bytes]:
            for part in parts:
                yield part

        return [line async for line in logs._lines(given())]

    assert asyncio.run(lines(b"on", b"e\ntwo\n", b"th", b"ree")) == [b"one", b"two", b"three"]
    assert asyncio.run(lines(b"abcdefgh", b"ijklmnop", b"q\nnext\n")) == [b"abcdefq", b"next"]


@given(st.lists(st.lists(st.integers(0, 30), max_size=6), max_size=4))
def test_merging_keeps_each_pods_order(times: list[list[int]]) -> None:
    """Lines of one pod come as the node gave them, and all of them come."""
    given_logs = [
        read_lines(f"p{n}", "".join(f"2026-01-01T10:00:{t:02d}Z {i}\n" for i, t in enumerate(sorted(log))))
        for n, log in enumerate(times)
    ]

    together = merged(given_logs)

    assert [line.stamp for line in together] == sorted(line.stamp for log in given_logs for line in log)
    for n, log in enumerate(given_logs):
        assert [line for line in together if line.pod == f"p{n}"] == log


def test_a_line_without_a_time_belongs_to_the_line_before() -> None:
    """And in front of all there is the beginning."""
    first, second, third = read_lines("p", "none\n2026-01-01T10:00:00Z one\nmore\n")

    assert first.stamp == BEGINNING
    assert third.stamp == second.stamp
    assert third.text == "more"
