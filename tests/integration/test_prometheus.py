"""A real Prometheus scrapes the workers while a fleet with faults runs, with the shipped rules: the right alerts fire.

The processes are those of deploy/docker-compose.yml, by their own command lines, with other addresses. Prometheus looks
every second instead of every five; the rules are the shipped file itself.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from free_ports import free_ports

from deploy.topics import apply_topics
from paceline.processes import Children

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from deploy.brokers import Broker

pytestmark = pytest.mark.needs_broker

DEPLOY = Path(__file__).parents[2] / "deploy"
ROLES = ("telemetry", "jobs", "decisions")
ROUND_S = 45
SCENARIO = """
extends = "healthy"
description = "One fault for each alert on jobs, fabric and devices."

[[faults]]
kind = "cpu_contention"
job = "pretrain-70b"
onset = 0.10
end = 0.95
slowdown = [2.2, 2.4]

[[faults]]
kind = "pause_storm"
job = "pretrain-70b"
node = 1  # On another leaf than the second job's nodes, which would rightly be slow too.
onset = 0.15
end = 0.95

[[faults]]
kind = "xid79"
job = "finetune-8b"
onset = 0.30
"""


def command_of(service: str, **options: str) -> list[str]:
    """The command line of a service of the compose file, with other values of some of its options."""
    services = yaml.safe_load((DEPLOY / "docker-compose.yml").read_text())["services"]
    command = list(services[service]["command"])
    for name, value in options.items():
        command[command.index("--" + name.replace("_", "-")) + 1] = value
    return command


def get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.load(answer)


def wait_for(what: str, found: Callable[[], bool], timeout_s: float, still: Callable[[], None]) -> None:
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            if found():
                return
        except (urllib.error.URLError, ConnectionError):
            pass
        still()
        assert time.monotonic() < deadline, f"not within {timeout_s:.0f} s: {what}"
        time.sleep(0.5)


@dataclass
class Watched:
    """A running pipeline and the Prometheus that watches it."""

    prometheus: str
    workers: Children
    decisions: Children
    instances: dict[str, str]

    def alerts(self, state: str = "firing") -> list[dict[str, str]]:
        """Labels of the alerts in a state."""
        answer = get(f"{self.prometheus}/api/v1/alerts")
        return [alert["labels"] for alert in answer["data"]["alerts"] if alert["state"] == state]

    def query(self, expression: str) -> list[tuple[dict[str, str], float]]:
        """Labels and values of an instant query."""
        answer = get(f"{self.prometheus}/api/v1/query?" + urllib.parse.urlencode({"query": expression}))
        return [(entry["metric"], float(entry["value"][1])) for entry in answer["data"]["result"]]


@pytest.fixture(scope="module")
def watched(own_kafka: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("needs_program: no prometheus on the PATH (Debian: apt-get install prometheus)")
    folder = tmp_path_factory.mktemp("prometheus")
    servers = own_kafka.bootstrap_servers
    apply_topics(servers, 4, 1, has_admin=own_kafka.has_admin)
    *ports, page = free_ports(4)
    instances = dict(zip(ROLES, (f"127.0.0.1:{port}" for port in ports), strict=True))
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration(list(instances.values()))))
    (folder / "faults.toml").write_text(SCENARIO)
    server = [
        binary,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{page}",
        "--log.level=warn",
    ]
    with (
        Children() as workers,
        Children() as decisions,
        (folder / "log").open("wb") as log,
        subprocess.Popen(server, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as process,
    ):
        try:
            for role, port in zip(ROLES, ports, strict=True):
                command = command_of(f"worker-{role}", bootstrap=servers, metrics_port=str(port))
                held = decisions if role == "decisions" else workers
                held.start(f"worker {role}", ["paceline", *command, "--announce"])
            workers.wait_ready(120.0)
            decisions.wait_ready(120.0)
            fleet = command_of("fleet", bootstrap=servers, scenario=str(folder / "faults.toml"), duration=str(ROUND_S))
            workers.start("fleet", ["paceline", *fleet])
            yield Watched(f"http://127.0.0.1:{page}", workers, decisions, instances)
        finally:
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()


def configuration(targets: list[str]) -> dict[str, Any]:
    """The shipped configuration with the shipped rules, other targets and a look every second."""
    config: dict[str, Any] = yaml.safe_load((DEPLOY / "prometheus" / "prometheus.yml").read_text())
    config["global"] = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    config["rule_files"] = [str(DEPLOY / "prometheus" / name) for name in config["rule_files"]]
    (scraped,) = config["scrape_configs"]
    (static,) = scraped["static_configs"]
    static["targets"] = targets
    return config


def test_each_fault_fires_its_alert_and_nothing_else_does(watched: Watched) -> None:
    seen: set[tuple[str, ...]] = set()
    storms: set[str] = set()
    wanted = {
        ("PacelineXid", "critical", "79"),
        ("PacelineLowMfu", "warning", "pretrain-70b"),
        ("PacelineCollectiveWait", "warning", "pretrain-70b"),
        ("PacelinePauseStorm", "warning", "switch"),
        ("PacelinePauseStorm", "warning", "host"),
    }

    def all_fire() -> bool:
        for labels in watched.alerts():
            about = labels.get("job_id") or labels.get("code") or labels.get("view") or str(labels)
            seen.add((labels["alertname"], labels["severity"], about))
            storms.update({labels["port_id"]} if "port_id" in labels else ())
        return wanted <= seen

    wait_for(f"{wanted}", all_fire, 2.0 * ROUND_S, watched.workers.check)
    assert seen == wanted
    assert all(name.startswith(("leaf-", "node-")) for name in storms)


def test_the_metrics_hold_what_the_fleet_does(watched: Watched) -> None:
    ((labels, mfu),) = watched.query('calculated_cluster_mfu{job_id="pretrain-70b"}')
    assert labels["instance"] == watched.instances["jobs"]
    assert 0.05 < mfu < 0.40
    ((_, wait_ms),) = watched.query("histogram_quantile(0.9, sum by (le) (nccl_allreduce_wait_ms_bucket))")
    # More than 40 % of steps that last over a second, and never longer than those.
    assert 250 <= wait_ms <= 5000
    ((_, xids),) = watched.query('nvidia_xid_error_counter{code="79"}')
    assert xids >= 1
    ((_, latency_s),) = watched.query('max_over_time(paceline_decision_latency_seconds_sum{kind="cordon_node"}[5m])')
    assert 0 <= latency_s < 30
    lags = watched.query("paceline_event_time_lag_seconds")
    assert {labels["role"] for labels, _ in lags} == set(ROLES)
    assert max(lag for _, lag in lags) < 30
    unread = watched.query("sum by (role, family) (paceline_unread_records)")
    assert ("telemetry", "gpu-frames") in {(labels["role"], labels["family"]) for labels, _ in unread}
    for metric in ("paceline_dead_letters_total", "paceline_metrics_failures_total"):
        assert {count for _, count in watched.query(metric)} == {0.0}, metric


def test_a_worker_that_is_gone_is_told(watched: Watched) -> None:
    watched.decisions.stop()
    gone = watched.instances["decisions"]

    def told() -> bool:
        # It fires after a minute; that it is on its way shows within seconds.
        pending = watched.alerts("pending") + watched.alerts()
        return any(labels["alertname"] == "PacelineWorkerDown" and labels["instance"] == gone for labels in pending)

    wait_for("PacelineWorkerDown", told, 30.0, watched.workers.check)
    assert {
        labels.get("role") for labels in watched.alerts("pending") if labels["alertname"] == "PacelineRoleAbsent"
    } == {"decisions"}
