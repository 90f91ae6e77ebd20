"""Migrating stores: CommitLog, DLedger and controller mode into each other, whole or in part.

`migrate` builds a new store next to the old one and never changes that. See the table in `DESIGN.md` of this
package.
"""

from brokerset_spark.jobs.dispatch import DELAY_LEVELS
from brokerset_spark.jobs.migrate.job import migrate
from brokerset_spark.jobs.migrate.options import TARGETS, MigrateOptions, Target

__all__ = ["DELAY_LEVELS", "TARGETS", "MigrateOptions", "Target", "migrate"]
