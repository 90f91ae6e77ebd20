"""Reports: what is kept of many findings, and what fits a termination message."""

from __future__ import annotations

import orjson

from brokerset_spark.jobs.report import FINDINGS_MAX, SUMMARY_BYTES_MAX, Finding, Level, Report


def test_errors_push_out_milder_findings_and_all_are_counted() -> None:
    """A report is never without its errors because warnings came first."""
    report = Report("verify")
    for number in range(FINDINGS_MAX + 10):
        report.add(Finding("time-back", Level.WARNING, "x", offset=number))
    assert report.clean
    assert report.exit_code == 0

    report.add(Finding("crc-mismatch", Level.ERROR, "y"))

    assert len(report.findings) == FINDINGS_MAX
    assert report.findings_total == FINDINGS_MAX + 11
    assert any(each.code == "crc-mismatch" for each in report.findings)
    assert report.counters["finding.time-back"] == FINDINGS_MAX + 10
    assert report.exit_code == 1


def test_the_summary_fits_and_has_errors_first() -> None:
    """However long the findings are, it is whole JSON of at most 4096 bytes, with errors before warnings."""
    report = Report("verify")
    for number in range(50):
        report.add(Finding("time-back", Level.WARNING, "w" * 500, offset=number))
    report.add(Finding("crc-mismatch", Level.ERROR, "e" * 500))

    summary = report.summary()

    assert len(summary) <= SUMMARY_BYTES_MAX
    told = orjson.loads(summary)
    assert told["findings"][0]["code"] == "crc-mismatch"
    assert told["findingsTotal"] == 51
    assert 2 < len(told["findings"]) < 51
