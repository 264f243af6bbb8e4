"""Places of nodes: the table, Slurm's switches and blocks, host lists, and that faults name their line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.importers.places import PlacesError, expand_hosts, load_places
from schemas.fleet import Node

NOW_NS = 1_760_000_000_123_456_789


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def loaded(text: str | bytes) -> list[Node]:
        path = tmp_path / "places"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_places(path, NOW_NS)

    return loaded


@pytest.fixture
def refusal(load: Any, tmp_path: Path) -> Any:
    def refused(text: str | bytes) -> str:
        with pytest.raises(PlacesError) as caught:
            load(text)
        words = str(caught.value)
        assert words.startswith(f"{tmp_path / 'places'}:")
        return words.removeprefix(f"{tmp_path / 'places'}:").strip()

    return refused


def places(nodes: list[Node]) -> dict[str, tuple[str | None, str | None, str | None]]:
    return {node.node_id: (node.leaf, node.pod, node.zone) for node in nodes}


# ---- host lists


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        ("login", ["login"]),
        ("a,b", ["a", "b"]),
        ("gpu[1-3]", ["gpu1", "gpu2", "gpu3"]),
        ("gpu[008-011,020]", ["gpu008", "gpu009", "gpu010", "gpu011", "gpu020"]),
        ("n[9-11],d[01-02]", ["n9", "n10", "n11", "d01", "d02"]),
        ("r[1-2]n[01-02]-ib", ["r1n01-ib", "r1n02-ib", "r2n01-ib", "r2n02-ib"]),
        ("n[1[0-1],3]", ["n10", "n11", "n3"]),
        ("n[1[0-1]5,[7-8]]", ["n105", "n115", "n7", "n8"]),
        ("[1-2]", ["1", "2"]),
        ("node-a.b[5]", ["node-a.b5"]),
    ],
)
def test_a_host_list_is_expanded(expression: str, names: list[str]) -> None:
    assert expand_hosts(expression) == names


@pytest.mark.parametrize(
    "expression",
    ["", "a,", ",a", "a,,b", "a[1", "a]1", "a[1]]", "a[]", "a[1,]", "a[2-1]", "a[b]", "a[a-c]", "a[0x3]", "a[000x133]",
     "a[1-99999999]", "a[1-60000][1-60000]", "a" + "[1]" * 500, "a" + "[" * 5000 + "1" + "]" * 5000, "a[1-3/2]"],
)  # fmt: skip
def test_what_is_no_host_list_is_refused(expression: str) -> None:
    with pytest.raises(PlacesError):
        expand_hosts(expression)


@given(
    prefix=st.from_regex(r"[a-z]{1,8}-?", fullmatch=True),
    numbers=st.lists(st.integers(0, 9999), min_size=1, max_size=20, unique=True),
    width=st.integers(1, 5),
)
def test_any_list_of_padded_numbers_comes_back(prefix: str, numbers: list[int], width: int) -> None:
    padded = [str(number).rjust(width, "0") for number in numbers]
    assert expand_hosts(f"{prefix}[{','.join(padded)}]") == [prefix + number for number in padded]


@given(first=st.integers(0, 3000), count=st.integers(1, 200), width=st.integers(1, 6))
def test_a_range_is_as_wide_as_its_first_number(first: int, count: int, width: int) -> None:
    start = str(first).rjust(width, "0")
    names = expand_hosts(f"n[{start}-{first + count - 1}]")
    assert [int(name[1:]) for name in names] == list(range(first, first + count))
    assert all(len(name) - 1 == max(len(start), len(str(int(name[1:])))) for name in names)


@given(st.text(alphabet="ab12[],-0 ", max_size=24))
def test_any_text_is_a_list_of_names_or_one_error(text: str) -> None:
    try:
        names = expand_hosts(text)
    except PlacesError:
        return
    assert names
    assert not any(set(name) & set("[],") for name in names)


# ---- the table


def test_a_table_places_nodes_by_its_header(load: Any) -> None:
    first, second = load(
        "# our hall\n"
        "node_id,sku,rack,leaf,rail,zone,pod,gpu_uuid,pci_bus_id\n"
        "n1,NVIDIA H100 80GB HBM3,r1,leaf-1,ra;rb,hall-a,pod-1,GPU-a; GPU-b,00000000:3B:00.0;5e:00.0\n"
        "\n"
        'n2,,"r,2",,,,,,\n'
    )
    assert (first.sku, first.rack, first.leaf, first.zone, first.pod) == (
        "NVIDIA H100 80GB HBM3", "r1", "leaf-1", "hall-a", "pod-1",
    )  # fmt: skip
    assert (first.rail, first.gpu_uuid, first.pci_bus_id) == (
        ("ra", "rb"),
        ("GPU-a", "GPU-b"),
        ("0000:3b:00", "0000:5e:00"),
    )
    assert (first.version, first.effective_from_ns) == (1_760_000_000, NOW_NS)
    assert (second.rack, second.leaf, second.rail, second.gpu_uuid) == ("r,2", None, (), ())


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_columns_may_stand_in_any_order_and_lines_end_in_any_way(load: Any, end: str) -> None:
    (node,) = load(f"\ufeffLeaf, Node_ID{end}l1 , n1{end}")
    assert (node.node_id, node.leaf) == ("n1", "l1")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "holds no line to read"),
        ("# only a remark\n\n", "holds no line to read"),
        ("hello\nworld\n", "1: neither Slurm's topology.conf"),
        ("\nname,rack\nn1,r1\n", "2: neither Slurm's topology.conf"),
        ("node_id,racks\nn1,r1\n", "1: no column 'racks'; known are node_id, "),
        ("node_id,rack,rack\n", "1: a column stands twice"),
        ("node_id,rack\nn1\n", "2: 1 cells under 2 columns"),
        ("node_id,rack\n\n,r1\n", "3: node_id is empty"),
        ("node_id,rack\nn1,r1\nn2,r1\nn1,r2\n", "4: node 'n1' stands in line 2 already"),
        ("node_id,gpu_uuid\nn1,0;1\n", "2: gpu_uuid: 0 is an index; CUDA_VISIBLE_DEVICES"),
        ("node_id,gpu_uuid\nn1,3b:00.0\n", "2: gpu_uuid: '3b:00.0' is no UUID"),
        ("node_id,gpu_uuid\nn1,GPU-a;GPU-a\n", "2: gpu_uuid: a device stands twice"),
        ("node_id,pci_bus_id\nn1,GPU-a\n", "2: pci_bus_id: 'GPU-a' is no PCI address"),
        ("node_id\n" + "n" * 254 + "\n", "2: node_id: "),
        ('node_id,rack\nn1,"r1\n', "2: no CSV: "),
        ('node_id,rack\nn1,"r"1\n', "2: no CSV: "),
        ("node_id,rack\nn1," + "r" * 140_000 + "\n", "2: no CSV: "),
        (b"node_id\nn1\n\xff\n", "3: not UTF-8"),
    ],
)
def test_a_fault_of_a_table_names_its_line(refusal: Any, text: str | bytes, words: str) -> None:
    assert refusal(text).startswith(words)


# ---- Slurm's switches


def test_levels_above_a_node_are_leaf_pod_and_zone(load: Any) -> None:
    nodes = load(
        "# written by hand\n"
        "SwitchName=leaf1 Nodes=gpu[001-002] LinkSpeed=400\n"
        "switchname=leaf2 NODES=gpu003   # lower and upper case\n"
        "SwitchName=leaf3 Nodes=cpu1\n"
        "SwitchName=pod1 Switches=leaf[1-2]\n"
        "SwitchName=pod2 Switches=leaf3\n"
        "SwitchName=hall1 Switches=pod[1-2]\n"
        "SwitchName=core Switches=hall1\n"
    )
    assert places(nodes) == {
        "gpu001": ("leaf1", "pod1", "hall1"),
        "gpu002": ("leaf1", "pod1", "hall1"),
        "gpu003": ("leaf2", "pod1", "hall1"),
        "cpu1": ("leaf3", "pod2", "hall1"),
    }
    assert nodes[0].labels == {"switches": "core/hall1/pod1/leaf1"}
    assert (nodes[0].version, nodes[0].effective_from_ns) == (1_760_000_000, NOW_NS)


def test_order_of_lines_and_of_keys_does_not_matter(load: Any) -> None:
    nodes = load('Switches=l1,l2 SwitchName=top\nNodes = "n1" SwitchName = l1\nSwitchName=l2 Nodes=n2')
    assert places(nodes) == {"n1": ("l1", "top", None), "n2": ("l2", "top", None)}


def test_a_line_goes_on_behind_a_backslash(load: Any) -> None:
    nodes = load("SwitchName=l1 \\\n  Nodes=n[1-2],\\\nn5 # and no more \\\nSwitchName=l2 Nodes=n6 \\\n")
    assert places(nodes) == {
        "n1": ("l1", None, None),
        "n2": ("l1", None, None),
        "n5": ("l1", None, None),
        "n6": ("l2", None, None),
    }


def test_the_lowest_switch_that_lists_a_node_is_its_leaf(load: Any) -> None:
    nodes = load("SwitchName=top Switches=l1 Nodes=n[1-2]\nSwitchName=l1 Nodes=n1\n")
    assert places(nodes) == {"n1": ("l1", "top", None), "n2": ("top", None, None)}


def test_a_node_on_several_leaves_has_rails_and_no_leaf(load: Any) -> None:
    (node,) = load("".join(f"SwitchName=rail{i} Nodes=n1\n" for i in range(4)) + "SwitchName=pod Switches=rail[0-3]\n")
    assert (node.leaf, node.rail, node.pod) == (None, ("rail0", "rail1", "rail2", "rail3"), "pod")


def test_a_switch_below_several_others_ends_the_way(load: Any) -> None:
    (node,) = load(
        "SwitchName=l1 Nodes=n1\nSwitchName=s1 Switches=l1\nSwitchName=s2 Switches=l1\nSwitchName=c Switches=s[1-2]\n"
    )
    assert (node.leaf, node.pod, node.zone) == ("l1", None, None)


def test_a_block_is_a_pod_without_a_leaf(load: Any) -> None:
    nodes = load("BlockName=b1 Nodes=n[01-02]\nBlockName=b2 Nodes=n03\nBlockSizes=2,4\n")
    assert places(nodes) == {"n01": (None, "b1", None), "n02": (None, "b1", None), "n03": (None, "b2", None)}
    assert nodes[0].labels == {"block": "b1"}


def test_a_block_beside_switches_stays_a_label_where_they_name_a_pod(load: Any) -> None:
    nodes = load("SwitchName=l1 Nodes=n[1-2]\nSwitchName=p1 Switches=l1\nBlockName=b1 Nodes=n[2-3]\n")
    assert places(nodes) == {"n1": ("l1", "p1", None), "n2": ("l1", "p1", None), "n3": (None, "b1", None)}
    assert nodes[1].labels == {"switches": "p1/l1", "block": "b1"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SwitchName=l1\n", "1: 'l1' has neither nodes nor switches"),
        ("SwitchName=l1 Nodes=n1\nNodes=n2\n", "2: names no switch and no block"),
        ("SwitchName=l1 Nodes=n1\n\nSwitchName=l1 Nodes=n2\n", "3: 'l1' is described twice"),
        ("SwitchName=l1 Nodes=n1\nSwitchName=t Switches=l1,l2\n", "2: switch 'l2' below 't' is described nowhere"),
        ("SwitchName=a Switches=b Nodes=n1\nSwitchName=b Switches=a\n", "1: switch 'a' stands below itself"),
        ("SwitchName=a Switches=a\n", "1: switch 'a' stands below itself"),
        ("SwitchName=a Nodes=n[3-1]\n", "1: '3-1' counts down"),
        ("SwitchName=a \\\nNodes=n[1\n", "1: 'n[1': a bracket is not closed"),
        ("SwitchName=a Nodes=n1 Nodes=n2\n", "1: Nodes stands twice"),
        ("SwitchName=a Nodes=ALL\n", "1: ALL names no node"),
        ("SwitchName=a Nodes=n1, n2\n", "1: 'n2' is no KEY=VALUE"),
        ("SwitchName=a Node=n1\n", "1: Node is no key"),
        ("SwitchName=a BlockName=b Nodes=n1\n", "1: names a switch and a block"),
        ("BlockName=a Nodes=n1\nBlockName=b Nodes=n1\n", "2: node 'n1' is in block 'a' already"),
        ("BlockName=a\n", "1: 'a' has neither nodes"),
        ('SwitchName="a" Nodes="n1\n', "1: 'Nodes=\"n1' is no KEY=VALUE"),
        ("SwitchName=a Nodes=" + "n" * 254 + "\n", "1: node_id: "),
    ],
)
def test_a_fault_of_a_topology_names_its_line(refusal: Any, text: str, words: str) -> None:
    assert refusal(text).startswith(words)


def test_files_that_are_absent_or_no_files_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent", tmp_path):
        with pytest.raises(PlacesError, match=str(path)):
            load_places(path, NOW_NS)


def test_a_tree_of_thousands_of_nodes_is_read_whole(load: Any) -> None:
    leaves = "".join(f"SwitchName=l{i} Nodes=n[{32 * i}-{32 * i + 31}]\n" for i in range(256))
    pods = "".join(f"SwitchName=p{i} Switches=l[{16 * i}-{16 * i + 15}]\n" for i in range(16))
    nodes = load(leaves + pods + "SwitchName=core Switches=p[0-15]\n")
    assert len(nodes) == 8192
    assert places(nodes)["n8191"] == ("l255", "p15", "core")


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.integers(0, 11), min_size=1, max_size=12).map(
        # Switch i stands below switch parent[i] < i; every switch lists a node of its own.
        lambda parents: [None, *(parent % (i + 1) for i, parent in enumerate(parents))]
    )
)
def test_any_tree_gives_each_node_the_switches_above_it(load: Any, parents: list[int | None]) -> None:
    def line(i: int) -> str:
        below = ",".join(f"s{j}" for j, parent in enumerate(parents) if parent == i)
        return f"SwitchName=s{i} Nodes=n{i}" + (f" Switches={below}" if below else "")

    nodes = {node.node_id: node for node in load("\n".join(line(i) for i in range(len(parents))))}
    for i in range(len(parents)):
        way: list[str] = []
        at: int | None = i
        while at is not None:
            way.append(f"s{at}")
            at = parents[at]
        assert nodes[f"n{i}"].labels["switches"] == "/".join(reversed(way))
        assert nodes[f"n{i}"].leaf == f"s{i}"


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.one_of(
        st.binary(),
        st.text(),
        st.text(alphabet=' ,;"\n#ab01-', max_size=60).map(lambda text: "node_id,rack,gpu_uuid\n" + text),
        st.lists(
            st.sampled_from(
                [
                    "SwitchName=",
                    "Nodes=",
                    "Switches=",
                    "BlockName=",
                    "a",
                    "b",
                    "[1-2]",
                    "[",
                    "]",
                    ",",
                    " ",
                    "\n",
                    "\\\n",
                    "#",
                    '"',
                ]
            ),
            max_size=30,
        ).map(lambda parts: "SwitchName=a Nodes=n1\n" + "".join(parts)),
    )
)
def test_any_file_gives_distinct_nodes_or_one_error(load: Any, text: str | bytes) -> None:
    if isinstance(text, str):
        text = text.encode("utf-8", "replace")
    try:
        nodes = load(text)
    except PlacesError:
        return
    assert len({node.node_id for node in nodes}) == len(nodes)
