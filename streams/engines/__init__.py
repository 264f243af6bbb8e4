"""The three roles as pure engines: records in, records out. Faust and replay feed the same ones.

Each engine serves one partition. `on_record` takes a decoded record with its position and returns what is to be
published; `flush` ends the input. Engines never raise on a valid record.
"""
