"""Topics to archives: which part of which topic, in order of arrival, whole or of one job or node.

Only reads: there is no producer here, no consumer group and no commit.
"""
