"""Kills a publishing process at random moments and holds its spool against what `publish` had acknowledged.

No broker is there: everything critical must lie in the spool. The child writes a line into a side journal before and
after each call; SIGKILL leaves both files as they are, because what was written is the kernel's. So this shows what a
killed process loses, not what a power failure does: that the sync comes first is shown in the unit tests. In some rounds
the parent tears the newest segment behind its last entry, as a write that was cut off does.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

from agents.identity import Sequences
from agents.publisher import KafkaPublisher, PublisherSettings
from agents.spool import Spool
from agents.spool_policy import SpoolSettings
from schemas.codec import decode
from schemas.events import KernelEvent, NodeStatus
from schemas.frames import GpuFrame

NODE = "node-1"
DEAD_BROKER = "127.0.0.1:9"
THREADS = 3
TORN = b"\xf5PL\xff\x00\x00\x01\x00torn"
_START_TIMEOUT_S = 60.0


@dataclass
class Report:
    """What came of it: counts, and the identities that break a promise."""

    seed: int
    kills: int = 0
    acknowledged: int = 0
    found: int = 0
    torn: int = 0
    reported: int = 0
    lost: list[str] = field(default_factory=list)
    invented: list[str] = field(default_factory=list)
    out_of_order: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Nothing lost, invented or out of order, and every torn end was told."""
        return not (self.lost or self.invented or self.out_of_order) and self.reported >= self.torn


# --- The child ----------------------------------------------------------------------------------------------------


def child(directory: Path, session: str) -> None:
    """Publish without end: each thread numbers its own records."""
    spool = SpoolSettings(directory / "spool", critical_kbytes=32_768, bulk_kbytes=1024)
    publisher = KafkaPublisher(PublisherSettings(DEAD_BROKER, spool=spool, spool_after_s=0.2, queue_messages=2000))
    journal = os.open(directory / "journal", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    sequences = Sequences()
    lock = threading.Lock()

    def note(state: str, records: list[NodeStatus | KernelEvent]) -> None:
        os.write(journal, "".join(f"{state} {_name(record)}\n" for record in records).encode())

    def work(number: int) -> None:
        rng = random.Random(f"{session}/{number}")
        kernel_line = 0
        while True:
            time.sleep(rng.uniform(0.0, 0.02))
            records: list[NodeStatus | KernelEvent] = []
            for _ in range(rng.choice((1, 1, 1, 20))):
                if number:
                    boot_id = f"{session}-{number}"
                    records.append(
                        KernelEvent(
                            node_id=NODE,
                            agent_session=session,
                            boot_id=boot_id,
                            kmsg_seq=kernel_line,
                            event_time_ns=time.time_ns(),
                            source="xid",
                            code=79,
                            raw="x" * rng.choice((0, 100, 2000)),
                        )
                    )
                    kernel_line += 1
                else:
                    with lock:
                        seq = sequences.take("node-status")
                    records.append(
                        NodeStatus(node_id=NODE, agent_session=session, seq=seq, event_time_ns=1, state="heartbeat")
                    )
            note("tried", records)
            if publisher.publish_all(records) == len(records):
                note("taken", records)
            if number == 0:
                publisher.publish(
                    GpuFrame(
                        node_id=NODE,
                        agent_session=session,
                        seq=sequences.take("gpu-frames"),
                        event_time_ns=1,
                        gpu_uuid=("GPU-1",),
                    )
                )

    threads = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def _name(record: NodeStatus | KernelEvent) -> str:
    """Stream and number."""
    if isinstance(record, NodeStatus):
        return f"{record.agent_session}/status/{record.seq}"
    return f"{record.boot_id}/kernel/{record.kmsg_seq}"


# --- The parent ---------------------------------------------------------------------------------------------------


def run(kills: int, directory: Path, seed: int | None = None) -> Report:
    """Kill a child as often as told, each at another moment and on the spool of those before it."""
    report = Report(int.from_bytes(os.urandom(4), "big") if seed is None else seed)
    print(f"agent kills: seed {report.seed}", file=sys.stderr, flush=True)
    rng = random.Random(report.seed)
    directory.mkdir(parents=True, exist_ok=True)
    delivered: set[str] = set()
    for round_number in range(kills):
        _kill_one(directory, f"s{round_number:03d}", rng.uniform(0.0, 0.6))
        report.kills += 1
        is_torn = rng.random() < 0.3
        if is_torn:
            report.torn += 1
            newest = max((directory / "spool" / "critical").glob("*.seg"))
            with newest.open("ab") as segment:
                segment.write(TORN[: rng.randint(1, len(TORN))])
        _check(directory, report, is_torn, delivered, rng)
    return report


def _kill_one(directory: Path, session: str, after_s: float) -> None:
    journal = directory / "journal"
    size = journal.stat().st_size if journal.exists() else 0
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.faults.agent_kills", str(directory), session],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while not (journal.exists() and journal.stat().st_size > size):
            assert process.poll() is None, process.stderr.read().decode() if process.stderr else ""
            assert time.monotonic() < deadline, f"{session} publishes nothing"
            time.sleep(0.002)
        time.sleep(after_s)
    finally:
        process.send_signal(signal.SIGKILL)
        process.communicate()


def _check(directory: Path, report: Report, is_torn: bool, delivered: set[str], rng: random.Random) -> None:
    """Read the spool; some of what it holds counts as delivered and must not come again."""
    lines = (directory / "journal").read_text().splitlines()
    tried = {line.removeprefix("tried ") for line in lines if line.startswith("tried ")}
    taken = {line.removeprefix("taken ") for line in lines if line.startswith("taken ")}
    spool = Spool(SpoolSettings(directory / "spool", critical_kbytes=32_768, bulk_kbytes=1024))
    found: list[str] = []
    settled_up_to = rng.choice((0, 0, spool.critical.floor + rng.randint(0, spool.critical.pending)))
    try:
        highest: dict[str, int] = {}
        while (entry := spool.critical.next()) is not None:
            record = decode(entry.message.topic, entry.message.value)
            assert isinstance(record, NodeStatus | KernelEvent)
            name = _name(record)
            found.append(name)
            if name in delivered:
                report.invented.append(f"{name} again")
            if entry.number <= settled_up_to:
                spool.critical.settle(entry.number)
                delivered.add(name)
            stream, number = name.rsplit("/", 1)
            if int(number) <= highest.get(stream, -1):
                report.out_of_order.append(name)
            highest[stream] = int(number)
        while (entry := spool.bulk.next()) is not None:
            assert isinstance(decode(entry.message.topic, entry.message.value), GpuFrame)
        report.reported += is_torn and spool.critical.corrupt_segments > 0
        assert spool.critical.corrupt_records == 0
    finally:
        spool.close()
    report.lost += sorted(taken - set(found) - delivered)
    report.invented += sorted(set(found) - tried)
    report.acknowledged, report.found = len(taken), len(set(found) | delivered)


if __name__ == "__main__":
    child(Path(sys.argv[1]), sys.argv[2])
