"""The wire: record models, the topic table and the codec.

Nothing else decides what bytes mean. This package imports nothing of ours; agents, streams and tools all build on it.
"""
