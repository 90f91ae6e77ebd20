"""Store folders as jobs see them: where bytes come from, which files there are, and reading ranges of a
log."""
