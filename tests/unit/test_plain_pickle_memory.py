"""Hostile pickles, of a size that could hurt, leave a process as small as the limits say, and in seconds."""

from __future__ import annotations

import json
import subprocess
import sys

PROGRAM = """
import json, resource, struct, sys
from agents.decode.plain_pickle import PickleError, loads

two_gb = struct.pack("<Q", 2 << 30)
many = 500_000
hostile = {
    "small": b"\\x80\\x04N.",
    "a text of 2 GB": b"\\x80\\x04\\x8d" + two_gb + b"x" * 100,
    "bytes of 2 GB": b"\\x80\\x04\\x8e" + two_gb + b"x" * 100,
    "a bytearray of 2 GB": b"\\x80\\x05\\x96" + two_gb + b"x" * 100,
    "a frame of 2 GB": b"\\x80\\x04\\x95" + two_gb + b"x" * 100,
    "a short text of 2 GB": b"\\x80\\x02X" + two_gb[:4] + b"x" * 100,
    "an integer of 2 GB": b"\\x80\\x02\\x8b\\xff\\xff\\xff\\x7f" + b"x" * 100,
    "a memory of 4 billion places": b"\\x80\\x02Nr\\xff\\xff\\xff\\xff.",
    "a class": b"\\x80\\x02cos\\nsystem\\nX\\x04\\x00\\x00\\x00true\\x85R.",
    "lists in lists": b"\\x80\\x02" + b"]" * many + b"a" * (many - 1) + b".",
    "tuples in tuples": b"\\x80\\x02N" + b"\\x85" * (many // 4) + b".",
    "marks": b"\\x80\\x02" + b"(" * many,
    "dictionaries": b"\\x80\\x02(" + b"}" * (13 * many) + b"l.",
}
told = {}
for name, data in hostile.items():
    try:
        loads(data)
        answer = "read"
    except PickleError as error:
        answer = str(error)
    told[name] = [answer, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024]
print(json.dumps(told))
"""


def test_hostile_pickles_are_refused_in_bounded_memory() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True, timeout=300)
    told = json.loads(done.stdout)
    largest_mib = {name: mib for name, (_, mib) in told.items()}
    answers = {name: answer for name, (answer, _) in told.items()}
    start_mib = largest_mib["small"]
    assert answers.pop("small") == "read"
    assert answers.pop("a memory of 4 billion places") == "read"  # places are counted, not numbered
    assert "read" not in answers.values()
    assert answers["a class"] == "refused: it names a global (operation 0x63 at byte 2)"
    assert "nested" in answers["tuples in tuples"]
    assert "nested" in answers["lists in lists"]
    assert "memory" in answers["dictionaries"]
    # Claims take nothing; what is really there takes what the account of 512 MiB allows, beside the data itself.
    assert largest_mib["a class"] - start_mib < 16, told
    assert largest_mib["dictionaries"] - start_mib < 640, told
