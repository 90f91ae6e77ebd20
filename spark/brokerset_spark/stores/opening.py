"""Opens a store by its path or address."""

from __future__ import annotations

from brokerset_spark.stores.folder import LocalFolder, StoreFolder
from brokerset_spark.stores.http_folder import HttpFolder
from brokerset_spark.stores.places import check_store, is_object, is_stream, local_path


def open_folder(url: str) -> StoreFolder:
    """The store at a path, `file:` URL, the address of a broker's read-only stream (`http(s)://…/store`),
    or a URL of object storage.

    OSError if there is none; NotServed, a ValueError, for other URLs.
    """
    if is_stream(check_store(url)):
        return HttpFolder(url)
    if is_object(url):
        from brokerset_spark.stores.object_folder import ObjectFolder

        return ObjectFolder(url)
    return LocalFolder(local_path(url))
