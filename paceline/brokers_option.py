"""The option that says where the brokers are, for the commands that cannot do without them."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Bootstrap"]

Bootstrap = Annotated[
    str, typer.Option("--bootstrap", help="host:port of the brokers.", envvar="PACELINE_BOOTSTRAP_SERVERS")
]
"""`--bootstrap`, or the environment's; each command names its own default."""
