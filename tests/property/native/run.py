"""Sends through the native core compared with the pure Python path: `run.py [--chunks N] [--seed N]`.

Both brokers get the same bytes; answers, files, counters, arrivals and errors must be the same. Without the
native core both are pure Python, which shows that the comparison is sound. One of seven episodes has plain
sends alone: of these the native path must serve its share, or this compares Python with itself.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from brokerset_formats import native
from brokerset_rig.send_episodes import (
    draw_aside_episode,
    draw_crowded_episode,
    draw_episode,
    draw_nearly_plain_episode,
    draw_plain_episode,
    draw_plain_signed_episode,
    draw_signed_episode,
)
from brokerset_rig.send_reference import Reference, run_pair, shrunk
from brokerset_rig.send_side import served_natively

DRAWN = (
    draw_plain_episode,
    draw_episode,
    draw_nearly_plain_episode,
    draw_crowded_episode,
    draw_aside_episode,
    draw_plain_signed_episode,
    draw_signed_episode,
)
"""In turn."""

SHARE_MIN = 0.3
DIFFERENCES_MAX = 20


def main() -> int:
    """Returns 1 if there was a difference, or the native path had no part in it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chunks", type=int, default=1_000_000)
    parser.add_argument("--seed", type=int, default=int(time.time()), help="of the first episode")
    parser.add_argument(
        "--keep-going", action="store_true", help=f"report up to {DIFFERENCES_MAX} differences"
    )
    options = parser.parse_args()
    print(f"{options.chunks} chunks, first seed {options.seed}, native core {native.description}", flush=True)
    served: Counter[str] = Counter()
    total: Counter[str] = Counter()
    plain_served = plain_total = chunks = episodes = differences = shown = 0
    with Reference() as reference:
        while chunks < options.chunks:
            seed = options.seed + episodes
            draw = DRAWN[episodes % len(DRAWN)]
            episode = draw(seed)
            episodes += 1
            chunks += episode.chunks
            try:
                theirs, ours = run_pair(reference, episode)
            except BaseException:  # also what Rust's panics become
                print(f"seed {seed} of {draw.__name__} has ended in an error", flush=True)
                raise
            if theirs.observed != ours.observed:
                differences += 1
                print(f"difference {differences}: {shrunk(reference, episode)}", flush=True)
                if not options.keep_going or differences >= DIFFERENCES_MAX:
                    break
                continue
            of_episode, all_of_it = served_natively(episode, theirs, ours)
            served += of_episode
            total += all_of_it
            if draw is draw_plain_episode:
                plain_served += of_episode.total()
                plain_total += all_of_it.total()
            if chunks - shown >= options.chunks // 20:
                shown = chunks
                print(
                    f"{chunks} chunks, {total.total()} sends, different: {differences}, next seed {seed + 1}",
                    flush=True,
                )
    print(f"{chunks} chunks in {episodes} episodes, {total.total()} sends, {differences} differences")
    print("served by the native path:")
    for kind, count in sorted(total.items()):
        print(f"  {kind:14} {served[kind]:9} of {count:9}")
    share = plain_served / max(1, plain_total)
    print(f"of plain sends {share:.0%}")
    if native.core is not None and not differences and share < SHARE_MIN:
        print(f"the native path must serve {SHARE_MIN:.0%} of plain sends: else nothing is compared")
        return 1
    return 1 if differences else 0


if __name__ == "__main__":
    sys.exit(main())
