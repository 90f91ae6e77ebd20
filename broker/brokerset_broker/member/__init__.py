"""The broker as a member of its group: identity, role, replication, and what is served."""
