"""GPU readings from the page of a dcgm-exporter, over HTTP or from a file.

Guarantees: one request a reading, with a time-out and a limit of size; rows of whole GPUs only, because the readings of
a MIG instance are not its GPU's; lines that say that they are of another node are not taken for this one's. It
configures no exporter: which columns come, and how old they are, is what its own settings say; an exporter that stopped
collecting and repeats its last page is not told apart from GPUs on which nothing moves.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from agents.collectors.base import CollectorError, Readings, Row
from agents.collectors.dcgm_exporter_page import Access, PageSource
from agents.decode.dcgm_prometheus import by_gpu

if TYPE_CHECKING:
    from agents.identity import AgentIdentity
    from agents.settings import AgentSettings

__all__ = ["DcgmExporterCollector"]

_ANY_HOST = "*"
_MOST_NAMED = 3
_PART_OF_DEADLINE = 0.8
"""Of the agent's deadline for its sources: a page that takes longer is better reported than late."""


class DcgmExporterCollector:
    """Reads the exporter's metrics page.

    Args:
        url: `http://127.0.0.1:9400/metrics`, or `file:///...`.
        timeout_s: for one page.
        access: user, token and certificates.
        hosts: names of this node; lines with another `Hostname` are left out. A name also stands for itself without
            its domain. None or `*` takes all lines.
    """

    name = "dcgm-exporter"
    precedence = 30

    def __init__(
        self,
        url: str,
        timeout_s: float = 0.8,
        *,
        access: Access | None = None,
        hosts: Sequence[str] | None = None,
    ) -> None:
        self._source = PageSource(url, access or Access(), timeout_s)
        self._hosts = None if hosts is None or _ANY_HOST in hosts else frozenset(_short(host) for host in hosts)
        self._rows = _PageRows()

    @classmethod
    def from_settings(cls, settings: AgentSettings, identity: AgentIdentity) -> DcgmExporterCollector:
        """The collector of the page that the settings name, for the node of this identity."""
        access = Access(
            user=settings.dcgm_exporter_user,
            password_file=settings.dcgm_exporter_password_file,
            token_file=settings.dcgm_exporter_token_file,
            ca_file=settings.dcgm_exporter_ca_file,
            cert_file=settings.dcgm_exporter_cert_file,
            key_file=settings.dcgm_exporter_key_file,
            insecure=settings.dcgm_exporter_insecure,
        )
        told = settings.dcgm_exporter_hostname
        hosts = (told,) if told else (identity.node_id, socket.gethostname())
        timeout_s = settings.collect_deadline_s * _PART_OF_DEADLINE
        return cls(settings.dcgm_exporter_url, timeout_s, access=access, hosts=hosts)

    def is_supported(self) -> str | None:
        """None if the page can be fetched and is of this node, else why not."""
        if (fault := self._source.fault()) is not None:
            return fault
        try:
            self.collect(0)
        except CollectorError as error:
            return str(error)
        return None

    def collect(self, now_ns: int) -> Readings:  # noqa: ARG002 - a page is of the moment at which it is fetched
        """Fetch and read the page.

        Raises:
            CollectorError: the page cannot be fetched, tells of no GPU, or of other nodes alone.
        """
        samples = self._rows.read(self._source.fetch())
        if not samples:
            raise CollectorError(f"{self._source.name} has no DCGM metric")
        ours = [sample for sample in samples if self._is_ours(sample)]
        if not ours:
            others = sorted({str(sample["hostname"]) for sample in samples})[:_MOST_NAMED]
            raise CollectorError(
                f"{self._source.name} is of {', '.join(others)}, not of this node: "
                "give another dcgm_exporter_url, or that name as dcgm_exporter_hostname"
            )
        return Readings(gpus=tuple(sample for sample in ours if _is_whole_gpu(sample)))

    def _is_ours(self, sample: Row) -> bool:
        host = sample.get("hostname")
        return self._hosts is None or host is None or _short(host) in self._hosts


class _PageRows:
    """Rows of page after page.

    An exporter collects once in 30 s unless told otherwise, and between two pages most lines are the same: those are
    not decoded again, which is the difference between 20 ms and next to nothing for a page of eight GPUs.
    """

    def __init__(self) -> None:
        self._page = b""
        self._lines: dict[str, str] = {}
        self._rows: dict[tuple[Any, ...], dict[str, Any]] = {}

    def read(self, page: bytes) -> list[Row]:
        """The joined samples of a page, as `by_gpu` gives them."""
        if page != self._page:
            text = page.decode("utf-8", "replace")
            lines = dict(_series_and_value(line) for line in text.splitlines() if line and line[0] != "#")
            if lines.keys() != self._lines.keys() or not self._renew(lines):
                self._rows = {_key(row): row for row in by_gpu(text)}
            self._page, self._lines = page, lines
        return list(self._rows.values())

    def _renew(self, lines: dict[str, str]) -> bool:
        """Decode the lines that changed; False where the rows must be made anew."""
        changed = [f"{series} {value}" for series, value in lines.items() if self._lines[series] != value]
        renewed = dict(self._rows)
        for row in by_gpu("\n".join(changed)):
            before = renewed.get(_key(row))
            if before is None or _is_special(row) or _is_special(before):
                return False
            renewed[_key(row)] = before | row | {"other": before.get("other", {}) | row.get("other", {})}
        self._rows = renewed
        return True


def _series_and_value(line: str) -> tuple[str, str]:
    """A metric with its labels, and what stands behind it."""
    end = line.rfind("}") + 1 or line.find(" ")
    return line[:end], line[end:].strip()


def _key(row: Row) -> tuple[Any, ...]:
    indices = tuple(sorted((name, value) for name, value in row.items() if name.endswith("_index")))
    return row.get("hostname"), row["entity"], row.get("gpu_uuid"), row.get("gpu_instance_id"), indices


def _is_special(row: Row) -> bool:
    """Whether a row holds what one line alone does not renew: faults, and windows of several lines."""
    return not row.keys().isdisjoint(("read_error", "implausible", "xid_windows", "clock_event_windows"))


def _is_whole_gpu(sample: Row) -> bool:
    return sample["entity"] == "gpu" and "gpu_instance_id" not in sample and "link_index" not in sample


def _short(host: str) -> str:
    return host.strip().lower().partition(".")[0]
