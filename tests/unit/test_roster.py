"""The roster: seats of ranks by epoch, devices by their own names, later versions over earlier ones."""

from __future__ import annotations

from factories import H100, START_NS, job, pci_of, placement, policy, uuid_of

from schemas.fleet import Node
from streams.core.roster import Roster


def roster_of(*records: object) -> Roster:
    roster = Roster()
    for record in records:
        roster.take(record)  # type: ignore[arg-type]
    return roster


def test_a_rank_sits_on_the_device_that_its_placement_names() -> None:
    seats = roster_of(job(8), placement(range(8), devices=range(7, -1, -1))).job("job-1", 0).seats
    assert (seats[0].gpu_uuid, seats[0].pci_bus_id, seats[0].sku) == (uuid_of("node-1", 7), pci_of(7), H100)
    assert seats[7].gpu_uuid == uuid_of("node-1", 0)


def test_a_device_leads_back_to_its_rank_by_either_name() -> None:
    roster = roster_of(job(8), placement(range(8), devices=range(7, -1, -1)))
    assert roster.rank_of("node-1", uuid_of("node-1", 7), None) == ("job-1", 0, 0)
    assert roster.rank_of("node-1", None, pci_of(7)) == ("job-1", 0, 0)
    assert roster.rank_of("node-1", "GPU-other", pci_of(3)) == ("job-1", 0, 4)
    assert roster.rank_of("node-2", uuid_of("node-1", 7), None) is None
    assert roster.rank_of("node-1", None, None) is None


def test_a_device_belongs_to_the_newest_epoch() -> None:
    later = placement([5], devices=[0]).model_copy(update={"epoch": 1})
    roster = roster_of(job(8), placement(range(8)), later)
    assert roster.rank_of("node-1", uuid_of("node-1", 0), None) == ("job-1", 1, 5)


def test_an_unknown_mapping_leaves_the_seat_without_a_device() -> None:
    roster = roster_of(job(2), placement([0, 1], devices=[]))
    assert roster.job("job-1", 0).seats[1].gpu_uuid is None
    assert roster.job("job-1", 0).seats[1].node_id == "node-1"


def test_stages_follow_from_the_layout_and_placements_may_say_otherwise() -> None:
    layout = {"tensor": 2, "data": 2, "pipeline": 2}
    assert [roster_of(job(8, layout=layout)).job("job-1", 0).stage_of(rank) for rank in range(8)] == [0] * 4 + [1] * 4
    told = placement([0, 1], stage=(3, 3))
    assert roster_of(job(8, layout=layout), told).job("job-1", 0).seats[0].stage == 3


def test_a_layout_that_does_not_fill_the_world_gives_no_stages() -> None:
    assert roster_of(job(8, layout={"pipeline": 3})).job("job-1", 0).stage_of(0) is None


def test_all_of_the_world_is_expected_unless_fewer_report() -> None:
    roster = roster_of(job(64, reporting_ranks=16), placement([0, 4, 8]))
    assert roster.job("job-1", 0).expected == 16
    assert roster.job("job-1", 0).members == frozenset({0, 4, 8})
    assert roster_of(job(4)).job("job-1", 0).members == frozenset(range(4))


def test_of_an_unknown_job_nothing_is_expected() -> None:
    assert roster_of().job("nobody", 0).expected is None
    assert roster_of().job("nobody", 0).members == frozenset()


def test_a_repeat_or_an_older_version_changes_nothing() -> None:
    roster = roster_of(job(8), placement(range(8)))
    version = roster.version
    assert not roster.take(job(16))
    assert not roster.take(placement(range(8)))
    assert roster.version == version
    assert roster.take(job(16, version=2))
    assert roster.job("job-1", 0).expected == 16


def test_what_was_derived_follows_a_change() -> None:
    roster = roster_of(job(8), placement(range(8)))
    assert roster.job("job-1", 0).seats[0].gpu_uuid == uuid_of("node-1", 0)
    assert roster.rank_of("node-1", uuid_of("node-1", 0), None) is not None
    assert roster.take(placement(range(8), devices=range(7, -1, -1), version=2))
    assert roster.job("job-1", 0).seats[0].gpu_uuid == uuid_of("node-1", 7)
    assert roster.rank_of("node-1", uuid_of("node-1", 0), None) == ("job-1", 0, 7)


def test_a_policy_holds_until_one_that_is_effective_later() -> None:
    roster = roster_of(policy())
    assert not roster.take(policy())
    assert roster.take(policy(mode="auto")), "a file that gives a date was changed and kept its date"
    later = policy().model_copy(update={"effective_from_ns": START_NS + 1})
    assert roster.take(later)
    assert not roster.take(policy(mode="auto"))
    assert roster.policy == later


def test_a_kill_switch_holds_though_a_policy_before_it_was_dated_ahead() -> None:
    ahead = policy(mode="auto").model_copy(update={"effective_from_ns": START_NS + 10**12})
    thrown = policy(kill_switch=True)
    roster = roster_of(ahead)
    assert roster.take(thrown)
    assert roster.policy == thrown
    lifted = policy().model_copy(update={"effective_from_ns": START_NS + 1})
    assert roster.take(lifted)
    assert roster.policy == lifted


def test_jobs_on_a_node_are_those_whose_newest_epoch_is_there_and_runs() -> None:
    moved = placement([0], node_id="node-2").model_copy(update={"epoch": 1})
    roster = roster_of(
        job(1),
        placement([0], node_id="node-1"),
        moved,
        job(1, job_id="job-2"),
        placement([0], node_id="node-1", job_id="job-2"),
        job(1, job_id="job-3", state="ended"),
        placement([0], node_id="node-1", job_id="job-3"),
    )
    assert roster.jobs_on("node-1") == [("job-2", 0)]
    assert roster.jobs_on("node-2") == [("job-1", 1)]


def test_nodes_are_kept_by_version() -> None:
    first = Node(node_id="node-1", effective_from_ns=START_NS, rack="r1")
    roster = roster_of(first)
    assert not roster.take(first.model_copy(update={"rack": "r2"}))
    assert roster.take(first.model_copy(update={"rack": "r2", "version": 2}))
    assert roster.nodes["node-1"].rack == "r2"
