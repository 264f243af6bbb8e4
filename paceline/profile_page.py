"""The page of `paceline diagnose profile`: one HTML file, ranks side by side, readable in light and in dark.

Guarantees: nothing is loaded from anywhere and nothing runs, so the page holds in a mail or behind a firewall; every text
of a trace is escaped. Deliberately not: a timeline; the trace's own viewer has that.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Final

from paceline.page_place import PAGE_START
from streams.profiles.figures import StepFigures, sum_of
from streams.profiles.kernel_family import MEMORY_FAMILIES, TENSOR_FAMILIES
from streams.profiles.ranks import MARGIN_SHARE
from streams.profiles.verdict import shares_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from paceline.profile_reading import RankProfile
    from streams.profiles.ranks import RankComparison

__all__ = ["render_page"]

_PARTS: Final = (
    ("kernels", "kernels"),
    ("transfer", "copies and sets"),
    ("communication", "communication, uncovered"),
    ("input", "waiting for input"),
    ("launch", "idle, waiting for launches"),
)
_STYLE: Final = """
:root{color-scheme:light dark;--bg:#fff;--fg:#1b1f24;--soft:#59636e;--line:#d1d9e0;
--kernels:#2f6fb2;--transfer:#8aa9c9;--communication:#c8681c;--input:#7b4fa3;--launch:#b9bec5;--mark:#b3261e}
@media (prefers-color-scheme:dark){:root{--bg:#14181d;--fg:#e4e8ec;--soft:#9aa4ae;--line:#343b43;
--kernels:#5a9bdc;--transfer:#48627c;--communication:#e08a45;--input:#a67fd0;--launch:#4a525b;--mark:#ff8a80}}
body{background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,sans-serif;max-width:72rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.4rem}h2{font-size:1.1rem;margin-top:2rem}p,figcaption{max-width:60rem}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
.wide{overflow-x:auto}th,td{text-align:right;padding:.25rem .6rem;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left}td.name{white-space:normal;overflow-wrap:anywhere;text-align:left;max-width:34rem}
svg{width:100%;height:1.4rem;display:block;min-width:16rem}.soft{color:var(--soft)}.mark{color:var(--mark);font-weight:600}
.key span{display:inline-block;margin-right:1.2rem}.key i{display:inline-block;width:.8em;height:.8em;margin-right:.4em}
"""


def render_page(profiles: Sequence[RankProfile], comparison: RankComparison | None) -> str:
    """The page's text: ranks side by side, then each rank by itself."""
    title = _title(profiles, comparison)
    body = [f"<h1>{escape(title)}</h1>", _side_by_side(profiles, comparison)]
    body += [_rank(profile) for profile in profiles]
    body.append(_reading())
    return (
        f'{PAGE_START.decode()}<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head>\n<body>\n"
        + "\n".join(body)
        + "\n</body></html>\n"
    )


def _title(profiles: Sequence[RankProfile], comparison: RankComparison | None) -> str:
    if comparison is not None and comparison.straggler_rank is not None:
        return f"Profile: rank {comparison.straggler_rank} came last"
    bounds = sorted({profile.verdict.bound for profile in profiles})
    return f"Profile: {', '.join(bounds)}"


def _side_by_side(profiles: Sequence[RankProfile], comparison: RankComparison | None) -> str:
    keys = "".join(f'<span><i style="background:var(--{name})"></i>{escape(words)}</span>' for name, words in _PARTS)
    rows = []
    for profile in profiles:
        total = sum_of(profile.steps)
        bar = _bar(total) if total is not None and total.window_us > 0 else '<span class="soft">no GPU work</span>'
        rows.append(
            f"<tr><td>{escape(profile.label)}</td><td>{escape(profile.verdict.bound)}</td>"
            f'<td style="width:70%">{bar}</td></tr>'
        )
    table = _table(("rank", "bound by", "where the time went"), rows)
    return f'<h2>Ranks side by side</h2><p class="key">{keys}</p>{table}{_comparison(comparison)}'


def _comparison(comparison: RankComparison | None) -> str:
    if comparison is None:
        return ""
    longest = max((times.collective_us for times in comparison.ranks), default=0.0) or 1.0
    rows = []
    for times in comparison.ranks:
        is_last = times.rank == comparison.straggler_rank
        share = 100 * times.collective_us / longest
        colour = "mark" if is_last else "communication"
        bar = f'<svg viewBox="0 0 100 6" preserveAspectRatio="none" role="img"><title>{times.collective_us:,.0f} us</title>{_rect(0, share, colour)}</svg>'
        mark = ' class="mark"' if is_last else ""
        note = "came last" if is_last else ("" if times.is_compared else "no peers")
        rows.append(
            f"<tr><td{mark}>rank {times.rank} {note}</td><td>{times.window_us:,.0f}</td><td>{times.own_us:,.0f}</td>"
            f'<td>{times.collective_us:,.0f}</td><td style="width:45%">{bar}</td></tr>'
        )
    table = _table(("rank", "step us", "own us", "collectives us", "time in collectives, a step"), rows)
    return (
        f'<h2>Who came last</h2><p>{escape(comparison.reason)}.</p><p class="soft">A collective ends for all ranks '
        f"together: the rank with the shortest time in it arrived last, and the long ones waited.</p>{table}"
    )


def _rank(profile: RankProfile) -> str:
    parts = [f"<h2>{escape(profile.label)}</h2>", f"<p>{escape(profile.verdict.reason)}.</p>"]
    parts.append(f'<p class="soft">{escape(str(profile.path))}{_gpu(profile)}</p>')
    parts.append(_steps(profile))
    parts.append(_families(profile))
    parts.append(_products(profile))
    kernels = [
        f'<tr><td class="name">{escape(kernel["name"][:300])}</td><td>{escape(kernel["family"])}</td>'
        f"<td>{kernel['count']:,}</td><td>{kernel['total_us']:,.0f}</td><td>{kernel['max_us']:,.1f}</td></tr>"
        for kernel in profile.record["top_kernels"]
    ]
    parts.append(_table(("kernel", "family", "count", "total us", "longest us"), kernels))
    return "".join(parts)


def _gpu(profile: RankProfile) -> str:
    names = profile.part or ", ".join(profile.record["gpu_names"])
    return f" &middot; {escape(names)}" if names else ""


def _steps(profile: RankProfile) -> str:
    rows = []
    for record, figures in zip(profile.step_records, profile.steps, strict=True):
        latency = record["launch_latency_median_us"]
        step = "trace" if record["step"] is None else f"step {record['step']}"
        device = "" if record["device"] is None else f" &middot; GPU {record['device']}"
        cells = (
            record["window_us"],
            record["kernel_us"],
            record["exposed_comm_us"],
            record["hidden_comm_us"],
            record["to_device_us"],
            record["to_host_us"],
            record["idle_us"],
            record["longest_gap_us"],
        )
        rows.append(
            f'<tr><td>{step}{device}</td><td style="width:22%">{_bar(figures) if figures.window_us > 0 else ""}</td>'
            + "".join(f"<td>{cell:,.0f}</td>" for cell in cells)
            + f"<td>{'' if latency is None else f'{latency:,.1f}'}</td></tr>"
        )
    heads = (
        "step", "", "us", "kernels", "exposed comm.", "hidden comm.", "to device", "to host", "idle", "longest gap",
        "launch latency, median",
    )  # fmt: skip
    return _table(heads, rows)


def _families(profile: RankProfile) -> str:
    total = sum_of(profile.steps)
    if total is None:
        return ""
    everything = sum(work.total_us for work in total.families.values()) or 1.0
    rows = [
        f"<tr><td>{escape(name)}</td><td>{_unit(name)}</td><td>{work.count:,}</td><td>{work.total_us:,.0f}</td>"
        f"<td>{work.total_us / everything:.1%}</td></tr>"
        for name, work in sorted(total.families.items(), key=lambda item: -item[1].total_us)
    ]
    return _table(("family", "bound by", "kernels", "total us", "share"), rows)


def _unit(family: str) -> str:
    if family in TENSOR_FAMILIES:
        return "tensor cores"
    return "memory" if family in MEMORY_FAMILIES else ""


def _products(profile: RankProfile) -> str:
    rows = []
    for product in profile.products:
        regime = product.regime
        ridge = "" if regime.ridge_flop_per_byte is None else f"{regime.ridge_flop_per_byte:,.0f}"
        share = "" if regime.roof_share is None else f"{regime.roof_share:.0%}"
        rows.append(
            f"<tr><td>{escape(product.dtype)}</td><td>{product.count:,}</td><td>{regime.tflops:,.1f}</td>"
            f"<td>{regime.intensity_flop_per_byte:,.0f}</td><td>{ridge}</td><td>{regime.regime}</td><td>{share}</td></tr>"
        )
    heads = ("matrix products", "count", "TFLOP/s", "FLOP/byte", "ridge", "regime", "of the roof")
    return _table(heads, rows) if rows else ""


def _bar(figures: StepFigures) -> str:
    shares = shares_of(figures)
    drawn, at, told = [], 0.0, []
    for name, words in _PARTS:
        share = 100 * getattr(shares, name)
        told.append(f"{words} {share:.0f} %")
        drawn.append(_rect(at, share, name))
        at += share
    title = escape(", ".join(told))
    return (
        f'<svg viewBox="0 0 100 6" preserveAspectRatio="none" role="img"><title>{title}</title>{"".join(drawn)}</svg>'
    )


def _rect(start: float, width: float, colour: str) -> str:
    if width <= 0:
        return ""
    return f'<rect x="{start:.3f}" y="0" width="{width:.3f}" height="6" style="fill:var(--{colour})"/>'


def _table(heads: Iterable[str], rows: Sequence[str]) -> str:
    if not rows:
        return ""
    head = "".join(f"<th>{escape(text)}</th>" for text in heads)
    return f'<div class="wide"><table><tr>{head}</tr>{"".join(rows)}</table></div>'


def _reading() -> str:
    return (
        '<h2>How to read it</h2><p class="soft">Exposed communication is what no kernel, copy or set covers; it holds the wait for '
        "the slowest rank. Idle is the time with nothing on the GPU. A verdict is no alarm: a step bound by computation or "
        "memory is as it should be where that is its work. A rank is named when its collectives are shorter than its peers' "
        f"median by {MARGIN_SHARE:.0%} of a step and its own time is longer than theirs. The limits are judgements.</p>"
    )
