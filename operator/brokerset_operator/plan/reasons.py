"""Names of conditions, and the reasons that they have; people and alerts rely on them."""

from __future__ import annotations

from typing import Final

READY: Final = "Ready"
PROGRESSING: Final = "Progressing"
DEGRADED: Final = "Degraded"
CONTROLLERS_READY: Final = "ControllersReady"
IDENTITY_CONFLICT: Final = "IdentityConflict"
SCALE_REFUSED: Final = "ScaleRefused"
STORAGE_NOT_EXPANDABLE: Final = "StorageNotExpandable"
DRAINING: Final = "Draining"
POD_STUCK: Final = "PodStuck"
TLS_REFUSED: Final = "TlsRefused"
CERTIFICATE_EXPIRING: Final = "CertificateExpiring"
ACCESS_REFUSED: Final = "AccessRefused"

AUDIT_PASSED: Final = "AuditPassed"

OPERATOR_CONFLICT: Final = "OperatorConflict"

OTHERS: Final = (AUDIT_PASSED, OPERATOR_CONFLICT)
"""Conditions that a set does not write itself: StoreAudits write the first, another operator the second."""

ALWAYS: Final = (READY, PROGRESSING, DEGRADED, CONTROLLERS_READY, IDENTITY_CONFLICT)
"""Conditions that are there from the first reconcile on; the others only while they are true."""

# -- Ready, Degraded -------------------------------------------------------------------------------------

AS_WANTED: Final = "AsWanted"
INVALID_SPEC: Final = "InvalidSpec"
CREATING: Final = "Creating"
SCALING: Final = "Scaling"
CONTROLLERS_SILENT: Final = "ControllersSilent"
NO_MASTER: Final = "NoMaster"
TOO_FEW_IN_SYNC: Final = "TooFewInSync"
BROKERS_MISSING: Final = "BrokersMissing"
CONTROLLERS_MISSING: Final = "ControllersMissing"
NAME_SERVERS_MISSING: Final = "NameServersMissing"
CONTROLLER_VOLUMES_LOST: Final = "ControllerVolumesLost"
CONFLICT: Final = "IdentityConflict"

WANTED: Final = frozenset({CREATING, SCALING})
"""Reasons for not being ready that the manifest itself gives: nobody is warned of them."""

# -- Progressing -----------------------------------------------------------------------------------------

DONE: Final = "Done"
PAUSED: Final = "Paused"
CHANGING_CONTROLLERS: Final = "ChangingControllers"
DRAINING_GROUP: Final = "DrainingGroup"
ROLLING: Final = "Rolling"
ROLL_WAITS: Final = "RollWaits"
WAITING_FOR_APPROVAL: Final = "WaitingForApproval"
CHANGING_VOLUMES: Final = "ChangingVolumes"
CHANGING_SETTINGS: Final = "ChangingSettings"
STARTING: Final = "Starting"
CHANGING_TLS: Final = "ChangingTls"
CHANGING_ACCESS: Final = "ChangingAccess"

# -- others ----------------------------------------------------------------------------------------------

NONE: Final = "None"
BELOW_MINIMUM: Final = "BelowMinimum"
FIXED_MEMBERS: Final = "FixedMembers"
CLASS_FORBIDS: Final = "ClassForbids"
REFUSED: Final = "Refused"
UNREAD_MESSAGES: Final = "UnreadMessages"
NODE_NOT_READY: Final = "NodeNotReady"
FOREIGN_VOLUME: Final = "ForeignVolume"
OTHER_OWNER: Final = "OtherOwner"
OTHER_OPERATOR: Final = "OtherOperator"
UNSAFE: Final = "Unsafe"
NO_TRUST: Final = "NoTrust"
NO_RIGHT: Final = "NoRight"
FOREIGN_SECRET: Final = "ForeignSecret"
FOREIGN_CONFIG_MAP: Final = "ForeignConfigMap"
NO_CERT_MANAGER: Final = "NoCertManager"
NOT_ISSUED: Final = "NotIssued"
NOT_RENEWED: Final = "NotRenewed"
NO_CREDENTIALS: Final = "NoCredentials"
