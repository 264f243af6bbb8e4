"""The Faust apps: one per role, each feeding the pure engines of its partitions.

Faust brings records and keeps the group; what they mean is decided in `streams.engines`. Windows, joins and `noack` of
Faust are not used (docs/adr/0001-faust.md says why).
"""
