"""A reference of the job-controller contract (docs/job-controller.md), in the standard library alone: to run, and to copy from.

It supervises the workers of one job on this machine, moves a node's ranks to a warm spare, and goes on from the latest whole
checkpoint. A controller of your own needs nothing of it but the contract.
"""
