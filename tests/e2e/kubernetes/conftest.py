"""One cluster for all tests, with our image, and the operator installed by helm."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.e2e.kubernetes import rig

KEPT = Path(os.environ.get("BROKERSET_E2E_LOGS", Path("build") / "e2e"))
"""Where logs and objects are kept when a test fails."""

INSTALLED = bool(os.environ.get("BROKERSET_E2E_INSTALLED"))
"""Whether the cluster has image and chart already, as a run before has left them: for whoever writes a test."""

TEST_SECONDS_MAX = 1800
"""Time-out of a test that names none; the first one waits until the image is built and the cluster is up."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give the tests of this folder more time than others have."""
    for item in items:
        if item.path.parent == rig.HERE and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TEST_SECONDS_MAX))


@pytest.fixture(scope="session")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[rig.Cluster]:
    """A cluster that has our image; nothing is installed. What we started ends here."""
    scratch = tmp_path_factory.mktemp("cluster")
    provider = rig.provider(scratch)
    rig.say(f"cluster: {provider.name}, {provider.kubeconfig}")
    found = rig.Cluster(provider, scratch)
    try:
        if not INSTALLED:
            rig.say(f"building {found.image}")
            provider.build(found.image)
        yield found
        if provider.name != "kind":
            for namespace in list(found.namespaces):
                found.delete_namespace(namespace)
    finally:
        provider.end()


@pytest.fixture(scope="session")
def cluster(bare_cluster: rig.Cluster) -> rig.Cluster:
    """The same with the chart installed and the operator ready."""
    if INSTALLED:
        return bare_cluster
    rig.say("installing the chart")
    try:
        bare_cluster.install()
    except AssertionError:
        bare_cluster.collect(KEPT / "install")
        raise
    return bare_cluster


@pytest.fixture
def chart(cluster: rig.Cluster) -> Iterator[rig.Cluster]:
    """A cluster whose chart may be changed; it is put back."""
    yield cluster
    cluster.install()


@pytest.fixture(scope="session")
def spark_image(bare_cluster: rig.Cluster) -> str:
    """The image of jobs, which the cluster has."""
    if not INSTALLED:
        rig.say(f"building {bare_cluster.spark_image}")
        bare_cluster.provider.build(bare_cluster.spark_image, "spark")
    return bare_cluster.spark_image


@pytest.fixture
def namespace(cluster: rig.Cluster, request: pytest.FixtureRequest) -> Iterator[str]:
    """A namespace of this test's own, under the restricted profile; gone afterwards, with its volumes."""
    name = request.node.name.lower().replace("_", "-").replace("[", "-").replace("]", "")[:40].strip("-")
    yield cluster.namespace(name)
    if not os.environ.get("BROKERSET_E2E_KEEP"):
        cluster.delete_namespace(name)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep logs, Events and objects of a test that fails, before its namespace goes."""
    report = yield
    found = getattr(item, "funcargs", {}).get("cluster")
    if report.when == "call" and report.failed and isinstance(found, rig.Cluster):
        folder = KEPT / item.name
        found.collect(folder)
        report.sections.append(("cluster", f"logs, Events and objects are in {folder}"))
    return report
