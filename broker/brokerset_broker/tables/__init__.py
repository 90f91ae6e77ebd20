"""Tables of the broker: topics, groups, offsets, clients, locks; and the log that carries their changes."""
