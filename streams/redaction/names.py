"""Pseudonyms: the same name is always the same other name, and nobody without the key can tell which.

HMAC-SHA256 under a key. A pseudonym depends on the name alone, not on the field it stands in, so that every join holds
that held before. GPU UUIDs stay UUIDs, and ids of findings, incidents and commands stay ids. Every name that was met is remembered,
because free text is searched for them: memory grows with the names of an archive, not with its length.
"""

from __future__ import annotations

import hashlib
import hmac
import re

__all__ = ["WORD", "Names"]

WORD = re.compile(r"[\w./:@%+\-#~\\*]+")
"""A single word of a text. A name that is none is looked for in texts as a whole."""

_DEVICE = re.compile(r"(GPU|MIG)-.", re.DOTALL)
_ID = re.compile(r"(find|inc|cmd|unverified)-[0-9a-f]{20}")
_LEAST_LABEL = 3
"""Characters of the shortest part of a host name that is taken for the host in free text; a judgement."""


class Names:
    """The pseudonyms of one key.

    Args:
        key: random bytes; two archives that are to map alike are given the same.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._known: dict[str, str] = {}
        self._aliases: dict[str, str] = {}
        self._odd: dict[str, str] = {}
        self.left_in_texts: set[str] = set()
        """Names that stayed in a text, in small letters: there they are words like any other."""

    @property
    def mapping(self) -> str:
        """What two archives have in common that map alike; says nothing of the key."""
        return self._digest("\x00mapping")[:12]

    @property
    def odd(self) -> dict[str, str]:
        """Names that are no single word of a text, with their pseudonyms."""
        return self._odd

    def of(self, name: str) -> str:
        """The pseudonym of a name; of an empty one there is none."""
        return self._known.get(name) or self._new(name)

    def known(self, word: str) -> str | None:
        """The pseudonym of a word of a text, if it is a name that was met: whole, or as the first label of a host name."""
        return self._known.get(word) or self._aliases.get(word.lower())

    def identify(self, name: str, pseudonym: str) -> None:
        """Give an id the pseudonym that follows from what it is made of."""
        self._known[name] = pseudonym

    def masked_sha256(self, text: str) -> str:
        """64 hexadecimal digits in place of others."""
        return self._digest(text)

    def _digest(self, text: str) -> str:
        return hmac.new(self._key, text.encode(errors="surrogatepass"), hashlib.sha256).hexdigest()

    def _new(self, name: str) -> str:
        if not name:
            return name
        digest = self._digest(name)
        if found := _DEVICE.match(name):
            said = f"{found[1]}-{digest[:8]}-{digest[8:12]}-{digest[12:16]}-{digest[16:20]}-{digest[20:32]}"
        elif found := _ID.fullmatch(name):
            said = f"{found[1]}-{digest[:20]}"
        else:
            # 48 bits: among 10^5 names of a site two are alike with odds of 2 in 10^5.
            said = f"x-{digest[:12]}"
        self._known[name] = said
        self._aliases.setdefault(name.lower(), said)
        if WORD.fullmatch(name) is None:
            self._odd[name] = said
        self._learn_labels(name, said)
        return said

    def _learn_labels(self, name: str, said: str) -> None:
        """Kernels and schedulers print a host without its domain."""
        label, _, domain = name.partition(".")
        if not domain or "/" in name or not any(character.isalpha() for character in label):
            return
        if len(label) >= _LEAST_LABEL:
            self._aliases.setdefault(label.lower(), said)
        if "." in domain:
            self._aliases.setdefault(domain.lower(), f"x-{self._digest(domain)[:12]}")
