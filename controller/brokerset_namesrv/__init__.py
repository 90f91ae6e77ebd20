"""The name server: routes, liveness and key-value configuration."""
