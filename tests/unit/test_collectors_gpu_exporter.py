"""The page of a dcgm-exporter as a source: what becomes of its lines, whose they are, and how it is fetched."""

from __future__ import annotations

import datetime as dt
import gzip
import ipaddress
import os
import ssl
import time
from typing import TYPE_CHECKING, Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from agents.collectors import dcgm_exporter, dcgm_exporter_page
from agents.collectors.base import CollectorError
from agents.collectors.dcgm_exporter import DcgmExporterCollector
from agents.collectors.dcgm_exporter_page import Access
from agents.decode import dcgm_prometheus
from agents.frame_assembly import GpuAssembly
from agents.identity import AgentIdentity
from agents.settings import AgentSettings
from agents.testing import FakeExporter
from schemas.frames import GpuFrame

if TYPE_CHECKING:
    from pathlib import Path

A = "GPU-aaaaaaaa-0000-4000-8000-000000000001"
B = "GPU-bbbbbbbb-0000-4000-8000-000000000002"


def line(name: str, value: object, index: int = 0, host: str = 'Hostname="n",', more: str = "") -> str:
    uuid, bus = ((A, "1A"), (B, "1B"))[index]
    return (
        f'{name}{{gpu="{index}",UUID="{uuid}",pci_bus_id="00000000:{bus}:00.0",{more}{host}modelName="NVIDIA H100"}} '
        f"{value}\n"
    )


def page(power: float = 650.5, **of_line: Any) -> str:
    return "# HELP DCGM_FI_DEV_SM_CLOCK SM clock (in MHz).\n# TYPE DCGM_FI_DEV_SM_CLOCK gauge\n" + "".join(
        line(name, value, index, **of_line)
        for name, values in (
            ("DCGM_FI_DEV_SM_CLOCK", (1980, 1979)),
            ("DCGM_FI_DEV_POWER_USAGE", (power, 71.25)),
            ("DCGM_FI_DEV_ROW_REMAP_PENDING", (0, 1)),
            ("DCGM_FI_DEV_MEMORY_TEMP", (9223372036854775794, 9223372036854775794)),
            ("DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", (0.61, 0.62)),
            ("DCGM_FI_PROF_DRAM_ACTIVE", (0.4, 0.41)),
            ("DCGM_FI_PROF_SM_ACTIVE", (0.9, 0.91)),
            ("DCGM_FI_PROF_SM_OCCUPANCY", (0.2, 0.21)),
            ("DCGM_FI_PROF_NVLINK_TX_BYTES", (2.1e10, 2.2e10)),
            ("DCGM_FI_PROF_PCIE_RX_BYTES", (1000, 2000)),
        )
        for index, value in enumerate(values)
    )


def frame(source: DcgmExporterCollector) -> GpuFrame:
    columns = GpuAssembly().columns([source.collect(0).gpus])
    assert columns is not None
    return GpuFrame(node_id="n", agent_session="s", seq=0, event_time_ns=1, **columns)


def source_of(exporter: FakeExporter, **arguments: Any) -> DcgmExporterCollector:
    return DcgmExporterCollector(exporter.url, **{"timeout_s": 5.0} | arguments)


# --- Lines --------------------------------------------------------------------------------------------------------


def test_a_page_becomes_one_row_a_gpu() -> None:
    with FakeExporter(page()) as exporter:
        source = source_of(exporter)
        assert source.is_supported() is None
        found = frame(source)
    assert found.gpu_uuid == (A, B)
    assert found.pci_bus_id == ("0000:1a:00", "0000:1b:00")
    assert (found.sm_clock_mhz, found.power_w) == ((1980, 1979), (650.5, 71.25))
    assert (found.tensor_active_ratio, found.dram_active_ratio) == ((0.61, 0.62), (0.4, 0.41))
    assert (found.sm_active_ratio, found.sm_occupancy_ratio) == ((0.9, 0.91), (0.2, 0.21))
    assert (found.nvlink_tx_bytes_per_s, found.pcie_rx_bytes_per_s) == ((2.1e10, 2.2e10), (1000.0, 2000.0))
    assert found.row_remap_pending == (0, 1)  # 0 is measured
    assert found.mem_temp_c is None  # a blank is not
    assert found.sku == ("NVIDIA H100", "NVIDIA H100")


