"""`kubectl brokerset`: BrokerSets of a Kubernetes cluster, looked at and worked on with kubectl."""
