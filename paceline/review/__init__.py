"""Review of an incident: what two sides said, held against each other by id, and why they differ."""
