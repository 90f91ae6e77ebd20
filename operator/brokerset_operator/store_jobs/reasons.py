"""Conditions of StoreAudits and StoreMigrations, their reasons, and how runs end; people rely on them."""

from __future__ import annotations

from typing import Final

from brokerset_operator.plan import reasons

READY: Final = reasons.READY
AUDIT_PASSED: Final = reasons.AUDIT_PASSED
"""On a StoreAudit and on its BrokerSet."""

# -- Ready of a StoreAudit ---------------------------------------------------------------------------------

SCHEDULED: Final = "Scheduled"
ON_REQUEST: Final = "OnRequest"
SUSPENDED: Final = "Suspended"
INVALID_SPEC: Final = "InvalidSpec"
SET_MISSING: Final = "BrokerSetMissing"
SET_INVALID: Final = "BrokerSetInvalid"
SET_UNSUPPORTED: Final = "BrokerSetUnsupported"
GROUP_UNKNOWN: Final = "GroupUnknown"
CONTROLLERS_SILENT: Final = "ControllersSilent"
NOBODY_REGISTERED: Final = "NobodyRegistered"
NO_IMAGE: Final = "NoImage"
EXECUTORS_FORBIDDEN: Final = "ExecutorsForbidden"

# -- AuditPassed -------------------------------------------------------------------------------------------

NO_ERRORS: Final = "NoErrors"
ERRORS_FOUND: Final = "ErrorsFound"
NOT_RUN: Final = "NotRun"
RUN_FAILED: Final = "RunFailed"
INCOMPLETE: Final = "Incomplete"

# -- how a run ended ---------------------------------------------------------------------------------------

PASSED: Final = "Passed"
FOUND: Final = "FindingsFound"
FAILED: Final = "Failed"
REPLACED: Final = "Replaced"

# -- Ready of a StoreMigration -----------------------------------------------------------------------------

SOURCE_MISSING: Final = "SourceMissing"
IN_USE: Final = "VolumeInUse"
TARGET_TAKEN: Final = "TargetTaken"
STARTING: Final = "Starting"
MIGRATING: Final = "Migrating"
VERIFYING: Final = "Verifying"
SUCCEEDED: Final = "Succeeded"
MIGRATION_FAILED: Final = "MigrationFailed"
VERIFICATION_FAILED: Final = "VerificationFailed"
