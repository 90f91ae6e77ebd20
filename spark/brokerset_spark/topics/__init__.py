"""Topics of running brokers as Spark tables and streams: `format("rocketmq")`."""
