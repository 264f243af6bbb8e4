"""Trainer logs: every tool's step line, timers, extremes over ranks, failures, and what must give nothing."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agents.decode.record import Tally, UnknownFormat
from agents.decode.steps import StepLogReader, decode
from agents.decode.steps_quantity import integer, number
from agents.decode.steps_repr import Cut, Printed, dictionary

MANDATORY = {
    "step": {"tool", "step", "step_time_ms"},
    "timer": {"name"},
    "rank_extreme": {"metric", "min", "min_rank", "max", "max_rank"},
    "failure": {"rank", "failure_class", "text"},
    "malformed": {"reason", "raw"},
}


def records_of(log: str | bytes) -> list[dict[str, Any]]:
    data = log.encode() if isinstance(log, str) else log
    return list(decode(io.BytesIO(data), Tally()))


def only(log: str) -> dict[str, Any]:
    (record,) = records_of(log)
    return record


def steps_of(log: str) -> list[dict[str, Any]]:
    return [record for record in records_of(log) if record["kind"] == "step"]


def test_a_megatron_line_is_read_by_name() -> None:
    record = only(
        " [2026-03-01 10:00:00] iteration       11/      50 | consumed samples:  704 | elapsed time per iteration (ms):"
        " 1204.5 | throughput per GPU (TFLOP/s/GPU): 401.2 | learning rate: 1.0E-05 | global batch size: 64 |"
        " mtp_1 loss: 9.0E+00 | lm loss: 2.5E+00 | load_balancing_loss: 1.0E+00 | loss scale: 1.0 |"
        " number of skipped iterations:   1 | number of nan iterations:   0 |"
    )
    assert record == {
        "kind": "step",
        "tool": "megatron",
        "step": 11,
        "step_time_ms": 1204.5,
        "tflops_per_gpu": 401.2,
        "loss": 2.5,
        "skipped_iterations": 1,
        "time_text": "2026-03-01 10:00:00",
    }


def test_a_megatron_line_without_time_and_timing_is_still_a_step() -> None:
    record = only("7:  iteration        1/       4 | consumed samples:           64 | lm loss: NAN |")
    assert (record["step"], record["step_time_ms"], record["loss"]) == (1, None, None)
    assert "rank" not in record


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            (
                "iteration 40/ 50 | elapsed time per iteration (ms): 1300.1/1324.0 | throughput per GPU (TFLOP/s/GPU): 57.4/56.1"
                " | tokens per GPU (tokens/s/GPU): 1005.5/990.7 | lm loss: 1.0E+00 |"
            ),
            {"step_time_ms": 1300.1, "tflops_per_gpu": 57.4, "tokens_per_s_per_gpu": 1005.5},
        ),
        (
            (
                "  samples/sec: 31.5 | iteration       10/  320000 | elapsed time per iteration (ms): 1016.2 | learning rate:"
                " 1.0E-04 | approx flops per GPU: 41.5TFLOPS | lm_loss: 1.06E+01 |"
            ),
            {"step_time_ms": 1016.2, "samples_per_s": 31.5, "tflops_per_gpu": 41.5, "loss": 10.6},
        ),
        (
            (
                "iteration 7/ 9 | elapsed time per iteration (s): 13.25 | lm loss: 2.0E+00 | samples per second: 77.5 |"
                " tokens per gpu per second (tgs): 1834.5 | TFLOPs: 148.0 |"
            ),
            {"step_time_ms": 13250.0, "samples_per_s": 77.5, "tokens_per_s_per_gpu": 1834.5, "tflops_per_gpu": 148.0},
        ),
        (
            (
                "[2024-04-21 02:45:24][INFO][training:1251] -  iteration=       2/  300 | elapsed_time_per_iteration_ms=160.5 |"
                " lm loss=11.25 | number_of_skipped_iterations=  0 | tokens_per_gpu_per_second_tgs=1362.5 |"
            ),
            {"step": 2, "step_time_ms": 160.5, "loss": 11.25, "skipped_iterations": 0, "tokens_per_s_per_gpu": 1362.5},
        ),
        (
            " iteration 10/ 1000 | elapsed time per iteration (ms): 430.0 | learning rate 1.000E-04 | total loss 6.9E+00 |",
            {"step_time_ms": 430.0, "loss": 6.9},
        ),
        (
            "iteration 4/ 25 | loss scale: 1.0 | iteration time: 270.5 s samples/sec: 3.8 |",
            {"step_time_ms": 270500.0, "samples_per_s": 3.8},
        ),
    ],
)
def test_the_spellings_of_megatron_forks_give_the_same_fields(line: str, expected: dict[str, Any]) -> None:
    record = only(line)
    assert record["tool"] == "megatron"
    assert {key: record[key] for key in expected} == expected


def test_torchtitan_prints_throughput_and_no_duration() -> None:
    record = only(
        "[rank3]:[titan] 2026-01-01 12:00:00,123 - root - INFO - \x1b[31mstep: 1,204  \x1b[32mloss:  7.5  grad_norm: 26.6  "
        "memory: 66.91GiB(37.51%)  tps: 1,010,050  tflops: 1,314.7  mfu: 13.9%\x1b[39m"
    )
    assert record["tool"] == "torchtitan"
    assert record["rank"] == 3
    assert record["step"] == 1204
    assert record["step_time_ms"] is None
    assert (record["tokens_per_s_per_gpu"], record["tflops_per_gpu"], record["mfu_pct"]) == (1010050.0, 1314.7, 13.9)


def test_torchtitan_without_utilisation_says_null_and_validation_says_nothing() -> None:
    log = (
        "step:  1  loss: 10.8  memory:  0.83GiB(0.88%)  wps: 3,142  mfu: N/A\nvalidate step: 10  loss:  7.1  tps: 100\n"
    )
    record = only(log)
    assert record["mfu_pct"] is None
    assert record["tokens_per_s_per_gpu"] == 3142.0


def test_nemo_counts_global_steps_and_prints_seconds() -> None:
    record = only(
        "0: Training epoch 1, iteration 5/49 | lr: 1e-05 | global_step: 55 | reduced_train_loss: 2.5 | "
        "train_step_timing in s: 0.4357 | val_loss: 2.8"
    )
    assert (record["tool"], record["step"], record["step_time_ms"], record["loss"]) == ("nemo", 55, 435.7, 2.5)


def test_a_nemo_bar_carries_its_readings_and_a_smoothed_rate() -> None:
    log = (
        "Epoch 0:   0%|          | 0/100 [00:00<?, ?it/s]\r"
        "Epoch 0: :   7%|7         | 7/100 [00:31<07:00,  4.69s/it, v_num=0, reduced_train_loss=2.31, global_step=7.0,"
        " train_step_timing in s=4.25]\r\n"
    )
    record = only(log)
    assert (record["tool"], record["step"], record["step_time_ms"]) == ("nemo", 7, 4250.0)
    assert record["smoothed_step_time_ms"] == 4690.0


@pytest.mark.parametrize(
    ("line", "step", "samples"),
    [
        (
            (
                "[2026-06-21 03:45:55,424] [INFO] [timer.py:215:stop] epoch=0/micro_step=68/global_step=34, "
                "RunningAvgSamplesPerSec=6.6, CurrSamplesPerSec=6.25, MemAllocated=7.79GB"
            ),
            34,
            6.25,
        ),
        (
            "[INFO] [timer.py:197:stop] 0/17, RunningAvgSamplesPerSec=158.3, CurrSamplesPerSec=159.5, MemAllocated=1GB",
            17,
            159.5,
        ),
        ("[INFO] [timer.py:189:stop] 0/40, SamplesPerSec=83.5, MemAllocated=0.26GB, MaxMemAllocated=9.02GB", 40, 83.5),
    ],
)
def test_each_generation_of_the_deepspeed_timer_gives_current_throughput(line: str, step: int, samples: float) -> None:
    record = only(line)
    assert (record["tool"], record["step"], record["samples_per_s"]) == ("deepspeed", step, samples)
    assert record["step_time_ms"] is None


def test_deepspeed_progress_and_pipeline_lines_are_steps() -> None:
    progress, pipe = records_of(
        "[2026-03-11 02:06:58,985] [INFO] [logging.py:69:log_dist] [Rank 0] step=40, skipped=2, lr=[5e-05], mom=[0.9]\n"
        "steps: 10 loss: 1.25 iter time (s): 0.234 samples/sec: 34.5\n"
    )
    assert (progress["step"], progress["skipped_iterations"], progress["rank"]) == (40, 2, 0)
    assert (pipe["step"], pipe["step_time_ms"], pipe["loss"], pipe["samples_per_s"]) == (10, 234.0, 1.25, 34.5)


def test_a_bar_in_front_of_a_log_record_belongs_to_it() -> None:
    record = only(
        "  9%|9         | 34/396 [10:01<1:46:21, 17.63s/it][2026-06-21 03:45:55,424] [INFO] [timer.py:215:stop] "
        "epoch=0/micro_step=34/global_step=34, RunningAvgSamplesPerSec=6.6, CurrSamplesPerSec=6.25, MemAllocated=7GB"
    )
    assert (record["tool"], record["step"], record["smoothed_step_time_ms"]) == ("deepspeed", 34, 17630.0)
    assert record["time_text"] == "2026-06-21 03:45:55,424"


def test_a_bar_and_a_dictionary_on_one_line_are_one_step() -> None:
    record = only(
        "  8%|##        | 1999/24128 [1:52:09<20:27:23,  2.00it/s]{'loss': 6.25, 'learning_rate': 1e-3, 'epoch': 0.02}"
    )
    assert record == {
        "kind": "step",
        "tool": "huggingface",
        "step": 1999,
        "step_time_ms": None,
        "loss": 6.25,
        "smoothed_step_time_ms": 500.0,
    }


def test_a_dictionary_on_a_line_of_its_own_has_no_step() -> None:
    log = "{'loss': nan, 'grad_norm': nan, 'epoch': 0.2}\n{'loss': '0.53', 'grad_norm': '1.2', 'epoch': '0.3'}\n"
    first, second = records_of(log)
    assert (first["tool"], first["step"], first["loss"]) == ("huggingface", None, None)
    assert second["loss"] == 0.53


@pytest.mark.parametrize(
    "line",
    [
        "{'eval_loss': 1.2, 'eval_runtime': 3.4, 'epoch': 0.2}",
        "{'train_runtime': 1234.5, 'train_samples_per_second': 12.3, 'train_loss': 1.18, 'epoch': 1.0}",
        " validation loss at iteration 1000 | lm loss value: 2.5E+00 | lm loss PPL: 1.2E+01 |",
        "step 0: train loss 4.2874, val loss 4.2823",
        "[Rank 0] (after 10 iterations) memory (MB) | allocated: 1.0 | max allocated: 2.0 | reserved: 3.0 |",
        " 0: INFO:megatron.core.utils:^^^^ Bottom 4 Ranks with lowest  Etpt(TF): 296.02/0, 296.1/3",
    ],
)
def test_reports_that_are_no_step_give_nothing_but_are_a_trainers(line: str) -> None:
    assert records_of(line) == []


@pytest.mark.parametrize(
    "line",
    [
        "Loading checkpoint shards: 100%|####| 4/4 [00:05<00:00,  1.31s/it]",
        "Map:  10%|#         | 1000/10000 [00:01<00:09, 956.23 examples/s]",
        "Evaluating:  10%|#         | 10/100 [00:01<00:09, 9.2it/s]",
        "  0%|          | 0/500 [00:00<?, ?it/s]",
        "{'loss': 'deviance', 'learning_rate': 0.5}",
        "{'win': 0, 'loss': 0, 'total': 0}",
        "Validation: iteration 1/32",
    ],
)
def test_bars_and_dictionaries_of_other_work_give_nothing(line: str) -> None:
    step = "iter 1: loss 4.0, time 5.0ms"
    assert [record["step"] for record in records_of(f"{line}\n{step}\n")] == [1]


def test_a_bar_alone_is_a_step_of_an_undecided_tool_until_the_log_shows_which() -> None:
    bar = "  1%|          | 5/500 [00:10<16:30,  2.00s/it]"
    before, _, after = records_of(f"{bar}\r{{'loss': 1.0, 'epoch': 0.1}}\n{bar}\r")
    assert before == {"kind": "step", "tool": None, "step": 5, "step_time_ms": None, "smoothed_step_time_ms": 2000.0}
    assert after["tool"] == "huggingface"


def test_a_cut_dictionary_is_malformed() -> None:
    record = only("{'loss': 0.53, 'grad_norm': 1.")
    assert (record["kind"], record["line"], record["raw"]) == ("malformed", 1, "{'loss': 0.53, 'grad_norm': 1.")


def test_an_iteration_that_is_no_number_is_malformed() -> None:
    assert only("iteration      xx/     100 | elapsed time per iteration (ms): 15800.0 |")["kind"] == "malformed"


def test_nanotron_suffixes_are_resolved() -> None:
    record = only(
        "[default0]:07/24/2026 11:46:43 [INFO|DP=0|PP=0|TP=0|node-1]: iteration: 21 / 4000 | consumed_tokens: 88.1M | "
        "elapsed_time_per_iteration_ms: 11.5K | tokens_per_sec: 364K | tokens_per_sec_per_gpu: 5.69K | lm_loss: 10.5 | "
        "model_tflops_per_gpu: 51.6 | hardware_tflops_per_gpu: 52.6"
    )
    assert (record["tool"], record["step"], record["step_time_ms"]) == ("nanotron", 21, 11500.0)
    assert (record["tokens_per_s_per_gpu"], record["tflops_per_gpu"], record["loss"]) == (5690.0, 51.6, 10.5)
    assert "rank" not in record


def test_maxtext_and_nanogpt_print_their_own_units() -> None:
    maxtext, first, later = records_of(
        "completed step: 9, seconds: 5.667, TFLOP/s/device: 134.9, Tokens/s/device: 8672.75, total_weights: 7, loss: 11.5\n"
        "iter 0: loss 10.5, time 12345.67ms, mfu -100.00%\n"
        "iter 1631: loss nan, time 561.94ms, mfu 14.20%\n"
    )
    assert (maxtext["step"], maxtext["step_time_ms"], maxtext["tokens_per_s_per_gpu"]) == (9, 5667.0, 8672.75)
    assert (first["step"], first["step_time_ms"], first["mfu_pct"]) == (0, 12345.67, None)
    assert (later["loss"], later["mfu_pct"]) == (None, 14.2)


def test_two_records_glued_on_one_line_are_two_steps() -> None:
    line = "iteration {0}/ 100 | elapsed time per iteration (ms): {0}00.5 |"
    assert [(r["step"], r["step_time_ms"]) for r in records_of(line.format(5) + line.format(6))] == [
        (5, 500.5),
        (6, 600.5),
    ]


@pytest.mark.parametrize(
    ("prefix", "rank"),
    [
        ("[rank12]: ", 12),
        ("[rank-7/8][INFO ] [----trainer.py:2560] : ", 7),
        ("rank=5 ", 5),
        ("7: ", None),
        ("[default3]:", None),
        ("[pod/train-0/pytorch] ", None),
    ],
)
def test_only_forms_that_name_a_rank_give_one(prefix: str, rank: int | None) -> None:
    assert only(f"{prefix}iteration 5/ 100 | lm loss: 1.0 |").get("rank") == rank


def test_a_time_with_zone_becomes_wall_time() -> None:
    record = only("2024-01-01T01:00:00.123456789+01:00 iter 1: loss 4.0, time 5.0ms")
    assert record["wall_time_us"] == 1_704_067_200_123_456


SPREAD = """(min, max) time across ranks (ms):
    forward-backward ...............................: (11810.25, 11894.77)
    a-timer-whose-name-leaves-no-place-for-any-dots : (1.00, 2.00)
