"""What FairGFL's estimation of overlaps costs beside a round of FedAvg on Cora, and for many clients.

40 clients, minibatches of 64 nodes, codes of 100 bits, GCN with hidden width 256, three local steps of SGD; FedAvg and
FairGFL take turns, without evaluation; medians over all rounds but the first. Then made-up minibatches of more clients.

    python -m benchmarks.overlap [--rounds 20] [--clients 1000]
"""

import argparse
import resource
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import torch

from fedweave.algorithms.overlap import matching
from fedweave.build import build
from fedweave.config import read

EXPERIMENT = Path(__file__).parents[1] / "experiments/fairgfl-cora.toml"
SIZE, BATCH = 100, 64


def main() -> None:
    """Print seconds of the rounds and of the estimation, and the memory that many clients take."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--clients", type=int, default=1000)
    given = parser.parse_args()
    torch.set_num_threads(1)
    times = rounds(given.rounds)
    for name, seconds in times.items():
        print(f"{name:30} {1000 * median(seconds[1:]):8.1f} ms a round")
    once = median(times["estimation"][1:])
    print(f"{'estimation / FedAvg':30} {once / median(times['fedavg'][1:]):8.1%}")
    began = time.perf_counter()
    many(given.clients)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print(f"{f'estimation, {given.clients} clients':30} {time.perf_counter() - began:8.1f} s, {peak:.2f} GB at most")


def rounds(count: int) -> dict[str, list[float]]:
    """Seconds of every round of both algorithms, and of the estimation in FairGFL's."""
    times: dict[str, list[float]] = {"fedavg": [], "fairgfl": [], "estimation": []}
    runs = {name: built(name) for name in ("fedavg", "fairgfl")}
    part = runs["fairgfl"][0].composed["OverlapWeights"]
    estimate = type(part)._estimated

    def timed(*args: Any) -> Any:
        began = time.perf_counter()
        out = estimate(*args)
        times["estimation"].append(time.perf_counter() - began)
        return out

    type(part)._estimated = timed
    for number in range(1, count + 1):
        for name, (algorithm, fed, state) in runs.items():
            fed.begin(number)
            began = time.perf_counter()
            state = algorithm.round(state, fed)
            times[name].append(time.perf_counter() - began)
            runs[name] = (algorithm, fed, state)
    return times


def built(name: str) -> tuple[Any, Any, Any]:
    """An algorithm on the experiment, the federation, and the first state."""
    settings = ["algorithm.encoder_rounds=0"] if name == "fairgfl" else []
    made = build(read(EXPERIMENT, settings, None if name == "fairgfl" else name)[0])
    made.fed.begin(0)
    return made.algorithm, made.fed, made.algorithm.init(made.fed)


def many(clients: int) -> None:
    """One estimation for clients that each hold 64 of 20 nodes per client, codes with the noise of ε = 3."""
    rng = np.random.default_rng(0)
    people = rng.random((20 * clients, SIZE)) < 0.5
    codes = people[rng.integers(0, len(people), (clients, BATCH))] ^ (rng.random((clients, BATCH, SIZE)) < 0.047)
    links = torch.from_numpy(rng.random((clients, BATCH, BATCH)) < 0.01)
    taken = torch.full((clients,), BATCH)
    pairs = matching.matches(torch.from_numpy(codes.astype(np.uint8)), taken, 1, 18)
    common = matching.overlap_count(matching.counts(pairs, BATCH, clients), taken, matching.Rates(18, 0.99, 1e-5))
    matching.node_ratios(common, taken, 2 * taken)
    matching.link_ratios(links | links.mT, pairs, taken, 2 * taken)


if __name__ == "__main__":
    main()
