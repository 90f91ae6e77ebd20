"""Conditions of the kinds that become Jobs, their reasons, and how runs end; people rely on them."""

from __future__ import annotations

from typing import Final

from brokerset_operator.plan import reasons

READY: Final = reasons.READY
AUDIT_PASSED: Final = reasons.AUDIT_PASSED
"""On a StoreAudit and on its BrokerSet."""

EXPORTING: Final = "Exporting"
EXPORTED: Final = "Exported"
"""On a StoreExport."""

# -- Ready of a StoreAudit and of a StoreExport ------------------------------------------------------------

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
NO_TRUST: Final = reasons.NO_TRUST
NO_CREDENTIALS: Final = reasons.NO_CREDENTIALS
TARGET_TAKEN: Final = "TargetTaken"
"""Also of a StoreMigration."""

# -- AuditPassed -------------------------------------------------------------------------------------------

NO_ERRORS: Final = "NoErrors"
ERRORS_FOUND: Final = "ErrorsFound"
NOT_RUN: Final = "NotRun"
RUN_FAILED: Final = "RunFailed"
INCOMPLETE: Final = "Incomplete"

# -- Exporting, Exported: besides NotRun, ErrorsFound, RunFailed --------------------------------------------

RUNNING: Final = "Running"
IDLE: Final = "Idle"
UP_TO_DATE: Final = "UpToDate"
GAPS_FOUND: Final = "GapsFound"

# -- how a run ended ---------------------------------------------------------------------------------------

PASSED: Final = "Passed"
FOUND: Final = "FindingsFound"
FAILED: Final = "Failed"
REPLACED: Final = "Replaced"

# -- Ready of a StoreMigration -----------------------------------------------------------------------------

SOURCE_MISSING: Final = "SourceMissing"
IN_USE: Final = "VolumeInUse"
STARTING: Final = "Starting"
MIGRATING: Final = "Migrating"
VERIFYING: Final = "Verifying"
SUCCEEDED: Final = "Succeeded"
MIGRATION_FAILED: Final = "MigrationFailed"
VERIFICATION_FAILED: Final = "VerificationFailed"
