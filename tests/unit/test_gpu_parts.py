"""The table of GPU parts and how a device name finds its row."""

import json
import re
from importlib import resources
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from schemas import gpu_parts
from schemas.gpu_parts import find

TABLE: list[dict[str, Any]] = json.loads(
    resources.files("schemas").joinpath("data", "gpu_peaks.json").read_text(encoding="utf-8")
)["gpus"]
# The table's own remark says that this name is a slower part than the row it stands in.
SLOWER_VARIANT = "NVIDIA GeForce RTX 4090 D"
LISTED = [
    (name, row)
    for row in TABLE
    for name in (row["model"], *row["nvml_names"], *row.get("aliases", ()))
    if name != SLOWER_VARIANT
]


def model_of(name: str) -> str | None:
    part = find(name)
    return None if part is None else part.model


@pytest.mark.parametrize(("name", "row"), LISTED, ids=[name for name, _ in LISTED])
def test_each_listed_name_finds_its_row(name: str, row: dict[str, Any]) -> None:
    part = find(name)
    assert part is not None
    assert part.model == row["model"]
    assert dict(part.peak_dense_tflops) == row["peak_dense_tflops"]
    assert part.tdp_w == row["tdp_w"]
    assert part.architecture == row["architecture"]


@given(
    listed=st.sampled_from(LISTED),
    separator=st.sampled_from([" ", "-", "_", "  "]),
    spelling=st.sampled_from([str, str.lower, str.upper]),
    brand=st.sampled_from(["kept", "dropped"]),
)
def test_case_separators_and_a_missing_brand_do_not_matter(
    listed: Any, separator: str, spelling: Any, brand: str
) -> None:
    name, row = listed
    words = re.split(r"[ _-]", name)
    if brand == "dropped":
        words = [word for word in words if word not in ("NVIDIA", "Tesla", "AMD")]
    assert model_of(spelling(separator.join(words))) == row["model"]


@given(listed=st.sampled_from(LISTED), glued=st.text("ABCDEFX0123456789", min_size=1, max_size=3))
def test_letters_glued_to_a_product_never_find_the_shorter_product(listed: Any, glued: str) -> None:
    name, row = listed
    words = name.split(" ")
    position = next(i for i, word in enumerate(words) if any(c.isdigit() for c in word))
    head, *rest = re.split(r"[-_]", words[position])
    words[position] = "-".join([head + glued, *rest])
    # B20 + 0 spells another part and MI325 + X the same one; the part that was extended must not come back otherwise.
    assume(not any(head + glued in re.split(r"[ _-]", listed_name) for listed_name, _ in LISTED))
    found = find(" ".join(words))
    assert found is None or found.model != row["model"]


@pytest.mark.parametrize(
    ("name", "model"),
    [
        ("NVIDIA H20", "H20 96GB"),
        ("NVIDIA H200", "H200 SXM 141GB"),
        ("NVIDIA H200 NVL", "H200 NVL 141GB"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A10G", "A10G"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA B200", "B200 SXM"),
        ("NVIDIA GB200", "GB200"),
        ("GB200 NVL72", "GB200"),
        ("NVIDIA GB300", "GB300"),
        ("NVIDIA B300 SXM6 AC", "B300 SXM"),
        ("H100 SXM5", "H100 SXM5 80GB"),
        ("H100 SXM", "H100 SXM5 80GB"),
        ("h100-sxm5-80gb", "H100 SXM5 80GB"),
        ("H100 PCIe", "H100 PCIe 80GB"),
        ("H100 NVL", "H100 NVL 94GB"),
        ("A100-SXM4-80GB", "A100 SXM4 80GB"),
        ("A100-SXM-80GB", "A100 SXM4 80GB"),
        ("NVIDIA A800-SXM4-80GB", "A100 SXM4 80GB"),
        ("RTX 4090", "GeForce RTX 4090"),
        ("NVIDIA GH200 144G HBM3e", "GH200"),
        ("NVIDIA H200 141GB", "H200 SXM 141GB"),
        ("B200 192GB", "B200 SXM"),
        ("MI300X", "MI300X"),
    ],
)
def test_names_in_use_find_the_right_part(name: str, model: str) -> None:
    assert model_of(name) == model


