"""The controllers of broker groups: who is master, who is in sync, and which broker has which id."""
