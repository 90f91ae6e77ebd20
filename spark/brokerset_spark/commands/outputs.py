"""Where a command may write: never into a store."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from brokerset_spark.jobs.report import JobFailed
from brokerset_spark.stores.places import is_remote, local_path


def check_places(paths: Iterable[Path | None], stores: Sequence[str]) -> None:
    """JobFailed if a file would be written into a store: Java does not start with foreign files in it."""
    roots = [(url, Path(local_path(url)).resolve()) for url in stores if not is_remote(url)]
    for path in paths:
        for url, root in roots:
            if path is not None and path.resolve().is_relative_to(root):
                advice = "nothing is written into a store; choose another place"
                raise JobFailed(f"{path} lies inside the store {url}", advice)
