"""The agreed state of broker groups: who belongs, who is in sync, who is master, and the rules of change."""
