"""The tests that several calls of pytest skipped and none ran: ``python -m tools.skipped_tests
OUTCOMES [--ids | WORD ...]``.

OUTCOMES is what the tests wrote where ES_QUEUE_TEST_OUTCOMES names a file. A WORD names a package
or program that this host could not install: skips whose reason holds it are permitted, as are the
reasons below. Ends with 1 for any other.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: What .ci/run cannot provide, and what runs these tests instead.
PERMITTED = {
    "the right to": "a container may not make namespaces or mount a disk",
    "this host has no address but its loopback's": "a host without a network",
    "only root gives files away": "a user's own computer",
    "names x86 features": "a processor of another kind",
    "other arithmetic": "digests of another kind of processor",
    "other version": "digests of another version of the environment's package",
}


def never_run(lines: Iterable[str]) -> dict[str, str]:
    """The reason of each test, or file of tests, that was skipped and never ran."""
    outcomes = [json.loads(line) for line in lines]
    tests = {test for test, reason in outcomes if not reason}
    files = {test.partition("::")[0] for test in tests}
    return {
        test: reason
        for test, reason in outcomes
        if reason and test not in tests and test not in files
    }


def format_skips(skipped: dict[str, str], permitted: Iterable[str]) -> tuple[list[str], int]:
    """A line for each reason with its tests, and how many tests no permitted reason explains."""
    by_reason = defaultdict(list)
    for test, reason in sorted(skipped.items()):
        by_reason[reason].append(test)
    errors, lines = 0, []
    for reason, tests in sorted(by_reason.items()):
        excused = any(word in reason for word in permitted)
        errors += 0 if excused else len(tests)
        lines.append(f"{'skipped' if excused else 'ERROR: never run'}, {len(tests)}: {reason}")
        lines += [f"  {test}" for test in tests]
    return lines, errors


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition(":")[0])
    parser.add_argument("outcomes", type=Path)
    parser.add_argument("--ids", action="store_true", help="print only what pytest can run again")
    parser.add_argument("words", nargs="*", help="what this host could not install")
    options = parser.parse_args()
    skipped = never_run(options.outcomes.read_text("utf-8").splitlines())
    if options.ids:
        sys.stdout.writelines(f"{test}\n" for test in skipped)
        return 0
    lines, errors = format_skips(skipped, [*PERMITTED, *options.words])
    print(*lines, f"{len(skipped)} skipped in every step, {errors} without leave", sep="\n")
    return int(errors > 0)


if __name__ == "__main__":
    sys.exit(main())
