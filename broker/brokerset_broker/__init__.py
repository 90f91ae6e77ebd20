"""The broker: store, request processors, delay delivery."""
