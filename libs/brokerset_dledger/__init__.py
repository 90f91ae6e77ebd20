"""DLedger: a log that its members replicate, with elections and commit by quorum, on the wire of Java."""
