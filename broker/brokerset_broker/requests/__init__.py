"""Requests of clients and administrators: processors, parked pulls, admission, statistics."""
