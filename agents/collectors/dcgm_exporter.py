"""GPU readings from the page of a dcgm-exporter, over HTTP or from a file.

Guarantees: one request a reading, with a time-out and a limit of size; rows of whole GPUs only, because the readings of
a MIG instance are not its GPU's. It configures no exporter: which columns come is what its own counters file says.
"""

from __future__ import annotations

import urllib.error
import urllib.request
from urllib.parse import urlsplit

from agents.collectors.base import CollectorError, Readings
from agents.decode.dcgm_prometheus import by_gpu

__all__ = ["DcgmExporterCollector"]

_MAX_BYTES = 16 << 20
"""A page of 16 GPUs with MIG takes under 1 MiB."""

_SCHEMES = ("http", "https", "file")


class DcgmExporterCollector:
    """Reads the exporter's metrics page.

    Args:
        url: `http://127.0.0.1:9400/metrics`, or `file:///...`.
        timeout_s: for the connection and for each wait within it.
    """

    name = "dcgm-exporter"

    def __init__(self, url: str, timeout_s: float = 0.8) -> None:
        self._url = url
        self._timeout_s = timeout_s
        # No proxy: the exporter is on this node, and a proxy of the environment is for elsewhere.
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def is_supported(self) -> str | None:
        """None if the page can be fetched, else why not."""
        if urlsplit(self._url).scheme not in _SCHEMES:
            return f"{self._url!r} is no address of a page: it begins with {', '.join(_SCHEMES)}"
        try:
            self._page()
        except CollectorError as error:
            return str(error)
        return None

    def collect(self, now_ns: int) -> Readings:  # noqa: ARG002 - a page is of the moment at which it is fetched
        """Fetch and read the page.

        Raises:
            CollectorError: the page cannot be fetched, or tells of no GPU.
        """
        samples = by_gpu(self._page())
        gpus = tuple(sample for sample in samples if sample["entity"] == "gpu" and "gpu_instance_id" not in sample)
        if not samples:
            raise CollectorError(f"{self._url} has no DCGM metric")
        return Readings(gpus=gpus)

    def _page(self) -> str:
        try:
            with self._opener.open(self._url, timeout=self._timeout_s) as response:
                page: bytes = response.read(_MAX_BYTES + 1)
        except (OSError, ValueError, urllib.error.URLError) as error:
            reason = getattr(error, "reason", None) or error
            raise CollectorError(f"{self._url} cannot be fetched: {reason}") from None
        if len(page) > _MAX_BYTES:
            raise CollectorError(f"{self._url} is larger than {_MAX_BYTES} bytes")
        return page.decode("utf-8", "replace")
