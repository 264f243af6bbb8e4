"""States of PCIe links are read the same from lspci, sysfs and tables; a device that is gone has no link."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.decode import pcie, pcie_sysfs
from agents.decode.driver import encode
from agents.decode.pcie_link import generation
from agents.decode.record import Record, Tally, UnknownFormat


def decode(text: str | bytes) -> list[Record]:
    data = text.encode() if isinstance(text, str) else text
    return list(pcie.decode(io.BytesIO(data), Tally()))


def link(address: str | None, gen: int | None, width: int | None, max_gen: int | None, max_width: int | None) -> Record:
    return {
        "kind": "pcie_link",
        "pci_bus_id": address,
        "link_gen": gen,
        "link_width": width,
        "max_link_gen": max_gen,
        "max_link_width": max_width,
        "device_lost": False,
    }


def lost(address: str | None) -> Record:
    return link(address, None, None, None, None) | {"device_lost": True}


HEADING = "17:00.0 3D controller: NVIDIA Corporation Device 2330 (rev a1)\n"


def test_a_link_is_read_with_what_its_device_can_do() -> None:
    assert decode(
        f"{HEADING}\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1\n"
        "\t\tLnkSta:\tSpeed 32GT/s (ok), Width x8 (downgraded)\n"
    ) == [link("0000:17:00", 5, 8, 5, 16)]


def test_the_second_registers_are_not_the_link_s_state() -> None:
    text = (
        f"{HEADING}\tLnkCap2: Supported Link Speeds: 2.5-32GT/s\n\tLnkSta:\tSpeed 8GT/s, Width x16\n"
        "\tLnkSta2: Current De-emphasis Level: -6dB, Speed 2.5GT/s, Width x1\n"
    )
    assert decode(text) == [link("0000:17:00", 3, 16, None, None)]


def test_each_state_line_is_a_record_of_the_device_above_it() -> None:
    text = (
        "0000:01:00.0 VGA compatible controller: A\n\tLnkCap: Speed 16GT/s, Width x16\n"
        "\tLnkSta: Speed 2.5GT/s (downgraded), Width x16\n\tLnkSta: Speed 16GT/s, Width x16\n"
        "10002:02:00.0 3D controller: B\n\tLnkSta: Speed 64GT/s, Width x4\n"
    )
    assert decode(text) == [
        link("0000:01:00", 1, 16, 4, 16),
        link("0000:01:00", 4, 16, 4, 16),
        link("10002:02:00", 6, 4, None, None),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "5d:00.0 3D controller: NVIDIA (rev ff) (prog-if ff)\n\t!!! Unknown header type 7f\n",
        "5d:00.0 3D controller: NVIDIA (rev ff)\n",
        "5d:00.0 3D controller: NVIDIA (rev a1)\n\t!!! Unknown header type 7f\n",
        "5d:00.0 3D controller: NVIDIA (rev a1)\n\tLnkSta: Speed 32GT/s, Width x63\n",
        "5d:00.0 3D controller: NVIDIA (rev ff)\n\tLnkSta: Speed 32GT/s, Width x16\n",
    ],
)
def test_a_device_that_does_not_answer_is_lost_once(text: str) -> None:
    healthy = f"{HEADING}\tLnkSta: Speed 32GT/s, Width x16\n"
    assert decode(text + healthy) == [lost("0000:5d:00"), link("0000:17:00", 5, 16, None, None)]
    assert decode(text) == [lost("0000:5d:00")]


def test_a_speed_that_is_not_known_is_null() -> None:
    assert decode(f"{HEADING}\tLnkSta: Speed unknown, Width x8\n") == [link("0000:17:00", None, 8, None, None)]


def test_a_state_line_without_a_device_is_kept_without_an_address() -> None:
    assert decode("\tLnkSta: Speed 8GT/s, Width x4\n") == [link(None, 3, 4, None, None)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2.5GT/s", 1),
        ("5GT/s", 2),
        ("8.0 GT/s PCIe", 3),
        ("16.0 GT/s", 4),
        ("32 GT/s", 5),
        ("64.0 GT/s PCIe", 6),
        ("Unknown", None),
    ],
)
def test_every_spelling_of_a_speed_is_a_generation(text: str, expected: int | None) -> None:
    assert generation(text) == expected


def test_the_files_of_a_device_meet_in_one_record() -> None:
    root = "/sys/bus/pci/devices"
    text = (
        f"{root}/0000:17:00.0/current_link_speed:32.0 GT/s PCIe\n{root}/0000:18:00.0/current_link_width:63\n"
        f"{root}/0000:17:00.0/current_link_width:8\n{root}/0000:17:00.0/max_link_speed:64.0 GT/s PCIe\n"
        f"{root}/0000:17:00.0/max_link_width:16\n{root}/0000:19:00.0/vendor:0x10de\n"
        "/sys/devices/pci0000:00/0000:00:01.0/0000:1a:00.0/current_link_width:4\n"
    )
    assert decode(text) == [
        link("0000:17:00", 5, 8, 6, 16),
        lost("0000:18:00"),
        link("0000:1a:00", None, 4, None, None),
    ]


def test_a_collector_hands_over_files() -> None:
    assert pcie_sysfs.parse([("0000:17:00.0", "current_link_width", "16\n")]) == [
        link("0000:17:00", None, 16, None, None)
    ]


@pytest.mark.parametrize(
    "header",
    [
        "gpu,util,pcie_gen_cur,pcie_gen_max,width_cur,width_max,replay",
        (
            "index, utilization.gpu [%], pcie.link.gen.current, pcie.link.gen.max, "
            "pcie.link.width.current, pcie.link.width.max, pcie.replay.counter"
        ),
    ],
)
def test_columns_of_a_table_are_known_by_their_names(header: str) -> None:
    (record,) = decode(f"{header}\n3,100,4,5,8,16,118274\n")
    assert record == link(None, 4, 8, 5, 16) | {"gpu_index": 3, "gpu_util_pct": 100, "replay_count": 118274}


def test_columns_may_come_in_any_order_and_with_an_address() -> None:
    (record,) = decode("width_max,bus_id,width,gen\n16,00000000:3B:00.0,x8,5\n")
    assert record == link("0000:3b:00", 5, 8, None, 16)


@pytest.mark.parametrize("row", ["0,0,16", "0,5,63"])
def test_generation_zero_and_width_63_in_a_table_are_a_lost_device(row: str) -> None:
    (record,) = decode(f"gpu,gen,width\n{row}\n")
    assert (record["device_lost"], record["link_gen"], record["link_width"]) == (True, None, None)


def test_what_a_table_does_not_know_is_null_and_a_short_row_malformed() -> None:
    unknown, short = decode("gpu,util,gen,width\n0,[N/A],N/A,\n1,2\n")
    assert (unknown["gpu_util_pct"], unknown["link_gen"], unknown["link_width"], unknown["device_lost"]) == (
        None,
        None,
        None,
        False,
    )
    assert (short["kind"], short["line"]) == ("malformed", 3)


@pytest.mark.parametrize("text", ["hello\n", "a,b\n1,2\n", "{}"])
def test_what_is_no_link_is_of_no_known_format(text: str) -> None:
    with pytest.raises(UnknownFormat):
        decode(text)


def test_an_empty_file_is_read_and_empty() -> None:
    assert decode("") == decode("\n \n") == []


PIECES = st.sampled_from(
    [
        HEADING,
        "LnkSta:",
        "LnkCap:",
        " Speed 8GT/s",
        ", Width x16",
        "\n",
        ",",
        "gpu,gen,width\n",
        "63",
        "N/A",
        "(rev ff)",
        "\t",
        "/sys/bus/pci/devices/0000:17:00.0/current_link_width:",
        "!!! Unknown header type 7f",
    ]
)


@given(st.binary(max_size=300) | st.lists(PIECES, max_size=30).map(lambda pieces: "".join(pieces).encode()))
def test_no_bytes_end_in_anything_but_the_refusal(data: bytes) -> None:
    try:
        for record in decode(data):
            json.loads(encode(record))
    except UnknownFormat:
        pass
