"""Operators on event time: plain data, time passed in, `snapshot()` and `restore()` on each."""
