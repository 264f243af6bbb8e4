"""The page of an incident: one self-contained HTML file, made of an archive."""
