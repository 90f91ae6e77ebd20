"""Reads RocketMQ store files without a broker: Spark data sources, and jobs on them."""
