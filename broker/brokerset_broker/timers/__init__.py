"""Timer messages: messages that wait for any time up to some days. Pure: decisions and values only.

`DESIGN.md` says how the modules work together.
"""
