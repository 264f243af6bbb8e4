"""Which sources there are: found by themselves, added by others, chosen by settings."""

from __future__ import annotations

import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest

import agents.collectors
from agents import source_registry
from agents.collectors.base import Readings
from agents.identity import AgentIdentity
from agents.settings import AgentSettings, SettingsError
from agents.source_registry import ENTRY_POINT_GROUP, SourceNameError, build_collectors, chosen, known_sources

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "agent.md"
IDENTITY = AgentIdentity("node-1", "boot-1", "session-1")

MODULE = '''"""Readings of a rack's door. And more."""
class DoorCollector:
    name = "door"
    precedence = 1
    @classmethod
    def from_settings(cls, settings, identity): return cls()
    def is_supported(self): return None
    def collect(self, now_ns): return None
class NotOne:
    name = "not-one"
'''


class Added:
    """A source of another distribution."""

    name = "added"
    only_if_named = True

    @classmethod
    def from_settings(cls, settings: AgentSettings, identity: AgentIdentity) -> Added:
        return cls()

    def is_supported(self) -> str | None:
        return None

    def collect(self, now_ns: int) -> Readings:
        return Readings()


class Picky(Added):
    name = "picky"

    @classmethod
    def from_settings(cls, settings: AgentSettings, identity: AgentIdentity) -> Picky:
        raise SettingsError("tick_s is too slow for picky")


class Broken(Added):
    name = "broken"

    @classmethod
    def from_settings(cls, settings: AgentSettings, identity: AgentIdentity) -> Broken:
        raise KeyError("oops")


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    known_sources.cache_clear()
    yield
    known_sources.cache_clear()


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes classes known as another distribution's entry points."""
    module = ModuleType("other_distribution")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    points: list[importlib.metadata.EntryPoint] = []
    monkeypatch.setattr(source_registry, "entry_points", lambda group: [p for p in points if p.group == group])

    def add(**classes: Any) -> None:
        for name, value in classes.items():
            setattr(module, name, value)
            points.append(importlib.metadata.EntryPoint(name, f"{module.__name__}:{name}", ENTRY_POINT_GROUP))

    return add


def test_our_sources_are_found_in_order_of_precedence() -> None:
    names = [source.name for source in known_sources()]
    assert {"kernel-log", "nvml", "dcgm-exporter", "dcgmi-dmon", "nic"} <= set(names)
    assert names.index("nvml") < names.index("dcgm-exporter")
    assert all(source.summary and source.place.startswith("agents.collectors.") for source in known_sources())


def test_the_document_lists_every_source_and_says_which_must_be_named() -> None:
    section = DOCUMENT.read_text().partition("## Sources\n")[2].partition("\n## ")[0]
    rows = {row[1]: row[2] for row in re.finditer(r"^\| `([\w-]+)` \|(.*)$", section, re.MULTILINE)}
    assert set(rows) == {source.name for source in known_sources()}
    for source in known_sources():
        assert ("only if named" in rows[source.name]) is source.only_if_named, source.name


def test_an_agent_with_all_its_sources_loads_nothing_heavy() -> None:
    code = (
        "import sys, paceline.cli, agents.agent, agents.source_registry as r\n"
        "from agents.settings import AgentSettings; from agents.identity import AgentIdentity\n"
        "r.build_collectors(AgentSettings(), AgentIdentity('n', 'b', 's'))\n"
        "print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60, cwd=ROOT
    )
    heavy = {"numpy", "faust", "aiokafka", "pyarrow", "kubernetes", "streams", "prometheus_client", "pynvml", "rich"}
    assert heavy & set(done.stdout.split()) == set()


def test_a_file_in_the_folder_is_a_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "door.py").write_text(MODULE)
    monkeypatch.setattr(agents.collectors, "__path__", [*agents.collectors.__path__, str(tmp_path)])
    monkeypatch.delitem(sys.modules, "agents.collectors.door", raising=False)
    first = known_sources()[0]
    assert (first.name, first.summary) == ("door", "Readings of a rack's door. And more.")
    assert "not-one" not in {source.name for source in known_sources()}


