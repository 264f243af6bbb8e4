"""Acts held against their cost: a simulated fleet that fails at published rates, and what each way of answering loses.

Only what a decider can do differs between runs: the same faults, drawn from the same seed, meet a decider that does
nothing, one that always restarts, one that counts codes, and the decisions engine under a policy that says `auto`.
"""