@pytest.mark.parametrize(
    "name",
    [
        "",
        "NVIDIA",
        "Graphics Device",
        "NVIDIA L40",
        "NVIDIA A100X",
        "NVIDIA H800",
        "NVIDIA GeForce RTX 4090 Laptop GPU",
        "NVIDIA GeForce RTX 4090 Ti",
        "Tesla V100-SXM3-32GB",
        "NVIDIA A100-40C",
        "H100 SXM4",
        "B200 NVL72",
        "AMD H100 SXM5",
        "A100 SXM4 60GB",
    ],
)
def test_a_name_that_the_table_does_not_know_is_none(name: str) -> None:
    assert find(name) is None


@pytest.mark.parametrize(
    "name", ["H100", "NVIDIA H100", "H100 80GB", "H100 94GB", "A100", "A100 80GB", "A100-SXM4", "Tesla V100"]
)
def test_a_name_that_fits_two_parts_is_none(name: str) -> None:
    assert find(name) is None


@pytest.mark.parametrize(
    "name",
    [
        "NVIDIA A100-SXM4-80GB MIG 3g.40gb",
        "NVIDIA H100 80GB HBM3 MIG 1g.10gb+me",
        "NVIDIA H100 80GB HBM3 MIG 1c.2g.20gb",
        "A100_SXM4_80GB_MIG_7g.80gb",
        "MIG 3g.40gb",
    ],
)
def test_a_mig_instance_is_not_the_whole_part(name: str) -> None:
    assert find(name) is None


@given(st.text(max_size=40))
def test_any_text_is_answered(name: str) -> None:
    found = find(name)
    assert found is None or found in gpu_parts.parts() or found.model == "GeForce RTX 4090 D"


def test_a_slower_variant_has_no_peak_of_its_faster_sibling() -> None:
    part = find(SLOWER_VARIANT)
    assert part is not None
    assert part.model == "GeForce RTX 4090 D"
    assert part.device_peak_tflops("bf16") is None
    assert part.tdp_w is None


def test_a_precision_that_a_part_lacks_is_none() -> None:
    v100 = find("Tesla V100-SXM2-32GB")
    assert v100 is not None
    assert v100.device_peak_tflops("bf16") is None
    assert v100.device_peak_tflops("fp16") == 125
    assert v100.device_peak_tflops("torch.float16") == 125
    assert v100.device_peak_tflops("float8_e4m3fn") is None


def test_one_half_of_an_mi250x_has_half_its_peak() -> None:
    part = find("AMD Instinct MI250X")
    assert part is not None
    assert part.peak_dense_tflops["bf16"] == 383
    assert part.device_peak_tflops("bf16") == 191.5


def test_a_peak_scales_with_the_clock_that_it_assumes() -> None:
    h100 = find("NVIDIA H100 80GB HBM3")
    assert h100 is not None
    assert h100.max_sm_clock_mhz == 1980
    assert h100.clock_scaled_peak_tflops("bf16", 1830) == pytest.approx(989.5)
    assert h100.clock_scaled_peak_tflops("bf16", 915) == pytest.approx(989.5 / 2)
    h200 = find("NVIDIA H200")
    assert h200 is not None
    assert h200.boost_clock_mhz is None
    assert h200.clock_scaled_peak_tflops("bf16", 1980) is None


def test_what_the_table_does_not_say_is_none() -> None:
    gh200 = find("NVIDIA GH200 480GB")
    assert gh200 is not None
    assert gh200.memory_bandwidth_gb_s is None
    assert list(gh200.memory_gb) == [96, 144]
    assert gh200.boost_clock_mhz is None
    assert gh200.thermal.slowdown_c is None
    assert gh200.thermal.tlimit_slowdown_offset_c == -2


def test_thermal_limits_keep_their_kind() -> None:
    a100, h100_pcie, gb200 = find("NVIDIA A100-SXM4-80GB"), find("NVIDIA H100 PCIe"), find("NVIDIA GB200")
    assert a100 is not None
    assert (a100.thermal.max_operating_c, a100.thermal.slowdown_c, a100.thermal.shutdown_c) == (85, 89, 92)
    assert a100.thermal.tlimit_slowdown_offset_c is None
    assert h100_pcie is not None
    assert h100_pcie.thermal.memory_max_operating_c == 95
    assert gb200 is not None
    assert gb200.thermal.slowdown_c == 87
    assert "approximate" in (gb200.thermal.source or "")


def test_disagreements_of_sources_stay_with_the_figures() -> None:
    b300 = find("NVIDIA B300 SXM6 AC")
    assert b300 is not None
    assert "int8" not in b300.peak_dense_tflops
    assert any("int8" in caveat for caveat in b300.caveats)
