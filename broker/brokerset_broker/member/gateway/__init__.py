"""Whether a request is served here, held, forwarded to the master, or refused."""
