"""From findings to incidents, and from incidents to commands: pure, on event time.

Data path: `streams.engines.decisions` takes findings in order, `observations` remembers what is known of devices,
`incidents` joins findings of one cause, `remedies` names the mildest sufficient act.
"""
