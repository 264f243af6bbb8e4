"""`paceline explain`: what is printed of a finding is what decided, and enough to recompute it by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from factories import H100, JOB, at, gpu_frame
from typer.testing import CliRunner

from paceline.cli import app
from paceline.explanation.formulas import FORMULAS
from schemas.archive import ArchiveWriter, read_archive
from schemas.archive_blocks import BlockWriter, marks_of
from schemas.findings import Evidence, Finding, Subject
from schemas.fleet import Job, Layout, Model, Policy, RankPlacement, RulePolicy
from schemas.steps import CollectiveTiming, StepTiming
from streams.core.policy_file import known_thresholds
from streams.replay import Problems, replay

if TYPE_CHECKING:
    from collections.abc import Iterable

    from schemas.base import Record

RANKS = 8
STEPS = 12
SLOW = 5
REPOSITORY = Path(__file__).parents[2]
TRACES = REPOSITORY.parent / "shared" / "data" / "step_traces"
US = 1_000_000


def own_us(step: int, rank: int) -> int:
    """Uneven by up to 0.4 %; from step 4 on one rank takes a quarter longer."""
    base = 100_000 + (step * 37 + rank * 101) % 400
    return round(base * 1.25) if rank == SLOW and step >= 4 else base


def job_records(steps: int = STEPS, with_waits: bool = True) -> list[tuple[int, Record]]:
    records: list[tuple[int, Record]] = [
        (
            at(0),
            Job(
                job_id=JOB,
                effective_from_ns=at(0),
                world_size=RANKS,
                layout=Layout(data=RANKS),
                model=Model(parameters=1e9),
                tokens_per_step=160_000,
                sku=H100,
                gpu_hour_cost=3.0,
            ),
        ),
        (
            at(0),
            RankPlacement(
                job_id=JOB, effective_from_ns=at(0), node_id="n1", rank=tuple(range(RANKS)), gpu_uuid=(None,) * RANKS
            ),
        ),
    ]
    for step in range(steps):
        own = [own_us(step, rank) for rank in range(RANKS)]
        total = max(own) + 20_000
        records.append(
            (
                at(1 + step * 0.2),
                StepTiming(
                    job_id=JOB,
                    node_id="n1",
                    agent_session="s",
                    seq=step,
                    event_time_ns=at(1 + step * 0.2),
                    step=step,
                    rank=tuple(range(RANKS)),
                    step_us=(total,) * RANKS,
                    own_us=tuple(own),
                    wait_us=tuple(total - entry - 15_000 for entry in own) if with_waits else None,
                    collectives=(
                        CollectiveTiming(group="dp", instance=(0,) * RANKS, duration_us=tuple(total - o for o in own)),
                    )
                    if with_waits
                    else (),
                ),
            )
        )
    return records


def write(path: Path, records: Iterable[tuple[int, Record]]) -> Path:
    with ArchiveWriter.open(path) as archive:
        for arrival_ns, record in records:
            archive.write(record, arrival_ns)
    return path


def found(path: Path, kind: str) -> Finding:
    return next(
        record
        for record in replay(read_archive(path), "replay", Problems())
        if isinstance(record, Finding) and record.kind == kind and record.state == "open"
    )


def told(*arguments: object) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["explain", *map(str, arguments), "--json"])
    assert result.exit_code == 0, result.stderr
    explanation: dict[str, Any] = json.loads(result.stdout)
    return explanation


def by_hand(own: np.ndarray, rank: int) -> tuple[list[float], float]:
    """Scores of one rank and the last noise, from own times (steps, ranks) of one peer group, in plain loops."""
    steps, ranks = own.shape
    score = np.array(
        [[math.log(own[s, r] / np.median(np.delete(own[s], r))) for r in range(ranks)] for s in range(steps)]
    )
    change = np.zeros(ranks)
    for step in range(1, steps):
        for r in range(ranks):
            change[r] += (abs(score[step, r] - score[step - 1, r]) - change[r]) / min(step, 16)
    return score[:, rank].tolist(), max(0.005, float(np.median(change)) / 1.128)


def test_a_straggler_is_recomputed_from_what_is_printed(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", job_records())
    finding = found(path, "straggler")
    assert finding.subject.rank == SLOW
    explanation = told(finding.finding_id, path)
    comparison, persistence = explanation["comparison"], explanation["persistence"]
    assert explanation["origin"] == "recomputed"
    assert explanation["finding"]["finding_id"] == finding.finding_id
    assert comparison["rank"] == SLOW
    assert [row["rank"] for row in comparison["rows"]] == list(range(RANKS))
    own = [row["own_us"] for row in comparison["rows"]]
    others = np.delete(own, SLOW)
    assert comparison["peer_median_us"] == np.median(others)
    assert comparison["peer_mad_us"] == np.median(np.abs(others - np.median(others)))
    assert comparison["log_ratio"] == pytest.approx(math.log(own[SLOW] / np.median(others)), rel=1e-12)
    assert comparison["limit"] == pytest.approx(max(math.log(1.03), 6 * comparison["noise_scale"]))
    assert comparison["noise_scale"] == pytest.approx(
        max(0.005, float(np.median(list(comparison["changes"].values()))) / 1.128)
    )
    assert finding.step is not None
    history = np.array([[own_us(s, r) for r in range(RANKS)] for s in range(finding.step + 1)], dtype=float)
    scores, noise = by_hand(history, SLOW)
    assert [row["step"] for row in persistence["rows"]] == list(range(finding.step - 4, finding.step + 1))
    assert [row["log_ratio"] for row in persistence["rows"]] == pytest.approx(scores[-5:], rel=1e-9)
    assert comparison["noise_scale"] == pytest.approx(noise, rel=1e-9)
    assert [row["is_hit"] for row in persistence["rows"]] == [
        row["log_ratio"] > row["limit"] for row in persistence["rows"]
    ]
    assert persistence["hits"] == 4
    assert persistence["chart"] == "fast"
    assert explanation["notes"] == []


def test_what_the_step_would_be_without_the_culprit_is_in_time_mfu_gpu_hours_and_money(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", job_records())
    finding = found(path, "straggler")
    explanation = told(finding.finding_id, path, "--price-per-gpu-hour", 2.5)
    impact = explanation["impact"]
    rows = explanation["comparison"]["rows"]
    waits = {row["rank"]: row["wait_us"] for row in rows}
    gain_us = min(wait for rank, wait in waits.items() if rank != SLOW) - waits[SLOW]
    excess_us = rows[SLOW]["own_us"] - explanation["comparison"]["peer_median_us"]
    step_us = rows[SLOW]["own_us"] + 20_000
    assert 0 < gain_us <= excess_us
    assert impact["gain_ms"] * 1000 == pytest.approx(gain_us)
    assert impact["step_ms"] * 1000 == pytest.approx(step_us)
    assert impact["step_without_ms"] * 1000 == pytest.approx(step_us - gain_us)
    lost = RANKS * gain_us / step_us
    assert impact["gpu_hours_lost_per_hour"] == pytest.approx(lost)
    assert impact["money_lost_per_hour"] == pytest.approx(2.5 * lost)
    assert impact["price_source"] == "--price-per-gpu-hour"
    assert impact["mfu_percent"] > 0
    assert impact["mfu_without_percent"] == pytest.approx(impact["mfu_percent"] * step_us / (step_us - gain_us))
    assert impact["share_of_excess"] == 1.0
    assert told(finding.finding_id, path)["impact"]["price_per_gpu_hour"] == 3.0


def test_unequal_work_is_taken_out_of_the_comparison_as_the_rule_does_it(tmp_path: Path) -> None:
    def uneven(step: int, rank: int) -> int:
        return 1000 + (step * 131 + rank * 377) % 400

    records: list[tuple[int, Record]] = []
    for arrival_ns, record in job_records(30):
        if isinstance(record, StepTiming):
            assert record.own_us is not None
            tokens = tuple(uneven(record.step, rank) for rank in range(RANKS))
            own = tuple(round((entry or 0) * t / 1200) for entry, t in zip(record.own_us, tokens, strict=True))
            records.append((arrival_ns, record.model_copy(update={"own_us": own, "tokens": tokens})))
        else:
            records.append((arrival_ns, record))
    path = write(tmp_path / "run.jsonl", records)
    finding = found(path, "straggler")
    assert finding.subject.rank == SLOW
    explanation = told(finding.finding_id, path)
    comparison = explanation["comparison"]
    assert any(row["work"] != 1.0 for row in comparison["rows"])
    rest = [row["own_us"] / row["work"] for row in comparison["rows"]]
    assert comparison["ratio"] == pytest.approx(rest[SLOW] / np.median(np.delete(rest, SLOW)))
    assert comparison["ratio"] == pytest.approx(finding.slowdown, rel=1e-5)
    assert explanation["notes"] == []
    assert "work" in CliRunner().invoke(app, ["explain", finding.finding_id, str(path)]).stdout


def test_without_reported_waits_the_next_longest_own_time_stands_in(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", job_records(with_waits=False))
    finding = found(path, "straggler")
    explanation = told(finding.finding_id, path)
    own = sorted(row["own_us"] for row in explanation["comparison"]["rows"])
    assert explanation["impact"]["way"] == "own_times"
    assert explanation["impact"]["gain_ms"] * 1000 == pytest.approx(own[-1] - own[-2])


def test_a_threshold_names_the_policy_that_set_it(tmp_path: Path) -> None:
    policy = Policy(
        policy_version="strict-7",
        site_id="replay",
        effective_from_ns=at(0),
        rules={"straggler": RulePolicy(thresholds={"floor": 0.1})},
    )
    path = write(tmp_path / "run.jsonl", [(at(0), policy), *job_records()])
    explanation = told(found(path, "straggler").finding_id, path)
    thresholds = {threshold["name"]: threshold for threshold in explanation["thresholds"]}
    assert explanation["policy"] == "strict-7"
    assert (thresholds["floor"]["value"], thresholds["floor"]["default"]) == (0.1, 0.03)
    assert thresholds["floor"]["set_by"] == "policy strict-7"
    assert thresholds["scales"]["set_by"] == "default"
    assert "published traces" in thresholds["scales"]["source"]
    assert explanation["comparison"]["limit"] == pytest.approx(math.log(1.1))


def test_a_line_that_cannot_be_read_is_named_beside_the_figures(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", job_records())
    finding = found(path, "straggler")
    path.write_bytes(b"no line\n" + path.read_bytes())
    result = CliRunner().invoke(app, ["explain", finding.finding_id, str(path)])
    assert (result.exit_code, "unusable: line 1: no JSON" in result.stderr) == (2, True)
    assert result.stdout.startswith(finding.finding_id)


def test_a_damaged_recording_is_explained_from_what_can_be_read_on_request(tmp_path: Path) -> None:
    plain = write(tmp_path / "run.jsonl", job_records())
    finding = found(plain, "straggler")
    damaged = tmp_path / "run.jsonl.zst"
    with damaged.open("wb") as stream:
        writer = BlockWriter(stream, {"site_id": "replay"})
        for number, line in enumerate(plain.read_bytes().splitlines(keepends=True)):
            writer.add(line, "lines", 0, number, number)
            writer.close_block()
        writer.end({})
    content = bytearray(damaged.read_bytes())
    first_step = next(block for block in marks_of(damaged).blocks if block["first_line"] == 3)
    content[first_step["at"] + 50] ^= 0x40
    damaged.write_bytes(content)
    refused = CliRunner().invoke(app, ["explain", finding.finding_id, str(damaged)])
    assert (refused.exit_code, refused.stdout) == (2, "")
    result = CliRunner().invoke(app, ["explain", finding.finding_id, str(damaged), "--readable"])
    assert (result.exit_code, "unusable: line 3: " in result.stderr) == (2, True)
    assert result.stdout.startswith(finding.finding_id)


def test_the_text_names_every_number_that_decides(tmp_path: Path) -> None:
    path = write(tmp_path / "run.jsonl", job_records())
    finding = found(path, "straggler")
    result = CliRunner().invoke(app, ["explain", finding.finding_id, str(path)])
    assert result.exit_code == 0
    explanation = told(finding.finding_id, path)
    comparison = explanation["comparison"]
    for part in (
        finding.finding_id,
        "hit   : e > max(ln(1 + floor), scales x noise)",
        "policy in force: default",
        f"{comparison['own_us']} us",
        f"{comparison['log_ratio']:.6f}",
        f"{comparison['limit']:.6f}",
        "chart fast, at least 4 of the last 5 are hits; here 4 of 5",
        "GPU-hours an hour",
        "(job job-1)",
        "paceline.step-timings.v1 0@",
    ):
        assert part in result.stdout, part


def test_a_device_finding_shows_the_counter_of_its_gpu_before_and_at_the_cited_frame(tmp_path: Path) -> None:
    frames = [
        (at(s), gpu_frame(s, thermal_violation_ns=[0] * 3 + [max(0, s - 4) * 60_000_000] + [0] * 4)) for s in range(10)
    ]
    path = write(tmp_path / "frames.jsonl", frames)
    finding = found(path, "thermal_violation")
    explanation = told(finding.finding_id, path)
    cited = [record for record in explanation["evidence"] if record["is_cited"]]
    assert [(c["topic"], c["partition"], c["offset"]) for c in cited] == [
        (e.topic, e.partition, e.offset) for e in finding.evidence
    ]
    counters = [record["values"]["thermal_violation_ns"] for record in explanation["evidence"]]
    assert counters[-1] - counters[0] == finding.values["violation_ns_in_minute"]
    assert "violation_ns" in explanation["formula"][0]
    assert explanation["impact"] is None


def test_what_a_replay_refuses_does_not_decide_here_either(tmp_path: Path) -> None:
    archive = write(tmp_path / "a.jsonl", job_records())
    finding = found(archive, "straggler")
    lines = [json.loads(line) for line in archive.read_text().splitlines()]
    for line in lines:
        if "step-timings" in line["topic"]:
            line["key"] = "another-job"
    archive.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert not [record for record in replay(read_archive(archive), "replay", Problems()) if isinstance(record, Finding)]
    result = CliRunner().invoke(app, ["explain", finding.finding_id, str(archive)])
    assert result.exit_code == 2
    assert f"no finding {finding.finding_id}; no finding comes of it at all" in result.stderr
    assert "unusable: line 3: paceline.step-timings.v1: " in result.stderr


def test_a_finding_that_was_only_recorded_is_explained_from_the_records_it_cites(tmp_path: Path) -> None:
    finding = found(write(tmp_path / "run.jsonl", job_records()), "straggler")
    # The beginning is gone: the engines would see two steps and name nobody.
    assert finding.step is not None
    rest = [
        (a, r) for a, r in job_records() if not isinstance(r, StepTiming) or r.step in {finding.step - 1, finding.step}
    ]
    steps = [r for _, r in rest if isinstance(r, StepTiming)]
    place = finding.model_copy(
        update={"evidence": (Evidence(topic="paceline.step-timings.v1", partition=0, offset=len(steps) - 1),)}
    )
    path = write(tmp_path / "rest.jsonl", [*rest, (at(60), place)])
    explanation = told(finding.finding_id, path)
    assert explanation["origin"] == "recorded"
    assert explanation["comparison"]["ratio"] == pytest.approx(finding.slowdown, rel=1e-5)
    assert [row["step"] for row in explanation["persistence"]["rows"]] == [finding.step - 1, finding.step]
    assert any("recorded" in note for note in explanation["notes"])


def test_a_recorded_finding_whose_records_are_gone_says_so(tmp_path: Path) -> None:
    finding = Finding(
        finding_id="find-gone",
        site_id="replay",
        rule="straggler",
        kind="straggler",
        severity="warning",
        state="open",
        job_id=JOB,
        step=3,
        subject=Subject(level="rank", job_id=JOB, rank=1),
        event_time_ns=at(3),
        onset_ns=at(1),
        slowdown=1.5,
        evidence=(Evidence(topic="paceline.step-timings.v1", partition=2, offset=77),),
    )
    path = write(tmp_path / "found.jsonl", [(at(3), finding)])
    explanation = told("find-gone", path)
    assert explanation["comparison"] is None
    assert any("2@77 is not here" in note for note in explanation["notes"])


def test_a_folder_of_archives_is_read_in_the_order_of_append_times(tmp_path: Path) -> None:
    whole = write(tmp_path / "run.jsonl", job_records())
    finding = found(whole, "straggler")
    lines = whole.read_bytes().splitlines(keepends=True)
    folder = tmp_path / "parts"
    folder.mkdir()
    (folder / "a.jsonl").write_bytes(b"".join(lines[::2]))
    (folder / "b.jsonl").write_bytes(b"".join(lines[1::2]))
    assert told(finding.finding_id, folder)["comparison"] == told(finding.finding_id, whole)["comparison"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["find-nosuch", "run.jsonl"], "no finding find-nosuch; there are "),
        (["inc-1", "run.jsonl"], "inc-1 is an incident: give one of its findings"),
        (["find-nosuch", "no/such.jsonl"], "no/such.jsonl: No such file"),
        (["find-nosuch", "empty"], "no .jsonl or .jsonl.zst in this folder"),
        (["find-nosuch"], "one of an archive and --bootstrap"),
        (["find-nosuch", "run.jsonl", "--bootstrap", "localhost:1"], "one of an archive and --bootstrap"),
        (["find-nosuch", "--bootstrap", "localhost:1", "--readable"], "--readable goes with an archive"),
        (["find-nosuch", "run.jsonl", "--price-per-gpu-hour", "-1"], "a price, 0 or more"),
        (["find-nosuch", "run.jsonl", "--policy", "no/such.toml"], "no/such.toml"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_explained_is_one_message_and_status_2(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "run.jsonl", job_records(8))
    (tmp_path / "empty").mkdir()
    result = CliRunner().invoke(app, ["explain", *arguments])
    assert result.exit_code == 2, result.output
    assert said in result.stderr
    assert result.stdout == ""
    assert isinstance(result.exception, SystemExit)


def test_every_rule_has_a_formula_that_names_its_thresholds() -> None:
    """A rule without one is to be added to paceline/explanation/formulas.py."""
    without = set(known_thresholds()) - set(FORMULAS) - {"mfu"}
    assert not without
    for rule, names in known_thresholds().items():
        text = " ".join(FORMULAS[rule].lines) if rule in FORMULAS else ""
        counters = rule in {"port_errors", "port_loss"}
        named = {name for name in names if name in text}
        assert counters or len(named) >= len(names) / 2, (rule, names - named)


def test_the_slow_worker_of_the_real_trace_is_recomputed_from_the_operations(tmp_path: Path) -> None:
    """Own times from the trace's rows, medians and noise in plain loops: the same figures as explain prints."""
    trace = TRACES / "trace-AR.parquet"
    if not trace.exists():
        pytest.skip(f"reference data absent: {trace}")
    path = tmp_path / "ar.jsonl.zst"
    layout = TRACES / "meta-AR.yaml"
    assert (
        CliRunner().invoke(app, ["import", "op-trace", str(trace), "--layout", str(layout), "-o", str(path)]).exit_code
        == 0
    )
    finding = found(path, "straggler")
    explanation = told(finding.finding_id, path, "--price-per-gpu-hour", 2.5)

    own, stage_of = _own_times(trace)
    steps = sorted({step for step, _ in own})
    ranks = sorted(stage_of)
    until = steps.index(explanation["finding"]["step"]) + 1
    peers = [rank for rank in ranks if stage_of[rank] == stage_of[0]]
    table = np.array([[own[step, rank] for rank in ranks] for step in steps[:until]], dtype=float)
    scores = np.full(table.shape, np.nan)
    for column, rank in enumerate(ranks):
        others = [ranks.index(r) for r in ranks if stage_of[r] == stage_of[rank] and r != rank]
        scores[:, column] = np.log(table[:, column] / np.median(table[:, others], axis=1))
    noise = 0.005
    change = np.zeros(len(ranks))
    for row in range(1, until):
        change += (np.abs(scores[row] - scores[row - 1]) - change) / min(row, 16)
        noise = max(0.005, float(np.median(change)) / 1.128)

    comparison = explanation["comparison"]
    assert comparison["rank"] == 0
    assert [row["rank"] for row in comparison["rows"]] == peers
    assert [row["own_us"] for row in comparison["rows"]] == [own[steps[until - 1], rank] for rank in peers]
    assert comparison["log_ratio"] == pytest.approx(scores[-1, 0], rel=1e-9)
    assert comparison["noise_scale"] == pytest.approx(noise, rel=1e-9)
    assert comparison["limit"] == pytest.approx(max(math.log(1.03), 6 * noise), rel=1e-9)
    assert [row["log_ratio"] for row in explanation["persistence"]["rows"]] == pytest.approx(scores[-5:, 0], rel=1e-9)
    assert explanation["persistence"]["hits"] == int((scores[-5:, 0] > max(math.log(1.03), 6 * noise)).sum()) == 5
    assert finding.slowdown == pytest.approx(math.exp(scores[-1, 0]), rel=1e-5)
    # Without the slow worker the published what-if replay gives a step 1.97 times as short; the estimate is near it.
    impact = explanation["impact"]
    assert impact["step_ms"] / impact["step_without_ms"] == pytest.approx(1.97, rel=0.1)
    assert impact["money_lost_per_hour"] == pytest.approx(2.5 * 64 * impact["gain_ms"] / impact["step_ms"])


def _own_times(trace: Path) -> tuple[dict[tuple[int, int], int], dict[int, int]]:
    """Own time in whole microseconds by (step, rank), and the stage of each rank, straight from the trace's rows."""
    import pyarrow.parquet

    table = pyarrow.parquet.read_table(trace).to_pydict()
    parts: dict[tuple[int, int, str], float] = {}
    stage_of: dict[int, int] = {}
    for rank, stage, step, optype, duration in zip(
        table["rank"], table["stage"], table["step"], table["optype"], table["duration"], strict=True
    ):
        stage_of[rank] = stage
        if optype in {"forward-compute", "backward-compute", "optimizer", "gc"}:
            parts[step, rank, optype] = parts.get((step, rank, optype), 0.0) + duration
    own: dict[tuple[int, int], int] = {}
    for (step, rank, _), seconds in parts.items():
        own[step, rank] = own.get((step, rank), 0) + round(seconds * US)
    return own, stage_of
