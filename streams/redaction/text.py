"""Free text without names: what is ours keeps its words, what is of others keeps the words that drivers print.

Two strengths. *Said* is text of our own rules: names that occur in a field of the archive are replaced, and so is every
word that mixes letters and digits and is no figure, device or column. *Line* is text of others (kernel lines, notes, what a
program answered): there only words of the error catalogues and of the kernel's own messages stay, with figures, register values
and PCI addresses; processes, their numbers, paths, addresses of networks and serial numbers go. What is masked reads `<word>`.
"""

from __future__ import annotations

import re
from functools import cache
from itertools import combinations_with_replacement
from typing import TYPE_CHECKING

from schemas.gpu_parts import parts
from streams.redaction.names import WORD
from streams.redaction.words import SYSTEM_PATHS, driver_words, is_common, is_usual

if TYPE_CHECKING:
    from collections.abc import Callable

    from streams.redaction.names import Names

__all__ = ["is_link", "is_part", "line", "said"]

_LETTERS = re.compile(r"[^\W\d_]+(?:['-][^\W\d_]+)*")
_SNAKE = re.compile(r"[a-z]+(?:_[a-z0-9]+)+|[A-Z]+(?:_[A-Z0-9]+)+|--?[a-z]+(?:-[a-z]+)*")
_LINK = re.compile(
    r"(?:mlx\d+_(?:bond_)?\d+|bnxt_re\d+|irdma\d+|efa_?\d+|rdmap\d+s\d+|hns_\d+|Ethernet\d+|swp\d+(?:s\d+)?"
    r"|(?:eth|ib|bond|roce|hsn|rdma|nic|Eth|ibp|port)\d+(?:s\d+)?|eno\d+|ens\d+(?:f\d+)?(?:np\d+)?|enp\d+s\d+(?:f\d+)?(?:np\d+)?"
    r"|(?:et|xe|ge)-\d+|\d{1,4})(?:[.]\d{1,4})?"
)
"""What drivers and switches call a port by themselves."""
_PCI = r"(?:PCI:)?(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
_UNIT = r"%|[munµ]?s|[kMG]?W|[KMGT]i?B|[KMG]b|[kMG]?Hz|GT|h|min|[A-Zx]|th|st|nd|rd|ME?|FLOPs?|TFLOPs?"
_FIGURE = re.compile(
    rf"{_PCI}|\d{{4}}-\d\d-\d\d(?:T[\d:.]+Z?)?|\d\d:\d\d:\d\d(?:\.\d+)?|0x[0-9a-fA-F]+"
    rf"|[~<>=+-]*\d+(?:[.,]\d+)*(?:e[+-]?\d+)?(?:{_UNIT})?(?:\.\.[+-]?\d+)?|\d+(?:-\d+)+|[-+.:~/%*\\#]+",
    re.ASCII,
)
_SHORT = re.compile(
    r"[pP]\d{2,3}|(?:s?xid|XID|SXid|Xid)-?\d+|NVLink\d|L\d|Gen\d|x\d{1,2}|IPv[46]|[Pp]2[Pp]|C2C|mlx5|bnxt_en"
)
_ADDRESS = re.compile(
    r"\d{1,3}(?:\.\d{1,3}){3}(?:[:/][\d.]+)?|(?:[0-9a-fA-F]{2}[:-]){5,}[0-9a-fA-F]{2}"
    r"|(?:(?=.*::)(?=:*[0-9a-fA-F])[0-9a-fA-F:]+(?::\d{1,3}(?:\.\d{1,3}){3})?|(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}"
    r"|(?:[0-9a-fA-F]{4}:){3}[0-9a-fA-F]{4})(?:%[\w.\-]+)?(?:/\d{1,3})?",
    re.ASCII,
)
"""Of IPv4, of MAC, of IPv6 (with `::`, or of eight groups), and GUIDs of InfiniBand; a PCI address or a time has none of these forms."""
_PROCESS = re.compile(
    r"\b(?P<what>pid|tgid|uid|comm|user|name|process|hostname|host)(?P<is>\s*[=:]\s*)"
    r"(?P<who>'[^']*'|\"[^\"]*\"|<[^>]*>|[^,\s]+)",
    re.IGNORECASE,
)
_KMSG = re.compile(r"\d{1,3},\d+,\d+,[-cC+](?:,[\w=.\[\]]*)*;")
_REGISTER = re.compile(r"[0-9a-fA-F]+", re.ASCII)
_REGISTER_DIGITS = frozenset({2, 4, 8, 16})
"""As drivers print registers without 0x; a host may be called `ace01`."""
_LONG_DIGITS = 10
"""Decimal digits from which a number of a foreign line may be a serial number; error counts and codes are shorter."""
_PSEUDONYM = re.compile(r"x-[0-9a-f]{12}")
_MOST_WEAK = 2
_PLACES = frozenset({"node", "nodes", "job", "jobs", "switch", "rack", "zone", "leaf", "pod", "rail", "site", "host"})
"""Words behind which a name of digits, of two letters, or that is a common word, is a name and nothing else."""


