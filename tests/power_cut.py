"""An end of a process at any moment: before or after each thing that others could see."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

__all__ = ["Cut", "PowerCutError"]


class PowerCutError(BaseException):
    """The process ends here: nothing after it runs, and nobody may catch it."""


class Cut:
    """Ends the process before or after the n-th thing that others could see, and everything that it tries from then on.

    Args:
        calls: n, counted over befores and afters; -1 is never.
    """

    def __init__(self, calls: int = -1) -> None:
        self.left = calls
        self.is_off = False

    def pass_by(self) -> None:
        """Be before or after such a thing."""
        if self.is_off:
            raise PowerCutError
        self.left -= 1
        if self.left == 0:
            self.is_off = True
            raise PowerCutError

    def around(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """A call that is such a thing."""

        def cut(*arguments: Any, **named: Any) -> Any:
            self.pass_by()
            value = call(*arguments, **named)
            self.pass_by()
            return value

        return cut

    def wrap(self, thing: Any, names: Collection[str] | None = None) -> Any:
        """An object whose calls are such things: all of them, or those of these names."""
        around = self.around

        class Wrapped:
            def __getattr__(self, name: str) -> Any:
                found = getattr(thing, name)
                is_seen = callable(found) if names is None else name in names
                return around(found) if is_seen else found

        return Wrapped()
