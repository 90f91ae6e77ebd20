"""`verify`: every record, queue unit, index entry and small file of a store, and whether they agree."""

from brokerset_spark.jobs.report import findings_frame
from brokerset_spark.jobs.verify.findings import CODES
from brokerset_spark.jobs.verify.job import verify
from brokerset_spark.jobs.verify.options import VerifyOptions

__all__ = ["CODES", "VerifyOptions", "findings_frame", "verify"]
