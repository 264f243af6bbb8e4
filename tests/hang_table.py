"""`python -m tests.hang_table [SEEDS [FIRST]]`: the judge and other rules over simulated hangs, as a table in Markdown.

A row is a fault in a layout over all seeds: how many ranks each rule named rightly, named wrongly, and missed. Ranks at
fault that the dumps cannot show count neither way.
"""

from __future__ import annotations

import sys
from collections import Counter

from streams.detectors.hang import judge
from tests.hang_baselines import BASELINES
from tests.hang_cases import PAIRS, Case, case

RULES = ("paceline", *BASELINES)


def score(named: set[int], one: Case) -> tuple[int, int, int]:
    truth = one.truth
    return (
        len(named & truth.culprits),
        len(named - truth.culprits - truth.acceptable),
        len(truth.culprits - named),
    )


def main(seeds: range) -> int:
    total: dict[str, Counter[str]] = {rule: Counter() for rule in RULES}
    verdicts: Counter[str] = Counter()
    print(f"| fault | layout | culprits | {' | '.join(RULES)} | verdicts |")
    print("|---|---|" + "---|" * (len(RULES) + 2))
    for fault, layout in PAIRS:
        row: dict[str, Counter[str]] = {rule: Counter() for rule in RULES}
        answers: Counter[str] = Counter()
        culprits = 0
        for seed in seeds:
            one = case(fault, layout, seed)
            records = one.digests()
            verdict = judge(records)
            culprits += len(one.truth.culprits)
            answers[f"{verdict.verdict}/{verdict.cause}" if verdict.cause else verdict.verdict] += 1
            for rule in RULES:
                named = set(verdict.culprit_ranks) if rule == "paceline" else BASELINES[rule](records)
                for name, count in zip(("right", "wrong", "missed"), score(named, one), strict=True):
                    row[rule][name] += count
                    total[rule][name] += count
        verdicts += answers
        cells = [f"{row[rule]['right']}/{row[rule]['wrong']}/{row[rule]['missed']}" for rule in RULES]
        told = ", ".join(f"{answer} {count}" for answer, count in sorted(answers.items()))
        print(f"| {fault} | {layout} | {culprits} | {' | '.join(cells)} | {told} |", flush=True)
    print(
        f"\nAll {len(PAIRS)} rows, {len(PAIRS) * len(seeds)} hangs:\n\n| rule | right | wrong | missed | precision | recall |"
    )
    print("|---|---|---|---|---|---|")
    for rule in RULES:
        right, wrong, missed = (total[rule][name] for name in ("right", "wrong", "missed"))
        print(
            f"| {rule} | {right} | {wrong} | {missed} | {right / max(1, right + wrong):.4f} |"
            f" {right / max(1, right + missed):.4f} |"
        )
    return 0


if __name__ == "__main__":
    arguments = [int(text) for text in sys.argv[1:3]]
    count = arguments[0] if arguments else 8
    first = arguments[1] if len(arguments) > 1 else 500
    sys.exit(main(range(first, first + count)))
