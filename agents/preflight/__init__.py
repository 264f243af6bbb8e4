"""Whether this node, and the way from it to its peers, is fit for a job: measured before the job, not guessed during it."""
