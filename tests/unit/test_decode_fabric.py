"""Counters of NICs and switches become one record for each port, and what a source does not count stays unknown."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.decode import fabric, fabric_ethtool, fabric_sysfs
from agents.decode.driver import encode
from agents.decode.record import Damaged, Record, Tally, UnknownFormat


def decode(text: str | bytes) -> list[Record]:
    data = text.encode() if isinstance(text, str) else text
    return list(fabric.decode(io.BytesIO(data), Tally()))


def of_kind(kind: str, text: str) -> list[Record]:
    return [record for record in decode(text) if record["kind"] == kind]


# --- ethtool


def test_a_priority_with_counters_is_one_record_and_what_is_absent_is_null() -> None:
    records = decode("NIC statistics:\n     rx_prio4_pause: 12\n     rx_prio4_pause_duration: 90\n")
    assert records == [
        {
            "kind": "pfc",
            "view": "host",
            "device": None,
            "port": None,
            "priority": 4,
            "rx_pause_frames": 12,
            "tx_pause_frames": None,
            "rx_pause_us": 90,
            "tx_pause_us": None,
        }
    ]


def test_priorities_are_in_order_and_those_without_pause_counters_give_none() -> None:
    text = (
        "NIC statistics:\n tx_prio5_pause: 0\n rx_prio3_pause: 7\n rx_prio3_pause_transition: 2\n rx_prio0_bytes: 9\n"
    )
    pfc = of_kind("pfc", text)
    assert [(record["priority"], record["rx_pause_frames"], record["tx_pause_frames"]) for record in pfc] == [
        (3, 7, None),
        (5, None, 0),
    ]
    assert pfc[0]["rx_pause_transitions"] == 2
    assert of_kind("port", text)[0]["counters"] == {"rx_prio0_bytes": 9}


def test_global_pause_and_link_downs_have_fields_and_the_rest_keeps_its_name() -> None:
    (port,) = of_kind(
        "port",
        "NIC statistics:\n rx_global_pause: 1\n rx_global_pause_duration: 2\n tx_global_pause: 3\n"
        " tx_global_pause_duration: 4\n link_down_events_phy: 5\n rx_prio3_buf_discard: 6\n tx_pause_ctrl_phy: 7\n",
    )
    assert port["counters"] == {"rx_prio3_buf_discard": 6, "tx_pause_ctrl_phy": 7}
    assert [port[f"{side}_global_pause_{unit}"] for side in ("rx", "tx") for unit in ("frames", "us")] == [1, 2, 3, 4]
    assert port["link_down_events"] == 5


def test_the_frames_that_end_a_pause_are_not_pause_frames() -> None:
    text = "NIC statistics:\n tx_priority_3_xon.nic: 9\n tx_priority_3_xoff.nic: 2\n rx_errors.nic: 0\n"
    (pfc,) = of_kind("pfc", text)
    assert (pfc["priority"], pfc["tx_pause_frames"], pfc["tx_pause_us"]) == (3, 2, None)
    assert of_kind("port", text)[0]["counters"] == {"rx_errors.nic": 0}


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("rx_pause_prio_2", "rx_pause_frames"),
        ("tx_pause_duration_prio_2", "tx_pause_us"),
        ("port.rx_priority_2_xoff", "rx_pause_frames"),
        ("tx_pfc_ena_frames_pri2", "tx_pause_frames"),
        ("pfc_pri2_rx_duration_us", "rx_pause_us"),
    ],
)
def test_other_drivers_names_are_known(line: str, field: str) -> None:
    (pfc,) = of_kind("pfc", f"NIC statistics:\n     {line}: 5\n")
    assert (pfc["priority"], pfc[field]) == (2, 5)


def test_filtered_output_without_its_title_is_recognised_and_the_command_names_the_device() -> None:
    (pfc,) = decode("# ethtool -S eth03 | grep -i pause\n     rx_prio3_pause: 1\n")
    assert pfc["device"] == "eth03"
    assert len(decode("     rx_prio3_pause: 1\n")) == 1


def test_blocks_without_a_name_are_ports_of_their_own() -> None:
    text = "NIC statistics:\n rx_prio3_pause: 1\nNIC statistics:\n rx_prio3_pause: 2\n"
    assert [record["rx_pause_frames"] for record in decode(text)] == [1, 2]


def test_a_counter_without_a_number_is_malformed() -> None:
    (record,) = decode("NIC statistics:\n     rx_prio3_pause: many\n")
    assert (record["kind"], record["line"]) == ("malformed", 2)


@pytest.mark.parametrize("text", ["no stats available\n", "NIC statistics:\n", "", "\n"])
def test_no_statistics_are_no_record_and_no_error(text: str) -> None:
    assert decode(text) == []


def test_a_collector_names_the_interface_that_it_asked() -> None:
    pfc, port = fabric_ethtool.parse("NIC statistics:\n     rx_prio3_pause: 1\n     rx_bytes: 2\n", "eth1")
    assert (pfc["device"], port["device"], port["counters"]) == ("eth1", "eth1", {"rx_bytes": 2})


# --- sysfs


def ib(path: str, device: str = "mlx5_0", port: int = 1) -> str:
    return f"/sys/class/infiniband/{device}/ports/{port}/{path}\n"


def test_the_files_of_a_port_meet_in_one_record() -> None:
    (record,) = decode(
        ib("state:4: ACTIVE")
        + ib("phys_state:5: LinkUp")
        + ib("rate:400 Gb/sec (4X NDR)")
        + ib("link_layer:InfiniBand")
        + ib("counters/port_rcv_data:10")
        + ib("counters/port_xmit_data:0")
        + ib("counters/link_downed:2")
        + ib("counters/VL15_dropped:1")
        + ib("hw_counters/out_of_sequence:3")
        + ib("hw_counters/lifespan:12")
        + ib("gids/0:fe80:0000:0000:0000:0000:0000:0000:0001")
    )
    assert record == {
        "kind": "port",
        "view": "host",
        "device": "mlx5_0",
        "port": "1",
        "link_state": "active",
        "physical_state": "linkup",
        "rate_gbps": 400.0,
        "link_lanes": 4,
        "link_layer": "infiniband",
        "rx_data_bytes": 40,
        "tx_data_bytes": 0,
        "link_down_events": 2,
        "counters": {"VL15_dropped": 1, "out_of_sequence": 3},
    }


@pytest.mark.parametrize(("number", "state"), [("1: DOWN", "down"), ("2: INIT", "init"), ("3: ARMED", "armed")])
def test_a_rate_means_nothing_unless_the_link_is_active(number: str, state: str) -> None:
    (record,) = decode(ib("rate:40 Gb/sec (4X QDR)") + ib(f"state:{number}"))
    assert (record["link_state"], record["rate_gbps"], record["link_lanes"]) == (state, None, None)


def test_ports_and_devices_are_told_apart_in_order_of_appearance() -> None:
    text = ib("counters/a:1", "mlx5_1", 2) + ib("counters/a:2", "mlx5_0") + ib("counters/b:3", "mlx5_1", 2)
    assert [(record["device"], record["port"], record["counters"]) for record in decode(text)] == [
        ("mlx5_1", "2", {"a": 1, "b": 3}),
        ("mlx5_0", "1", {"a": 2}),
    ]


@pytest.mark.parametrize(
    "path",
    ["/sys/devices/pci0000:00/0000:00:01.0/infiniband/mlx5_0/ports/1", "mlx5_0/ports/1", "infiniband/mlx5_0/ports/1"],
)
def test_symlinked_and_relative_paths_are_read(path: str) -> None:
    (record,) = decode(f"{path}/counters/link_downed:7\n")
    assert (record["device"], record["port"], record["link_down_events"]) == ("mlx5_0", "1", 7)


def test_a_directory_s_dump_follows_its_heading_and_ends_at_the_next() -> None:
    text = (
        "NIC statistics:\n     rx_out_of_buffer: 4\n"
        "--- /sys/class/infiniband/mlx5_0/ports/1/hw_counters ---\nnp_cnp_sent: 5\nlifespan: 12\n"
        "--- /sys/class/infiniband/mlx5_0/ports/1 ---\nstate: 4: ACTIVE\n"
        "--- /proc/loadavg ---\nnp_cnp_sent: 6\n"
    )
    nic, rdma = decode(text)
    assert nic["counters"] == {"rx_out_of_buffer": 4}
    assert (rdma["device"], rdma["port"], rdma["link_state"]) == ("mlx5_0", "1", "active")
    assert rdma["counters"] == {"np_cnp_sent": 5}


def test_a_counter_that_the_kernel_cannot_read_is_null_and_its_complaint_is_nothing() -> None:
    (record,) = decode(
        ib("counters/port_xmit_wait:N/A (no PMA)") + "grep: " + ib("counters/foo: Invalid argument").strip() + "\n"
    )
    assert record["counters"] == {"port_xmit_wait": None}


def test_a_collector_hands_over_files() -> None:
    (record,) = fabric_sysfs.parse([("mlx5_0/ports/1/state", "4: ACTIVE\n"), ("mlx5_0/ports/1/counters/x", "5\n")])
    assert (record["link_state"], record["counters"]) == ("active", {"x": 5})


# --- SONiC tables

RX = "  Port Rx    PFC0    PFC3\n---------  ------  ------\n"
TX = "  Port Tx    PFC0    PFC3\n---------  ------  ------\n"


def test_receive_and_transmit_tables_meet_and_separators_and_nulls_are_resolved() -> None:
    records = decode(
        f"Last cached time was 2025-01-01\n{RX}Ethernet0   1,200       0\nEthernet-BP4  N/A  N/A\n\n{TX}Ethernet0       7     N/A\n"
    )
    assert [(r["port"], r["priority"], r["rx_pause_frames"], r["tx_pause_frames"]) for r in records] == [
        ("Ethernet0", 0, 1200, 7),
        ("Ethernet0", 3, 0, None),
        ("Ethernet-BP4", 0, None, None),
        ("Ethernet-BP4", 3, None, None),
    ]
    assert {record["view"] for record in records} == {"switch"}


@pytest.mark.parametrize(("unit", "pause_us"), [("US", 1_430_570), ("MS", 1_430_570_000)])
def test_history_gives_transitions_and_pause_time_in_microseconds(unit: str, pause_us: int) -> None:
    records = decode(
        f"     Port    Priority    RX Pause Transitions    Total RX Pause Time {unit}    "
        f"Recent RX Pause Time {unit}    Recent RX Pause Timestamp\n"
        "---------  ----------  ---  ---  ---  ---\n"
        "Ethernet0        PFC3        6     1,430,570      527,739      03/25/2025, 17:22:37.982800\n"
        "\n"
        "Ethernet4        PFC4      N/A           N/A          N/A      N/A\n"
    )
    assert (records[0]["priority"], records[0]["rx_pause_us"], records[0]["rx_pause_transitions"]) == (3, pause_us, 6)
    assert records[0]["rx_pause_frames"] is None
    assert (records[1]["port"], records[1]["rx_pause_us"]) == ("Ethernet4", None)


def test_history_joins_the_frames_of_the_same_priority() -> None:
    text = (
        f"{RX}Ethernet0  5  6\n\nPort  Priority  RX Pause Transitions  Total RX Pause Time US\nEthernet0  PFC3  1  2\n"
    )
    assert [(r["priority"], r["rx_pause_frames"], r["rx_pause_us"]) for r in decode(text)] == [(0, 5, None), (3, 6, 2)]


def test_a_row_of_another_width_is_malformed_and_a_prompt_is_nothing() -> None:
    records = decode(f"{RX}Ethernet0  5\nadmin@sonic:~$ exit\n")
    assert [record["kind"] for record in records] == ["malformed"]


WATCHDOG = "QUEUE  STATUS  STORM DETECTED/RESTORED  TX OK/DROP  RX OK/DROP  TX LAST OK/DROP  RX LAST OK/DROP\n"


def test_each_row_of_the_watchdog_is_a_record_even_when_it_repeats() -> None:
    records = decode(
        f"{WATCHDOG}-----  ------\nEthernet0:3  stormed  1/0  100/300  1/2  0/200  3/4\n\n"
        f"{WATCHDOG}Ethernet0:3  N/A  2/1  1,000/3  N/A  0/0  0/0\n"
    )
    assert records[0] == {
        "kind": "pfc_watchdog",
        "view": "switch",
        "port": "Ethernet0",
        "queue": 3,
        "status": "stormed",
        "storms_detected": 1,
        "storms_restored": 0,
        "tx_ok_packets": 100,
        "tx_dropped_packets": 300,
        "rx_ok_packets": 1,
        "rx_dropped_packets": 2,
        "tx_last_ok_packets": 0,
        "tx_last_dropped_packets": 200,
        "rx_last_ok_packets": 3,
        "rx_last_dropped_packets": 4,
    }
    assert (records[1]["status"], records[1]["tx_ok_packets"], records[1]["rx_ok_packets"]) == (None, 1000, None)


# --- COUNTERS_DB

PORT = {
    "SAI_PORT_STAT_PFC_3_RX_PKTS": "203",
    "SAI_PORT_STAT_PFC_3_TX_PKTS": "213",
    "EST_PORT_STAT_PFC_3_ON2OFF_RX_PKTS": "23",
    "EST_PORT_STAT_PFC_3_RX_PAUSE_DURATION_US": "4000",
    "SAI_PORT_STAT_PFC_4_RX_PAUSE_DURATION": "77",
    "SAI_PORT_STAT_IF_IN_DISCARDS": "100",
}
QUEUE = {"PFC_WD_STATUS": "stormed", "PFC_WD_QUEUE_STATS_DEADLOCK_DETECTED": "2", "SAI_QUEUE_STAT_PACKETS": "9"}
OBJECTS = {"COUNTERS:oid:0x1a": PORT, "COUNTERS:oid:0x15b": QUEUE, "COUNTERS:oid:0x1d": {"SAI_QUEUE_STAT_BYTES": "1"}}
MAPS = {
    "COUNTERS_PORT_NAME_MAP": {"Ethernet8": "oid:0x1a"},
    "COUNTERS_QUEUE_NAME_MAP": {"Ethernet8:3": "oid:0x15b"},
}


def test_without_a_name_map_objects_go_by_their_id() -> None:
    pfc, port, watchdog = decode(json.dumps(OBJECTS))
    expected = {
        "port": "oid:0x1a",
        "priority": 3,
        "rx_pause_frames": 203,
        "tx_pause_frames": 213,
        "rx_pause_us": 4000,
        "tx_pause_us": None,
        "rx_pause_transitions": 23,
    }
    assert pfc | expected == pfc
    assert port["counters"] == {"SAI_PORT_STAT_IF_IN_DISCARDS": 100}
    assert (watchdog["port"], watchdog["queue"], watchdog["status"]) == ("oid:0x15b", None, "stormed")
    assert (watchdog["storms_detected"], watchdog["storms_restored"]) == (2, None)
    assert "tx_ok_packets" not in watchdog


def dumped(tables: dict[str, Any]) -> dict[str, Any]:
    return {key: {"type": "hash", "ttl": -1, "value": value} for key, value in tables.items()}


@pytest.mark.parametrize(
    "document",
    [
        OBJECTS | MAPS,
        MAPS | OBJECTS,
        {"COUNTERS_DB": OBJECTS | MAPS},
        {"asic0": OBJECTS | MAPS},
        {"asic0": {"COUNTERS_DB": OBJECTS | MAPS}},
        MAPS | {"COUNTERS": {key.removeprefix("COUNTERS:"): value for key, value in OBJECTS.items()}},
        dumped(OBJECTS | MAPS),
        [MAPS, OBJECTS],
    ],
)
def test_a_name_map_gives_ports_their_names_however_the_export_is_wrapped(document: Any) -> None:
    pfc, port, watchdog = decode(json.dumps(document, indent=1))
    assert (pfc["port"], port["port"]) == ("Ethernet8", "Ethernet8")
    assert (watchdog["port"], watchdog["queue"]) == ("Ethernet8", 3)


def test_queues_are_named_through_their_port_where_they_have_no_name() -> None:
    maps = {
        "COUNTERS_PORT_NAME_MAP": {"Ethernet8": "oid:0x1a"},
        "COUNTERS_QUEUE_PORT_MAP": {"oid:0x15b": "oid:0x1a"},
        "COUNTERS_QUEUE_INDEX_MAP": {"oid:0x15b": "4"},
    }
    (watchdog,) = of_kind("pfc_watchdog", json.dumps(OBJECTS | maps))
    assert (watchdog["port"], watchdog["queue"]) == ("Ethernet8", 4)


def test_one_id_in_two_asics_is_two_ports() -> None:
    asics = {
        "asic0": OBJECTS | {"COUNTERS_PORT_NAME_MAP": {"Ethernet0": "oid:0x1a"}},
        "asic1": OBJECTS | {"COUNTERS_PORT_NAME_MAP": {"Ethernet9": "oid:0x1a"}},
    }
    assert [record["port"] for record in of_kind("pfc", json.dumps(asics))] == ["Ethernet0", "Ethernet9"]
    assert len(of_kind("pfc", json.dumps({"asic0": OBJECTS, "asic1": OBJECTS}))) == 2


def test_what_the_hardware_counted_replaces_what_software_estimated() -> None:
    values = {
        "SAI_PORT_STAT_PFC_3_RX_PAUSE_DURATION_US": "5",
        "EST_PORT_STAT_PFC_3_RX_PAUSE_DURATION_US": "9",
    }
    assert of_kind("pfc", json.dumps({"COUNTERS:oid:0x1": values}))[0]["rx_pause_us"] == 5


def test_a_value_that_is_no_number_is_malformed() -> None:
    records = decode(json.dumps({"COUNTERS:oid:0x1": {"SAI_PORT_STAT_IF_IN_ERRORS": "x", "SAI_PORT_STAT_Y": "N/A"}}))
    assert [record["kind"] for record in records] == ["malformed", "port"]
    assert records[1]["counters"] == {"SAI_PORT_STAT_Y": None}


def test_tables_and_an_export_may_follow_each_other() -> None:
    kinds = [
        r["kind"]
        for r in decode(
            f"{RX}Ethernet0  5  6\n{json.dumps(OBJECTS, indent=2)}\n{WATCHDOG}E0:3  stormed  1/0  0/0  0/0  0/0  0/0\n"
        )
    ]
    assert kinds == ["pfc", "pfc", "pfc", "port", "pfc_watchdog", "pfc_watchdog"]


def test_json_that_is_cut_is_damaged() -> None:
    with pytest.raises(Damaged):
        decode('{"COUNTERS:oid:0x1": {"SAI_PORT')


@pytest.mark.parametrize("text", ["hello\n", '{"a": 1}', "[1]", "Settings for eth0:\n\tSpeed: 100000Mb/s\n"])
def test_what_is_no_counter_is_of_no_known_format(text: str) -> None:
    with pytest.raises(UnknownFormat):
        decode(text)


# --- laws

PIECES = st.sampled_from(
    [
        "NIC statistics:\n",
        "--- /sys/class/infiniband/mlx5_0/ports/1 ---\n",
        "/sys/class/infiniband/mlx5_0/ports/1/",
        "state",
        "rate",
        "counters/x",
        ":",
        " ",
        "  ",
        "\n",
        "4: ACTIVE",
        "18446744073709551615",
        "rx_prio3_pause",
        "port_rcv_data",
        RX,
        WATCHDOG,
        "Ethernet0:3",
        "PFC3",
        "1/0",
        "N/A",
        "Port  Priority  RX Pause Time US\n",
        '{"COUNTERS:oid:0x1":{"SAI_PORT_STAT_PFC_3_RX_PKTS":',
        '"1"}}',
        "{",
        "[",
    ]
)


@given(st.binary(max_size=300) | st.lists(PIECES, max_size=30).map(lambda pieces: "".join(pieces).encode()))
def test_no_bytes_end_in_anything_but_the_two_refusals(data: bytes) -> None:
    try:
        for record in decode(data):
            json.loads(encode(record))
    except (UnknownFormat, Damaged):
        pass


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["1", "N/A", "x"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    *MAPS,
                    *PORT,
                    *QUEUE,
                    "COUNTERS",
                    "COUNTERS:oid:0x1",
                    "oid:0x2",
                    "PFC_STAT_HISTORY:oid:0x1",
                    "value",
                    "type",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@given(JSON)
def test_no_shape_of_json_ends_in_anything_else(document: Any) -> None:
    try:
        for record in decode(json.dumps(document)):
            json.loads(encode(record))
    except (UnknownFormat, Damaged):
        pass


@given(st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 2**64 - 1), min_size=1), st.randoms())
def test_the_order_of_a_port_s_lines_does_not_matter(counters: dict[str, int], random: Any) -> None:
    text = [ib(f"counters/{name}:{value}") for name, value in counters.items()]
    random.shuffle(text)
    assert decode("".join(text))[0]["counters"] == counters


@pytest.mark.parametrize(
    "line", ["     foo: abc", "     baz: 1.5", "foo: abc", "     [0]: tx bytes: many", "     rx_prio4_pause: abc"]
)
def test_every_counter_below_the_title_without_a_whole_number_is_malformed(line: str) -> None:
    records = decode(f"NIC statistics:\n{line}\n     rx_bytes: 2\n")
    assert [record["kind"] for record in records] == ["malformed", "port"]
    assert records[0]["line"] == 2
    assert records[1]["counters"] == {"rx_bytes": 2}


@pytest.mark.parametrize(
    "line",
    [
        "root@node7:~#",
        "bash: foo: command not found",
        "     words of no counter",
        "driver: mlx5_core\nversion: 6.8.0",
        "Settings for eth0:\n\tSpeed: 400000Mb/s",
    ],
)
def test_what_is_no_counter_below_the_title_is_nothing(line: str) -> None:
    assert [record["kind"] for record in decode(f"NIC statistics:\n     rx_bytes: 2\n{line}\n")] == ["port"]
