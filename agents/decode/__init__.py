"""Raw telemetry to records: what `paceline decode` prints and the collectors read with."""
