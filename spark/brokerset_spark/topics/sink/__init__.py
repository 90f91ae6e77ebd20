"""The sink of `format("rocketmq")`: Arrow batches become messages of topics or of ordered subjects."""
