"""The names of a store's files as a tree, for folders that are listed as a whole.

A broker's stream and object storage answer one question for all files below a place. Jobs ask for one folder
at a time, and a store of 4,000 queues has 4,500 folders: each question must cost what its answer has, and not
the list.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator

from brokerset_spark.stores.folder import FileFacts


class NameTree:
    """Files by their folder, made in one pass over the list."""

    def __init__(self, files: Iterable[FileFacts]) -> None:
        self._files: defaultdict[str, list[FileFacts]] = defaultdict(list)
        self._folders: defaultdict[str, set[str]] = defaultdict(set)
        known: set[str] = set()
        for each in files:
            folder = each.path.rpartition("/")[0]
            self._files[folder].append(each)
            while folder and folder not in known:  # each folder is entered once, with those above it
                known.add(folder)
                above, _, name = folder.rpartition("/")
                self._folders[above].add(name)
                folder = above

    def __iter__(self) -> Iterator[FileFacts]:
        """All files, by their path."""
        return iter(sorted(each for found in self._files.values() for each in found))

    def files(self, folder: str) -> list[FileFacts]:
        """Files directly in a folder, by name."""
        return sorted(self._files.get(folder, ()))

    def folders(self, folder: str) -> list[str]:
        """Names of the folders directly in a folder, sorted; those without files are not known."""
        return sorted(self._folders.get(folder, ()))
