"""Runs all benchmarks one after another, and leaves their sections in docs/benchmarks.md.

`run.py [--quick] [--print-only] [NAME ...]`: names of scripts without `bench_`; all of them by default. One that fails
does not keep the others from running; the status is then 1.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_FOLDER = Path(__file__).resolve().parent


def main() -> int:
    """Run them; the status of the process."""
    flags = [argument for argument in sys.argv[1:] if argument.startswith("--")]
    names = [argument for argument in sys.argv[1:] if not argument.startswith("--")]
    scripts = {path.stem.removeprefix("bench_"): path for path in sorted(_FOLDER.glob("bench_*.py"))}
    unknown = sorted(set(names) - set(scripts))
    if unknown:
        print(f"no benchmark {', '.join(unknown)}; there are {', '.join(scripts)}", file=sys.stderr)
        return 2
    failed = []
    for name in names or scripts:
        print(f"--- {name}", file=sys.stderr, flush=True)
        if subprocess.run([sys.executable, str(scripts[name]), *flags], check=False).returncode != 0:
            failed.append(name)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
