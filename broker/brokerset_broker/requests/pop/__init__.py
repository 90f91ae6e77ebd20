"""Requests of consumers that pop, see `brokerset_broker/pop/DESIGN.md`."""