def test_a_page_can_be_a_file_and_readings_of_instances_and_links_are_not_their_gpus(tmp_path: Path) -> None:
    metrics = tmp_path / "metrics"
    metrics.write_text(
        page()
        + line("DCGM_FI_DEV_FB_USED", 17, more='GPU_I_ID="3",GPU_I_PROFILE="1g.10gb",')
        + line("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", 5, more='nvlink="3",')
    )
    found = frame(DcgmExporterCollector(metrics.as_uri()))
    assert found.gpu_uuid == (A, B)
    assert (found.fb_used_mib, found.nvlink_replay_errors) == (None, None)


def test_a_page_without_dcgm_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("go_goroutines 7\n")
    with pytest.raises(CollectorError, match="no DCGM metric"):
        DcgmExporterCollector((tmp_path / "other").as_uri()).collect(0)


def test_pages_that_follow_are_read_as_if_each_were_the_first() -> None:
    changing = [
        page(),
        page(),
        page(power=100.0),
        page(power=9223372036854775794),  # it became a blank
        page(power=101.0) + line("DCGM_FI_DEV_FB_USED", 17),  # a line more
        page(power=102.0),  # and gone again
        page(power=-4.0),  # no power: the value is implausible
        page(power=103.0),
        page().replace(B, "GPU-other"),  # a GPU was exchanged
    ]
    with FakeExporter(changing) as exporter:
        source = source_of(exporter)
        got = [frame(source) for _ in changing]
    for text, found in zip(changing, got, strict=True):
        with FakeExporter(text) as exporter:
            assert found == frame(source_of(exporter))
    assert [found.power_w and found.power_w[0] for found in got] == [
        650.5,
        650.5,
        100,
        None,
        101,
        102,
        None,
        103,
        650.5,
    ]
    assert [found.fb_used_mib for found in got if found.fb_used_mib] == [(17, None)]


def test_only_lines_that_changed_are_decoded_again(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[int] = []
    whole = dcgm_prometheus.by_gpu

    def counting(text: str) -> Any:
        decoded.append(sum("{" in line for line in text.splitlines()))
        return whole(text)

    monkeypatch.setattr(dcgm_exporter, "by_gpu", counting)
    with FakeExporter([page(), page(), page(power=1.0)]) as exporter:
        source = source_of(exporter)
        for _ in range(3):
            source.collect(0)
    assert decoded == [20, 1]


# --- Whose lines --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "host", ['Hostname="node-7",', 'hostname="NODE-7.cluster.local",', "", 'Hostname="",', 'instance="node-8",']
)
def test_lines_of_this_node_or_of_none_are_taken(host: str) -> None:
    with FakeExporter(page(host=host)) as exporter:
        assert frame(source_of(exporter, hosts=("node-7.example.org", "other"))).gpu_uuid == (A, B)


@pytest.mark.parametrize("host", ['Hostname="node-8",', 'Hostname="node-77",', 'hostname="node",'])
def test_a_page_of_another_node_is_not_taken_and_the_error_says_whose_it_is(host: str) -> None:
    with FakeExporter(page(host=host)) as exporter:
        source = source_of(exporter, hosts=("node-7",))
        with pytest.raises(CollectorError, match=r"is of node.*not of this node.*dcgm_exporter_hostname"):
            source.collect(0)
        assert "not of this node" in str(source.is_supported())
        assert frame(source_of(exporter, hosts=("*",))).gpu_uuid == (A, B)
        assert frame(source_of(exporter)).gpu_uuid == (A, B)


def test_of_a_page_of_several_nodes_only_our_lines_are_taken() -> None:
    text = line("DCGM_FI_DEV_SM_CLOCK", 1, 0, 'Hostname="node-7",') + line(
        "DCGM_FI_DEV_SM_CLOCK", 2, 1, 'Hostname="node-8",'
    )
    with FakeExporter(text) as exporter:
        found = frame(source_of(exporter, hosts=("node-7",)))
    assert (found.gpu_uuid, found.sm_clock_mhz) == ((A,), (1,))


