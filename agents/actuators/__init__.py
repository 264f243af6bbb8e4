"""Actuators: they carry out signed commands, each at most once, and report what came of them.

`verification` decides whether bytes are a command for us, `memory` keeps what was done, `actuator` ties them to a pair of
hands (`slurm`, `kubernetes`, `job_controller`, `webhook`, `dry_run`). They import nothing of the side that decides.
"""
