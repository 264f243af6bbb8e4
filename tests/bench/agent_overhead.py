"""What the agent costs a node: the real `paceline agent` on eight GPUs, eight NICs and 100 kernel lines a second.

The agent runs as a process of its own against a real Apache Kafka on this machine, for ten minutes unless told
otherwise. Counted is its processor time in all threads (utime + stime of /proc/PID/stat and of the children it waited
for), the highest memory it ever had (VmHWM), and what came to stand in the broker's logs. NVML and sysfs are stand-ins
(`fake_node.py`): a driver's own time within a call is not in the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

BENCH = Path(__file__).resolve().parent
sys.path[:0] = [str(BENCH), str(BENCH.parents[1])]

from fake_node import GPUS, NICS, KernelLogWriter, write_pynvml, write_sysfs  # noqa: E402
from kafka_side import read_all  # noqa: E402
from report import Section, Table, figure, publish  # noqa: E402

from deploy.brokers import open_broker  # noqa: E402
from deploy.brokers.errors import BrokerMissingError  # noqa: E402
from deploy.topics import apply_topics  # noqa: E402
from schemas.topics import TOPICS  # noqa: E402

CPU_BAR_SHARE = 0.02
MEMORY_BAR_MIB = 100.0
_SETTLE_S = 5.0
_LINES_PER_S = 100
_TICK_HZ = os.sysconf("SC_CLK_TCK")
_PEERS = (
    ("gpud", "50m", "256 MiB"),
    ("EKS node monitoring agent", "10m", "30 MiB"),
    ("NVSentinel, GPU health monitor", "100m", "128 MiB"),
)
"""CPU and memory that their own manifests request: what is set aside for them, not what was measured."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a process has cost so far."""

    wall_s: float
    cpu_s: float
    peak_mib: float
    rss_mib: float
    threads: int
    switches: int


