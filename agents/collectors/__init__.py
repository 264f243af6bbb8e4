"""Collectors: one source of a node's telemetry a file, all behind the Protocol in `base`.

A collector reads its source once when it is asked to and knows no other collector; threads, deadlines and frames are
the agent's business. A further source is a further file here: `agents.source_registry` finds it. Modules here import
heavy libraries inside functions, because all of them are loaded in every agent.
"""
