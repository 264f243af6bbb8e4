"""Scenarios: what the packaged ones hold for every size of fleet, and what is refused in one clear line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.simulation import ScenarioError, default_scenario, load_scenario, scenario_names, simulate
from agents.simulation.faults import place_faults
from agents.simulation.fleet import Fleet
from agents.simulation.noise import Noise
from schemas.fleet import Job, RankPlacement


def test_the_named_scenarios_are_there() -> None:
    assert {"mixed", "healthy", "thermal", "xid79", "pause-storm", "cpu-contention"} <= set(scenario_names())


def test_the_mixed_scenario_is_two_jobs_and_four_faults_of_ten_seconds_or_more() -> None:
    scenario = default_scenario()
    assert [job.job_id for job in scenario.jobs] == ["pretrain-70b", "finetune-8b"]
    assert {fault.kind for fault in scenario.faults} == {"thermal", "xid79", "pause_storm", "cpu_contention"}
    assert all((fault.end - fault.onset) * scenario.duration_s >= 10 for fault in scenario.faults)


def test_eight_nodes_are_six_for_pretraining_and_two_for_finetuning() -> None:
    fleet = Fleet.of(default_scenario(), Noise(0))
    assert [(job.first_node, job.stop_node) for job in fleet.jobs] == [(0, 6), (6, 8)]
    assert [job.shape for job in fleet.jobs] == [(2, 12, 2), (1, 16, 1)]


@settings(max_examples=60, deadline=None)
@given(st.integers(4, 400), st.integers(0, 2**40), st.sampled_from(scenario_names()))
def test_every_size_of_fleet_has_room_for_its_faults_on_nodes_of_their_own(nodes: int, seed: int, name: str) -> None:
    scenario = default_scenario(nodes=nodes, seed=seed, scenario=name)
    noise = Noise(seed)
    fleet = Fleet.of(scenario, noise)
    placed = place_faults(fleet, noise)
    assert len(placed) == len(scenario.faults)
    assert len({fault.node for fault in placed}) == len(placed)
    assert all(fault.job.first_node <= fault.node < fault.job.stop_node for fault in placed)
    assert fleet.jobs[-1].stop_node == nodes
    assert fleet.jobs[0].stop_node == fleet.jobs[1].first_node


def test_the_places_of_faults_are_drawn_from_the_seed() -> None:
    def places(seed: int) -> list[tuple[int, int]]:
        noise = Noise(seed)
        return [(f.node, f.gpu) for f in place_faults(Fleet.of(default_scenario(seed=seed), noise), noise)]

    assert len({tuple(places(seed)) for seed in range(10)}) > 5
    assert places(3) == places(3)


def test_healthy_mfu_is_about_45_percent_in_the_6n_convention() -> None:
    for job in (record for _, record in simulate(default_scenario(duration_s=1), 0) if isinstance(record, Job)):
        assert job.model is not None
        assert job.tokens_per_step is not None
        assert job.tokens_per_step % job.layout.data == 0
        step_s = {"pretrain-70b": 0.5, "finetune-8b": 0.42}[job.job_id]
        flops = 6 * job.model.parameters * job.tokens_per_step
        assert flops / (step_s * job.world_size * 989.5e12) == pytest.approx(0.45, abs=0.005)


def test_placements_cover_each_rank_once_and_agree_with_the_layout() -> None:
    records = [record for _, record in simulate(default_scenario(duration_s=1), 0)]
    for job in (record for record in records if isinstance(record, Job)):
        placed = [r for r in records if isinstance(r, RankPlacement) and r.job_id == job.job_id]
        ranks = [rank for placement in placed for rank in placement.rank]
        assert sorted(ranks) == list(range(job.world_size))
        layout = job.layout
        assert layout.tensor * layout.data * layout.pipeline == job.world_size
        for placement in placed:
            assert placement.stage == tuple(rank // (layout.tensor * layout.data) for rank in placement.rank)


@pytest.mark.parametrize("nodes", [0, 1, 3])
def test_too_small_a_fleet_is_refused_and_told_the_minimum(nodes: int) -> None:
    with pytest.raises(ScenarioError, match=f"at least 4 nodes, not {nodes}"):
        default_scenario(nodes=nodes)


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(ScenarioError, match=r"no scenario 'mixd'; there are .*mixed"):
        load_scenario("mixd")


JOB = '[[jobs]]\njob_id = "a"\n%s\n[jobs.model]\nparameters = 1e9\n'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes = ", "no TOML"),
        ("nodse = 8\n", "nodse: Extra inputs"),
        ("nodes = 8\ngpus_per_node = 8\n" + JOB % "tensor = 3", "tensor 3 does not divide the 8 GPUs"),
        ("nodes = 8\n" + JOB % "pipeline = 7", "64 GPUs are no multiple of tensor x pipeline = 7"),
        ("nodes = 8\n" + JOB % "nodes_from = 9", "job a: no nodes"),
        ("nodes = 8\n" + JOB % "" + JOB % "", "two jobs have one job_id"),
        ("nodes = 8\n" + JOB % "" + (JOB % "").replace('"a"', '"b"'), "already belongs to another job"),
        ('nodes = 8\n[[faults]]\nkind = "thermal"\njob = "x"\nonset = 0.1\n', "no job 'x'"),
        ('nodes = 8\n[[faults]]\nkind = "lightning"\njob = "x"\nonset = 0.1\n', "faults.0.kind"),
        ('nodes = 8\n[[faults]]\nkind = "thermal"\njob = "x"\nonset = 0.6\nend = 0.5\n', "onset 0.6 is not before"),
        ('nodes = 8\n[[faults]]\nkind = "xid79"\njob = "x"\nonset = 0.5\nend = 0.6\n', "does not heal"),
        ('extends = "nothing"\n', "no scenario 'nothing'"),
        ('extends = "itself"\n', "at most 8 deep"),
        ("look_alikes = ['ghost']\n", "look_alikes.0"),
    ],
)
def test_a_scenario_that_contradicts_itself_is_refused_in_one_line(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "itself.toml"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=message) as caught:
        load_scenario(path)
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ScenarioError, match="No such file"):
        load_scenario(tmp_path / "absent.toml")


def test_a_file_may_extend_a_packaged_scenario_and_pin_a_fault(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    path.write_text(
        'extends = "healthy"\n[[faults]]\nkind = "thermal"\njob = "pretrain-70b"\nonset = 0.5\nnode = 3\ngpu = 1\n'
    )
    scenario = load_scenario(path, seed=4)
    assert (scenario.name, len(scenario.jobs)) == ("own", 2)
    noise = Noise(4)
    [fault] = place_faults(Fleet.of(scenario, noise), noise)
    assert (fault.node, fault.gpu, fault.rank) == (3, 1, 25)


def test_more_faults_than_nodes_of_a_job_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "own.toml"
    fault = '[[faults]]\nkind = "thermal"\njob = "finetune-8b"\nonset = 0.5\n'
    path.write_text('extends = "healthy"\n' + fault * 3)
    with pytest.raises(ScenarioError, match="finetune-8b has 2 nodes, too few"):
        list(simulate(load_scenario(path), 0))


def test_two_faults_pinned_to_one_node_are_refused(tmp_path: Path) -> None:
    fault: dict[str, Any] = {"kind": "thermal", "job": "pretrain-70b", "onset": 0.5, "node": 2}
    with pytest.raises(ScenarioError, match="pinned to one node"):
        simulate(load_scenario("healthy", faults=[fault, fault]), 0)
