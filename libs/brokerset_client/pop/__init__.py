"""POP: consumption without assigned queues.

A broker gives each message to one consumer for a limited time, its invisible time. What is not acknowledged
by then is given out again.
"""
