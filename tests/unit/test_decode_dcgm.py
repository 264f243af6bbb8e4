"""GPU telemetry of DCGM and nvidia-smi becomes samples in which nothing is invented and no blank is a number."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.decode import dcgm, dcgm_dmon, dcgm_prometheus
from agents.decode.dcgm_fields import BLANK_INT32, BLANK_INT64, FIELDS, Scale, is_blank
from agents.decode.driver import encode
from agents.decode.quantity import Unreadable, integer, is_unknown, number, times
from agents.decode.record import Damaged, Record, Tally, UnknownFormat


def decode(text: str | bytes) -> list[Record]:
    data = text.encode() if isinstance(text, str) else text
    return list(dcgm.decode(io.BytesIO(data), Tally()))


def only(text: str) -> Record:
    (record,) = decode(text)
    return record


# --- dmon


def test_columns_come_from_the_header_and_missing_cells_are_null() -> None:
    record = only("#Entity   SMCLK   POWER   FANSP\nID\nGPU 4     1410    N/A     N/A\n")
    assert record == {
        "kind": "gpu_sample",
        "entity": "gpu",
        "gpu_index": 4,
        "gpu_uuid": None,
        "pci_bus_id": None,
        "sm_clock_mhz": 1410,
        "power_w": None,
        "fan_speed_pct": None,
    }


def test_a_blank_cell_does_not_shift_the_ones_behind_it() -> None:
    record = only("#Entity   PVIOL        TVIOL        RVIOL\nID\nGPU 1                  72000        0\n")
    assert (record["power_violation_ns"], record["thermal_violation_ns"], record["reliability_violation_ns"]) == (
        None,
        72000,
        0,
    )


def test_right_aligned_columns_of_old_releases_are_read() -> None:
    samples = decode("# Entity  SMCLK  TENSO\n      Id\n   GPU 0   1980  0.527\n   GPU 1         0.002\n")
    assert [(s["sm_clock_mhz"], s["tensor_active_ratio"]) for s in samples] == [(1980, 0.527), (None, 0.002)]


def test_a_line_of_units_below_the_header_is_no_row() -> None:
    samples = decode("#Entity   TMPTR   POWER\nID         C       W\nGPU 0     61      402.5\n")
    assert [(s["gpu_temp_c"], s["power_w"]) for s in samples] == [(61, 402.5)]


def test_a_repeated_header_changes_the_columns() -> None:
    samples = decode("#Entity  SMCLK\nID\nGPU 0    1\n#Entity  POWER\nID\nGPU 0    2\n")
    assert samples[0]["sm_clock_mhz"] == 1
    assert "power_w" not in samples[0]
    assert samples[1]["power_w"] == 2


def test_a_cell_that_was_cut_is_null_even_where_it_touches_the_next() -> None:
    record = only("#Entity   NLXMITB       NLRCVB\nID\nGPU 0     9365809456...936540\n")
    assert (record["nvlink_tx_bytes"], record["nvlink_rx_bytes"]) == (None, 936540)


def test_two_cells_that_fill_their_columns_are_told_apart() -> None:
    record = only("#Entity   NLXMITB    NLRCVB     NLRCVP\nID\nGPU 0     1234567890122234567890\n")
    assert (record["nvlink_tx_bytes"], record["nvlink_rx_bytes"], record["nvlink_rx_packets"]) == (
        12345678901,
        22234567890,
        None,
    )


def test_a_cell_of_several_words_is_one_cell() -> None:
    record = only("#Entity   DVNAM                 POWER\nID\nGPU 0     NVIDIA H100 80GB HBM3 402.5\n")
    assert record["other"] == {"DVNAM": "NVIDIA H100 80GB HBM3"}
    assert record["power_w"] == 402.5


def test_an_entity_wider_than_its_column_pushes_all_cells() -> None:
    record = only("#Entity   SMCLK   POWER\nID\nGPU 12 LINK 11 5    6\n")
    assert (record["gpu_index"], record["link_index"], record["sm_clock_mhz"], record["power_w"]) == (12, 11, 5, 6)


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ("GPU-I 21  1.0", {"entity": "gpu_instance", "gpu_index": None, "dcgm_entity_id": 21}),
        ("GPU-CI 3  1.0", {"entity": "compute_instance", "gpu_index": None, "dcgm_entity_id": 3}),
        ("Switch 2  1.0", {"entity": "switch", "gpu_index": None, "switch_index": 2}),
        ("CPU 1     1.0", {"entity": "cpu", "gpu_index": None, "cpu_index": 1}),
        ("CPU Core 7 1.0", {"entity": "cpu", "core_index": 7}),
    ],
)
def test_the_number_of_an_entity_is_a_gpu_index_only_for_gpus(row: str, expected: Record) -> None:
    record = only(f"#Entity   SMACT\nID\n{row}\n")
    assert record | expected == record
    assert record["sm_active_ratio"] == 1.0
    assert "gpu_instance_id" not in record


def test_a_row_of_nothing_but_nulls_is_a_record() -> None:
    record = only("#Entity  SMCLK  POWER\nID\nGPU 7\n")
    assert (record["gpu_index"], record["sm_clock_mhz"], record["power_w"]) == (7, None, None)


def test_an_error_among_the_rows_is_a_collector_error_and_the_farewell_is_nothing() -> None:
    records = decode(
        "# Entity  TENSO\n      Id\nError setting watches. Result: module failed\n"
        "GPU 2 is lost\n\ndmon was stopped due to receiving a signal.\n"
    )
    assert [record["kind"] for record in records] == ["collector_error", "collector_error"]
    assert records[1]["message"] == "GPU 2 is lost"


def test_values_without_a_header_above_them_are_malformed() -> None:
    (record,) = decode("GPU 0     1980   312.4\n")
    assert (record["kind"], record["line"]) == ("malformed", 1)


def test_columns_without_a_field_go_to_other_under_their_own_name() -> None:
    record = only("#Entity  SVIOL  NVLTX\nID\nGPU 0    0      N/A\n")
    assert record["other"] == {"SVIOL": 0, "NVLTX": None}


def test_a_terminal_s_colours_and_line_ends_do_not_matter() -> None:
    record = only("#Entity   SMCLK\r\nID\r\n\x1b[1mGPU 0     1410\x1b[0m\r\n")
    assert record["sm_clock_mhz"] == 1410


# --- plain lines


def test_plain_lines_name_their_field_in_either_way() -> None:
    samples = decode("GPU 0 GPUTL 97\nGPU 1 DCGM_FI_DEV_SM_CLOCK 1980\nGPU-I 2 SMACT N/A\nGPU 3 WHAT 5\n")
    assert samples[0]["gpu_util_pct"] == 97
    assert samples[1]["sm_clock_mhz"] == 1980
    assert samples[2]["sm_active_ratio"] is None
    assert samples[3]["other"] == {"WHAT": 5}


@pytest.mark.parametrize("value", ["4294967295", "118373", "101", "-1"])
def test_an_impossible_percentage_is_null_and_said_so(value: str) -> None:
    record = only(f"GPU 0 GPUTL {value}\n")
    assert record["gpu_util_pct"] is None
    assert record["implausible"] == ["gpu_util_pct"]


def test_minus_one_of_something_else_is_merely_unknown() -> None:
    record = only("GPU 0 XIDER -1\n")
    assert record["last_xid"] is None
    assert "implausible" not in record


@pytest.mark.parametrize("name", ["PCILG", "PCILW"])
def test_a_link_of_generation_or_width_zero_cannot_be(name: str) -> None:
    assert only(f"GPU 0 {name} 0\n")["implausible"]


# --- Prometheus


def test_one_metric_line_is_one_sample_with_its_identity() -> None:
    record = only(
        'DCGM_FI_DEV_GPU_TEMP{gpu="3",UUID="GPU-x",pci_bus_id="00000000:CB:00.0",device="nvidia3",'
        'modelName="NVIDIA H100",Hostname="n1",container="c",namespace="ml",pod="p-0"} 61 1700000000123\n'
    )
    expected = {
        "entity": "gpu",
        "gpu_index": 3,
        "gpu_uuid": "GPU-x",
        "pci_bus_id": "0000:cb:00",
        "gpu_temp_c": 61,
        "hostname": "n1",
        "namespace": "ml",
        "pod": "p-0",
        "container": "c",
        "wall_time_us": 1_700_000_000_123_000,
    }
    assert record | expected == record


@pytest.mark.parametrize(
    ("labels", "pod"),
    [
        ('exported_pod="train",pod="dcgm-exporter-x"', "train"),
        ('pod_name="train",pod="dcgm-exporter-x"', "train"),
        ('Pod="train"', "train"),
        ('pod=""', None),
        ('exported_pod="",pod="dcgm-exporter-x"', None),
    ],
)
def test_the_pod_is_the_workload_s_in_every_label_dialect(labels: str, pod: str | None) -> None:
    record = only(f'DCGM_FI_DEV_GPU_TEMP{{gpu="0", {labels}}} 61\n')
    assert record["pod"] == pod


def test_a_label_that_is_absent_is_not_stated() -> None:
    assert "pod" not in only('DCGM_FI_DEV_GPU_TEMP{gpu="0"} 61\n')


@pytest.mark.parametrize(
    ("name", "field"),
    [
        ("dcgm_sm_clock", "sm_clock_mhz"),
        ("dcgm_memory_clock", "mem_clock_mhz"),
        ("dcgm_gpu_utilization", "gpu_util_pct"),
        ("dcgm_mem_copy_utilization", "mem_copy_util_pct"),
        ("dcgm_ecc_dbe_volatile_total", "ecc_dbe_volatile_count"),
        ("dcgm_fi_prof_pipe_fp16_active", "fp16_active_ratio"),
        ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "clock_event_reasons_mask"),
        ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "clock_event_reasons_mask"),
        ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER_total", "pcie_replay_count"),
    ],
)
def test_old_new_and_lower_case_names_are_the_same_fields(name: str, field: str) -> None:
    assert only(f'{name}{{gpu="0"}} 1\n')[field] == 1


def test_a_name_that_means_percent_in_one_release_and_ratio_in_the_next_is_read_by_its_form() -> None:
    assert only('DCGM_FI_DEV_GPU_UTIL_RATIO{gpu="0"} 97\n')["gpu_util_pct"] == 97
    assert only('DCGM_FI_DEV_GPU_UTIL_RATIO{gpu="0"} 0.970000\n')["other"] == {"DCGM_FI_DEV_GPU_UTIL_RATIO": 0.97}


def test_mig_labels_make_it_a_gpu_instance_of_a_gpu() -> None:
    record = only('DCGM_FI_PROF_SM_ACTIVE{gpu="1",UUID="GPU-x",GPU_I_PROFILE="1g.10gb",GPU_I_ID="7"} 0.5\n')
    assert (record["entity"], record["gpu_index"], record["gpu_instance_id"]) == ("gpu_instance", 1, 7)
    assert "dcgm_entity_id" not in record


def test_empty_mig_labels_are_a_whole_gpu() -> None:
    record = only('DCGM_FI_DEV_GPU_TEMP{gpu="1",GPU_I_PROFILE="",GPU_I_ID=""} 50\n')
    assert record["entity"] == "gpu"
    assert "gpu_instance_id" not in record


def test_windows_of_the_exporter_keep_their_labels() -> None:
    xid, clock = decode(
        'DCGM_EXP_XID_ERRORS_COUNT{gpu="0",window_size_in_ms="300000",xid="31"} 2\n'
        'DCGM_EXP_CLOCK_EVENTS_COUNT{gpu="0",clock_event="hw_thermal",window_size_in_ms="60000"} 4\n'
    )
    assert (xid["xid"], xid["xid_window_count"], xid["window_ms"]) == (31, 2, 300000)
    assert (clock["clock_event"], clock["clock_event_window_count"], clock["window_ms"]) == ("hw_thermal", 4, 60000)
    assert "last_xid" not in xid


def test_the_sticky_xid_gauge_with_its_message_labels() -> None:
    record = only('DCGM_FI_DEV_XID_ERRORS{gpu="0",err_code="31",err_msg="page \\"fault\\", here"} 31\n')
    assert (record["last_xid"], record["last_xid_text"]) == (31, 'page "fault", here')
    assert "read_error" not in record


def test_metrics_of_other_programs_and_the_exporter_s_own_are_nothing() -> None:
    text = 'go_goroutines 8\nup{job="x"} 1\ndcgm_exporter_scrapes 5\nDCGM_FI_DEV_GPU_TEMP{gpu="0"} 61\n# EOF\n'
    assert len(decode(text)) == 1


def test_an_exposition_of_help_texts_alone_is_read_and_empty() -> None:
    assert decode("# HELP DCGM_FI_DEV_GPU_TEMP in C\n# TYPE DCGM_FI_DEV_GPU_TEMP gauge\n") == []


@pytest.mark.parametrize("line", ['DCGM_FI_DEV_GPU_TEMP{gpu="0"', 'DCGM_FI_DEV_GPU_TEMP{gpu="0"}', "dcgm_x{gpu=0} 1"])
def test_a_metric_line_that_cannot_be_read_is_malformed_and_the_rest_is_read(line: str) -> None:
    records = decode(f'{line}\nDCGM_FI_DEV_GPU_TEMP{{gpu="1"}} 61\n')
    assert [record["kind"] for record in records] == ["malformed", "gpu_sample"]
    assert records[0]["line"] == 1


def test_violations_stay_nanoseconds_whatever_the_help_text_says() -> None:
    record = only('# HELP DCGM_FI_DEV_POWER_VIOLATION Throttling (in us).\nDCGM_FI_DEV_POWER_VIOLATION{gpu="0"} 123\n')
    assert record["power_violation_ns"] == 123


def test_a_scrape_is_joined_to_one_record_for_each_entity() -> None:
    joined = dcgm_prometheus.by_gpu(
        'DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a"} 61\n'
        'DCGM_FI_DEV_GPU_TEMP{gpu="1",UUID="GPU-b"} 62\n'
        'DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-a"} 1980\n'
        'DCGM_EXP_XID_ERRORS_COUNT{gpu="0",UUID="GPU-a",window_size_in_ms="5",xid="31"} 2\n'
        'DCGM_EXP_XID_ERRORS_COUNT{gpu="0",UUID="GPU-a",window_size_in_ms="5",xid="43"} 1\n'
    )
    assert [record["gpu_index"] for record in joined] == [0, 1]
    assert (joined[0]["gpu_temp_c"], joined[0]["sm_clock_mhz"]) == (61, 1980)
    assert joined[0]["xid_windows"] == [
        {"xid": 31, "count": 2, "window_ms": 5},
        {"xid": 43, "count": 1, "window_ms": 5},
    ]


# --- nvidia-smi


CSV = "index, uuid, pci.bus_id, pstate, power.draw [W], memory.used [MiB], utilization.gpu [%], clocks_throttle_reasons.active\n"


@pytest.mark.parametrize(
    "row",
    [
        "3, GPU-x, 00000000:5D:00.0, P0, 412.50 W, 1024 MiB, 97 %, 0x0000000000000048\n",
        "3, GPU-x, 00000000:5D:00.0, P0, 412.50, 1024, 97, 0x0000000000000048\n",
    ],
)
def test_csv_is_read_with_and_without_units(row: str) -> None:
    record = only(CSV + row)
    expected = {
        "gpu_index": 3,
        "gpu_uuid": "GPU-x",
        "pci_bus_id": "0000:5d:00",
        "pstate": 0,
        "power_w": 412.5,
        "fb_used_mib": 1024,
        "gpu_util_pct": 97,
        "clock_event_reasons_mask": 72,
    }
    assert record | expected == record


def test_missing_is_null_and_a_fault_is_null_and_told() -> None:
    missing, lost = decode(
        CSV
        + "0, GPU-x, 00000000:5D:00.0, [N/A], [Not Supported], N/A, [N/A], [N/A]\n"
        + "1, [GPU is lost], [GPU is lost], "
        + ", ".join(["[GPU is lost]"] * 5)
        + "\n"
    )
    assert "read_error" not in missing
    assert missing["power_w"] is None
    assert lost["read_error"] == "GPU is lost"
    assert lost["gpu_uuid"] is None
    assert lost["clock_event_reasons_mask"] is None


@pytest.mark.parametrize("fault", ["Unknown Error", "GPU is lost", "GPU requires reset"])
def test_each_fault_is_told_without_brackets(fault: str) -> None:
    record = only(f"index, power.draw [W]\n0, [{fault}]\n")
    assert (record["read_error"], record["power_w"]) == (fault, None)


def test_a_row_of_other_cells_than_the_header_s_is_malformed_and_a_message_an_error() -> None:
    records = decode(CSV + "3, GPU-x\nUnable to determine the device handle for GPU0000:5D:00.0: GPU is lost.\n")
    assert [record["kind"] for record in records] == ["malformed", "collector_error"]


@pytest.mark.parametrize(
    "message",
    [
        "NVIDIA-SMI has failed because it could not talk to the driver.",
        "Error: unable to establish a connection to the specified host engine: localhost",
        "No devices were found",
    ],
)
def test_a_tool_that_only_failed_is_recognised_by_what_it_says(message: str) -> None:
    assert only(f"{message}\n") == {"kind": "collector_error", "message": message}


# --- JSON


def test_an_object_a_list_and_lines_of_objects_give_the_same_samples() -> None:
    items: list[dict[str, Any]] = [
        {"entityId": n, "fields": {"DCGM_FI_DEV_GPU_TEMP": 30 + n, "DCGM_FI_DEV_NAME": "x"}} for n in range(3)
    ]
    as_list = decode(json.dumps(items, indent=1))
    assert as_list == decode("\n".join(json.dumps(item) for item in items))
    assert as_list == [record for item in items for record in decode(json.dumps(item, indent=2))]
    assert [record["gpu_temp_c"] for record in as_list] == [30, 31, 32]
    assert as_list[0]["other"] == {"DCGM_FI_DEV_NAME": "x"}


def test_a_broken_object_costs_itself_only() -> None:
    records = decode('{"entityId":0,"fields":{}}\n{"entityId":1,"fie\n{"entityId":2,"fields":{}}\n')
    assert [record["kind"] for record in records] == ["gpu_sample", "malformed", "gpu_sample"]
    assert records[1]["line"] == 2


def test_a_list_cut_at_its_end_keeps_its_whole_elements() -> None:
    records = decode('[\n{"entityId":0,"fields":{"DCGM_FI_DEV_GPU_TEMP":5}},\n{"entityId":1,"fields":{"DCGM')
    assert [record["kind"] for record in records] == ["gpu_sample", "malformed"]


def test_an_entity_without_fields_is_malformed() -> None:
    assert [record["kind"] for record in decode('[{"entityId":0,"fields":{}},{"entityId":1}]')] == [
        "gpu_sample",
        "malformed",
    ]


def test_json_of_nothing_readable_is_damaged() -> None:
    with pytest.raises(Damaged):
        decode('{"entityId": 0,\n "fields": {"DCGM')


@pytest.mark.parametrize(
    "text", ["hello\n", "Error: no such file\n", '{"a": 1}', "gpu,util,pcie_gen_cur\n0,1,2\n", "[1, 2]"]
)
def test_what_is_no_telemetry_is_of_no_known_format(text: str) -> None:
    with pytest.raises(UnknownFormat):
        decode(text)


@pytest.mark.parametrize("text", ["", "\n\n", "  \r\n"])
def test_an_empty_file_is_read_and_empty(text: str) -> None:
    assert decode(text) == []


# --- laws


@given(st.binary(max_size=400) | st.text(max_size=400).map(str.encode))
def test_no_bytes_end_in_anything_but_the_two_refusals(data: bytes) -> None:
    try:
        for record in decode(data):
            json.loads(encode(record))
    except (UnknownFormat, Damaged):
        pass


PIECES = st.sampled_from(
    [
        "#Entity  SMCLK  POWER\n",
        "ID\n",
        "GPU 0",
        "GPU-I 3",
        "  ",
        "\t",
        "1980",
        "N/A",
        "...",
        "\n",
        ",",
        "index, power.draw [W]\n",
        "DCGM_FI_DEV_GPU_TEMP",
        '{gpu="0"}',
        '{gpu="',
        " 61",
        "[",
        "{",
        "]",
        '"fields":{',
        '"entityId":',
        "}",
        "[GPU is lost]",
        "0x48",
    ]
)


@given(st.lists(PIECES, max_size=30).map("".join))
def test_no_jumble_of_familiar_pieces_ends_in_anything_else(text: str) -> None:
    try:
        for record in decode(text):
            json.loads(encode(record))
    except (UnknownFormat, Damaged):
        pass


BLANKS = st.one_of(
    st.integers(BLANK_INT32, 2**31 - 1),
    st.integers(BLANK_INT64, 2**64),
    st.sampled_from([140737488355328.0, 140737488355329.0, 9.223372036854775807e18, float("nan"), float("inf")]),
)


@given(st.sampled_from(sorted(FIELDS)), BLANKS)
def test_a_blank_never_comes_out_as_a_number(name: str, blank: float) -> None:
    assert is_blank(blank, FIELDS[name].scale)
    assert is_blank(blank, Scale.OPEN)


@given(BLANKS)
def test_a_blank_is_null_in_every_sub_format(blank: float) -> None:
    for text in (
        f"GPU 0 POWER {blank!r}\n",
        f"GPU 0 WHAT {blank!r}\n",
        f'DCGM_FI_DEV_POWER_USAGE{{gpu="0"}} {blank!r}\n',
        json.dumps({"entityId": 0, "fields": {"DCGM_FI_DEV_POWER_USAGE": blank}}),
        f"index, power.draw [W]\n0, {blank!r}\n",
    ):
        record = only(text)
        assert record.get("power_w") is None
        assert list(record.get("other", {"": None}).values()) == [None]


@given(st.integers(0, 2147483631))
def test_a_counter_that_is_no_blank_comes_out_exactly(value: int) -> None:
    for count in (value, value + 2**31, value << 20):
        if count in range(140737488355328, 140737488355332):
            continue
        assert only(f"GPU 0 PVIOL {count}\n")["power_violation_ns"] == count
        assert only(f'DCGM_FI_DEV_POWER_VIOLATION{{gpu="0"}} {count}\n')["power_violation_ns"] == count


@given(st.lists(st.none() | st.integers(0, 99999), min_size=1, max_size=6))
def test_any_pattern_of_blank_cells_keeps_every_value_in_its_column(values: list[int | None]) -> None:
    names = ["SMCLK", "MMCLK", "TOTEC", "NLRCVB", "PVIOL", "TVIOL"][: len(values)]
    header = "#Entity   " + "".join(f"{name:<9}" for name in names)
    row = "GPU 0     " + "".join(f"{'' if value is None else value:<9}" for value in values)
    record = next(dcgm_dmon.samples(f"{header}\nID\n{row}\n"))
    fields = {
        "SMCLK": "sm_clock_mhz",
        "MMCLK": "mem_clock_mhz",
        "TOTEC": "energy_millijoules",
        "NLRCVB": "nvlink_rx_bytes",
        "PVIOL": "power_violation_ns",
        "TVIOL": "thermal_violation_ns",
    }
    for name, value in zip(names, values, strict=True):
        field = fields[name]
        possible = value is not None and FIELDS[field].can_be(value)
        assert record[field] == (value if possible else None)


# --- numbers as tools print them


@given(st.integers(0, 2**64 - 1))
def test_a_number_with_separators_is_the_number(value: int) -> None:
    assert integer(f"{value:,}") == integer(str(value)) == value


@pytest.mark.parametrize(
    ("text", "value"), [("11.5K", 11500), ("88.1M", 88_100_000), ("2G", 2 * 10**9), ("1.2E+03", 1200)]
)
def test_suffixes_and_exponents_are_resolved(text: str, value: int) -> None:
    assert number(text) == integer(text) == value


@pytest.mark.parametrize(
    "text", ["N/A", "[N/A]", "[Not Supported]", "<unknown>", "", "NaN", "12...", "<<<NULL>>>", "-", "N/A (no PMA)"]
)
def test_every_spelling_of_unknown_is_none(text: str) -> None:
    assert is_unknown(text)
    assert number(text) is None
    assert integer(text) is None


@pytest.mark.parametrize("text", ["abc", "1,2", "1..2", "0x", "--1", "1 2", "Active"])
def test_what_is_neither_number_nor_unknown_is_refused(text: str) -> None:
    with pytest.raises(Unreadable):
        number(text)


def test_what_does_not_fit_into_64_bits_is_none() -> None:
    assert integer(str(2**64)) is None
    assert times(2**63, 4) is None
    assert times(None, 4) is None


# --- numbers that are too wide, and numbers with separators


def test_an_entity_number_is_read_up_to_64_bits() -> None:
    header = "#Entity  SMCLK\n"
    assert only(f"{header}GPU 99999999999  1410\n")["gpu_index"] == 99999999999
    assert only(f"{header}GPU {2**64 - 1}  1410\n")["gpu_index"] == 2**64 - 1


@pytest.mark.parametrize(
    "row",
    [
        f"GPU {2**64}  1410",
        f"GPU {'9' * 5000}  1410",
        f"GPU 0 LINK {2**64}  1410",
        f"CPU Core {2**64}  1410",
        f"GPU {2**64} SMCLK 1410",
        "GPU -1  1410",
        "GPU 0x1f  N/A",
    ],
)
def test_a_row_whose_entity_has_no_readable_number_is_malformed(row: str) -> None:
    record = only(f"#Entity  SMCLK\n{row}\n")
    assert (record["kind"], record["line"], record["raw"]) == ("malformed", 2, row[:500])


def test_a_plain_line_with_an_unreadable_entity_number_is_malformed_below_a_csv_too() -> None:
    records = decode(f"index, clocks.sm [MHz]\n0, 1410 MHz\nGPU {2**64} SMCLK 1410\n")
    assert [record["kind"] for record in records] == ["gpu_sample", "malformed"]


def test_a_sentence_about_an_entity_is_still_no_row() -> None:
    assert [r["kind"] for r in decode("#Entity  SMCLK\nGPU 99999999999999999999999 is lost\nGPU 3: nothing\n")] == [
        "collector_error"
    ]


@pytest.mark.parametrize(("number", "index"), [(2**64, None), (-(2**70), None), (2**64 - 1, 2**64 - 1)])
def test_an_entity_id_of_json_beyond_64_bits_is_null(number: int, index: int | None) -> None:
    assert only(json.dumps({"entityId": number, "fields": {}}))["gpu_index"] == index


@pytest.mark.parametrize(
    ("row", "total", "used", "power"),
    [
        ("1, 81,559 MiB, 12 MiB, 70.5 W", 81559, 12, 70.5),
        ("1, 183,359 MiB, 1,024 MiB, 70.5 W", 183359, 1024, 70.5),
        ("1, 81,559, [N/A], 1,070.50 W", 81559, None, 1070.5),
        ("1,81,559 MiB,12 MiB,70.5 W", 81559, 12, 70.5),
    ],
)
def test_a_separator_within_a_cell_costs_no_row(row: str, total: int, used: int | None, power: float) -> None:
    record = only(f"index, memory.total [MiB], memory.used [MiB], power.draw [W]\n{row}\n")
    assert (record["gpu_index"], record["fb_total_mib"], record["fb_used_mib"], record["power_w"]) == (
        1,
        total,
        used,
        power,
    )


@pytest.mark.parametrize(
    "row",
    [
        "1,183,359 MiB,12 MiB,70.5 W",  # 1,183 or 183,359
        "1, 81, 559 MiB, 12 MiB, 70.5 W",  # a blank behind the comma: two cells
        "0,559 MiB, 12 MiB, 70.5 W, 3",  # no number begins with zero and a separator
        "1, 81,559 MiB, 12 MiB, 70.5 W, 9",  # one comma, two cells too many
        ",".join(["123"] * 2000),
    ],
)
def test_a_row_that_separators_explain_in_no_way_or_in_several_is_malformed(row: str) -> None:
    header = "index, memory.total [MiB], memory.used [MiB], power.draw [W]"
    assert only(f"{header}\n{row}\n")["kind"] == "malformed"
