"""The Kubernetes objects that a BrokerSet needs, built as dictionaries."""
