"""The table of GPU parts: what each part can do at most, found by the name that its driver prints.

Guarantees: a name is compared by whole words, so H20 never takes H200, nor B200 a GB200, nor L4 an L40; a name that
the table does not know, or that fits more than one of its parts, is None and never a default. Peaks are dense, per
part, as the table's sources print them, with their disagreements kept beside them.

Deliberately not: no look at the machine, no share of a peak for a MIG instance or a vGPU (both are None), no guess for
a part that resembles a listed one. The figures are in `schemas/data/gpu_peaks.json`, read once, at the first question.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib import resources
from typing import Any

__all__ = ["GpuPart", "ThermalLimits", "find", "parts", "precision_named"]

_BRAND_VENDOR = {"NVIDIA": "NVIDIA", "TESLA": "NVIDIA", "GEFORCE": "NVIDIA", "AMD": "AMD", "INSTINCT": "AMD"}
_WORDS_WITHOUT_MEANING = frozenset({"GPU", "OAM", "AC"})
_SEPARATOR = re.compile(r"[\s_\-]+")
_MEMORY_SIZE = re.compile(r"(\d+)GB?")
_MEMORY_KIND = re.compile(r"HBM\d\w?")
_FORM = re.compile(r"(?P<form>SXM|PCIE|NVL)(?P<generation>\d*)")
_MIG_PROFILE = re.compile(r"\dG\.\d+GB")

# Vendors print the announced or the usable size of the same memory (192 or 180 GB on B200, 288 or 270 on B300); two
# sizes that are really sold side by side lie further apart (80 and 94 GB on H100).
_MEMORY_SIZE_TOLERANCE = 0.10

# One MI250X is two devices to the runtime, each with half of everything.
_DEVICES_PER_PART = {"MI250X": 2}

# Listed beside another part, with the remark that its rates are lower: identified, but its limits are not known.
_RATES_UNKNOWN = frozenset({"NVIDIA GeForce RTX 4090 D"})

_PRECISION_NAMES = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "tensorfloat32": "tf32",
    "float8": "fp8",
    "e4m3": "fp8",
    "e5m2": "fp8",
    "mxfp8": "fp8",
}


@dataclass(frozen=True)
class ThermalLimits:
    """Temperatures at which a part slows or stops, in degrees Celsius; None where no source prints one.

    The `tlimit_*` offsets are relative to the part's T.Limit reference as `nvidia-smi -q` prints it, not absolute.
    """

    max_operating_c: float | None = None
    slowdown_c: float | None = None
    """Also where a source says only "about"; `source` then says so."""
    shutdown_c: float | None = None
    memory_max_operating_c: float | None = None
    tlimit_slowdown_offset_c: float | None = None
    tlimit_shutdown_offset_c: float | None = None
    source: str | None = None


@dataclass(frozen=True)
class GpuPart:
    """One part of the table. Read-only: every caller is given the same object."""

    model: str
    vendor: str
    architecture: str
    peak_dense_tflops: Mapping[str, float]
    """Precision to TFLOP/s (TOP/s for int8), dense, fp32 accumulation, for the whole part."""
    memory_gb: tuple[float, ...]
    """One size, or each size that is sold under this name."""
    memory_bandwidth_gb_s: float | None
    """GB/s, 10^9; None where the sizes differ in it."""
    tdp_w: float | None
    base_clock_mhz: float | None
    boost_clock_mhz: float | None
    """The boost clock for which the datasheet states its peak."""
    max_sm_clock_mhz: float | None
    """The highest SM clock that the driver reports; above the boost clock on some parts (H100: 1980 against 1830)."""
    thermal: ThermalLimits
    names: tuple[str, ...]
    """Device names as drivers print them."""
    measured_max_matmul_bf16_tflops: float | None
    """Best matrix product measured by others: a practical ceiling."""
    devices_per_part: int
    """Devices that the runtime shows for one part (2 on MI250X)."""
    confidence: str
    caveats: tuple[str, ...]
    """Where sources disagree and what the figures do not cover."""

    def device_peak_tflops(self, precision: str) -> float | None:
        """Dense peak of one device as the runtime counts devices.

        Args:
            precision: Such as `bf16` or `fp8`; framework names (`bfloat16`, `e4m3`) are understood.

        Returns:
            TFLOP/s, or None where the part has no such tensor peak in the table.
        """
        peak = self.peak_dense_tflops.get(precision_named(precision))
        return None if peak is None else peak / self.devices_per_part

    def clock_scaled_peak_tflops(self, precision: str, sm_clock_mhz: float) -> float | None:
        """Dense peak of one device at a given SM clock: peak * clock / spec boost clock.

        Args:
            precision: As for `device_peak_tflops`.
            sm_clock_mhz: The SM clock held, in MHz.

        Returns:
            TFLOP/s, or None where the peak or the clock that it assumes is not known.
        """
        peak = self.device_peak_tflops(precision)
        if peak is None or self.boost_clock_mhz is None:
            return None
        return peak * sm_clock_mhz / self.boost_clock_mhz


def precision_named(name: str) -> str:
    """The table's word for a precision; a word that it does not know comes back in lower case."""
    word = name.strip().lower().removeprefix("torch.")
    if word.startswith(("float8_", "fp8_")):
        return "fp8"
    return _PRECISION_NAMES.get(word, word)


