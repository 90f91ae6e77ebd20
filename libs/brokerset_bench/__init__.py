"""brokerset_bench."""
