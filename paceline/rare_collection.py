"""Python's collector of cycles, held back while records are judged.

Records are trees, and die when nobody holds them: there are no cycles among them. By default the collector walks what lives
after every 700 new containers, which is every twelve records, and now and then all that was ever loaded, and finds nothing.
"""

from __future__ import annotations

import gc
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["rare_collection"]

_CONTAINERS = 50_000
"""Several times what the records hold that are in hand at once; should there be cycles after all, some megabytes of them."""


@contextmanager
def rare_collection() -> Iterator[None]:
    """Look for cycles only when so many more containers live than at the last look, and not in what is there now."""
    before = gc.get_threshold()
    gc.freeze()
    gc.set_threshold(_CONTAINERS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
        gc.unfreeze()
