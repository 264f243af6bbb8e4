"""`paceline diagnose collectives`: the bandwidth of each communicator, and what of its time is waiting.

From flight-recorder dumps with timing, or from profiler traces, of as many ranks as there are. Guarantees: nothing here
leads to an act; what could not be used is counted on standard error. Earlier runs are a file of the caller's.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import typer

from agents.decode.driver import encode
from agents.decode.record import Record
from paceline.collectives_reading import CollectiveSource, files_in, read_sources
from paceline.one_line import one_line
from streams.profiles.communicators import CollectiveFigures, figures_of, link_limit_gb_s, rails_of
from streams.profiles.slow_communicators import CollectiveObservation, observations, with_figures

__all__ = ["collectives_command"]

_NOTHING_TO_READ = 2


def collectives_command(
    paths: Sequence[Path],
    as_json: bool,
    ranks_per_node: int = 8,
    gpu_link_gb_s: float | None = None,
    port_gb_s: float | None = None,
    history_path: Path | None = None,
    remember: bool = False,
) -> int:
    """Prints figures and what stands out among them.

    Args:
        paths: Dumps and traces, and directories of them.
        as_json: NDJSON on standard output.
        ranks_per_node: Ranks are taken to be numbered node by node.
        gpu_link_gb_s: What a GPU's links within its node carry each way.
        port_gb_s: What the network port of one GPU carries each way.
        history_path: Bandwidths of earlier runs.
        remember: Write this run's into it.

    Returns:
        0, or 2 if nothing could be used or the history could not be read or written.
    """
    try:
        _must_be_meant(gpu_link_gb_s, port_gb_s, remember and history_path is None)
        source = read_sources(files_in(paths))
        history = _read_history(history_path)
    except OSError as error:
        typer.echo(f"paceline: cannot read {error.filename}: {error.strerror}", err=True)
        return _NOTHING_TO_READ
    except ValueError as error:
        typer.echo(f"paceline: {error}", err=True)
        return _NOTHING_TO_READ
    figures, differing = figures_of(source.shares, ranks_per_node)
    _tell_left_out(source, differing)
    if not figures:
        why = (
            "members tell different collectives, as traces of different steps do"
            if differing
            else "no collective has a duration and a size; dumps have durations with TORCH_NCCL_ENABLE_TIMING=1"
        )
        typer.echo(f"paceline: {why}", err=True)
        return _NOTHING_TO_READ

    def limit_of(one: CollectiveFigures) -> float | None:
        return link_limit_gb_s(one, ranks_per_node, gpu_link_gb_s, port_gb_s)

    found = observations(figures, ranks_per_node, history, limit_of)
    if as_json:
        for record in (
            *(_figures_record(one, limit_of(one)) for one in figures),
            *_rail_records(figures, ranks_per_node),
            *(_observation_record(one) for one in found),
        ):
            sys.stdout.buffer.write(encode(record))
    else:
        for one in figures:
            print(one_line(_figures_line(one, limit_of(one))))
        for observation in found:
            print(one_line(_observation_line(observation)))
    sys.stdout.flush()
    try:
        if remember and history_path is not None:
            _write_history(history_path, with_figures(history, figures))
    except OSError as error:
        typer.echo(f"paceline: {error}", err=True)
        return _NOTHING_TO_READ
    return 0


def _must_be_meant(gpu_link_gb_s: float | None, port_gb_s: float | None, is_remembered_nowhere: bool) -> None:
    for name, rate in (("--nvlink", gpu_link_gb_s), ("--network", port_gb_s)):
        if rate is not None and not 0 < rate < math.inf:
            raise ValueError(f"{name} is {rate:g}; it is GB/s, more than 0")
    if is_remembered_nowhere:
        raise ValueError("--remember needs a file: name it with --history")


def _tell_left_out(source: CollectiveSource, differing: int) -> None:
    for name, reason in source.unreadable:
        typer.echo(f"paceline: {name}: {reason}", err=True)
    left_out = {**source.left_out, **({"members differ": differing} if differing else {})}
    if left_out:
        told = ", ".join(f"{count} {reason}" for reason, count in sorted(left_out.items()))
        typer.echo(f"left out: {told}", err=True)
    typer.echo(f"ranks={len(source.ranks)} unreadable={len(source.unreadable)}", err=True)


def _read_history(path: Path | None) -> dict[str, list[float]]:
    if path is None or not path.exists():
        return {}
    try:
        value = json.loads(path.read_bytes())
        return {str(key): [_rate(rate) for rate in rates] for key, rates in value["bus_gb_s"].items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise ValueError(f"{path} is no history of bandwidths") from None


def _rate(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value) or value <= 0:
        raise ValueError("no bandwidth")
    return float(value)


def _write_history(path: Path, history: Mapping[str, Sequence[float]]) -> None:
    part = path.with_name(f"{path.name}.part")
    part.write_text(json.dumps({"bus_gb_s": history}, indent=1) + "\n", encoding="utf-8")
    part.replace(path)


def _figures_record(one: CollectiveFigures, limit_gb_s: float | None) -> Record:
    return {
        "kind": "collective_figures",
        "group_desc": one.communicator.desc,
        "group_ranks": list(one.communicator.ranks) if one.communicator.ranks is not None else None,
        "group_size": one.communicator.size,
        "span": one.span,
        "op": one.operation,
        "count": one.count,
        "size_bytes": one.size_bytes,
        "ranks_seen": one.ranks_seen,
        "is_complete": one.is_complete,
        "transfer_us": one.transfer_us,
        "wait_share": one.wait_share,
        "algorithm_gb_s": one.algorithm_gb_s,
        "bus_gb_s": one.bus_gb_s,
        "tree_gb_s": one.tree_gb_s,
        "link_gb_s": limit_gb_s,
        "link_share": one.bus_gb_s / limit_gb_s if limit_gb_s else None,
    }


def _rail_records(figures: Sequence[CollectiveFigures], ranks_per_node: int) -> Iterator[Record]:
    for (operation, size, size_class), rates in rails_of(figures, ranks_per_node).items():
        yield {
            "kind": "rail_figures",
            "op": operation,
            "group_size": size,
            "size_from_bytes": 1 << size_class,
            "bus_gb_s": {str(rail): rate for rail, rate in rates.items()},
            "slowest_share": min(rates.values()) / max(rates.values()),
        }


def _observation_record(one: CollectiveObservation) -> Record:
    communicator = one.figures.communicator if one.figures is not None else None
    return {
        "kind": "collective_observation",
        "observation": one.kind,
        "op": one.operation,
        "group_desc": communicator.desc if communicator is not None else None,
        "group_ranks": list(communicator.ranks) if communicator is not None and communicator.ranks else None,
        "rail": one.rail,
        "size_bytes": one.figures.size_bytes if one.figures is not None else None,
        "bus_gb_s": one.bus_gb_s,
        "usual_gb_s": one.usual_gb_s,
        "share": one.share,
    }


def _name(one: CollectiveFigures) -> str:
    ranks = one.communicator.ranks
    where = f"ranks {ranks[0]}..{ranks[-1]}" if ranks else "ranks unknown"
    return f"{one.communicator.desc or 'group'} ({one.communicator.size} {where}) {one.operation}"


def _figures_line(one: CollectiveFigures, limit_gb_s: float | None) -> str:
    bound = "" if one.is_complete else f" at least ({one.ranks_seen} of {one.communicator.size} ranks seen)"
    wait = "" if one.wait_share is None else f", waiting {one.wait_share:.0%}"
    link = "" if not limit_gb_s else f", {one.bus_gb_s / limit_gb_s:.0%} of its links"
    return (
        f"{_name(one)}: {one.count} of {one.size_bytes / 1e6:,.3f} MB, transfer {one.transfer_us:,.0f} us, "
        f"bus{bound} {one.bus_gb_s:,.1f} GB/s, algorithm {one.algorithm_gb_s:,.1f} GB/s{wait}{link}"
    )


def _observation_line(one: CollectiveObservation) -> str:
    subject = f"rail {one.rail} {one.operation}" if one.figures is None else _name(one.figures)
    against = {
        "slow_communicator": "its peers' median",
        "below_history": "earlier runs' median",
        "slow_rail": "the other rails' median",
        "above_link": "what its links carry",
    }[one.kind]
    return f"{one.kind}: {subject} moves {one.bus_gb_s:,.1f} GB/s, {one.share:.0%} of {against} ({one.usual_gb_s:,.1f})"
