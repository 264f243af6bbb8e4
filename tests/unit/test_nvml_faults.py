"""GPUs that are lost or hang, and drivers that go away: what the others and the frames see of it."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING

import pytest
from nvml_node import SECOND, SHORT_S, START, A, B, Node, gpu, pair, wait_until

from agents.collectors.base import CollectorError
from agents.collectors.nvml import NvmlCollector
from agents.collectors.nvml_slot import Retry
from agents.identity import AgentIdentity
from agents.settings import AgentSettings
from agents.testing import FakeNvml, NvmlFault

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def library() -> Iterator[FakeNvml]:
    library = pair()
    yield library
    for held in library.gpus:
        held.release()


# --- A GPU that is lost -------------------------------------------------------------------------------------------


def test_a_lost_gpu_keeps_its_names_says_why_and_has_nothing_else(library: FakeNvml) -> None:
    library.gpus[0].ClockInfo = 1980
    node = Node(library)
    assert node.frame(0).sm_clock_mhz == (1980, None)
    # The clocks still answer: what is read of a GPU that falls off in the middle does not count.
    library.gpus[0].PowerUsage = NvmlFault(library.NVML_ERROR_GPU_IS_LOST)
    found = node.frame(1)
    assert found.sm_clock_mhz is None
    assert (found.gpu_uuid, found.gpu_index, found.sku) == ((A, B), (0, 1), ("NVIDIA H100 80GB HBM3",) * 2)
    assert (found.read_error, found.power_w) == (("GPU is lost", None), (None, 200.0))
    assert node.source.failed == {A: "GPU is lost"}
    assert node.frame(1.5).read_error == ("GPU is lost", None)


def test_a_lost_gpu_is_asked_ever_more_rarely_and_comes_back(library: FakeNvml) -> None:
    node = Node(library)
    node.frame(0)
    library.gpus[0].lost = True
    library.calls.clear()
    for second in range(1, 31):
        assert node.frame(second).read_error == ("GPU is lost", None)
    assert library.calls["nvmlDeviceGetHandleByIndex"] == 4  # after 1, 2, 4 and 8 s and their sums
    library.gpus[0].lost = False
    found = next(frame for frame in map(node.frame, range(31, 95)) if frame.read_error is None)
    assert found.power_w == (100.0, 200.0)
    assert node.source.failed == {}


def test_unknown_errors_everywhere_are_a_lost_gpu_and_one_of_them_is_a_fault(library: FakeNvml) -> None:
    library.gpus[1].MarginTemperature = 20
    node = Node(library)
    assert node.frame(0).read_error is None
    library.gpus[0].PowerUsage = NvmlFault(library.NVML_ERROR_UNKNOWN)
    library.gpus[1].MarginTemperature = NvmlFault(library.NVML_ERROR_UNKNOWN)
    found = node.frame(1)
    assert found.read_error == ("GPU is lost", "Unknown Error")
    assert (found.power_w, found.gpu_temp_margin_c) == ((None, 200.0), None)
    # The one that is lost is asked again in good time, the other each second.
    library.gpus[1].PowerUsage = 201_000
    assert node.frame(1.5).power_w == (None, 201.0)


def test_a_gpu_that_asks_for_a_reset_says_so_beside_what_it_still_tells(library: FakeNvml) -> None:
    library.gpus[0].RemappedRows = NvmlFault(library.NVML_ERROR_RESET_REQUIRED)
    found = Node(library).frame()
    assert (found.read_error, found.power_w) == (("GPU requires reset", None), (100.0, 200.0))


def test_a_gpu_that_is_lost_from_the_start_is_a_row_without_a_name(library: FakeNvml) -> None:
    library.gpus[1].lost = True
    found = Node(library).frame()
    assert (found.gpu_uuid, found.gpu_index) == ((A, None), (0, 1))
    assert found.read_error == (None, "GPU is lost")


def test_a_gpu_that_leaves_the_count_is_lost_and_the_others_keep_their_names(library: FakeNvml) -> None:
    node = Node(library)
    node.frame(0)
    library.unload()
    del library.gpus[0]
    library.load()
    assert node.frame(1).power_w is None
    found = node.frame(2)
    assert (found.gpu_uuid, found.gpu_index) == ((A, B), (None, 0))
    assert (found.read_error, found.power_w) == (("GPU is lost", None), (None, 200.0))


# --- A call that hangs --------------------------------------------------------------------------------------------


def test_a_hanging_gpu_costs_the_others_nothing_and_says_since_when(library: FakeNvml) -> None:
    node = Node(library)
    node.frame(0)
    library.gpus[0].hold()
    begun = time.monotonic()
    found = node.frame(1)
    assert time.monotonic() - begun < 20 * SHORT_S
    assert found.read_error == ("no answer since 2023-11-14T22:13:21Z", None)
    assert (found.gpu_uuid, found.power_w) == ((A, B), (None, 200.0))
    later = node.frame(2)
    assert later.read_error == found.read_error
    assert later.power_w == (None, 200.0)


def test_a_hanging_gpu_is_one_thread_and_one_call_however_long_it_hangs(library: FakeNvml) -> None:
    node = Node(library)
    node.frame(0)
    library.gpus[0].hold()
    node.frame(1)
    threads, calls = threading.active_count(), library.calls["nvmlDeviceGetClockInfo"]
    begun = time.monotonic()
    for second in range(2, 62):
        node.frame(second)
    assert time.monotonic() - begun < 60 * SHORT_S  # nobody waits for it any more
    assert threading.active_count() == threads
    # The other one refused its clocks at the start, so that only a new question to the hanging one would count here.
    assert library.calls["nvmlDeviceGetClockInfo"] == calls


def test_a_late_answer_is_dropped_and_the_gpu_is_asked_again(library: FakeNvml) -> None:
    node = Node(library)
    node.frame(0)
    library.gpus[0].hold()
    node.frame(1)
    library.gpus[0].release()
    slot = node.source._slots[0]
    wait_until(lambda: slot.reading is not None and slot.reading.done())
    library.gpus[0].PowerUsage = 111_000
    assert node.frame(2).power_w == (None, 200.0)
    found = node.frame(3)
    assert (found.power_w, found.read_error) == ((111.0, 200.0), None)


def test_a_gpu_that_only_answers_slowly_is_not_called_silent(library: FakeNvml) -> None:
    node = Node(library, deadline_s=5.0)
    node.frame(0)
    library.gpus[0].hold()
    threading.Timer(0.1, library.gpus[0].release).start()
    found = node.frame(1)
    assert (found.read_error, found.power_w) == (None, (100.0, 200.0))


def test_a_gpu_that_hangs_again_after_it_came_back_waits_longer() -> None:
    retry = Retry()
    waits = []
    for _ in range(8):
        retry.miss(START)
        waits.append((retry.due_ns - START) // SECOND)
    assert waits == [1, 2, 4, 8, 16, 32, 60, 60]
    assert not retry.is_due(START + 59 * SECOND)
    assert retry.is_due(START + 60 * SECOND)
    assert retry.is_due(START - 600 * SECOND)  # the clock was put back: not ten minutes of silence more


def test_a_driver_that_hangs_at_its_start_is_a_reason_and_not_a_second_thread(library: FakeNvml) -> None:
    go = threading.Event()

    class Slow(FakeNvml):
        def nvmlInit(self) -> None:  # noqa: N802 - the library's name
            go.wait(30)
            super().nvmlInit()

    source = NvmlCollector(Slow(library.gpus), SHORT_S)
    source._was_started = True  # so that no test waits as long as a first start may take
    for second in range(3):
        with pytest.raises(CollectorError, match="no answer from the driver"):
            source.collect(START + second * SECOND)
    assert sum(thread.name == "nvml-start" for thread in threading.enumerate() if thread.is_alive()) >= 1
    go.set()
    wait_until(lambda: source._starting is None or source._starting.done())
    readings = source.collect(START + 9 * SECOND)
    assert [row["gpu_uuid"] for row in readings.gpus or ()] == [A, B]


# --- The driver ---------------------------------------------------------------------------------------------------


def test_after_a_new_driver_the_library_is_started_anew(library: FakeNvml) -> None:
    node = Node(library)
    assert node.source.collect(START).driver_version == "570.86.15"
    node.frame(0)
    library.unload()
    assert node.frame(1).read_error == ("Uninitialized",) * 2
    assert node.frame(2).read_error == ("NVML does not start: Driver Not Loaded",) * 2
    starts = library.calls["nvmlInit"]
    for second in range(3, 33):
        found = node.frame(second)
        assert (found.gpu_uuid, found.power_w) == ((A, B), None)
    assert library.calls["nvmlInit"] - starts == 4  # ever more rarely
    library.load()
    library.driver_version = "580.65.06"
    found = next(frame for frame in map(node.frame, range(33, 100)) if frame.read_error is None)
    assert found.power_w == (100.0, 200.0)
    assert node.source.collect(START + 101 * SECOND).driver_version == "580.65.06"


def test_a_gpu_that_hung_over_a_new_start_keeps_its_one_thread(library: FakeNvml) -> None:
    node = Node(library)
    node.frame(0)
    library.gpus[0].hold()
    node.frame(1)
    threads = threading.active_count()
    library.unload()
    library.load()
    node.frame(2)
    found = node.frame(3)
    assert (found.gpu_uuid, found.power_w) == ((A, B), (None, 200.0))
    assert found.read_error is not None
    assert found.read_error[1] is None
    assert str(found.read_error[0]).startswith("no answer since")
    assert threading.active_count() == threads
    assert library.calls["nvmlShutdown"] == 0  # it would wait for the call that hangs
    library.gpus[0].release()
    found = next(frame for frame in map(node.frame, range(4, 100)) if frame.read_error is None)
    assert found.power_w == (100.0, 200.0)


def test_a_node_without_the_driver_is_unsupported_and_says_why() -> None:
    library = FakeNvml([])
    assert NvmlCollector(library).is_supported() == "NVML finds no GPU"
    library.unload()
    source = NvmlCollector(library)
    assert source.is_supported() == "NVML does not start: Driver Not Loaded"
    with pytest.raises(CollectorError, match="Driver Not Loaded"):
        source.collect(START)
    library.load()
    library.gpus.append(gpu(A, "1A"))
    assert source.is_supported() is None


def test_an_older_binding_without_names_of_today_still_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    for base in FakeNvml.__mro__:
        for name in [name for name in vars(base) if name.startswith("NVML_FI_DEV_NVLINK")]:
            monkeypatch.delattr(base, name)
    found = Node(FakeNvml([gpu(A, "1A", PowerUsage=1000, NvLinkState={(0,): 1})])).frame()
    assert (found.power_w, found.nvlink_crc_errors) == ((1.0,), None)
    assert (found.nvlink_link_count, found.nvlink_active_link_count) == ((1,), (1,))


def test_settings_give_it_less_time_than_the_agent_has_for_all_sources() -> None:
    source = NvmlCollector.from_settings(AgentSettings(collect_deadline_s=0.5), AgentIdentity("n", "b", "s"))
    assert 0 < source._deadline_s < 0.5
