"""Replication of the commit log between the brokers of a group, and their roles; see `DESIGN.md`."""
