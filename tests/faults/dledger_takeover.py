"""A store comes into DLedger mode and out of it, with `kill -9` at every step: `dledger_takeover.py [--records 6000]`.

A broker without controllers takes messages, among them delayed ones, and consumers are in the middle. Its store goes on as a DLedger
group of three in place; the group works, and its leader is killed; `brokerset upgrade dledger` leads it into controller mode, back, and
there again. Every process, and the command, is killed at every step and begun again. At the end every acknowledged message, topic,
group and offset is compared, and the commit logs of all replicas are equal.
"""

from __future__ import annotations

import argparse
import sys

from brokerset_rig import dledger_takeover


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=6_000)
    options = parser.parse_args()
    failed = 0

    def add(what: str, problems: list[str], seconds: float) -> None:
        nonlocal failed
        failed += bool(problems)
        print(f"{'ok  ' if not problems else 'FAIL'}  {what} ({seconds:.1f} s)", flush=True)
        for problem in problems:
            print(f"        {problem}", flush=True)

    print(f"dledger-takeover: {options.records:,} records", flush=True)
    dledger_takeover.run(add, options.records)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
