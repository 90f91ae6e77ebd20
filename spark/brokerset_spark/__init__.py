"""Spark jobs on store files. Nothing is here yet."""
