"""The webhook's hands against a receiver on this machine: what is sent, how it is signed, and what an answer means."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from factories import SITE, at
from hypothesis import given
from hypothesis import strategies as st
from signed_commands import RING, command, signed
from typer.testing import CliRunner

from agents.actuators.actuator import Actuator, ActuatorSettings
from agents.actuators.hands import ActFailedError, TargetAwayError
from agents.actuators.memory import ActuatorMemory
from agents.actuators.webhook import WebhookHands, WebhookSettings, WebhookSettingsError, body_of, signature_of
from paceline.cli import app
from schemas.codec import decode
from schemas.findings import Evidence
from schemas.remediation import Target

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SECRET = b"a secret of more than 24 bytes"


class Receiver(ThreadingHTTPServer):
    """Keeps every request, and answers with the statuses that it was given, then 202."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Answer)
        self.answers: list[int | str] = []
        self.seen: list[tuple[dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/acts"


class Answer(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.seen.append(({name.lower(): value for name, value in self.headers.items()}, body))
        answer = self.server.answers.pop(0) if self.server.answers else 202
        if answer == "break":
            self.connection.shutdown(socket.SHUT_RDWR)
            return
        self.send_response(int(answer))
        if answer == 302:
            self.send_header("location", self.server.url)
        self.send_header("content-length", "0")
        self.end_headers()

    do_GET = do_POST  # noqa: N815

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    server = Receiver()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield server
    server.shutdown()
    server.server_close()
    thread.join(10)


def hands(receiver: Receiver, **named: Any) -> WebhookHands:
    return WebhookHands(WebhookSettings(receiver.url, SECRET, **named), lambda: 1_700_000_000.9)


def test_a_request_is_a_cloud_event_that_anybody_with_the_secret_can_check(receiver: Receiver) -> None:
    assert hands(receiver).act(command(), {}) == "the receiver answered 202"
    [(headers, body)] = receiver.seen
    assert decode("actions", body) == command()
    assert (headers["ce-id"], headers["ce-type"], headers["ce-specversion"], headers["ce-source"]) == (
        "cmd-node-1-0",
        "paceline.command.v1",
        "1.0",
        f"/paceline/{SITE}",
    )
    assert headers["content-type"] == "application/json"
    assert (headers["webhook-id"], headers["webhook-timestamp"]) == ("cmd-node-1-0", "1700000000")
    expected = hmac.new(SECRET, b"cmd-node-1-0.1700000000." + body, hashlib.sha256).digest()
    assert headers["webhook-signature"] == "v1," + base64.b64encode(expected).decode()


def test_the_signature_is_that_of_the_published_example() -> None:
    secret = WebhookSettings.secret_of("whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw")
    signature = signature_of(secret, "msg_p5jXN8AQM9LWM0D4loKWxJek", 1614265330, b'{"test": 2432232314}')
    assert signature == "v1,g0hM9SsE+OTPJTGt/tmIKtSyZlE3uFJELVlNIOLJ1OE="


def test_a_template_is_filled_in_without_changing_its_form(receiver: Receiver) -> None:
    template = {
        "title": "$kind of $node_id",
        "tags": ["paceline", "$incident_id"],
        "text": "$reason",
        "n": 3,
        "c": "5 $$",
    }
    order = command(reason='"}, "title": "$target" \n')
    hands(receiver, template=template).act(order, {})
    assert json.loads(receiver.seen[0][1]) == {
        "title": "cordon_node of node-1",
        "tags": ["paceline", "inc-1"],
        "text": '"}, "title": "$target" \n',
        "n": 3,
        "c": "5 $",
    }


@given(st.text(max_size=50))
def test_no_value_can_change_the_form_of_a_template(text: str) -> None:
    body = json.loads(body_of(command(reason=text), {"reason": "$reason", "kind": "$kind"}))
    assert sorted(body) == ["kind", "reason"]
    assert body["kind"] == "cordon_node"


@pytest.mark.parametrize("status", [400, 401, 404, 410, 302, 307])
def test_an_answer_that_will_not_change_is_a_failure_and_is_not_followed(receiver: Receiver, status: int) -> None:
    receiver.answers = [status]
    with pytest.raises(ActFailedError, match=f"answered {status}"):
        hands(receiver).act(command(), {})
    assert len(receiver.seen) == 1


@pytest.mark.parametrize("answer", [408, 429, 500, 502, 503, 504, "break"])
def test_an_answer_that_may_change_is_one_to_try_again(receiver: Receiver, answer: int | str) -> None:
    receiver.answers = [answer]
    with pytest.raises(TargetAwayError):
        hands(receiver).act(command(), {})


def test_nobody_there_and_no_answer_in_time_are_tried_again(receiver: Receiver) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        waiting = WebhookHands(WebhookSettings(f"http://127.0.0.1:{port}/", SECRET, timeout_s=0.2), lambda: 0.0)
        with pytest.raises(TargetAwayError, match="timed out"):
            waiting.act(command(), {})
    with pytest.raises(TargetAwayError, match="refused"):
        waiting.act(command(), {})


def test_a_server_without_tls_is_not_taken_for_one_with(receiver: Receiver) -> None:
    settings = WebhookSettings(receiver.url.replace("http://", "https://"), SECRET, timeout_s=2)
    with pytest.raises((ActFailedError, TargetAwayError)):
        WebhookHands(settings, lambda: 0.0).act(command(), {})
    assert receiver.seen == []


def test_a_receiver_that_stumbles_gets_the_same_id_again_until_it_takes_it(receiver: Receiver, tmp_path: Path) -> None:
    receiver.answers = [503, "break", 429]
    memory = ActuatorMemory(tmp_path / "m", "webhook", at(-100))
    waited: list[float] = []
    actuator = Actuator(
        ActuatorSettings("webhook", SITE),
        hands(receiver),
        memory,
        lambda _: None,
        lambda: RING,
        lambda: at(1),
        waited.append,
    )
    wire, place = signed(command()), Evidence(topic="paceline.actions.v1", partition=0, offset=0)
    assert actuator.on_message(wire.value, wire.headers, place) == "applied"
    assert waited == [1.0, 2.0, 4.0]
    assert {headers["webhook-id"] for headers, _ in receiver.seen} == {"cmd-node-1-0"}
    assert len({body for _, body in receiver.seen}) == 1
    receiver.answers = [503] * 9
    wire = signed(command(number=1))
    assert actuator.on_message(wire.value, wire.headers, place) == "target_away"
    assert [result.outcome for _, result in memory.outbox()] == ["applied", "failed"]
    memory.close()


def test_names_that_headers_cannot_hold_are_written_out(receiver: Receiver) -> None:
    for site_id in ("Zürich", "a\nb"):
        hands(receiver).act(command(site_id=site_id, target=Target(level="node", node_id="ü")), {})
    assert [headers["ce-source"] for headers, _ in receiver.seen] == ["/paceline/Z%C3%BCrich", "/paceline/a%0Ab"]


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"url": "http://example.org/"}, "only https"),
        ({"url": "ftp://127.0.0.1/"}, "only https"),
        ({"url": "https://"}, "is no URL"),
        ({"url": "https://a b/"}, "is no URL"),
        ({"url": "https://a:99999/"}, "Port out of range"),
        ({"url": "https://u:p@example.org/"}, "has a user in it"),
        ({"secret": b"short"}, "has 5 bytes"),
        ({"kinds": frozenset({"cordon"})}, "no kind cordon"),
        ({"template": {"a": ["$nobody"]}}, r"no field \$nobody"),
        ({"template": {"a": "5 $"}}, r"\$ that begins no name"),
    ],
)
def test_settings_that_do_not_hold_are_refused(fields: dict[str, Any], reason: str) -> None:
    with pytest.raises(WebhookSettingsError, match=reason):
        WebhookSettings(**{"url": "https://example.org/", "secret": SECRET, **fields})


def test_the_command_line_names_what_does_not_hold(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of more than 24 bytes")
    secret.chmod(0o600)
    template = tmp_path / "template.json"
    template.write_text("{")

    def said(*arguments: str, url: str = "https://example.org/") -> str:
        base = [
            "--url",
            url,
            "--secret-file",
            str(secret),
            "--keyring",
            str(tmp_path / "r"),
            "--state-dir",
            str(tmp_path),
        ]
        result = CliRunner().invoke(app, ["act", "webhook", *base, *arguments])
        assert result.exit_code == 2, result.output
        return result.stderr

    assert "only https" in said(url="http://example.org/")
    assert "template.json" in said("--template", str(template))
    assert "no kind x" in said("--kinds", "x")
    assert "No such file" in said("--kinds", "cordon_node, drain_node")
    secret.chmod(0o644)
    assert "others may read it" in said()
