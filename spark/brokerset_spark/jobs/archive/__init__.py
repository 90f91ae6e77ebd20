"""`archive`: files of a log that are no longer written, copied to object storage and read back."""

from brokerset_spark.jobs.archive.job import ArchiveOptions, archive

__all__ = ["ArchiveOptions", "archive"]
