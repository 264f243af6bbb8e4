"""In the cluster: pure operators and detectors, incidents, the Faust apps that feed them, and replay.

Pure modules (`core`, `detectors`, `decisions`, `engines`) import only `schemas`, numpy and the standard library; they know no
broker, no event loop, no wall clock and no randomness. Adapters (`faust_roles`, `replay`) import them, never the reverse.
"""
