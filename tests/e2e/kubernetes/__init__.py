"""The operator on a real Kubernetes cluster."""
