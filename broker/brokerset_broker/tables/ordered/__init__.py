"""Tables of ordered subjects: queues, fences, producers, and who pulls (see DESIGN.md)."""