def parts() -> tuple[GpuPart, ...]:
    """Every part of the table, in its order."""
    return tuple(row.part for row in _table().rows)


@functools.lru_cache(maxsize=1024)
def find(nvml_name: str) -> GpuPart | None:
    """The part with this name, or None when the table cannot say which one it is.

    Case is ignored; space, hyphen and underscore are alike; a leading NVIDIA, Tesla, GeForce, AMD or Instinct may be
    missing. A name that the table lists is taken first. Else the name must have the words of one part's model name
    (`H100 SXM5`, `A100-SXM-80GB`, `H200 141GB`): the form may be left out only where the table knows one form of the
    product, `SXM` without a number fits each generation, and a memory size must be the part's (within 10 %, as
    announced and usable sizes differ).

    A slower variant that the table lists under another part (`RTX 4090 D`) comes back without peaks, clocks and power.
    None, then, for: a part not listed; a name that fits two parts (`H100`, `A100 80GB`); a word that makes another
    part of it (`RTX 4090 Laptop GPU`, `V100-SXM3-32GB`, a vGPU's `A100-40C`); and a MIG instance, whose peak is a
    share of the SMs. A MIG parent keeps the name of the whole part, which this function cannot tell apart.

    Args:
        nvml_name: As NVML, ROCm or a job description gives it.
    """
    words = [word for word in _SEPARATOR.split(nvml_name.strip("\0 \t\r\n").upper()) if word]
    if any(word == "MIG" or _MIG_PROFILE.search(word) for word in words):
        return None
    name = _parse_name(words)
    table = _table()
    listed = table.by_listed_name.get(name.listed_key)
    if listed is not None:
        return listed.part if name.vendor in (None, listed.part.vendor) else None
    # What a driver prints without a form (H200) stays that part when a memory size is added to it.
    bare = table.by_listed_name.get(name.product)
    if bare is not None and name.form is None:
        return bare.part if name.vendor in (None, bare.part.vendor) and _memory_fits(name, bare) else None
    fitting = [row for row in table.rows if name.product and _is_product(name, row)]
    if name.form is None and len({row.name.form for row in fitting}) > 1:
        return None
    fitting = [row for row in fitting if _form_fits(name, row) and _memory_fits(name, row)]
    return fitting[0].part if len(fitting) == 1 else None


@dataclass(frozen=True)
class _Name:
    """A device name taken apart."""

    listed_key: tuple[str, ...]
    vendor: str | None
    product: tuple[str, ...]
    form: str | None
    generation: str
    memory_gb: tuple[float, ...]


@dataclass(frozen=True)
class _Row:
    part: GpuPart
    name: _Name


@dataclass(frozen=True)
class _Table:
    rows: tuple[_Row, ...]
    by_listed_name: Mapping[tuple[str, ...], _Row]


def _parse_name(words: list[str]) -> _Name:
    vendor: str | None = None
    start = 0
    while start < len(words) and words[start] in _BRAND_VENDOR:
        vendor = vendor or _BRAND_VENDOR[words[start]]
        start += 1
    product: list[str] = []
    memory_gb: list[float] = []
    form: str | None = None
    generation = ""
    for word in words[start:]:
        form_match = _FORM.fullmatch(word)
        memory_match = _MEMORY_SIZE.fullmatch(word)
        if form_match is not None and form is None:
            form, generation = form_match["form"], form_match["generation"]
        elif memory_match is not None:
            memory_gb.append(float(memory_match[1]))
        elif word not in _WORDS_WITHOUT_MEANING and not _MEMORY_KIND.fullmatch(word):
            product.append(word)
    return _Name(tuple(words[start:]), vendor, tuple(product), form, generation, tuple(memory_gb))


def _is_product(name: _Name, row: _Row) -> bool:
    return name.product == row.name.product and name.vendor in (None, row.part.vendor)


