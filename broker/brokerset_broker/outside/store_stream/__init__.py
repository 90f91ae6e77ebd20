"""The broker's files, read-only, for jobs elsewhere: `/store/…` of the HTTP endpoint. See `DESIGN.md`."""

from brokerset_broker.outside.store_stream.stream import StoreStream, Who

__all__ = ["StoreStream", "Who"]
