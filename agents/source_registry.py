"""Which sources there are: the collectors of `agents.collectors`, and those that other distributions add.

Guarantees: a class counts that has all of `CollectorType` and is defined in the module that was looked at; a module or
an entry point that cannot be loaded costs itself alone and is told; names are unique, and our own win over others'. It
asks no source whether it is here.
"""

from __future__ import annotations

import importlib
import inspect
import logging
import pkgutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, cast

import agents.collectors
from agents.settings import SettingsError

if TYPE_CHECKING:
    from agents.collectors.base import Collector, CollectorType
    from agents.identity import AgentIdentity
    from agents.settings import AgentSettings

__all__ = ["AUTO", "ENTRY_POINT_GROUP", "Source", "SourceNameError", "build_collectors", "chosen", "known_sources"]

_LOG = logging.getLogger(__name__)

AUTO = "auto"
"""In `sources`: every source that need not be named."""

ENTRY_POINT_GROUP = "paceline.collectors"
"""Entry points of this group name a collector class, as `mine = "my_package.my_module:MyCollector"`."""

_PRECEDENCE = 50


class SourceNameError(ValueError):
    """A setting names a source that there is not; the text says which names there are."""


@dataclass(frozen=True, slots=True)
class Source:
    """A kind of collector.

    Attributes:
        name: in settings, counters and node status.
        collector_class: makes it.
        precedence: of two sources that know a value the one with the lower number states it.
        only_if_named: whether `auto` leaves it out.
        place: the module or entry point that it came from.
        summary: the first line of its module's text.
    """

    name: str
    collector_class: CollectorType
    precedence: int
    only_if_named: bool
    place: str
    summary: str


@cache
def known_sources() -> tuple[Source, ...]:
    """All sources, in order of precedence and name."""
    found: dict[str, Source] = {}
    for source in (*_own(), *_added()):
        if source.name in found:
            _LOG.warning("%s: %s is also %s, which stays", source.place, source.name, found[source.name].place)
        else:
            found[source.name] = source
    return tuple(sorted(found.values(), key=lambda source: (source.precedence, source.name)))


def chosen(names: Iterable[str], disable: Iterable[str] = ()) -> list[Source]:
    """The sources that settings ask for, in order of precedence.

    Args:
        names: names in the order in which they state values; `auto` stands for all others that need not be named.
        disable: names to leave out.

    Raises:
        SourceNameError: there is no such source.
    """
    known = {source.name: source for source in known_sources()}
    names, disable = tuple(names), frozenset(disable)
    for setting, given in (("sources", names), ("disable", tuple(sorted(disable)))):
        for name in given:
            if name not in known and not (name == AUTO and setting == "sources"):
                raise SourceNameError(f"{setting} names {name!r}: known are {', '.join((*sorted(known), AUTO))}")
    ordered: list[Source] = []
    for name in names:
        if name == AUTO:
            ordered += [s for s in known.values() if not s.only_if_named and s.name not in names]
        else:
            ordered.append(known[name])
    return [source for source in ordered if source.name not in disable]


def build_collectors(settings: AgentSettings, identity: AgentIdentity) -> list[Collector]:
    """The collectors that the settings ask for, in order of precedence; none is asked yet whether its source is here.

    One that cannot be made is left out and told, unless it says that a setting does not hold.

    Raises:
        SourceNameError: there is no such source.
        SettingsError: a collector refuses a setting.
    """
    collectors: list[Collector] = []
    for source in chosen(settings.sources, settings.disable):
        try:
            collectors.append(source.collector_class.from_settings(settings, identity))
        except SettingsError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one source, the others are there
            _LOG.warning("source %s cannot be made: %s: %s", source.name, type(error).__name__, error)
    return collectors


def _own() -> Iterator[Source]:
    for found in pkgutil.iter_modules(agents.collectors.__path__, f"{agents.collectors.__name__}."):
        try:
            module = importlib.import_module(found.name)
        except Exception as error:  # noqa: BLE001 - whatever is wrong with one source, the others are there
            _LOG.warning("%s cannot be loaded: %s: %s", found.name, type(error).__name__, error)
            continue
        summary = (module.__doc__ or "").strip().partition("\n")[0]
        for candidate in vars(module).values():
            if inspect.isclass(candidate) and candidate.__module__ == module.__name__ and _is_collector(candidate):
                yield _source(candidate, found.name, summary)


def _added() -> Iterator[Source]:
    for point in entry_points(group=ENTRY_POINT_GROUP):
        place = f"entry point {point.value}"
        try:
            candidate = point.load()
        except Exception as error:  # noqa: BLE001 - as above
            _LOG.warning("%s cannot be loaded: %s: %s", place, type(error).__name__, error)
            continue
        if _is_collector(candidate):
            yield _source(candidate, place, (candidate.__doc__ or "").strip().partition("\n")[0])
        else:
            _LOG.warning("%s is no collector: it needs name, is_supported, collect and from_settings", place)


def _is_collector(candidate: Any) -> bool:
    return (
        inspect.isclass(candidate)
        and not inspect.isabstract(candidate)
        and not getattr(candidate, "_is_protocol", False)
        and isinstance(getattr(candidate, "name", None), str)
        and inspect.ismethod(getattr(candidate, "from_settings", None))
        and all(callable(getattr(candidate, name, None)) for name in ("is_supported", "collect"))
    )


def _source(candidate: type[Any], place: str, summary: str) -> Source:
    return Source(
        name=candidate.name,
        collector_class=cast("CollectorType", candidate),
        precedence=int(getattr(candidate, "precedence", _PRECEDENCE)),
        only_if_named=bool(getattr(candidate, "only_if_named", False)),
        place=place,
        summary=summary,
    )
