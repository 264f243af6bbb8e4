"""Xid, SXid and Fabric Manager lines: every wording, and the laws that hold for any input."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.decode.kernel_log import decode
from agents.decode.record import Record, Tally, UnknownFormat

LOST = "NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus."
FALLEN = "NVRM: GPU 0000:3b:00.0: GPU has fallen off the bus."
PROBE = (
    "NVRM: The NVIDIA GPU 0000:3b:00.0",
    "NVRM: (PCI ID: 10de:2330) installed in this system has",
    "NVRM: fallen off the bus and is not responding to commands.",
)


def read(*rows: str) -> list[Record]:
    return list(decode(io.BytesIO("\n".join(rows).encode()), Tally()))


def one(row: str) -> Record:
    [record] = read(row)
    return record


def journal(message: Any, **fields: Any) -> str:
    return json.dumps({"_TRANSPORT": "kernel", "SYSLOG_FACILITY": "0", "MESSAGE": message} | fields)


@pytest.mark.parametrize(
    ("tail", "pid", "process", "text"),
    [
        ("79, ", None, None, ""),
        ("79", None, None, ""),
        ("38, pid=1659,", 1659, None, ""),
        ("38, pid=1659, name=python3", 1659, "python3", ""),
        ("38, pid=1659, name=python3,", 1659, "python3", ""),
        ("63, pid=1896, Row Remapper: New row", 1896, None, "Row Remapper: New row"),
        ("13, pid='<unknown>', name=<unknown>, Graphics Exception: ESR", None, None, "Graphics Exception: ESR"),
        ("13, pid=<unknown>, name='<unknown>', new, Ch 00000001", None, None, "new, Ch 00000001"),
        ("13, pid='N/A', name='N/A', Ch 00000001", None, None, "Ch 00000001"),
        ("13, pid='<unknown>', name=nv_queue, Ch 00000001", None, "nv_queue", "Ch 00000001"),
        ("13, pid=-1, name=, Ch 00000001", None, None, "Ch 00000001"),
        ("13, pid=0, name=swapper/0, Ch 00000001", 0, "swapper/0", "Ch 00000001"),
        ("13, pid=5, name=nvc:[driver], Ch 00000001", 5, "nvc:[driver]", "Ch 00000001"),
        ("13, pid=5, name=vf#0:0, channel 0x00000002, intr 0", 5, "vf#0:0", "channel 0x00000002, intr 0"),
        ("13, pid=5, name=Web Content, Ch 00000001", 5, "Web Content", "Ch 00000001"),
        ("13, pid=5, name=a, b, Graphics SM Warp (GPC 7, TPC 7)", 5, "a, b", "Graphics SM Warp (GPC 7, TPC 7)"),
        ("145, pid=5, name=ray::WorkerDict, RLW_X/Y Nonfatal XC1", 5, "ray::WorkerDict", "RLW_X/Y Nonfatal XC1"),
        ("62, pid=5, name=a,b, 203c(3090) 85020c09 ffffbd53", 5, "a,b", "203c(3090) 85020c09 ffffbd53"),
        ("200, pid=5, name=python3.10, words nobody knows", 5, "python3.10", "words nobody knows"),
        ("171, GDDR, Uncorrectable DRAM error", None, None, "GDDR, Uncorrectable DRAM error"),
        ("61, 1927(16e4) 00000000 00000000", None, None, "1927(16e4) 00000000 00000000"),
    ],
)
def test_owner_and_text_are_told_apart(tail: str, pid: int | None, process: str | None, text: str) -> None:
    record = one(f"NVRM: Xid (PCI:0000:3b:00): {tail}")
    assert record["code"] == int(tail.partition(",")[0])
    assert (record["pid"], record["process"], record["text"]) == (pid, process, text)


@pytest.mark.parametrize(
    ("where", "address"),
    [
        ("PCI:0000:3B:00", "0000:3b:00"),
        ("0000:03:00", "0000:03:00"),
        ("PCI:0000:3b:00.0", "0000:3b:00"),
        ("PCI:00010002:3b:00", "10002:3b:00"),
        ("PCI:...", None),
        ("", None),
    ],
)
def test_the_address_is_normalised_or_null(where: str, address: str | None) -> None:
    assert one(f"NVRM: Xid ({where}): 14, Channel 00000001")["pci_bus_id"] == address


def test_instances_are_read_from_the_parentheses() -> None:
    record = one("NVRM: Xid (PCI:0000:3b:00 GPU-I:05 GPU-CI:02): 94, Ch 00000001")
    assert record["pci_bus_id"] == "0000:3b:00"
    assert (record["gpu_instance_id"], record["compute_instance_id"]) == (5, 2)
    record = one("NVRM: Xid (PCI:0000:3b:00 GPU-I:00): 94, Ch 00000001")
    assert record["gpu_instance_id"] == 0
    assert "compute_instance_id" not in record


@pytest.mark.parametrize(
    ("code", "text", "link"),
    [
        (74, "NVLink: fatal error detected on link 14(0x0, 0x0, 0x10000)", 14),
        (137, "RLW_RXPIPE interrupt hit on link 11 on GPU0: PRIV Error", 11),
        (144, "SAW_MVB Nonfatal XC0 i0 Link 00 (0x1 0x8)", 0),
        (147, "TREX_ERR Nonfatal XC 00 i 00 Link 02", 2),
        (149, "NETIR Fatal XC0 i0 Link -1 (0x000fe406)", None),
    ],
)
def test_links_are_numbers_and_minus_one_is_none(code: int, text: str, link: int | None) -> None:
    record = one(f"NVRM: Xid (PCI:0000:3b:00): {code}, {text}")
    assert "link" in record
    assert record["link"] == link


def test_a_code_without_links_has_no_link() -> None:
    assert "link" not in one("NVRM: Xid (PCI:0000:3b:00): 13, Graphics link 3")


@pytest.mark.parametrize(
    ("change", "action"),
    [
        ("0x1 (GPU Reset Required) to 0x0 (None)", "none"),
        ("0x0 (None) to 0x1 (GPU Reset Required)", "gpu_reset"),
        ("0x0 (None) to 0x2 (Node Reboot Required)", "node_reboot"),
        ("0x0 (None) to 0x3 (Drain P2P)", "drain_p2p"),
        ("0x0 (None) to 0x1 (Drain and Reset)", "drain_and_reset"),
        ("0x0 (None) to 0x5 (Recover IMEX Domain)", "recover_imex_domain"),
        ("0x0 (None) to 0x9 (Pray)", None),
    ],
)
def test_the_recovery_action_is_the_new_label(change: str, action: str | None) -> None:
    record = one(f"NVRM: Xid (PCI:0000:3b:00): 154, GPU recovery action changed from {change}")
    assert record["recovery_action"] == action


def test_cleanup_names_its_cause() -> None:
    record = one("NVRM: Xid (PCI:0000:3b:00): 45, pid=5, name=python3, Ch 00000001 caused by previous Xid 145")
    assert record["caused_by_xid"] == 145
    assert record["process"] == "python3"


def test_severity_is_the_catalogues_and_unknown_beyond_it() -> None:
    assert one("NVRM: Xid (PCI:0000:3b:00): 31, Ch 00000001")["severity"] == "app"
    assert one("NVRM: Xid (PCI:0000:3b:00): 99999, x")["severity"] == "unknown"


@pytest.mark.parametrize(
    "payload",
    [
        "NVRM: Xid PCI:0000:3b:00: 31",
        "NVRM: Xid (PCI:0000:3b:00",
        "NVRM: Xid (PCI:0000:3b:00): ",
        "NVRM: Xid (PCI:0000:3b:00): 0x1f, Ch",
        "NVRM: Xid (PCI:0000:3b:00): -31, Ch",
        "NVRM: Xid (PCI:0000:3b:00): " + "9" * 5000,
        "NVRM: Xid",
        "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): Fatal",
        "nvidia-nvswitch0: SXid 12028",
        "detected NVSwitch fatal error on fid 0",
    ],
)
def test_an_event_that_cannot_be_read_is_malformed_with_its_line(payload: str) -> None:
    record = read("", "[ 1.000000] " + payload)[0]
    assert record["kind"] == "malformed"
    assert record["line"] == 2
    assert record["raw"] == ("[ 1.000000] " + payload)[:500]
    assert record["reason"]


def test_the_uuid_is_the_one_that_the_log_named_earlier() -> None:
    uuid = "GPU-00000000-0000-0000-0000-000000000001"
    rows = (LOST, f"NVRM: GPU at PCI:0000:3b:00: {uuid}", LOST, LOST.replace("3b", "3c"))
    assert [record.get("gpu_uuid") for record in read(*rows)] == [None, uuid, None]


def test_a_uuid_from_another_facility_is_not_taken() -> None:
    assert "gpu_uuid" not in one("12,1,2,-;NVRM: GPU at PCI:0000:3b:00: GPU-0000000000\n3,2,3,-;" + LOST)


@pytest.mark.parametrize(
    ("text", "severity", "link"),
    [
        ("Fatal, Link 48 LTSSM Fault Up (First)", "fatal", 48),
        ("Non-fatal, Link 04 RX Short Error Rate", "non_fatal", 4),
        ("Nonfatal, Link 00 x", "non_fatal", 0),
        ("Non-fatal, thermal event, instance=0, chiplet=1", "non_fatal", None),
        ("Non-fatal, Link -1 x", "non_fatal", None),
        ("Severity 1 Engine instance 60 Sub-engine instance 00", None, None),
        ("Data {0x0000002b, 0x00000000}", None, None),
        ("SOE HALT data[0] = 0x               0", None, None),
        ("", None, None),
    ],
)
@pytest.mark.parametrize("colon", [":", ""])
def test_each_line_of_an_sxid_is_read_for_itself(text: str, severity: str | None, link: int | None, colon: str) -> None:
    record = one(f"[   38.175561] nvidia-nvswitch3{colon} SXid (PCI:0000:C1:00.0): 20034, {text}")
    assert record["kind"] == "sxid"
    assert (record["code"], record["pci_bus_id"], record["switch_index"]) == (20034, "0000:c1:00", 3)
    assert (record["reported_severity"], record["link"]) == (severity, link)
    assert record["severity"] == "fatal"
    assert record["text"] == text
    assert record["kernel_time_us"] == 38_175_561


def test_a_padded_code_and_one_that_is_not_listed_are_read() -> None:
    record = one("nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 00042, Fatal, x")
    assert (record["code"], record["severity"]) == (42, "unknown")


@pytest.mark.parametrize(
    "prefix", ["[Feb 27 2025 15:10:02] [ERROR] [tid 12727] ", "", "Feb 27 15:10:02 host nv-fabricmanager[88]: "]
)
def test_the_fabric_managers_wording_is_an_sxid(prefix: str) -> None:
    record = one(
        f"{prefix}detected NVSwitch non-fatal error 12028 on fid 0 on NVSwitch pci bus id 00000000:86:00.0"
        " physical id 3 port 61"
    )
    assert (record["kind"], record["code"], record["pci_bus_id"]) == ("sxid", 12028, "0000:86:00")
    assert (record["reported_severity"], record["link"]) == ("non_fatal", 61)
    assert record.get("time_text", prefix).startswith(prefix[1:7] if prefix.startswith("[") else prefix[:6])


PAYLOADS = st.sampled_from([LOST, FALLEN, *PROBE, "NVRM: Xid (", "nvidia-nvswitch1: SXid (", "{", "detected NVSwitch"])
PIECES = st.one_of(
    PAYLOADS.map(str.encode),
    st.binary(max_size=40),
    st.sampled_from(
        [b"\n", b"\r", b" ", b"3,1,2,-;", b"[ 1.000000] ", b"kernel: ", b"<3>", b'{"MESSAGE":"', b'"}', b"#012"]
    ),
)


@given(st.lists(PIECES, max_size=30).map(b"".join))
def test_no_bytes_end_in_an_exception_and_every_record_is_complete(data: bytes) -> None:
    records: list[Record] = []
    try:
        records.extend(decode(io.BytesIO(data), Tally()))
    except UnknownFormat:
        assert records == []
    mandatory = {
        "xid": {"code", "severity", "pci_bus_id", "pid", "process", "text"},
        "sxid": {"code", "severity", "pci_bus_id", "reported_severity", "link", "text"},
        "malformed": {"reason", "raw", "line"},
    }
    for record in records:
        assert mandatory[record["kind"]] <= record.keys()
        json.dumps(record, allow_nan=False)


TRANSPORTS = st.sampled_from(
    [
        "{}",
        "kernel: {}",
        "kernel: [16450076.435584] {}",
        "[   38.175561] {}",
        "[  130.456250] [   T1946] {}",
        "<3>[6085126.134786] {}",
        "4,1227,437812449932,-;{}",
        "[Mon May  4 14:09:23 2026] {}",
        "kern  :err   : 2025-01-25T10:34:54,859532+00:00 {}",
        "Sep 09 12:24:31 node-a kernel: {}",
        "May 19 07:08:57 node-a kernel: [680111.646286] {}",
        "2015-04-14T19:59:00.000083+00:00 node-a kernel: [  719.850677] {}",
        "192.0.2.11: kern: warning: [2026-04-22T21:30:51.494604223Z]: {}",
        "journal",
    ]
)
# No `, ` in a name: such a name cannot be told from text by any rule, unless the text is a known one.
NAMES = (
    st.text("abcXYZ019 _-.:/[]#+()'", min_size=1, max_size=40).map(str.strip).filter(lambda name: name.strip("'[]() -"))
)
TEXTS = st.sampled_from(
    [
        "Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS",
        "channel 0x00000002, intr 00000000",
        "Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): Illegal Instruction Parameter",
        "Timeout after 6s of waiting for RPC response from GPU4 GSP!",
        "NVLink: fatal error detected on link 14(0x0, 0x0)",
        "Row Remapper: New row (0x1) marked for remapping, reset gpu to activate.",
        "words that no table has",
    ]
)


@given(
    transport=TRANSPORTS,
    domain=st.integers(0, 0xFFFFF),
    slot=st.tuples(st.integers(0, 255), st.integers(0, 31)),
    code=st.integers(0, 10**9).filter(lambda code: code != 79),
    owner=st.one_of(st.just((None, None)), st.tuples(st.integers(0, 2**22), st.one_of(st.none(), NAMES))),
    text=TEXTS,
)
def test_an_xid_line_of_any_transport_comes_back(
    transport: str,
    domain: int,
    slot: tuple[int, int],
    code: int,
    owner: tuple[int | None, str | None],
    text: str,
) -> None:
    pid, name = owner
    parts = [str(code)] + ([f"pid={pid}"] if pid is not None else []) + ([f"name={name}"] if name else []) + [text]
    payload = f"NVRM: Xid (PCI:{domain:04X}:{slot[0]:02x}:{slot[1]:02x}): " + ", ".join(parts)
    record = one(journal(payload) if transport == "journal" else transport.format(payload))
    assert record["kind"] == "xid"
    assert record["pci_bus_id"] == f"{domain:04x}:{slot[0]:02x}:{slot[1]:02x}"
    assert (record["code"], record["pid"], record["process"], record["text"]) == (code, pid, name or None, text)
