"""Whether a change left every algorithm's numbers as they were, to the bit.

Prints one line for each registered algorithm and seed: a fingerprint of everything that a short run on the contract's
small federation leaves at the server and at the clients, and of two scores.

    python -m benchmarks.fingerprints > before.txt    # in the old checkout, and again in the new one
    diff before.txt after.txt
"""

import argparse
import hashlib
from collections.abc import Iterator

import torch

from fedweave.algorithms import ALGORITHMS
from fedweave.contract.subject import ROUNDS, Subject
from fedweave.core.tree import encode

SCORES = ("global/accuracy", "local/accuracy")


def fingerprint(name: str, seed: int) -> str:
    """SHA-256, shortened, of what a run of the algorithm `name` leaves."""
    run = Subject(ALGORITHMS[name]).run(ROUNDS, every=ROUNDS, mode="vmap", record="always", seed=seed)
    scores = {key.replace("/", " "): run.final["summary"].get(key, -1.0) for key in SCORES}
    results = {"server": run.final["server"], "clients": run.final["clients"], "scores": scores}
    return hashlib.sha256(encode(results)).hexdigest()[:16]


def lines(names: list[str], seeds: list[int]) -> Iterator[str]:
    """ "algorithm seed fingerprint", sorted."""
    for name in sorted(names):
        for seed in seeds:
            yield f"{name} {seed} {fingerprint(name, seed)}"


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--algorithms", nargs="+", default=sorted(ALGORITHMS), metavar="NAME")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1], metavar="N")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for line in lines(args.algorithms, args.seeds):
        print(line, flush=True)


if __name__ == "__main__":
    main()