def test_settings_make_the_collector_of_this_node(tmp_path: Path) -> None:
    (tmp_path / "password").write_text("secret\n")
    with FakeExporter(page(host='Hostname="node-7",'), user="paceline", password="secret") as exporter:
        settings = AgentSettings(
            collect_deadline_s=1.0,
            dcgm_exporter_url=exporter.url,
            dcgm_exporter_user="paceline",
            dcgm_exporter_password_file=str(tmp_path / "password"),
        )
        ours = DcgmExporterCollector.from_settings(settings, AgentIdentity("node-7", "b", "s"))
        theirs = DcgmExporterCollector.from_settings(settings, AgentIdentity("node-9", "b", "s"))
        assert ours.is_supported() is None
        assert "not of this node" in str(theirs.is_supported())


# --- Fetching -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("address", ["ftp://x/y", "metrics", "", "http://", "http://[::1", "http://h:port/metrics"])
def test_an_address_of_no_page_is_refused(address: str) -> None:
    source = DcgmExporterCollector(address)
    assert "is no address of a page" in str(source.is_supported())
    with pytest.raises(CollectorError):
        source.collect(0)


def test_an_exporter_that_is_away_is_unsupported_and_says_why() -> None:
    reason = DcgmExporterCollector("http://127.0.0.1:9/metrics").is_supported()
    assert reason is not None
    assert "cannot be fetched" in reason


def test_an_exporter_that_answers_late_or_badly_is_an_error_and_recovers() -> None:
    with FakeExporter(page()) as exporter:
        source = source_of(exporter, timeout_s=0.1)
        exporter.hold()
        with pytest.raises(CollectorError, match="timed out"):
            source.collect(0)
        exporter.release()
        exporter.status = 500
        with pytest.raises(CollectorError, match="HTTP 500"):
            source.collect(0)
        exporter.status = 200
        assert frame(source).gpu_uuid == (A, B)


def test_one_connection_serves_many_pages_and_one_that_was_closed_is_opened_again() -> None:
    with FakeExporter(page()) as exporter:
        source = source_of(exporter)
        for _ in range(3):
            source.collect(0)
        assert len({request.client for request in exporter.requests}) == 1
        exporter.headers["Connection"] = "close"
        for _ in range(2):
            source.collect(0)
        assert len({request.client for request in exporter.requests}) == 2
    with FakeExporter(page()) as other:
        source._source._url = other.url
        assert frame(source).gpu_uuid == (A, B)  # the old connection is dead


def test_a_page_that_trickles_is_given_up_in_its_time() -> None:
    with FakeExporter(page()) as exporter:
        exporter.pause_s = 0.05
        source = source_of(exporter, timeout_s=0.3)
        begun = time.monotonic()
        with pytest.raises(CollectorError, match=r"timed out after 0\.3 s"):
            source.collect(0)
        assert time.monotonic() - begun < 1.0
        exporter.pause_s = 0.001  # slow, and in time
        assert frame(source).gpu_uuid == (A, B)


def test_a_page_whose_end_is_missing_is_no_page() -> None:
    with FakeExporter(page()) as exporter:
        exporter.headers = {"Content-Encoding": "br"}
        with pytest.raises(CollectorError, match=r"encoded as '\w+'"):
            source_of(exporter).collect(0)
    packed = gzip.compress(page().encode())
    with FakeExporter(packed[:-20]) as exporter:
        exporter.headers = {"Content-Encoding": "gzip"}
        with pytest.raises(CollectorError, match="its end is missing"):
            source_of(exporter).collect(0)
        exporter.pages = [packed]
        assert frame(source_of(exporter)).gpu_uuid == (A, B)


