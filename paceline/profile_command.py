"""`paceline diagnose profile`: what bounds the steps of a trace, and who of several ranks makes the others wait."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

import typer

from agents.decode.driver import encode
from paceline.one_line import one_line
from paceline.page_place import NoPlaceError, must_be_free
from paceline.profile_page import render_page
from paceline.profile_reading import RankProfile, UnreadableTraceError, compare, read_profile
from paceline.whole_file import write_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from agents.decode.record import Record
    from streams.profiles.ranks import RankComparison

__all__ = ["profile_command", "records"]


def profile_command(traces: Sequence[Path], as_json: bool, page: Path | None, gpu: str | None) -> int:
    """Reads and judges traces; 0 when all could be read, 2 when one could not or the page could not be written."""
    if page is not None:
        try:
            must_be_free(page)
        except NoPlaceError as error:
            typer.echo(f"paceline: {error}", err=True)
            return 2
        except OSError as error:
            typer.echo(f"paceline: {page}: {error.strerror}", err=True)
            return 2
    status = 0
    profiles: list[RankProfile] = []
    for trace in traces:
        try:
            found = read_profile(trace, gpu)
        except UnreadableTraceError as error:
            typer.echo(f"paceline: {error}", err=True)
            status = 2
            continue
        profiles.append(found)
        if found.malformed:
            typer.echo(f"{trace}: {found.malformed} events could not be read and are in no figure", err=True)
    profiles.sort(key=lambda profile: (profile.rank is None, profile.rank or 0, str(profile.path)))
    comparison, left_out = compare(profiles)
    for reason in left_out:
        typer.echo(f"paceline: {reason}", err=True)
    if as_json:
        for record in records(profiles, comparison):
            sys.stdout.buffer.write(encode(record))
        sys.stdout.flush()
    else:
        _print(profiles, comparison, sys.stdout)
    if page is not None and profiles:
        try:
            write_whole(page, render_page(profiles, comparison).encode("utf-8", "replace"))
        except OSError as error:
            typer.echo(f"paceline: cannot write {page}: {error.strerror or error}", err=True)
            return 2
        typer.echo(f"page written to {page}", err=True)
    return status


def records(profiles: Sequence[RankProfile], comparison: RankComparison | None) -> Iterator[Record]:
    """All that was found, a record each.

    Per trace: `trace_step`, `trace_profile`, `product_regime`, `profile_verdict`; then one `rank_comparison` where there
    are ranks to compare.
    """
    for profile in profiles:
        who: dict[str, Any] = {"rank": profile.rank, "file": str(profile.path)}
        for step in profile.step_records:
            yield {**step, **who}
        yield {**profile.record, **who, "part": profile.part, "malformed": profile.malformed}
        for product in profile.products:
            yield {"kind": "product_regime", **who, "part": profile.part, **asdict(product)}
        yield {"kind": "profile_verdict", **who, **asdict(profile.verdict)}
    if comparison is not None:
        yield {"kind": "rank_comparison", **asdict(comparison)}


def _print(profiles: Sequence[RankProfile], comparison: RankComparison | None, stream: TextIO) -> None:
    def say(text: str) -> None:
        print(one_line(text), file=stream)

    for profile in profiles:
        found = profile.verdict
        say(f"{profile.label}: {found.bound}{'-bound' if found.bound != 'undecided' else ''}")
        say(f"  {found.reason}")
        if found.shares is not None:
            shares = asdict(found.shares)
            say(
                "  "
                + "  ".join(
                    f"{name} {shares[name]:.0%}" for name in ("kernels", "communication", "input", "launch", "transfer")
                )
            )
        for product in profile.products:
            say(f"  {_product_line(profile, product)}")
        for kernel in profile.record["top_kernels"][:5]:
            say(
                f"  {kernel['total_us']:12,.0f} us  {kernel['count']:7d} x  {kernel['family']:20s} {_printable(kernel['name'][:80])}"
            )
    if comparison is not None:
        for times in comparison.ranks:
            mark = "  <- came last" if times.rank == comparison.straggler_rank else ""
            say(
                f"rank {times.rank}: step {times.window_us:,.0f} us, own {times.own_us:,.0f}, collectives {times.collective_us:,.0f}{mark}"
            )
        say(comparison.reason)


def _product_line(profile: RankProfile, product: Any) -> str:
    regime = product.regime
    share = "" if regime.roof_share is None else f", {regime.roof_share:.0%} of {profile.part}'s roof"
    return (
        f"{product.dtype} products: {regime.tflops:,.0f} TFLOP/s at {regime.intensity_flop_per_byte:,.0f} FLOP/byte, "
        f"{regime.regime}-bound{share}"
    )


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()
