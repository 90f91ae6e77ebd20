"""Values that the operator works with: names, what is observed, what can be done."""