def test_packed_pages_are_read_and_one_that_unpacks_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with FakeExporter(page(), compressed=True) as exporter:
        source = source_of(exporter)
        assert frame(source).gpu_uuid == (A, B)
        monkeypatch.setattr(dcgm_exporter_page, "MAX_BYTES", 1 << 20)
        exporter.pages = [b"# " + b"x" * (40 << 20)]
        with pytest.raises(CollectorError, match="larger than"):
            source.collect(0)
        exporter.pages = [b"#" * ((1 << 20) - len(page())) + b"\n" + page().encode()[:-1]]
        assert frame(source).gpu_uuid == (A, B)


def test_a_page_above_the_limit_is_refused_packed_or_not(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(dcgm_exporter_page, "MAX_BYTES", 1000)
    (tmp_path / "metrics").write_text(page())
    with pytest.raises(CollectorError, match="larger than 1000 bytes"):
        DcgmExporterCollector((tmp_path / "metrics").as_uri()).collect(0)
    with FakeExporter(page()) as exporter, pytest.raises(CollectorError, match="larger than 1000 bytes"):
        source_of(exporter).collect(0)


def test_a_redirect_is_not_followed() -> None:
    with FakeExporter(page()) as elsewhere, FakeExporter(page()) as exporter:
        exporter.status = 302
        exporter.headers["Location"] = elsewhere.url
        with pytest.raises(CollectorError, match="not followed"):
            source_of(exporter).collect(0)
        assert elsewhere.requests == []


def test_a_proxy_of_the_environment_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    with FakeExporter(page()) as exporter:
        assert frame(source_of(exporter)).gpu_uuid == (A, B)


# --- Being let in -------------------------------------------------------------------------------------------------


def test_user_and_password_let_in_and_are_read_again_when_they_change(tmp_path: Path) -> None:
    secret = tmp_path / "password"
    secret.write_text("se:cret\u00e9\n")
    access = Access(user="paceline", password_file=str(secret))
    with FakeExporter(page(), user="paceline", password="se:cret\u00e9") as exporter:
        source = source_of(exporter, access=access)
        assert frame(source).gpu_uuid == (A, B)
        secret.write_text("old")
        with pytest.raises(CollectorError, match="HTTP 401: user, password or token are not accepted") as caught:
            source.collect(0)
        assert "old" not in str(caught.value)
        with pytest.raises(CollectorError, match="HTTP 401"):
            source_of(exporter).collect(0)


def test_a_token_lets_in(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("abc.def")
    with FakeExporter(page(), token="abc.def") as exporter:
        assert frame(source_of(exporter, access=Access(token_file=str(tmp_path / "token")))).gpu_uuid == (A, B)


@pytest.mark.parametrize(
    ("content", "says"), [(None, "No such file"), (b"", "no secret"), (b"a\nb", "no secret"), (b"\xff\xfe", "no text")]
)
def test_a_secret_that_cannot_be_used_is_an_error_that_names_its_file(
    tmp_path: Path, content: bytes | None, says: str
) -> None:
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    with FakeExporter(page()) as exporter:
        with pytest.raises(CollectorError, match=says) as caught:
            source_of(exporter, access=Access(token_file=str(tmp_path / "token"))).collect(0)
        assert "token" in str(caught.value)
        assert exporter.requests == []


@pytest.mark.parametrize(
    ("url", "access", "says"),
    [
        ("http://u:hush@127.0.0.1/metrics", Access(), "give the user in dcgm_exporter_user"),
        ("http://127.0.0.1/metrics", Access(user="u"), "needs a password file"),
        ("http://127.0.0.1/metrics", Access(password_file="f"), "and a password file a user"),
        ("http://127.0.0.1/metrics", Access(user="u", password_file="f", token_file="t"), "not both"),
        ("http://127.0.0.1/metrics", Access(ca_file="f"), "begin with https"),
        ("http://127.0.0.1/metrics", Access(insecure=True), "begin with https"),
        ("https://127.0.0.1/metrics", Access(key_file="f"), "needs a certificate file"),
    ],
)
def test_settings_that_do_not_go_together_are_said_without_what_is_secret(url: str, access: Access, says: str) -> None:
    reason = str(DcgmExporterCollector(url, access=access).is_supported())
    assert says in reason
    assert "hush" not in reason


# --- TLS ----------------------------------------------------------------------------------------------------------


class Authority:
    """Signs certificates for 127.0.0.1 and for clients."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        self._key = ec.generate_private_key(ec.SECP256R1())
        self.file = folder / f"{name}.pem"
        own = self._signed(self._name, self._key.public_key(), authority=True)
        self.file.write_bytes(own.public_bytes(serialization.Encoding.PEM))

    def certificate(self, name: str) -> tuple[Path, Path]:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        files = self._folder / f"{name}.crt", self._folder / f"{name}.key"
        files[0].write_bytes(self._signed(subject, key.public_key()).public_bytes(serialization.Encoding.PEM))
        files[1].write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
            )
        )
        return files

    def _signed(self, subject: x509.Name, public: Any, *, authority: bool = False) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - dt.timedelta(days=1))
            .not_valid_after(now + dt.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(public), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
        if authority:
            usage = x509.KeyUsage(
                digital_signature=True,
                key_cert_sign=True,
                crl_sign=True,
                **dict.fromkeys(
                    (
                        *("content_commitment", "key_encipherment", "data_encipherment"),
                        *("key_agreement", "encipher_only", "decipher_only"),
                    ),
                    False,
                ),
            )
            builder = builder.add_extension(usage, critical=True)
        else:
            builder = builder.add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
            ).add_extension(
                x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]),
                critical=False,
            )
        return builder.sign(self._key, hashes.SHA256())


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path, "ours")


def test_a_certificate_is_trusted_by_its_authority_alone(authority: Authority, tmp_path: Path) -> None:
    with FakeExporter(page(), certificate=authority.certificate("exporter")) as exporter:
        trusting = source_of(exporter, access=Access(ca_file=str(authority.file)))
        assert frame(trusting).gpu_uuid == (A, B)
        trusting.collect(0)
        assert len({request.client for request in exporter.requests}) == 1
        for access in (Access(), Access(ca_file=str(Authority(tmp_path, "theirs").file))):
            with pytest.raises(CollectorError, match="certificate is not trusted"):
                source_of(exporter, access=access).collect(0)
        assert frame(source_of(exporter, access=Access(insecure=True))).gpu_uuid == (A, B)


def test_an_exporter_that_asks_for_a_certificate_gets_ours(authority: Authority) -> None:
    served = authority.certificate("exporter")
    with FakeExporter(page(), certificate=served, client_ca=authority.file) as exporter:
        cert, key = authority.certificate("agent")
        access = Access(ca_file=str(authority.file), cert_file=str(cert), key_file=str(key))
        assert frame(source_of(exporter, access=access)).gpu_uuid == (A, B)
        with pytest.raises(CollectorError, match="cannot be fetched"):
            source_of(exporter, access=Access(ca_file=str(authority.file))).collect(0)


def test_certificates_that_are_exchanged_are_read_anew(authority: Authority, tmp_path: Path) -> None:
    with FakeExporter(page(), certificate=authority.certificate("exporter")) as exporter:
        trusted = tmp_path / "trusted.pem"
        trusted.write_bytes(authority.file.read_bytes())
        source = source_of(exporter, access=Access(ca_file=str(trusted)))
        source.collect(0)
        trusted.write_bytes(Authority(tmp_path, "theirs").file.read_bytes())
        os.utime(trusted, ns=(1, 1))
        with pytest.raises(CollectorError, match="certificate is not trusted"):
            source.collect(0)


def test_files_that_are_no_certificates_are_an_error_of_one_line(authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("no certificate")
    with FakeExporter(page(), certificate=authority.certificate("exporter")) as exporter:
        for access in (
            Access(ca_file=str(tmp_path / "text")),
            Access(ca_file=str(tmp_path / "absent")),
            Access(ca_file=str(authority.file), cert_file=str(tmp_path / "text")),
        ):
            with pytest.raises(CollectorError) as caught:
                source_of(exporter, access=access).collect(0)
            assert "\n" not in str(caught.value)
            assert not isinstance(caught.value.__cause__, ssl.SSLError)
