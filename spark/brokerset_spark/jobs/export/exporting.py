"""The job: plan, tasks, manifest, and the one step that makes it visible."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from brokerset_spark.jobs.export.options import ExportOptions
from brokerset_spark.jobs.export.planning import Plan, plan_export
from brokerset_spark.jobs.export.staging import MANIFEST, Staging, read_manifest
from brokerset_spark.jobs.export.writing import DATA, TASK, Task
from brokerset_spark.jobs.report import Finding, JobFailed, Level, Report
from brokerset_spark.jobs.running import Progress, Row, Runner, quiet
from brokerset_spark.json_values import from_value, to_value
from brokerset_spark.stores.places import check_store, is_remote, local_path

MANIFEST_VERSION: Final = 1

PLAN_VERSION: Final = 2
"""Of the rows of a plan: an export that another version began is begun again."""

_ADVICE: Final = "`verify` looks closer; --on-corrupt skip exports what can be read"


def export(
    runner: Runner,
    url: str,
    target: Path,
    options: ExportOptions,
    *,
    since_manifest: Path | None = None,
    progress: Progress = quiet,
) -> Report:
    """Write the messages of a store to Parquet files below `target`, all or none.

    An export that was interrupted goes on where it was; one that is there already is left alone. With
    `since_manifest` it begins where an earlier one ended, and if that is the one in `target`, is added to it.
    JobFailed, NoInput; ValueError for options that cannot be; OSError as from store and target.
    """
    problems = options.problems()
    if problems:
        raise ValueError("; ".join(problems))
    begun = time.monotonic()
    target = Path(local_path(str(target))).absolute()
    _check_place(url, target)
    staging = Staging(target)
    with staging.locked():
        staging.finish()  # what was decided before is done first, whatever is wanted now
        report = _Export(runner, url, staging, options, since_manifest, progress).run()
    report.seconds = time.monotonic() - begun
    return report


def _check_place(url: str, target: Path) -> None:
    if is_remote(check_store(url)):
        return
    root = Path(local_path(url)).absolute()
    if target == root or root in target.parents:
        advice = "a foreign folder keeps brokers from starting; choose another"
        raise JobFailed(f"{target} lies in the store {root}", advice)


class _Export:
    """One run of the job."""

    def __init__(
        self,
        runner: Runner,
        url: str,
        staging: Staging,
        options: ExportOptions,
        since_manifest: Path | None,
        progress: Progress,
    ) -> None:
        self._runner, self._url, self._staging, self._options = runner, url, staging, options
        self._target, self._progress = staging.target, progress
        self._there = read_manifest(self._target / MANIFEST)
        self._earlier = self._read_earlier(since_manifest) if since_manifest is not None else None
        self._append = since_manifest is not None and since_manifest.absolute().parent == self._target
        self.report = Report("export", {"store": url, "target": str(self._target), **options.content()})

    def run(self) -> Report:
        """The whole of it."""
        since = int(self._earlier["range"]["end"]) if self._earlier is not None else None
        plan = plan_export(self._url, self._options, since)
        if self._earlier is not None:
            self._check_same_store(plan)
        if self._there is not None and not self._append:
            return self._compared(plan, self._there)
        key = self._key(since)
        stored = self._staging.plan()
        if stored is None or stored["key"] != key:
            self._staging.begin({**asdict(plan), "key": key, "rows": self._rows(plan), "ranges": ()})
            stored = self._staging.plan()
        assert stored is not None, "a plan was written"
        # The plan as it was when the export was begun: what it looks like today does not count.
        return self._carried_out(from_value(Plan, stored), stored["rows"])

    # -- before --------------------------------------------------------------------------------------------

    def _read_earlier(self, path: Path) -> dict[str, Any]:
        found = read_manifest(path)
        if found is None:
            advice = "name the _manifest.json of the export that is to be continued"
            raise JobFailed(f"there is no {path}", advice)
        if found["options"]["endingTimestamp"] is not None:
            raise JobFailed(
                f"{path} is of an export that ended at a time, so messages before its end are not in it",
                "export those in between with --from and --until, or everything again",
            )
        return found

    def _check_same_store(self, plan: Plan) -> None:
        assert self._earlier is not None
        earlier = self._earlier["store"]
        for name in ("clusterName", "brokerName"):
            if None not in (earlier[name], plan.store[name]) and earlier[name] != plan.store[name]:
                raise JobFailed(
                    f"the earlier export is of {earlier[name]}, this store is of {plan.store[name]}",
                    "continue it from a replica of the same group: offsets of others mean something else",
                )
        if self._append:
            shape = {name: self._earlier["options"][name] for name in self._options.shape()}
            if shape != self._options.shape():
                raise JobFailed(
                    f"{self._target} was written with other topics or columns: {shape}",
                    "give the same ones, or a new target",
                )

    def _compared(self, plan: Plan, there: dict[str, Any]) -> Report:
        """The target exists: it is what is wanted, or the export is refused."""
        earlier_end = None if self._earlier is None else self._earlier["range"]["end"]
        same = there["options"] == self._options.content() and there["store"] == plan.store
        if not same or there.get("continues") != earlier_end or not there["complete"]:
            advice = "choose another target, or delete that one"
            raise JobFailed(f"{self._target} holds an export of something else", advice)
        if there["range"]["limit"] < plan.end:
            raise JobFailed(
                f"{self._target} has this up to {there['range']['end']}; the store goes on to {plan.end}",
                f"--since-manifest {self._target / MANIFEST} adds what is new",
            )
        self._staging.discard()
        self.report.facts["alreadyThere"] = True
        self._tell(there)
        return self.report

    def _key(self, since: int | None) -> dict[str, Any]:
        """Two exports with the same key are the same job, begun at different times."""
        return {
            "version": MANIFEST_VERSION,
            "plan": PLAN_VERSION,
            "url": self._url,
            "options": self._options.content(),
            "splitSize": self._options.split_size,
            "since": since,
            "append": self._append,
        }

    def _rows(self, plan: Plan) -> list[Row]:
        staging, broker = str(self._staging.folder), plan.store["brokerName"]
        common = plan.wanted, staging, self._options, broker, plan.epochs
        return [to_value(Task(number, self._url, each, *common)) for number, each in enumerate(plan.ranges)]

    # -- the work --------------------------------------------------------------------------------------------

    def _carried_out(self, plan: Plan, rows: list[Row]) -> Report:
        results = self._staging.results()
        reused, sizes = len(results), [row["range"]["end"] - row["range"]["start"] for row in rows]
        rate = {"bytesPerSecond": self._options.bytes_per_second}  # of today, not of when it was begun
        waiting = [{**row, "options": row["options"] | rate} for row in rows if row["task"] not in results]
        done, total = sum(sizes[number] for number in results), sum(sizes)
        self._progress("export", done, total)
        for result in self._runner.run(TASK, waiting):
            self._staging.keep(result.row)
            results[result.row["task"]] = result.row
            done += sizes[result.row["task"]]
            self.report.bytes_read += result.row["bytes"]
            self._progress("export", done, total)
        self.report.counters |= {"tasks": len(rows), "tasksReused": reused}
        ordered = [results[row["task"]] for row in rows]
        damaged = self._damages(plan, rows, ordered)
        if damaged and self._options.on_corrupt == "fail":
            self._staging.discard()
            self.report.facts["exported"] = False
            return self.report
        manifest = self._manifest(plan, rows, ordered, damaged)
        moves = [
            (f"{DATA}/{result['attempt']}/{each['path']}", each["path"], each["bytes"])
            for result in ordered
            for each in result["files"]
        ]
        self._staging.commit(moves, manifest, append=self._append)
        self._staging.finish()
        self._tell(manifest)
        return self.report

    def _damages(self, plan: Plan, rows: list[Row], results: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """What could not be read, as findings and as the manifest has it."""
        parts = [(path, begin, end, "missing-file") for path, begin, end in plan.missing]
        earlier = self._earlier["range"]["end"] if self._earlier is not None else plan.start
        if earlier < plan.start and not self._options.start_offset:
            parts.append(("", earlier, plan.start, "expired"))
        for row, result in zip(rows, results, strict=True):
            parts += [(row["range"]["path"], *each) for each in result["damages"]]
        found: list[dict[str, Any]] = [
            {"file": file, "begin": begin, "end": end, "reason": reason} for file, begin, end, reason in parts
        ]
        follows = {each.begin: f"; {each.text}" for each in plan.told if each.code == "hole"}
        skip = self._options.on_corrupt == "skip"
        said = "were passed over" if skip else f"cannot be read, so nothing was written; {_ADVICE}"
        texts = [
            f"{end - begin} bytes at {begin} ({reason}): they {said}{follows.get(begin, '')}"
            for _, begin, end, reason in parts
        ]
        for unusual in plan.told:
            code, file, begin, end = unusual.code, unusual.file, unusual.begin, unusual.end
            if unusual.is_damage:
                texts.append(unusual.text if skip else f"{unusual.text}; nothing was written; {_ADVICE}")
                found.append({"file": file, "begin": begin, "end": end, "reason": code, "text": texts[-1]})
            elif code != "hole":
                level = Level.INFO if code == "torn-tail" else Level.WARNING
                self.report.add(Finding(code, level, unusual.text, self._url, file, begin, end))
        for each, text in zip(found, texts, strict=True):
            level = Level.WARNING if skip else Level.ERROR
            place = self._url, each["file"], each["begin"], each["end"]
            self.report.add(Finding(each["reason"], level, text, *place))
        return found

    def _manifest(
        self, plan: Plan, rows: list[Row], results: list[dict[str, Any]], damaged: list[dict[str, Any]]
    ) -> dict[str, Any]:
        files = [each for result in results for each in result["files"]]
        end = max([plan.start, *(int(result["end"]) for result in results[-1:])]) if rows else plan.end
        messages = sum(each["rows"] for each in files)
        run = {"start": plan.start, "end": end, "messages": messages, "files": len(files), "damaged": damaged}
        continues = self._earlier["range"]["end"] if self._earlier is not None else None
        before: dict[str, Any] = {
            "options": self._options.content(), "continues": continues, "range": run, "runs": [], "files": [],
        }  # fmt: skip
        if self._append and self._earlier is not None:
            before = self._earlier
        all_files = [*before["files"], *files]
        topics: dict[str, dict[str, Any]] = {}
        for each in all_files:
            folder = each["path"].partition("/")[0]
            topic = topics.setdefault(each["topic"], {"folder": folder, "messages": 0, "files": 0})
            topic["messages"] += each["rows"]
            topic["files"] += 1
        return {
            "schemaVersion": MANIFEST_VERSION,
            "job": "export",
            "complete": True,
            "store": plan.store,
            "options": before["options"],
            "continues": before["continues"],
            "range": {
                "start": before["range"]["start"], "end": end, "limit": plan.end, "bound": plan.bound,
            },
            "columns": [
                {"name": each.name, "type": each.type.simpleString(), "summary": each.summary}
                for each in self._options.file_columns
            ],
            "counts": {
                "messages": sum(each["rows"] for each in all_files),
                "files": len(all_files),
                "bytes": sum(each["bytes"] for each in all_files),
            },
            "topics": dict(sorted(topics.items())),
            "runs": [*before["runs"], run],
            "files": all_files,
        }  # fmt: skip

    def _tell(self, manifest: dict[str, Any]) -> None:
        run, files = manifest["runs"][-1], manifest["files"]
        self.report.counters |= {
            "messages": run["messages"],
            "files": run["files"],
            "bytesWritten": sum(each["bytes"] for each in files[len(files) - run["files"] :]),
            "topics": len(manifest["topics"]),
        }
        self.report.facts |= {
            "exported": True,
            "start": run["start"],
            "end": run["end"],
            "bound": manifest["range"]["bound"],
            "manifest": str(self._target / MANIFEST),
        }