@cache
def _part_words() -> frozenset[str]:
    names = (name for part in parts() for name in (part.model, part.vendor, *part.names))
    return frozenset(word for name in names for word in re.split(r"[\s_\-]+", name.upper()))


def is_link(name: str) -> bool:
    """Whether a port or device is called as its driver calls it, which says nothing about a site."""
    return _LINK.fullmatch(name) is not None


def is_part(name: str) -> bool:
    """Whether a name of a GPU's part is made of the words of the table of parts."""
    return all(word in _part_words() for word in re.split(r"[\s_\-]+", name.upper()))


def said(text: str, names: Names) -> str:
    """A text of our own without names.

    Args:
        text: the text.
        names: those that were met in the archive.
    """
    return _each_word(text, names, _is_ours)


def line(text: str, names: Names, process: str | None = None) -> str:
    """A text of somebody else with nothing but what drivers print.

    Args:
        text: the text.
        names: those that were met in the archive.
        process: a process that it names.
    """
    head = found[0] if (found := _KMSG.match(text)) else ""
    rest = text[len(head) :]
    if process:
        rest = rest.replace(process, "<name>")
    rest = _PROCESS.sub(lambda found: f"{found['what']}{found['is']}<{found['what'].lower()}>", rest)
    return head + _each_word(rest, names, _is_of_drivers)


def _each_word(text: str, names: Names, stays: Callable[[str], bool]) -> str:
    if names.odd:
        for name in sorted(names.odd, key=len, reverse=True):
            if name in text:
                text = text.replace(name, names.odd[name])
    before = ""

    def replaced(found: re.Match[str]) -> str:
        nonlocal before
        word, last = found[0], before
        before = word.lower()
        return _word(word, last in _PLACES, names, stays)

    return WORD.sub(replaced, text)


def _word(word: str, is_behind_place: bool, names: Names, stays: Callable[[str], bool]) -> str:
    """A word as it is told: a name that is known by its pseudonym, else its parts one by one."""
    if (known := _known(word, is_behind_place, names)) is not None:
        return known
    if word.startswith("/") and len(word) > 1:
        return word if word in SYSTEM_PATHS else "<path>"
    # The colons at the end of `2001:db8::` are its own.
    bare = word.rstrip(".") if word.endswith("::") else word.rstrip(".:")
    if bare != word and bare:
        return _word(bare, is_behind_place, names, stays) + word[len(bare) :]
    if _ADDRESS.fullmatch(word) or "://" in word or "@" in word:
        return "<address>"
    if _PSEUDONYM.fullmatch(word):
        return word
    if stays(word):
        return "<word>" if _holds_a_name(word, names) else word
    for mark in "/:":
        if mark in word.strip(mark):
            return mark.join(_word(part, is_behind_place, names, stays) if part else "" for part in word.split(mark))
    return "<word>"


def _known(word: str, is_behind_place: bool, names: Names) -> str | None:
    known = names.known(word)
    if known is None or is_behind_place:
        return known
    if word.isdigit() and len(word) < 5:
        return None
    if len(word) <= _MOST_WEAK or is_common(word):
        names.left_in_texts.add(word.lower())
        return None
    return known


def _holds_a_name(word: str, names: Names) -> bool:
    """Whether parts of a word are a name together, as `node-7` in `node-7_gpu`."""
    if word.isalnum():
        return False
    parts = [found.span() for found in re.finditer(r"[^\W_]+", word)]
    spans = ((first[0], last[1]) for first, last in combinations_with_replacement(parts, 2))
    return any(_known(word[start:end], False, names) is not None for start, end in spans)


def _is_ours(word: str) -> bool:
    if _LETTERS.fullmatch(word) or _FIGURE.fullmatch(word) or _SNAKE.fullmatch(word) or is_link(word):
        return True
    return _SHORT.fullmatch(word) is not None or is_part(word) or is_usual(word)


def _is_of_drivers(word: str) -> bool:
    if word.isdecimal():
        return len(word) < _LONG_DIGITS
    if all(part in driver_words() for part in re.split(r"[-_]", word.lower())):
        return True
    if word.isalpha():
        return False
    is_register = len(word) in _REGISTER_DIGITS and _REGISTER.fullmatch(word) is not None
    return is_register or any(form.fullmatch(word) for form in (_FIGURE, _SHORT, _LINK))