"""


def test_the_spread_of_a_timer_has_no_ranks() -> None:
    first, second = records_of(SPREAD)
    assert first == {"kind": "timer", "name": "forward-backward", "min_ms": 11810.25, "max_ms": 11894.77}
    assert second["name"] == "a-timer-whose-name-leaves-no-place-for-any-dots"


def test_a_block_survives_lines_of_other_ranks() -> None:
    log = (
        "3: times across ranks (ms):\n3:   forward-compute:\nsome other line\n3:      rank  0: 3786.54\n"
        " iteration 200/ 1000 | elapsed time per iteration (ms): 430.0 |\n3:      rank 11: 3957.31\n"
        "3: max time across ranks (ms):\n3:     optimizer ....................: 41.02\n"
    )
    timers = [record for record in records_of(log) if record["kind"] == "timer"]
    assert timers == [
        {"kind": "timer", "name": "forward-compute", "rank": 0, "time_ms": 3786.54},
        {"kind": "timer", "name": "forward-compute", "rank": 11, "time_ms": 3957.31},
        {"kind": "timer", "name": "optimizer", "max_ms": 41.02},
    ]


@pytest.mark.parametrize(
    ("prefix", "rank"), [("", None), ("[Rank 0] ", 0), ("[Rank 0] rank=0 ", 0), ("rank=3 ", 3), ("[rank2]: ", 2)]
)
def test_a_wall_clock_line_gives_one_timer_a_cell(prefix: str, rank: int | None) -> None:
    records = records_of(f"{prefix}time (ms) | fwd_microstep: 3859.38 | bwd_allreduce_microstep: 759.39\n")
    assert records == [
        {"kind": "timer", "name": "fwd_microstep", "rank": rank, "time_ms": 3859.38},
        {"kind": "timer", "name": "bwd_allreduce_microstep", "rank": rank, "time_ms": 759.39},
    ]


def test_a_straggler_report_is_one_record_a_metric_in_its_order() -> None:
    records = records_of(
        " 0: INFO:megatron.core.utils:[2026-03-14 23:07:56] | MnRtt/Rnk: 3453.08ms/8 | MxRtt/Rnk: 3468.20ms/0 | "
        "MnPwr/Rnk: 601796W/8 | MxPwr/Rnk: 683801.00W/18 | MnTmp/Rnk: 52C/0 | MxTmp/Rnk: 65C/21 | MnUtl/Rnk: 97%/8 | "
        "MxUtl/Rnk: 100%/6 | MnClk/Rnk: 1950MHz/28 | MxClk/Rnk: 1980MHz/0 | MnDRtt/Rnk: 14.27ms/23 | "
        "MxDRtt/Rnk: 34.65ms/3 | MnEtpt/Rnk: 296.02TF/0 | MxEtpt/Rnk: 297.32TF/8"
    )
    assert [(r["metric"], r["min"], r["min_rank"], r["max"], r["max_rank"]) for r in records] == [
        ("elapsed_ms", 3453.08, 8, 3468.2, 0),
        ("power_w", 601.796, 8, 683.801, 18),
        ("temp_c", 52.0, 0, 65.0, 21),
        ("util_pct", 97.0, 8, 100.0, 6),
        ("sm_clock_mhz", 1950.0, 28, 1980.0, 0),
        ("data_ms", 14.27, 23, 34.65, 3),
        ("throughput_tflops", 296.02, 0, 297.32, 8),
    ]


@pytest.mark.parametrize(
    ("line", "rank", "failure_class"),
    [
        ("[rank5]: torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered", 5, "hardware"),
        ("9: what():  CUDA error: Invalid access of peer GPU memory over nvlink or a hardware error", None, "hardware"),
        ("RuntimeError: CUDA error: device-side assert triggered", None, "program"),
        ("[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", 1, "program"),
        ("worker-0: [rank2]: ValueError: bad shape", 2, "program"),
        ("AssertionError: Rank 3: found NaN in local grad norm in backward pass", 3, "unknown"),
        ("[rank4]: torch.distributed.DistBackendError: NCCL error in: x.cpp:1, unhandled system error", 4, "unknown"),
        (
            (
                "[rank3]:[E1218 20:27:21.4 ProcessGroupNCCL.cpp:629] [PG ID 1 PG GUID 5(TP) Rank 1] Watchdog caught collective"
                " operation timeout: WorkNCCL(SeqNum=1) ran for 600081 milliseconds before timing out."
            ),
            3,
            "unknown",
        ),
        (
            "[E ProcessGroupNCCL.cpp:629] [PG ID 1 PG GUID 5(TP) Rank 1] Watchdog caught collective operation timeout: x",
            None,
            "unknown",
        ),
        (
            "[E x.cpp:1] [PG ID 0 PG GUID 0(default_pg) Rank 118] Watchdog caught collective operation timeout: x",
            118,
            "unknown",
        ),
        ("srun: error: node1: task 5: Segmentation fault (core dumped)", None, "program"),
        ("mpirun noticed that process rank 3 with PID 9 on node n1 exited on signal 6 (Aborted).", 3, "unknown"),
    ],
)
def test_a_rank_that_reports_its_end_is_a_failure(line: str, rank: int | None, failure_class: str) -> None:
    record = only(line)
    assert record["kind"] == "failure"
    assert (record["rank"], record["failure_class"]) == (rank, failure_class)


def test_a_torchrun_summary_names_the_rank_a_line_before_the_exit_code() -> None:
    record = only(
        "Root Cause (first observed failure):\n[0]:\n  time      : 2026-01-15_05:44:28\n  host      : n1\n"
        "  rank      : 3 (local_rank: 1)\n  exitcode  : -11 (pid: 6174)\n  error_file: <N/A>\n"
        "  traceback : Signal 11 (SIGSEGV) received by PID 6174\n"
    )
    assert (record["rank"], record["failure_class"]) == (3, "program")


def test_a_counter_of_nan_iterations_is_no_failure() -> None:
    log = (
        "INFO number of nan iterations: 0\nUserWarning: something\niteration 5/ 100 | number of nan iterations:   0 |\n"
    )
    assert [record["kind"] for record in records_of(log)] == ["step"]


def test_an_error_right_behind_a_bar_is_seen() -> None:
    bar, failure = records_of(
        "  1%|          | 5/500 [00:10<16:30,  2.00s/it]RuntimeError: CUDA error: out of memory\n"
    )
    assert (bar["step"], failure["failure_class"]) == (5, "program")


def test_text_of_no_trainer_is_an_unknown_format() -> None:
    with pytest.raises(UnknownFormat):
        records_of("[  812.000250] NVRM: Xid (PCI:0000:1A:00): 31, pid=77, name=python3, Ch 00000008\nhello\n")


@pytest.mark.parametrize("log", ["", "\n\n", " \r\n"])
def test_a_file_without_text_gives_nothing(log: str) -> None:
    assert records_of(log) == []


def test_a_follower_sees_what_the_file_shows() -> None:
    log = SPREAD + "iteration 5/ 100 | lm loss: 1.0 |\n{'loss': 1.0, 'epoch': 0.1}\nRuntimeError: x\n"
    reader = StepLogReader()
    followed = [record for number, line in enumerate(log.splitlines(), 1) for record in reader.feed(number, line)]
    assert [*followed, *reader.finish()] == records_of(log)


def test_one_mebibyte_of_one_line_is_read_in_bounded_time() -> None:
    for piece in ("{'loss':", "iteration 1/ 2 | a", "a1", " .", "[rank0]:", "1%|x|1/2 [00:01<", "A."):
        line = "iteration 1/ 2 | " + piece * ((1 << 18) // len(piece))
        assert records_of(line)[0]["step"] == 1


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("10,050", 10050.0),
        ("11.5K", 11500.0),
        ("1.258B", 1.258e9),
        ("2T", 2e12),
        ("5.69k", 5690.0),
        ("41.7TFLOPS", 41.7),
        ("13100.0/13240.9", 13100.0),
        ("1.63e+6", 1630000.0),
        ("-0.5", -0.5),
        ("0", 0.0),
        ("nan", None),
        ("N/A", None),
        ("inf", None),
        ("1e999", None),
        ("1e9999", None),
        ("12...", None),
        ("1,2", None),
        ("", None),
    ],
)
def test_numbers_are_read_as_trainers_print_them(text: str, expected: float | None) -> None:
    assert number(text) == expected


def test_integers_stay_exact_and_fractions_are_none() -> None:
    assert integer("9007199254740993") == 9007199254740993
    assert integer("794.0") == 794
    assert integer("0.5") is None
    assert integer("1e400") is None


@given(
    st.dictionaries(st.text(max_size=8), st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8))
)
def test_any_flat_dictionary_that_python_prints_is_read_whole(values: dict[str, Any]) -> None:
    printed = repr(values)
    found = dictionary(printed, 0)
    assert isinstance(found, Printed)
    assert found.end == len(printed)
    assert len(found.values) == len(values)


@given(st.dictionaries(st.text("abc", min_size=1, max_size=5), st.floats(), min_size=1), st.data())
def test_a_cut_dictionary_is_never_taken_for_a_whole_one(values: dict[str, float], data: st.DataObject) -> None:
    printed = repr(values)
    cut = printed[: data.draw(st.integers(1, len(printed) - 1))]
    assert isinstance(dictionary(cut, 0), Cut)


def is_contract(record: dict[str, Any]) -> bool:
    json.loads(json.dumps(record, allow_nan=False))
    return record.keys() >= MANDATORY[record["kind"]] | {"kind"}


PIECES = st.sampled_from(
    [
        "iteration ", "5/ 100 |", " elapsed time per iteration (ms): ", "12.5", "{'loss': ", "nan", "}", "step: ", "loss: ",
        "tps: ", "10,050", " 8%|##| 19/24 [1:52<20:27,", " 3.33s/it]", "time (ms) |", "(min, max) time across ranks (ms):",
        "times across ranks (ms):", " fwd ....: (1, 2)", "rank  0: 12.5", "MnRtt/Rnk: 3ms/8 |", "[rank7]: ", "7: ", "\n", "\r",
        "\x1b[31m", "RuntimeError: ", "CUDA error: ", "exitcode  : -6 (pid: 1)", "epoch=0/micro_step=1/global_step=1,",
        "CurrSamplesPerSec=", "Training epoch 0, iteration 1/2", "completed step: ", "iter 1: loss ", "\0", "9" * 30,
    ]
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=400) | st.lists(PIECES, max_size=30).map(lambda pieces: "".join(pieces).encode()))
def test_no_bytes_raise_and_every_record_keeps_the_contract(data: bytes) -> None:
    try:
        records = records_of(data)
    except UnknownFormat:
        return
    assert all(is_contract(record) for record in records)


PREFIXES = st.sampled_from(["", " ", "7: ", "[rank7]: ", "[pod/a-0/b] ", "[2026-01-16 07:32:24] ", "worker-1: "])


@given(
    prefix=PREFIXES,
    step=st.integers(0, 10**9),
    time_ms=st.integers(0, 10**8).map(lambda tenths: tenths / 10),
    loss=st.floats(0, 1e6),
    skipped=st.integers(0, 999),
)
def test_a_rendered_megatron_line_reads_back(prefix: str, step: int, time_ms: float, loss: float, skipped: int) -> None:
    record = only(
        f"{prefix}iteration {step:8d}/{10**9:8d} | consumed samples: {step * 8:12d} | elapsed time per iteration (ms): "
        f"{time_ms:.1f} | learning rate: 1.0E-05 | lm loss: {loss:.6E} | number of skipped iterations: {skipped:3d} |"
    )
    assert (record["tool"], record["step"], record["step_time_ms"]) == ("megatron", step, time_ms)
    assert (record["loss"], record["skipped_iterations"]) == (float(f"{loss:.6E}"), skipped)


@given(
    prefix=PREFIXES,
    step=st.integers(0, 10**7),
    loss=st.floats(0, 999),
    tps=st.integers(0, 10**7),
    mfu=st.none() | st.floats(0, 100),
)
def test_a_rendered_torchtitan_line_reads_back(
    prefix: str, step: int, loss: float, tps: int, mfu: float | None
) -> None:
    share = "N/A" if mfu is None else f"{mfu:.2f}%"
    record = only(
        f"{prefix}step: {step:2}  loss: {loss:7.4f}  grad_norm: 1.2000  memory:  0.83GiB(0.88%)  tps: {tps:,}  "
        f"tflops: {tps / 7:,.2f}  mfu: {share}"
    )
    assert (record["tool"], record["step"], record["loss"]) == ("torchtitan", step, float(f"{loss:.4f}"))
    assert (record["tokens_per_s_per_gpu"], record["tflops_per_gpu"]) == (tps, float(f"{tps / 7:.2f}"))
    assert record["mfu_pct"] == (None if mfu is None else float(f"{mfu:.2f}"))
