"""Opens a store by its path or address."""

from __future__ import annotations

from brokerset_spark.stores.folder import LocalFolder, StoreFolder
from brokerset_spark.stores.http_folder import HttpFolder
from brokerset_spark.stores.places import check_store, is_stream, local_path


def open_folder(url: str) -> StoreFolder:
    """The store at a path, `file:` URL, or the address of a broker's read-only stream (`http(s)://…/store`).

    OSError if there is none; NotServed, a ValueError, for other URLs.
    """
    if is_stream(check_store(url)):
        return HttpFolder(url)
    return LocalFolder(local_path(url))
