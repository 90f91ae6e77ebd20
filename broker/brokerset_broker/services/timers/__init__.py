"""Timer messages at work: the shell around the decisions of `brokerset_broker.timers` (see its DESIGN.md)."""
