"""Key files: the private half of a signing key, and the ring of those that are trusted, on the disk.

A private key is PKCS #8 in PEM, readable by its owner alone; one that others can read is refused, because it must be taken
for known to them. A file is there whole or not at all, also over a crash: it is written beside its place, flushed to the
disk, and moved. Keys are made from the system's randomness. Nothing here decides whom to trust.
"""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key

from schemas.errors import SchemaError
from schemas.keyring import Keyring, KeyringError, read_keyring

__all__ = ["KeyFileError", "load_keyring", "load_private_key", "make_private_key", "read_secret", "store_keyring"]

_MOST_BYTES = 1_000_000


class KeyFileError(SchemaError):
    """A key file that cannot be used; the text names it and says why, in one line."""


def make_private_key(path: Path) -> Ed25519PrivateKey:
    """Make a key and keep it in a file that does not exist yet.

    Raises:
        KeyFileError: the file is there already, or cannot be written.
    """
    key = Ed25519PrivateKey.generate()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
            file.flush()
            os.fsync(file.fileno())
        _flush_directory(path.parent)
    except FileExistsError:
        raise KeyFileError(f"{path}: is there already, and a key is never written over") from None
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from None
    return key


def load_private_key(path: Path) -> Ed25519PrivateKey:
    """The key of a file.

    Raises:
        KeyFileError: it cannot be read, others can read it, or it holds no unencrypted Ed25519 key.
    """
    try:
        key = load_pem_private_key(_private_bytes(path), password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise KeyFileError(f"{path}: holds no private key in PEM without a passphrase") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise KeyFileError(f"{path}: its key is not of Ed25519")
    return key


def read_secret(path: Path) -> str:
    """The text of a secret's file, without white space around it.

    Raises:
        KeyFileError: it cannot be read, others can read it, or it is no text.
    """
    try:
        return _private_bytes(path).decode().strip()
    except UnicodeDecodeError:
        raise KeyFileError(f"{path}: is no text") from None


def _private_bytes(path: Path) -> bytes:
    """What is in a file that its owner alone can read."""
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if not stat.S_ISREG(mode):
                raise KeyFileError(f"{path}: is no plain file")
            if mode & 0o077:
                raise KeyFileError(
                    f"{path}: others may read it (mode {stat.S_IMODE(mode):04o}); chmod 600, or make another"
                )
            return file.read(_MOST_BYTES)
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from None


def load_keyring(path: Path) -> Keyring:
    """The ring of a file.

    Raises:
        KeyFileError: it cannot be read, others than its owner may write it, or it is no ring.
    """
    try:
        with path.open("rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            if mode & 0o022:
                raise KeyFileError(f"{path}: others may write it (mode {stat.S_IMODE(mode):04o}); chmod go-w")
            text = file.read(_MOST_BYTES)
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from None
    try:
        return read_keyring(text)
    except KeyringError as error:
        raise KeyFileError(f"{path}: {error}") from None


def store_keyring(path: Path, ring: Keyring) -> None:
    """Put a ring in the place of a file, whole or not at all; everybody may read it.

    Raises:
        KeyFileError: it cannot be written.
    """
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        beside = Path(name)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(ring.text())
                file.flush()
                os.fchmod(file.fileno(), 0o644)
                os.fsync(file.fileno())
            beside.replace(path)
        except BaseException:
            beside.unlink(missing_ok=True)
            raise
        _flush_directory(path.parent)
    except OSError as error:
        raise KeyFileError(f"{path}: {error.strerror}") from None


def _flush_directory(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
