"""The controllers of broker groups. Nothing is here yet: brokers run alone in their group until it is."""
