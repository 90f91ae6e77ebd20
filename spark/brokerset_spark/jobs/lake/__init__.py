"""The lake export: topics of a whole BrokerSet into a Delta table, pass by pass, each message once.

`export_pass` is the function for users; `docs/spark.md` says what the tables hold.
"""
