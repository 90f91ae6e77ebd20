"""What clients of storages are given, and what their errors must not repeat."""

from __future__ import annotations

import pytest
from pyarrow import fs

from brokerset_spark.jobs.lake.formats import guarded
from brokerset_spark.jobs.lake.storage import Storage, without_secrets
from brokerset_spark.jobs.report import JobFailed

SAS = "sv=2026&sig=abc%2Fdef"
AZURE = "abfss://c@account.dfs.core.windows.net/lake"


@pytest.mark.parametrize("token", [SAS, f"?{SAS}"])
def test_a_signature_of_azure_is_a_query(monkeypatch: pytest.MonkeyPatch, token: str) -> None:
    """pyarrow puts it behind a URL as it is: without the question mark it would be a folder."""
    given: list[dict[str, str]] = []
    monkeypatch.setattr(fs, "AzureFileSystem", lambda _, **more: given.append(more))
    environment = {"AZURE_STORAGE_SAS_KEY": token}

    Storage(AZURE).files("messages", environment)

    assert given == [{"sas_token": f"?{SAS}"}]
    assert Storage(AZURE).file_settings(environment)["adls.sas-token"] == f"?{SAS}"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("at 'https://a.net/c?sig=abc%2Fdef&sv=2026' failed", "at 'https://a.net/c?sig=***&sv=2026' failed"),
        ("PUT https://a.net/c?sv=2026&sig=xyz", "PUT https://a.net/c?sv=2026&sig=***"),
        ("key wJalrXUtnFEMI is wrong", "key *** is wrong"),
        ("postgresql://lake:pass@db:5432/lake", "postgresql://lake:***@db:5432/lake"),
        ("GET http://127.0.0.1:9/b/x", "GET http://127.0.0.1:9/b/x"),
        ("https://host:8181 refused, ask a@b.c", "https://host:8181 refused, ask a@b.c"),
        ("bucket eu-central-1 of AKIAIOSFODNN", "bucket eu-central-1 of AKIAIOSFODNN"),
    ],
)
def test_errors_repeat_no_secrets(said: str, shown: str) -> None:
    """They go into logs, reports and the status of a StoreExport; where things are is said."""
    environment = {
        "AWS_SECRET_ACCESS_KEY": "wJalrXUtnFEMI",
        "AWS_ACCESS_KEY_ID": "AKIAIOSFODNN",
        "AWS_REGION": "eu-central-1",
        "AZURE_STORAGE_SAS_KEY": SAS,
        "SOME_KEY": "a",
    }
    assert without_secrets(said, environment) == shown


def test_a_failed_pass_says_them_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """What libraries raise passes one place."""
    monkeypatch.setenv("AWS_SESSION_TOKEN", "token-of-somebody")
    with pytest.raises(JobFailed) as failed, guarded("s3://b/lake"):
        raise OSError("token-of-somebody has expired")
    assert "*** has expired" in str(failed.value)
