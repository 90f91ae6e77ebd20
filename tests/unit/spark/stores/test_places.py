"""Which paths and URLs jobs and data sources take, and that they refuse all others."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from brokerset_rig.replica_stores import Log, write_replica
from brokerset_spark.commands.table import main
from brokerset_spark.jobs.export.exporting import export
from brokerset_spark.jobs.export.options import ExportOptions
from brokerset_spark.jobs.running import LocalRunner
from brokerset_spark.sources.option_values import OptionsError
from brokerset_spark.sources.options import read_message_options
from brokerset_spark.stores.opening import open_folder
from brokerset_spark.stores.places import NotServed, check_store, is_object, is_remote, local_path

ELSEWHERE = ("s3a://bucket/out", "s3://bucket/out", "hdfs://name/out", "abfss://c@a/out", "s3a:/bucket/out",
             "gs://bucket/out", "http://host/out", "file://otherhost/out")  # fmt: skip


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A small store, and a working folder in which nothing may appear."""
    log = Log()
    log.fill(20)
    made = write_replica(tmp_path / "store", log)
    (tmp_path / "at").mkdir()
    monkeypatch.chdir(tmp_path / "at")
    yield made
    assert list((tmp_path / "at").iterdir()) == []


def call(*arguments: object) -> Result:
    return CliRunner().invoke(main, [*map(str, arguments), "--workers", "1"])


@pytest.mark.parametrize("target", ELSEWHERE)
def test_an_export_to_what_is_not_served_is_refused(store: Path, target: str) -> None:
    """The command and the function name the target and what is served, and write nothing."""
    result = call("export", store, target)

    assert result.exit_code == 2
    assert target in result.output.replace("\n", "")
    assert "file:///PATH" in result.output


@pytest.mark.parametrize("target", [each for each in ELSEWHERE if not each.startswith("file:")])
def test_an_export_from_python_is_refused_as_well(store: Path, target: str) -> None:
    """A URL that was made a path has lost a slash, and is none of a folder all the same."""
    with pytest.raises(NotServed):
        export(LocalRunner(1), str(store), Path(target), ExportOptions())


@pytest.mark.parametrize("target", ELSEWHERE)
def test_a_migration_to_what_is_not_served_is_refused(store: Path, target: str) -> None:
    """The same for a migration, planned or done."""
    for more in ((), ("--plan",)):
        result = call("migrate", store, target, "--to", "commitlog", *more)

        assert result.exit_code == 2
        assert "file:///PATH" in result.output


@pytest.mark.parametrize("option", ["--report", "--findings", "--summary"])
def test_a_report_to_what_is_not_served_is_refused(store: Path, option: str) -> None:
    """Files that a job writes next to its result, too."""
    assert call("inspect", store, option, "s3a://bucket/report.json").exit_code == 2


@pytest.mark.parametrize("job", ["verify", "inspect", "export", "migrate", "audit"])
@pytest.mark.parametrize("url", ["ftp://host/store", "s3a://bucket", "s3a:/bucket/store"])
def test_a_store_that_is_not_served_is_refused(store: Path, job: str, url: str) -> None:
    """Every job says what a store can be; none looks for a folder of that name."""
    more = {"export": ("out",), "migrate": ("out", "--to", "commitlog"), "audit": (store, "--no-page")}
    result = call(job, url, *more.get(job, ()))

    assert result.exit_code == 2
    assert "is not served" in result.output


def test_a_data_source_refuses_what_is_not_served() -> None:
    """The option `path` is checked with the others, before anything is opened."""
    with pytest.raises(OptionsError, match="ftp://host/store: is not served"):
        read_message_options("rocketmq-store", {"path": "/data/store,ftp://host/store"})


@pytest.mark.parametrize(
    "url",
    [
        "s3://key:secret@bucket/store",
        "s3://key@bucket/store",
        "gs://bucket/store?access_token=x",
        "abfss://container:secret@account.dfs.core.windows.net/store",
    ],
)
def test_secrets_in_the_url_of_a_store_are_refused(url: str) -> None:
    """URLs stand in reports and logs, so the refusal does not repeat what it refuses."""
    with pytest.raises(NotServed, match="secrets do not belong") as refused:
        open_folder(url)
    assert "secret" not in str(refused.value).replace("secrets", "")
    assert url not in str(refused.value)


@pytest.mark.parametrize(
    "url",
    [
        "s3n://key:secret@bucket/store",
        "s3a://key:secret@bucket",
        "abfss://container:secret@account",
        "ftp://user:secret@host/store",
        "http://user:secret@host/store",
        "http://host/store?token=secret",
    ],
)
def test_no_refusal_repeats_a_secret(url: str) -> None:
    """Also of places that are not served at all, or not with this path."""
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        open_folder(url)
    assert "secret" not in str(refused.value)
    assert url.partition(":")[0] in str(refused.value)


@pytest.mark.parametrize(
    "url", ["s3://bucket/a", "s3a://bucket/a/b", "gs://b/c", "abfss://c@a.net/d", "hdfs://n:1/x"]
)
def test_places_in_object_storage_are_served(url: str) -> None:
    """With a bucket and a path; they are read over a network, so globs and paths of this machine do not
    apply."""
    assert check_store(url) == url
    assert is_object(url)
    assert is_remote(url)


def test_what_is_served(store: Path, tmp_path: Path) -> None:
    """Paths, `file:` URLs in their three spellings, and streams; a colon in a name is no scheme."""
    for url in (str(store), f"file:{store}", f"file://{store}", f"file://localhost{store}"):
        assert local_path(url) == str(store)
        open_folder(url).close()
    assert check_store("https://broker:8080/store") == "https://broker:8080/store"
    assert local_path("2026:11/out") == "2026:11/out"

    assert call("export", store, f"file://{tmp_path}/out").exit_code == 0
    assert (tmp_path / "out" / "_manifest.json").exists()
