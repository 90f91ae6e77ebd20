"""Producer and consumer of ordered subjects."""
