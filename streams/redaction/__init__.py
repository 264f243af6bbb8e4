"""Redaction: an archive whose names are pseudonyms, so that it can be handed to somebody outside."""
