"""Errors of the wire, one root for all of them."""

from __future__ import annotations

__all__ = ["IncompatibleSchemaError", "InvalidRecordError", "SchemaError", "UnknownTopicError"]


class SchemaError(Exception):
    """Something about the wire does not hold."""


class InvalidRecordError(SchemaError):
    """Bytes that are no record of their topic; the text says which field and why, in one line."""


class UnknownTopicError(SchemaError):
    """A topic that the topic table does not declare."""


class IncompatibleSchemaError(SchemaError):
    """A change of a record family that old readers or old archives would not survive."""