def _form_fits(name: _Name, row: _Row) -> bool:
    if name.form is None:
        return True
    if name.form == "NVL" and name.generation:
        # NVL72 is a rack of GB200 or GB300, not a form of the GPU.
        return row.name.product[0].startswith("GB")
    if row.name.form is None:
        return name.form == "PCIE" and not name.generation
    same_generation = not name.generation or not row.name.generation or name.generation == row.name.generation
    return name.form == row.name.form and same_generation


def _memory_fits(name: _Name, row: _Row) -> bool:
    return all(
        any(abs(size - listed) <= _MEMORY_SIZE_TOLERANCE * listed for listed in row.part.memory_gb)
        for size in name.memory_gb
    )


@functools.cache
def _table() -> _Table:
    text = resources.files("schemas").joinpath("data", "gpu_peaks.json").read_text(encoding="utf-8")
    rows: list[_Row] = []
    by_listed_name: dict[tuple[str, ...], _Row] = {}
    for entry in json.loads(text)["gpus"]:
        part = _part(entry)
        row = _Row(part, _parse_name(_SEPARATOR.split(part.model.upper())))
        rows.append(row)
        for listed in (part.model, *part.names):
            key = _parse_name(_SEPARATOR.split(listed.upper())).listed_key
            if by_listed_name.setdefault(key, row) is not row:
                msg = f"gpu_peaks.json lists the name {listed!r} for two parts; a name must tell which part it is"
                raise ValueError(msg)
            if listed in _RATES_UNKNOWN:
                by_listed_name[key] = replace(row, part=_without_rates(part, listed))
    return _Table(tuple(rows), by_listed_name)


def _part(entry: Mapping[str, Any]) -> GpuPart:
    clocks: Mapping[str, Any] = entry.get("clock_mhz", {})
    bandwidths = _each(entry.get("memory_bandwidth_gb_s"))
    caveats = [*entry.get("disagreements", ()), *([entry["notes"]] if "notes" in entry else [])]
    return GpuPart(
        model=entry["model"],
        vendor=entry["vendor"],
        architecture=entry["architecture"],
        peak_dense_tflops={precision: float(peak) for precision, peak in entry["peak_dense_tflops"].items()},
        memory_gb=_each(entry.get("memory_gb")),
        memory_bandwidth_gb_s=bandwidths[0] if len(bandwidths) == 1 else None,
        tdp_w=_figure(entry, "tdp_w"),
        base_clock_mhz=_figure(clocks, "base"),
        boost_clock_mhz=_figure(clocks, "boost"),
        max_sm_clock_mhz=_figure(clocks, "max_sm"),
        thermal=_thermal(entry.get("thermal_c", {})),
        names=(*entry["nvml_names"], *entry.get("aliases", ())),
        measured_max_matmul_bf16_tflops=_figure(entry, "measured_max_matmul_bf16_tflops"),
        devices_per_part=_DEVICES_PER_PART.get(entry["model"], 1),
        confidence=entry["confidence"],
        caveats=tuple(caveats),
    )


def _without_rates(part: GpuPart, listed: str) -> GpuPart:
    return replace(
        part,
        model=listed.removeprefix(f"{part.vendor} "),
        peak_dense_tflops={},
        measured_max_matmul_bf16_tflops=None,
        tdp_w=None,
        base_clock_mhz=None,
        boost_clock_mhz=None,
        max_sm_clock_mhz=None,
        names=(listed,),
    )


def _thermal(entry: Mapping[str, Any]) -> ThermalLimits:
    about = "slowdown_about" in entry
    source = entry.get("how")
    return ThermalLimits(
        max_operating_c=_figure(entry, "max_operating"),
        slowdown_c=_figure(entry, "slowdown_about" if about else "slowdown"),
        shutdown_c=_figure(entry, "shutdown"),
        memory_max_operating_c=_figure(entry, "hbm_max" if "hbm_max" in entry else "memory_max_operating"),
        tlimit_slowdown_offset_c=_figure(entry, "tlimit_slowdown_offset"),
        tlimit_shutdown_offset_c=_figure(entry, "tlimit_shutdown_offset"),
        source=f"slowdown is approximate; {source or 'no source named'}" if about else source,
    )


def _figure(entry: Mapping[str, Any], key: str) -> float | None:
    value = entry.get(key)
    return None if value is None else float(value)


def _each(value: Any) -> tuple[float, ...]:
    if value is None:
        return ()
    return tuple(float(item) for item in value) if isinstance(value, list) else (float(value),)