def usage(pid: int) -> Usage:
    """Of a living process, from /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2].split()
    ticks = sum(int(fields[index]) for index in (11, 12, 13, 14))  # utime, stime, cutime, cstime
    status = dict(
        line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":\t" in line
    )
    switches = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text().splitlines():
            if "ctxt_switches" in line:
                switches += int(line.split()[1])
    return Usage(
        time.monotonic(),
        ticks / _TICK_HZ,
        int(status["VmHWM"].split()[0]) / 1024,
        int(status["VmRSS"].split()[0]) / 1024,
        int(status["Threads"]),
        switches,
    )


def main() -> int:
    """Measure and print; 1 when a bar is missed."""
    asked = _options()
    load_before = os.getloadavg()[0]
    broker_data = Path(tempfile.mkdtemp(prefix="agent-overhead-"))
    broker = open_broker("apache", data_dir=broker_data / "kafka")
    try:
        broker.start()
    except BrokerMissingError as error:
        print(f"not measured: needs Apache Kafka on this machine: {error}", file=sys.stderr)
        return 0
    with broker:
        apply_topics(broker.bootstrap_servers, 1, 1)
        begun, ended, sent = _measured(broker.bootstrap_servers, broker_data, asked)
        records = {
            topic.family: [len(message.value() or b"") for message in read_all(broker.bootstrap_servers, topic.name)]
            for topic in TOPICS
            if topic.family in {"gpu-frames", "fabric-frames", "kernel-events", "node-status"}
        }
    wall_s = ended.wall_s - begun.wall_s
    share = (ended.cpu_s - begun.cpu_s) / wall_s
    whole_s = wall_s + _SETTLE_S
    table = Table(
        "",
        ("", "CPU, share of a core", "memory"),
        [
            (
                "paceline agent, measured",
                f"{share:.2%}",
                f"{ended.peak_mib:.0f} MiB at most, {ended.rss_mib:.0f} at the end",
            ),
            ("bar", f"{CPU_BAR_SHARE:.0%}", f"{MEMORY_BAR_MIB:.0f} MiB"),
            *((f"{name}, requested", cpu, memory) for name, cpu, memory in _PEERS),
        ],
    )
    detail = Table(
        f"Over {wall_s:.0f} s:",
        ("what", "figure"),
        [
            ("bytes a second in the broker's logs", figure(sent / whole_s, 4)),
            ("bytes a second of JSON", figure(sum(map(sum, records.values())) / whole_s, 4)),
            *((f"records of {family}", str(len(sizes))) for family, sizes in records.items()),
            ("threads", str(ended.threads)),
            ("wake-ups a second", figure((ended.switches - begun.switches) / wall_s, 3)),
        ],
    )
    section = Section(
        "agent_overhead",
        "What the agent costs a node",
        f"The real `paceline agent`, a frame a second of {GPUS} GPUs and of {NICS} InfiniBand ports (51 counters each), "
        f"a kernel log that grows by {_LINES_PER_S} lines a second, a trainers' socket nobody connects to, publishing to "
        "Apache Kafka. NVML and sysfs are stand-ins: a driver's own time in a call is not in it, ours is.",
        (table, detail),
        (
            "CPU is utime + stime of the process and of the commands that it ran, from 5 s after its start.",
            "What others request is from their manifests, and no measurement of them.",
            "Broker and agent share the machine; the figure is the agent's processor time alone.",
        ),
        "agent_overhead.py",
    )
    publish(section, asked, load_before)
    print(json.dumps({"cpu_share": round(share, 5), "peak_mib": round(ended.peak_mib, 1)}))
    return 0 if share < CPU_BAR_SHARE and ended.peak_mib < MEMORY_BAR_MIB else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--quick", action="store_true", help="30 seconds: shows that it runs")
    parser.add_argument("--print-only", action="store_true", help="leave docs/benchmarks.md as it is")
    parser.add_argument("--profile", type=Path, help="run the agent under cProfile and keep its figures in this file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="a further setting, as in TOML"
    )
    asked = parser.parse_args()
    if asked.quick:
        asked.seconds = 30.0
    return asked


def _measured(servers: str, folder: Path, asked: argparse.Namespace) -> tuple[Usage, Usage, int]:
    """Run the agent; its cost when it had settled and at the end, and bytes of the broker's logs."""
    write_sysfs(folder / "sys")
    write_pynvml(folder / "modules", BENCH)
    config = folder / "agent.toml"
    settings = {
        "bootstrap_servers": servers,
        "node_id": "bench-node",
        "connect_spread_s": 0,
        "sysfs_root": str(folder / "sys"),
        "kernel_log": str(folder / "kmsg"),
        "socket": str(folder / "trainer.sock"),
        "state_dir": str(folder / "state"),
    }
    extra = [setting.partition("=")[::2] for setting in asked.set]
    lines = [f"{name} = {json.dumps(value)}" for name, value in settings.items() if name not in dict(extra)]
    config.write_text("\n".join(["[agent]", *lines, *(f"{name} = {value}" for name, value in extra)]) + "\n")
    command = [sys.executable, "-m", "paceline", "agent", "--config", str(config)]
    if asked.profile:
        command[1:3] = ["-m", "cProfile", "-o", str(asked.profile), "-m", "paceline"]
    environment = os.environ | {"PYTHONPATH": f"{folder / 'modules'}:{BENCH.parents[1]}"}
    with KernelLogWriter(folder / "kmsg", _LINES_PER_S), subprocess.Popen(command, env=environment) as agent:
        try:
            time.sleep(_SETTLE_S)
            if agent.poll() is not None:
                raise SystemExit(f"the agent ended with status {agent.returncode}")
            begun = usage(agent.pid)
            time.sleep(asked.seconds)
            if agent.poll() is not None:
                raise SystemExit(f"the agent ended with status {agent.returncode}")
            ended = usage(agent.pid)
        finally:
            agent.terminate()
            agent.wait(30)
    logs = (folder / "kafka").rglob("paceline.*/*.log")
    return begun, ended, sum(path.stat().st_size for path in logs)


if __name__ == "__main__":
    sys.exit(main())
