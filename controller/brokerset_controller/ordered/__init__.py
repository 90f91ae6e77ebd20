"""Ordered subjects: routes, generations of partitions, groups of consumers and who owns what."""
