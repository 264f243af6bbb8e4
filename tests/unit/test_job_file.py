"""Job files: the records they give, what is filled in, and that every fault is named by file and key."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agents.importers.job_file import JobFileError, load_job_file
from schemas.codec import decode, message
from schemas.fleet import Job, RankPlacement

NOW_NS = 1_760_000_000_123_456_789
DOCS = Path(__file__).resolve().parents[2] / "docs" / "job-file.md"

JOB = 'job_id = "llm"\nworld_size = 16\n'
LAYOUT = "[layout]\ntensor = 4\npipeline = 2\n"


@pytest.fixture
def load(tmp_path: Path) -> Any:
    def loaded(text: str | bytes) -> Any:
        path = tmp_path / "job.toml"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return load_job_file(path, NOW_NS)

    return loaded


@pytest.fixture
def refusal(load: Any, tmp_path: Path) -> Any:
    def refused(text: str | bytes) -> str:
        with pytest.raises(JobFileError) as caught:
            load(text)
        words = str(caught.value)
        assert words.startswith(f"{tmp_path / 'job.toml'}: ")
        assert "\n" not in words
        return words.removeprefix(f"{tmp_path / 'job.toml'}: ")

    return refused


def node(ranks: str = "[0, 1]", rest: str = "", node_id: str = "n1") -> str:
    return f'[[nodes]]\nnode_id = "{node_id}"\nranks = {ranks}\n{rest}\n'


def test_a_job_needs_a_name_and_a_size(load: Any) -> None:
    (job,) = load(JOB)
    assert (job.job_id, job.world_size, job.epoch, job.state) == ("llm", 16, 0, "running")
    assert (job.version, job.effective_from_ns) == (1_760_000_000, NOW_NS)


def test_version_epoch_and_start_are_the_files_if_given(load: Any) -> None:
    job, placement = load(JOB + "version = 3\nepoch = 2\neffective_from_ns = 77\n" + node())
    assert (job.version, job.epoch, job.effective_from_ns) == (3, 2, 77)
    assert (placement.version, placement.epoch, placement.effective_from_ns) == (3, 2, 77)


def test_the_example_of_the_documentation_is_a_job(load: Any) -> None:
    example = re.search(r"```toml\n(.*?)```", DOCS.read_text(encoding="utf-8"), re.DOTALL)
    assert example is not None
    job, first, second = load(example[1])
    assert (job.layout.data, job.model.parameters, job.tokens_per_step) == (1, 70.6e9, 1 << 20)
    assert first.rank == tuple(range(8))
    assert first.stage == (0,) * 8
    assert first.pci_bus_id is None
    assert second.gpu_uuid == (None,) * 8
    assert second.pci_bus_id[0] == "0000:18:00"
    for record in (job, first, second):
        wire = message(record)
        assert decode(wire.topic, wire.value) == record


def test_every_key_of_a_job_is_documented() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for family, unlisted in ((Job, {"record", "model", "layout"}), (RankPlacement, set(Job.model_fields) | {"rank"})):
        for key in set(family.model_fields) - unlisted:
            assert f"`{key}`" in text, key


def test_data_parallelism_is_what_the_other_degrees_leave(load: Any) -> None:
    assert load(JOB + LAYOUT)[0].layout.data == 2


@pytest.mark.parametrize(
    ("ranks", "expected"),
    [('"0-3"', (0, 1, 2, 3)), ('"0-1, 4,8-9"', (0, 1, 4, 8, 9)), ("[3, 1]", (3, 1)), ('"7"', (7,))],
)
def test_ranks_are_a_list_or_ranges(load: Any, ranks: str, expected: tuple[int, ...]) -> None:
    assert load(JOB + node(ranks))[1].rank == expected


def test_a_node_without_devices_is_placed_with_unknown_ones(load: Any) -> None:
    placement = load(JOB + node())[1]
    assert placement.gpu_uuid == (None, None)
    assert placement.pci_bus_id is placement.stage is None


def test_an_empty_text_is_an_unknown_device(load: Any) -> None:
    assert load(JOB + node(rest='gpu_uuid = ["", "GPU-b"]'))[1].gpu_uuid == (None, "GPU-b")


def test_one_stage_part_or_role_stands_for_all_ranks_of_a_node(load: Any) -> None:
    placement = load(JOB + LAYOUT + node(rest='stage = 1\nsku = ["A", "B"]\nrole = "actor"'))[1]
    assert (placement.stage, placement.sku, placement.role) == ((1, 1), ("A", "B"), ("actor", "actor"))


def test_instances_of_one_gpu_share_its_address(load: Any) -> None:
    rest = 'gpu_uuid = ["MIG-a", "MIG-b"]\npci_bus_id = ["3b:00.0", "3b:00.0"]'
    assert load(JOB + node(rest=rest))[1].pci_bus_id == ("0000:3b:00",) * 2


def test_equal_addresses_on_two_nodes_are_two_devices(load: Any) -> None:
    rest = 'pci_bus_id = ["3b:00.0", "5e:00.0"]'
    assert len(load(JOB + node(rest=rest) + node("[2, 3]", rest, "n2"))) == 3


@pytest.mark.parametrize(
    "key", ["gpu_index = [0, 1]", "gpus = [0, 1]", 'CUDA_VISIBLE_DEVICES = "0,1"', "devices = [0, 1]"]
)
def test_devices_by_index_are_refused_with_the_reason(refusal: Any, key: str) -> None:
    assert refusal(JOB + node(rest=key)).startswith(
        f"nodes[1].{key.split(' ', maxsplit=1)[0]}: devices are named by gpu_uuid"
    )


@pytest.mark.parametrize("value", ["[0, 1]", '["0", "1"]', '[" 3 ", "GPU-b"]'])
@pytest.mark.parametrize("key", ["gpu_uuid", "pci_bus_id"])
def test_an_index_in_place_of_a_device_is_refused_with_the_reason(refusal: Any, key: str, value: str) -> None:
    words = refusal(JOB + node(rest=f"{key} = {value}"))
    assert words.startswith(f"nodes[1].{key}[1]: ")
    assert "CUDA_VISIBLE_DEVICES renumbers" in words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("world_size = 4", "job_id: "),
        ('job_id = "a"', "world_size: "),
        ('job_id = ""\nworld_size = 4', "job_id: "),
        ('job_id = "a"\nworld_size = 0', "world_size: "),
        ('job_id = "a"\nworld_size = "4"', "world_size: should be a valid integer"),
        ('job_id = "a"\nworld_size = true', "world_size: should be a valid integer"),
        (JOB + "world_siez = 4", "world_siez: is no key of a job file; known here: "),
        (JOB + "[model]\nlayers = 3", "model.parameters: "),
        (JOB + "[model]\nparameters = 7e9\nlayer = 3", "model.layer: is no key"),
        (JOB + "[model]\nparameters = nan", "model.parameters: "),
        (JOB + "model = 7", "model: "),
        (JOB + "[layout]\ntensor = 0", "layout.tensor: "),
        (JOB + "[layout]\ntensor = 3", "layout: tensor x context x data x pipeline is 3 x 1 x 1 x 1 = 3 ranks, but world_size is 16"),
        (JOB + "[layout]\ntensor = 4\ndata = 2", "layout: "),
        (JOB + 'workload = "play"', "workload: "),
        (JOB + "mfu_target = 42", "mfu_target: "),
        (JOB + "reporting_ranks = 17", "reporting_ranks: 17 of 16"),
        (JOB + "nodes = 3", "nodes: is to be a list of tables"),
        (JOB + "[nodes]\nnode_id = 'n'", "nodes: is to be a list of tables"),
        (JOB + "[[nodes]]\nranks = [0]", "nodes[1].node_id: is missing"),
        (JOB + "[[nodes]]\nnode_id = 'n'", "nodes[1].ranks: is missing"),
        (JOB + node("[]"), "nodes[1].ranks: "),
        (JOB + node("3"), "nodes[1].ranks: "),
        (JOB + node("[true]"), "nodes[1].ranks: "),
        (JOB + node("[1, 1]"), "nodes[1].ranks: names a rank twice"),
        (JOB + node('"3-1"'), "nodes[1].ranks: '3-1' counts down"),
        (JOB + node('"0-9999999"'), "nodes[1].ranks: "),
        (JOB + node('"a"'), "nodes[1].ranks: 'a' is no rank"),
        (JOB + node("[15, 16]"), "nodes[1].ranks: rank 16 is none of 0 to 15"),
        (JOB + node() + node("[1]", "", "n2"), "nodes[2].ranks: rank 1 runs on 'n1' already"),
        (JOB + node() + node("[2]"), "nodes[2].node_id: 'n1' is listed twice"),
        (JOB + node(rest='gpu_uuid = ["GPU-a"]'), "nodes[1].gpu_uuid: has 1 entries; it is to name one device for each of 2"),
        (JOB + node(rest='gpu_uuid = "GPU-a"'), "nodes[1].gpu_uuid: is no list"),
        (JOB + node(rest='gpu_uuid = ["GPU-a", "GPU-a"]'), "nodes[1].gpu_uuid: GPU-a is given to rank 0 and to rank 1"),
        (JOB + node(rest='gpu_uuid = ["GPU-a", "0000:3b:00.0"]'), "nodes[1].gpu_uuid[2]: '0000:3b:00.0' is no UUID"),
        (JOB + node(rest='pci_bus_id = ["GPU-a", "3b:00.0"]'), "nodes[1].pci_bus_id[1]: 'GPU-a' is no PCI address"),
        (JOB + node(rest="gpu_uuid = [1.5, 2.5]"), "nodes[1].gpu_uuid[1]: is to be a text"),
        (JOB + node(rest="stage = [0]"), "nodes[1].stage: has 1 entries for 2 ranks"),
        (JOB + node(rest='stage = "0"'), "nodes[1].stage: is to be a whole number"),
        (JOB + LAYOUT + node(rest="stage = 2"), "nodes[1].stage: is none of 0 to 1"),
        (JOB + node(rest="hostname = 'x'"), "nodes[1].hostname: is no key"),
        (JOB + node(node_id="n" * 254), "nodes[1].node_id: "),
        (JOB + "version = " + "9" * 30, "version: "),
        (JOB + "[model]\nparameters = 0x" + "f" * 6000, "model.parameters: is too large a number"),
        (JOB + "[model]\nlayers" + ".a" * 2000 + " = 1", ""),
        ("a = ", "no TOML: "),
        ("a = " + "9" * 5000, "no TOML: "),
        ("a = " + "[" * 50_000, ""),
        (b"job_id = '\xff'", "not UTF-8: "),
    ],
)  # fmt: skip
def test_a_fault_is_named_by_its_key(refusal: Any, text: str | bytes, words: str) -> None:
    assert refusal(text).startswith(words)


def test_files_that_are_absent_or_no_files_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.toml", tmp_path):
        with pytest.raises(JobFileError, match=re.escape(str(path))):
            load_job_file(path, NOW_NS)


SCALARS = st.one_of(
    st.integers(-(2**70), 2**70),
    st.booleans(),
    st.floats(),
    st.text(max_size=8).map(repr),
    st.just("1979-05-27T07:32:00Z"),
)
VALUES = st.one_of(SCALARS, st.lists(SCALARS, max_size=3).map(lambda items: f"[{', '.join(map(str, items))}]"))
KEYS = st.sampled_from([*Job.model_fields, "nodes", "x"])
NODE_KEYS = st.sampled_from(["node_id", "ranks", "gpu_uuid", "pci_bus_id", "stage", "sku", "role", "gpu"])


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    text=st.one_of(
        st.text(),
        st.binary(),
        st.dictionaries(KEYS, VALUES, max_size=4).map(lambda d: "".join(f"{k} = {v}\n" for k, v in d.items())),
        st.dictionaries(NODE_KEYS, VALUES, max_size=5).map(
            lambda d: JOB + "[[nodes]]\n" + "".join(f"{k} = {v}\n" for k, v in d.items())
        ),
    )
)
def test_any_text_is_a_job_or_one_error(load: Any, text: str | bytes) -> None:
    if isinstance(text, str):
        text = text.encode("utf-8", "replace")
    try:
        records = load(text)
    except JobFileError:
        return
    assert isinstance(records[0], Job)
    assert all(isinstance(record, RankPlacement) for record in records[1:])