def test_a_module_that_cannot_be_loaded_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "hopeless.py").write_text("import no_such_library")
    monkeypatch.setattr(agents.collectors, "__path__", [*agents.collectors.__path__, str(tmp_path)])
    assert "nvml" in {source.name for source in known_sources()}
    assert "agents.collectors.hopeless cannot be loaded: ModuleNotFoundError" in caplog.text


def test_another_distribution_may_add_a_source(added: Any) -> None:
    added(Added=Added)
    (source,) = (source for source in known_sources() if source.name == "added")
    assert source.place == "entry point other_distribution:Added"
    assert source.summary == "A source of another distribution."
    (collector,) = build_collectors(AgentSettings(sources=("added",)), IDENTITY)
    assert isinstance(collector, Added)


def test_what_is_added_takes_no_name_of_ours_and_no_other_shape(added: Any, caplog: pytest.LogCaptureFixture) -> None:
    class Nvml(Added):
        name = "nvml"

    added(Nvml=Nvml, function=lambda: None, Abroad=object)
    (nvml,) = (source for source in known_sources() if source.name == "nvml")
    assert nvml.place == "agents.collectors.nvml"
    assert "nvml is also agents.collectors.nvml, which stays" in caplog.text
    assert caplog.text.count("is no collector") == 2


def test_an_entry_point_that_cannot_be_loaded_costs_itself_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    point = importlib.metadata.EntryPoint("gone", "no_such_distribution:Gone", ENTRY_POINT_GROUP)
    monkeypatch.setattr(source_registry, "entry_points", lambda group: [point])
    assert "nvml" in {source.name for source in known_sources()}
    assert "entry point no_such_distribution:Gone cannot be loaded" in caplog.text


def test_auto_is_all_that_need_not_be_named(added: Any) -> None:
    added(Added=Added)
    every = [source.name for source in known_sources() if not source.only_if_named]
    assert [source.name for source in chosen(("auto",))] == every
    assert "dcgmi-dmon" not in every
    assert "added" not in every


def test_what_is_named_beside_auto_states_values_before_it_or_after_it(added: Any) -> None:
    added(Added=Added)
    first, *rest = (source.name for source in chosen(("nic", "auto", "added")))
    assert (first, rest[-1]) == ("nic", "added")
    assert len({first, *rest}) == 1 + len(rest)


def test_what_is_disabled_is_left_out_of_auto_and_of_names() -> None:
    assert "nvml" not in {source.name for source in chosen(("auto",), ("nvml",))}
    assert chosen(("nvml",), ("nvml",)) == []
    assert chosen(()) == []


@pytest.mark.parametrize(("names", "disable"), [(("tea-leaves",), ()), (("auto",), ("tea-leaves",)), ((), ("auto",))])
def test_a_name_that_there_is_not_is_one_line_with_those_that_there_are(
    names: tuple[str, ...], disable: tuple[str, ...]
) -> None:
    with pytest.raises(SourceNameError, match=r"(sources|disable) names '.*': known are .*kernel-log.*auto") as caught:
        chosen(names, disable)
    assert "\n" not in str(caught.value)


def test_a_source_that_cannot_be_made_is_left_out_unless_a_setting_is_to_blame(
    added: Any, caplog: pytest.LogCaptureFixture
) -> None:
    added(Added=Added, Broken=Broken, Picky=Picky)
    (collector,) = build_collectors(AgentSettings(sources=("broken", "added")), IDENTITY)
    assert collector.name == "added"
    assert "source broken cannot be made: KeyError: 'oops'" in caplog.text
    with pytest.raises(SettingsError, match="too slow for picky"):
        build_collectors(AgentSettings(sources=("picky",)), IDENTITY)
