"""The topic table: one name, one key, one place for each record family."""

from __future__ import annotations

import pytest
from factories import gpu_frame, job, nic_frame, placement, progress, step_timing, switch_frame, xid_event

from schemas.errors import SchemaError, UnknownTopicError
from schemas.fleet import Layout
from schemas.remediation import Target
from schemas.topics import DEAD_LETTER, LATE, TOPICS, topic_named, topic_of

DAY_MS = 86_400_000


def test_names_are_made_one_way_and_are_unique() -> None:
    assert all(topic.name == f"paceline.{topic.family}.v1" for topic in TOPICS)
    assert len({topic.name for topic in TOPICS}) == len(TOPICS) == 20


def test_a_topic_is_found_by_its_name_and_by_its_family() -> None:
    for topic in TOPICS:
        assert topic_named(topic.name) is topic
        assert topic_named(topic.family) is topic


def test_an_unknown_name_is_told_with_those_that_are_known() -> None:
    with pytest.raises(UnknownTopicError, match=r"no topic 'paceline\.frames\.v1'.*gpu-frames"):
        topic_named("paceline.frames.v1")


def test_every_family_travels_on_one_topic() -> None:
    families = [family for topic in TOPICS for family in topic.records]
    assert len(set(families)) == len(families)
    assert all(topic_of(family).records.count(family) == 1 for family in families)


def test_families_of_one_topic_are_told_apart_by_their_record_field() -> None:
    for topic in TOPICS:
        names = [family.model_fields["record"].default for family in topic.records]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("record", "key"),
    [
        (gpu_frame(1), "node-1"),
        (nic_frame(1, 0, 0), "node-1"),
        (switch_frame(1, ["Ethernet0"], [0], [0]), "leaf-1"),
        (xid_event(1, 79), "node-1"),
        (step_timing(1, 1, [5]), "job-1"),
        (progress(1), "job-1"),
        (job(8), "job-1"),
        (placement([0]), "job-1"),
    ],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
def test_records_are_keyed_by_who_they_are_about(record: object, key: str) -> None:
    assert topic_of(record).key(record) == key  # type: ignore[arg-type]


def test_a_commands_key_is_its_switch_node_or_job() -> None:
    assert Target(level="port", switch_id="leaf-1", node_id="node-1", port="1").key() == "leaf-1"
    assert Target(level="gpu", node_id="node-1", gpu_uuid="GPU-1").key() == "node-1"
    assert Target(level="job", job_id="job-1").key() == "job-1"


def test_topics_that_are_read_together_share_a_role() -> None:
    roles = {topic.family: topic.role for topic in TOPICS}
    assert {roles[family] for family in ("findings", "approvals", "action-results", "policy")} == {"decisions"}
    assert {roles[family] for family in ("gpu-frames", "fabric-frames", "kernel-events", "node-status")} == {
        "telemetry"
    }
    assert {roles[family] for family in ("step-timings", "collective-digests", "jobs")} == {"jobs"}


def test_what_is_kept_how_long() -> None:
    days = {topic.family: topic.retention_ms / DAY_MS for topic in TOPICS}
    assert days["gpu-frames"] == days["fabric-frames"] == 7
    assert days["step-timings"] == days["collective-digests"] == 14
    assert days["dead-letter"] == days["late"] == 30
    assert days["kernel-events"] == days["findings"] == days["step-results"] == 90
    assert days["actions"] == days["decisions"] == days["jobs"] == days["policy"] == 365


def test_statements_and_orders_are_cloud_events_and_telemetry_is_not() -> None:
    assert {topic.family for topic in TOPICS if topic.cloud_event} == {
        "findings",
        "incidents",
        "actions",
        "action-results",
    }


def test_original_bytes_keep_their_original_key() -> None:
    for topic in (DEAD_LETTER, LATE):
        assert topic.records == ()
        with pytest.raises(SchemaError):
            topic.key(gpu_frame(1))


def test_what_travels_inside_others_has_no_topic() -> None:
    with pytest.raises(UnknownTopicError, match="Layout"):
        topic_of(Layout)
