"""Evaluation: detectors held against labelled cases, by the rules that the benchmark states.

Runs a generated case through the engine as replay does, makes alerts of what came out, matches them to the truth and
counts. Nothing is fed back: a detector never sees a label. What is generated is protocol-comparable with published
results and is not their data.
"""
