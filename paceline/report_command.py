"""`paceline report`: an archive to one page of an incident.

What was recorded is shown as it was said; where an archive holds inputs alone, they are replayed and the page says so.
"""

from __future__ import annotations

from contextlib import closing
from importlib import metadata
from typing import TYPE_CHECKING, Any

import orjson
import typer

from paceline.page_place import NoPlaceError, must_be_free
from paceline.progress_bar import ProgressBar
from paceline.rare_collection import rare_collection
from paceline.replay_command import UsageError, report_problems, usable_site
from paceline.replay_source import ReplaySpan, open_source
from paceline.report.collected import Collected
from paceline.report.page import render_page
from paceline.report.page_data import page_data
from paceline.report.statements import cited_places
from paceline.review.nothing_judged import NothingJudgedError, nothing_judged
from paceline.whole_file import write_whole
from schemas.archive import ArchiveLine, NotAnArchiveError
from schemas.findings import Finding
from schemas.remediation import ActionResult, Command, Decision, Incident
from schemas.results import StepResult
from schemas.topics import TOPICS
from streams.engines.pipeline import Pipeline
from streams.recording.bounds import BoundError
from streams.recording.kafka_range import RangeError
from streams.replay import Problems, decoded

if TYPE_CHECKING:
    from pathlib import Path

    from paceline.replay_source import ArchiveSource, KafkaSource
    from schemas.base import Record

__all__ = ["report_command"]

_RAW_BYTES = 6_000
_SAID = (Finding, Incident, Command, ActionResult, StepResult, Decision)
_NAMES = {topic.name for topic in TOPICS}


def report_command(
    source: str, output: Path, span: tuple[str | None, str | None], is_readable: bool, site: str | None
) -> int:
    """Write the page; 0 when all of the archive could be read, 2 when not.

    Args:
        source: an archive, or `kafka://host:port`.
        output: the page.
        span: texts of the bounds.
        is_readable: read around what is damaged.
        site: the site that replayed findings are of.
    """
    problems = Problems()
    try:
        must_be_free(output)
        wanted = ReplaySpan.parse(*span, "10m")
        with closing(open_source(source, wanted, is_readable, has_outputs=True)) as first:
            site_id = usable_site(site if site is not None else first.site_id or "replay")
            collected, is_recorded = _collected(first, site_id, problems)
            if collected.first_ns is None:
                report_problems(problems, None)
                raise nothing_judged(source, first, wanted, "there is nothing to show")
        places = cited_places(collected)
        with closing(open_source(source, wanted, is_readable, has_outputs=True)) as second:
            raw = _raw(second, set(places))
        about = {
            "source": source.rsplit("/", 1)[-1] if "://" not in source else source,
            "site": site_id,
            "paceline": metadata.version("paceline"),
            "policies": sorted({policy.policy_version for policy in collected.policies}) or ["the defaults"],
            "is_recorded": is_recorded,
            "unusable": problems.counts["bad_lines"],
            "unusable_lines": problems.bad_lines[:5],
        }
        page = render_page(
            page_data(collected, about, {p: raw[p] for p in places if p in raw}), f"Incident review: {site_id}"
        )
        write_whole(output, page)
    except (BoundError, RangeError, NotAnArchiveError, NothingJudgedError, NoPlaceError, UsageError) as error:
        typer.echo(f"paceline: {error}", err=True)
        return 2
    except OSError as error:
        typer.echo(f"paceline: {output}: {error.strerror}", err=True)
        return 2
    typer.echo(f"{output}: {len(page) / 1e6:.1f} MB", err=True)
    return report_problems(problems, None)


@rare_collection()
def _collected(source: ArchiveSource | KafkaSource, site_id: str, problems: Problems) -> tuple[Collected, bool]:
    """Everything in one pass; statements of the replay only where none was recorded."""
    collected, replayed = Collected(), []
    pipeline = Pipeline(site_id)
    # Where its manifest says so, nothing has to be replayed.
    is_recorded, has_results = source.has("findings"), source.has("step-results")
    with ProgressBar("reading", source.total) as bar:
        for number, record, position in decoded(source.lines(bar.reach), problems):
            if isinstance(record, _SAID):
                is_recorded = is_recorded or isinstance(record, Finding | Incident | Command)
                has_results = has_results or isinstance(record, StepResult)
                collected.take_said(record, position.append_ms or None)
                continue
            if position.topic in _NAMES:
                collected.take_input(record, position)
            if not (is_recorded and has_results):
                replayed += _bounded(pipeline.on_record(record, position))
                problems.note_refusal(number, position, pipeline.refusal)
        if not (is_recorded and has_results):
            replayed += pipeline.flush()
    for record in replayed:
        if isinstance(record, StepResult):
            if not has_results:
                collected.take_said(record, None)
        elif not is_recorded:
            collected.take_said(record, None)
    collected.finish()
    return collected, is_recorded


def _bounded(records: list[Record]) -> list[Record]:
    return [record for record in records if isinstance(record, _SAID)]


def _raw(
    source: ArchiveSource | KafkaSource, places: set[tuple[str, int, int]]
) -> dict[tuple[str, int, int], tuple[int, str]]:
    """Cited records, as JSON that a person can read; a long one is cut, and says so."""
    found: dict[tuple[str, int, int], tuple[int, str]] = {}
    if not places:
        return found
    with ProgressBar("fetching what is cited", source.total) as bar:
        for line in source.lines(bar.reach):
            if isinstance(line, ArchiveLine) and (place := (line.topic, line.partition, line.offset)) in places:
                found[place] = (line.timestamp_ms, _readable(line.value))
                if len(found) == len(places):
                    break
    return found


def _readable(value: Any) -> str:
    text = orjson.dumps(value).decode()
    return text if len(text) <= _RAW_BYTES else f"{text[:_RAW_BYTES]} ... ({len(text)} bytes)"
