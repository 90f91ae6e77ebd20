"""The Kubernetes operator. Nothing is here yet: `brokerset up` runs a BrokerSet on one machine."""
