"""The Kubernetes API for the operator and for brokers: an asynchronous client, kinds, errors, watches."""
