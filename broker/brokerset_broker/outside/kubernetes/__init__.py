"""What a broker does by itself on Kubernetes."""
