"""The command line: the only place that may import agents, streams and deploy together."""

__version__ = "0.1.0"
