"""A throw-away Kubernetes API server on this machine, with etcd and nothing else, until it is told to end.

    .venv/bin/python tests/kube/serve.py --apiserver ~/kube/kube-apiserver --directory ~/kube/run

Both listen on 127.0.0.1 alone and keep what they have in the directory, which is emptied first. Its `kubeconfig`, with the rights of
an administrator, is written once the server is ready; the line `ready` follows on stdout.
"""

from __future__ import annotations

import argparse
import json
import secrets
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa

READY_S = 180
STOP_S = 20


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def account_key(path: Path) -> None:
    """Write the key by which tokens of service accounts are signed."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    path.touch(mode=0o600)
    path.write_bytes(text)


def apiserver_arguments(program: str, directory: Path, port: int, etcd_port: int) -> list[str]:
    key = directory / "accounts.key"
    return [
        program,
        f"--etcd-servers=http://127.0.0.1:{etcd_port}",
        "--bind-address=127.0.0.1",
        f"--secure-port={port}",
        f"--cert-dir={directory / 'certificates'}",
        "--service-cluster-ip-range=10.0.0.0/24",
        # Nobody is told of the address; it is of the block for documentation.
        "--advertise-address=192.0.2.1",
        "--endpoint-reconciler-type=none",
        "--authorization-mode=RBAC",
        f"--token-auth-file={directory / 'tokens.csv'}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={key}",
        f"--service-account-signing-key-file={key}",
    ]


def is_ready(port: int, token: str, certificate: Path) -> bool:
    if not certificate.exists():
        return False
    request = urllib.request.Request(f"https://127.0.0.1:{port}/readyz", headers={"authorization": f"Bearer {token}"})
    try:
        context = ssl.create_default_context(cafile=str(certificate))
        with urllib.request.urlopen(request, timeout=5, context=context) as answer:
            return bool(answer.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def kubeconfig(port: int, token: str, certificate: Path) -> str:
    """A kubeconfig; JSON is YAML."""
    cluster = {"server": f"https://127.0.0.1:{port}", "certificate-authority": str(certificate)}
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "throw-away",
            "contexts": [{"name": "throw-away", "context": {"cluster": "c", "user": "admin"}}],
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "admin", "user": {"token": token}}],
        }
    )


def serve(apiserver: str, etcd: str, directory: Path, stopped: threading.Event) -> int:
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True, mode=0o700)
    directory = directory.resolve()
    token = secrets.token_hex(16)
    (directory / "tokens.csv").write_text(f'{token},admin,admin,"system:masters"\n')
    account_key(directory / "accounts.key")
    port, etcd_port, peer_port = free_port(), free_port(), free_port()
    client_url, peer_url = f"http://127.0.0.1:{etcd_port}", f"http://127.0.0.1:{peer_port}"
    etcd_arguments = [
        *(etcd, "--name=one", f"--data-dir={directory / 'etcd'}", f"--listen-client-urls={client_url}"),
        *(f"--advertise-client-urls={client_url}", f"--listen-peer-urls={peer_url}"),
        *(f"--initial-advertise-peer-urls={peer_url}", f"--initial-cluster=one={peer_url}"),
    ]
    commands = {"etcd": etcd_arguments, "apiserver": apiserver_arguments(apiserver, directory, port, etcd_port)}
    certificate = directory / "certificates" / "apiserver.crt"
    running: list[subprocess.Popen[bytes]] = []
    try:
        for name, arguments in commands.items():
            with (directory / f"{name}.log").open("wb") as log:
                running.append(subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=log, stderr=log))
        for _ in range(READY_S):
            if is_ready(port, token, certificate) or any(process.poll() is not None for process in running):
                break
            if stopped.wait(1.0):
                return 0
        if not is_ready(port, token, certificate):
            print(f"not ready; see {directory}/*.log", file=sys.stderr)
            return 1
        (directory / "kubeconfig").write_text(kubeconfig(port, token, certificate))
        print("ready", flush=True)
        while not stopped.wait(1.0):
            if any(process.poll() is not None for process in running):
                print(f"ended by itself; see {directory}/*.log", file=sys.stderr)
                return 1
        return 0
    finally:
        for process in reversed(running):
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--apiserver", required=True, help="the program, built as README.md says")
    parser.add_argument("--etcd", default="etcd", help="the program; Debian's will do")
    parser.add_argument("--directory", type=Path, required=True, help="emptied first")
    given = parser.parse_args()
    stopped = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stopped.set())
    return serve(given.apiserver, given.etcd, given.directory, stopped)


if __name__ == "__main__":
    sys.exit(main())
