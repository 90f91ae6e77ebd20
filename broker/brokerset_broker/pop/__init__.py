"""Decisions of POP, without I/O; see `DESIGN.md`."""
