"""Topics, groups, offsets and the progress of delayed messages as records of the commit log."""
