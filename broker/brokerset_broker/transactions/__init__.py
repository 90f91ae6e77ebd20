"""Transactions of a broker, decided without I/O: ends, what is resolved, and passes of checks."""
