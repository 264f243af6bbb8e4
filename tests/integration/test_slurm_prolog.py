"""The prolog on a real Slurm: an unfit node is drained and its job put back, every other one runs it."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from slurm_cluster import SlurmCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.needs_slurm

PROLOG = Path(__file__).parents[2] / "deploy" / "slurm" / "prolog.sh"

STARTS = ("fit", "unknown", "broken")

PREFLIGHT = """\
#!/bin/sh
echo "$SLURMD_NODENAME $*" >> {home}/asked
cat "{home}/says-$SLURMD_NODENAME"
exit "$(cat "{home}/status-$SLURMD_NODENAME")"
"""


class ClusterWithProlog(SlurmCluster):
    """A cluster whose nodes run the prolog, with a paceline that ends with what a file says."""

    def says(self, node: str, status: int, words: str) -> None:
        (self.home / f"status-{node}").write_text(str(status))
        (self.home / f"says-{node}").write_text(words)

    def _write(self) -> None:
        super()._write()
        command = self.home / "paceline"
        command.write_text(PREFLIGHT.format(home=self.home))
        command.chmod(0o755)
        settings = self.home / "preflight.conf"
        settings.write_text(f"PACELINE={command}\n")
        prolog = self.home / "prolog.sh"
        prolog.write_text(PROLOG.read_text().replace("/etc/paceline/preflight.conf", str(settings)))
        prolog.chmod(0o755)
        with (self.home / "slurm.conf").open("a") as file:
            file.write(f"Prolog={prolog}\nPrologFlags=Alloc\n")


@pytest.fixture
def slurm() -> Iterator[ClusterWithProlog]:
    # Sockets have short names.
    home = Path(tempfile.mkdtemp(prefix="slurm-"))
    try:
        with ClusterWithProlog(home, ("unfit", *STARTS)) as cluster:
            yield cluster
    finally:
        shutil.rmtree(home, ignore_errors=True)


def test_only_a_node_that_is_not_fit_is_drained_and_its_job_is_put_back(slurm: ClusterWithProlog) -> None:
    slurm.says("unfit", 1, '{"record":"preflight","node":"unfit","fit":false,"status":1}')
    slurm.says("fit", 0, '{"record":"preflight","node":"fit","fit":true,"status":0}')
    slurm.says("unknown", 2, '{"record":"preflight","node":"unknown","fit":null,"status":2}')
    slurm.says("broken", 1, "ModuleNotFoundError: No module named 'paceline'")
    said = slurm.told("sbatch", "-o", "/dev/null", "--wrap", "sleep 600", "-w", "unfit")
    put_back = said.split()[-1]
    for node in STARTS:
        slurm.submit("-w", node)
    slurm.until(lambda: "DRAIN" in slurm.state("unfit"), "the unfit node is drained")
    slurm.until(lambda: slurm.job(put_back, "JobState") == "PENDING", "its job is put back")
    assert slurm.job(put_back, "Restarts") == "1"
    assert not any("DRAIN" in slurm.state(node) for node in STARTS)
    asked = (slurm.home / "asked").read_text().splitlines()
    assert sorted(line.split()[0] for line in asked) == sorted(["unfit", *STARTS])
    assert all(
        "preflight --json --only gpu,pcie_width,nic_pcie_width,row_remap,ecc --require gpu" in line for line in asked
    )
