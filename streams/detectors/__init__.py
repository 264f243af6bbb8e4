"""Detectors: one rule family a file, pure, on event time.

Device rules read one node's frames in the node's own order; job rules read closed steps in step order.
"""
