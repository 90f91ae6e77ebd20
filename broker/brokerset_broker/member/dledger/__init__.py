"""A broker as a member of a DLedger group: role, log, metadata and gateway, without controllers."""
