"""Whom the broker talks to or shows itself to: name servers, Kubernetes, Prometheus, readers of its store."""
