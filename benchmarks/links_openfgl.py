"""Link prediction by fedweave and by OpenFGL 1.1.0, by FedAvg with a GCN on the same clients, links and test pairs.

10 clients by Louvain, links split 80/10/10, 2-layer GCN of width 64, dropout .5, 30 rounds of 3 full-batch steps, Adam
(lr .01) with persistent optimizer state, one negative for each training link: OpenFGL's defaults. Each seed runs the
sides of `SIDES` one after the other, with one thread each and an evaluation of AUC and average precision after every
round. Printed are two Markdown tables: test scores of the last round (mean ± deviation) with paired differences to
OpenFGL (± half of the 95 % interval), and processor seconds of a round with how many times as fast each side is.

OpenFGL trains against pairs that it draws once and decodes the hidden layer of the GCN, after the first convolution, so
that the second one is never trained. fedweave draws pairs again in each step and decodes the last convolution.
OpenFGL's weight decay is 5e-4; fedweave's is 0 for links.

    pip install --target peer --no-deps openfgl-lib==1.1.0 munkres requests
    python -m benchmarks.links_openfgl --peer peer [--data cora …] [--seeds 0 1 2 3 4] [--out runs/links-openfgl]

Every cell is saved in a file, so that an interrupted benchmark continues where it stopped.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

import numpy as np
import torch
from scipy import sparse

from benchmarks.common import mean_deviation, mean_half_width
from fedweave.core.link_examples import LinkExamples
from fedweave.experiment.build import Built, build
from fedweave.experiment.config import resolve
from fedweave.experiment.graphs import links_of
from fedweave.experiment.rounds import train
from fedweave.partition.client_data import shares

PEER = Path(__file__).with_name("run_openfgl_links.py")
SCORES = {"auc": "auc", "ap": "average_precision"}  # OpenFGL's names and fedweave's
CLIENTS = 10
DECAY = 5e-4  # OpenFGL's
SIDES: dict[str, tuple[int, float] | None] = {  # fedweave's layers and weight decay; OpenFGL's two splits
    "fedweave": (2, 0.0),
    "with decay": (2, DECAY),
    "one convolution": (1, DECAY),
    "shared": None,
    "own": None,
}
OURS = [side for side, settings in SIDES.items() if settings is not None]


def build_experiment(data: str, seed: int, rounds: int, layers: int, decay: float) -> Built:
    """The experiment of one cell."""
    document = {
        "seed": seed,
        "rounds": rounds,
        "data": {"name": data, "task": "links", "ratios": [0.8, 0.1, 0.1], "rank_negatives": 0},
        "partition": {"name": "louvain", "clients": CLIENTS},
        "model": {"name": "gcn", "hidden": 64, "layers": layers, "dropout": 0.5, "decoder": "dot"},
        "algorithm": {"name": "fedavg", "lr": 0.01, "local_steps": 3, "weight_decay": decay},
        "engine": {"threads": 1},
    }
    return build(resolve(document))


def export(experiment: Built, path: Path, seed: int) -> list[int]:
    """Writes the clients for `run_openfgl_links` and returns how many pairs each has."""
    arrays: dict[str, Any] = {"clients": len(experiment.partition.parts)}
    rng, sizes = np.random.default_rng(seed), []
    client_shares = shares(experiment.data, experiment.partition.parts)
    for client, (share, part) in enumerate(zip(client_shares, experiment.partition.parts, strict=True)):
        links, ends = links_of(share), share.edge_attrs.ends  # type: ignore[union-attr]
        pairs, y, masks = add_negatives(links, len(part.nodes), rng)
        x = share.x.toarray() if sparse.issparse(share.x) else share.x
        arrays |= {f"x{client}": np.asarray(x, np.float32), f"nodes{client}": part.nodes}
        arrays |= {f"edges{client}": np.concatenate([ends, ends[::-1]], 1), f"messages{client}": links.edges}
        arrays |= {f"pairs{client}": pairs, f"y{client}": y, f"masks{client}": masks}
        sizes.append(len(y))
    np.savez(path, **arrays)
    return sizes


def add_negatives(links: LinkExamples, nodes: int, rng: np.random.Generator) -> tuple[np.ndarray, ...]:
    """A client's pairs int64 [2, m], their labels and their masks [3, m]; training links have one negative each, drawn
    once, as OpenFGL draws them: distinct, no link of any split, no loop."""
    pairs, y, masks = links.pairs[:2], links.y, links.masks
    excluded = {tuple(pair) for pair in pairs.T.tolist()} | {tuple(pair) for pair in pairs[::-1].T.tolist()}
    negatives = list[tuple[int, int]]()
    while len(negatives) < len(links.trained):
        a, b = rng.integers(0, nodes, 2).tolist()
        if a != b and (a, b) not in excluded:
            excluded |= {(a, b), (b, a)}
            negatives.append((a, b))
    new_masks = np.zeros((3, len(negatives)), bool)
    new_masks[0] = True
    pairs = np.concatenate([pairs, np.array(negatives, np.int64).reshape(-1, 2).T], 1)
    return pairs, np.concatenate([y, np.zeros(len(negatives), np.int64)]), np.concatenate([masks, new_masks], 1)


def run_fedweave(experiment: Built, rounds: int, sizes: Sequence[int]) -> dict[str, Any]:
    """What `run_openfgl_links` prints, of fedweave; `sizes` weight the clients."""
    seconds, began = [], time.process_time()
    for step in train(experiment.algorithm, experiment.fed, rounds):
        seconds.append(time.process_time() - began)
        last = step
        began = time.process_time()
    scores = dict[str, float]()
    for name, metric in SCORES.items():
        values = last.of_clients(metric)
        scores[name] = float(np.average([values[client] for client in experiment.fed.clients], weights=sizes))
    return {"global": scores, "seconds": seconds}


def cell(folder: Path, peer: Path, data: str, seed: int, rounds: int) -> dict[str, Any]:
    """{side: its results} of every side in `SIDES`."""
    path = folder / f"{data}-{seed}-{rounds}.json"
    results: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if all(side in results for side in SIDES):
        return results
    with tempfile.TemporaryDirectory() as scratch:
        archive = Path(scratch) / "cut.npz"
        sizes = export(build_experiment(data, seed, rounds, 2, DECAY), archive, seed)
        for side, settings in SIDES.items():
            if side in results:
                continue
            if settings is not None:
                experiment = build_experiment(data, seed, rounds, *settings)
                results[side] = run_fedweave(experiment, rounds, sizes)
                continue
            command = [sys.executable, PEER, archive, side, seed, rounds, Path(scratch) / side]
            environment = os.environ | {"PYTHONPATH": str(peer.resolve()), "OMP_NUM_THREADS": "1"}
            process = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, env=environment)
            results[side] = json.loads(process.stdout)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(results))
    print(path.stem, {side: result["global"] for side, result in results.items()}, file=sys.stderr, flush=True)
    return results


def table(cells: dict[str, list[dict[str, Any]]]) -> str:
    """Test scores of the global model after the last round, paired differences with 95 % intervals, and processor
    seconds of a round, as Markdown."""
    heads = [f"{side} | less OpenFGL" for side in OURS]
    lines = [
        f"| set | score | seeds | OpenFGL, same split | {' | '.join(heads)} | OpenFGL, own split |",
        f"| --- | --- |{' ---: |' * (3 + 2 * len(OURS))}",
    ]
    for data, runs in cells.items():
        for name in SCORES:
            scores = {side: [run[side]["global"][name] for run in runs] for side in SIDES}
            row = [data, name, str(len(runs)), mean_deviation(scores["shared"])]
            for side in OURS:
                differences = [a - b for a, b in zip(scores[side], scores["shared"], strict=True)]
                row += [mean_deviation(scores[side]), mean_half_width(differences)]
            lines.append(f"| {' | '.join(row)} | {mean_deviation(scores['own'])} |")
    heads = [f"{side} | times as fast, lowest to highest seed" for side in OURS]
    lines += [
        "",
        f"| set | OpenFGL, s a round | {' | '.join(heads)} | test links among messages of OpenFGL's own split |",
    ]
    lines += [f"| --- |{' ---: |' * (2 + 2 * len(OURS))}"]
    for data, runs in cells.items():
        times = {side: [median(run[side]["seconds"]) for run in runs] for side in SIDES}
        row = [data, f"{median(times['shared']):.4f}"]
        for side in OURS:
            ratios = [b / a for a, b in zip(times[side], times["shared"], strict=True)]
            row += [f"{median(times[side]):.4f}", f"{median(ratios):.1f} ({min(ratios):.1f} to {max(ratios):.1f})"]
        lines.append(f"| {' | '.join(row)} | {fmean(run['own']['messages'] for run in runs):.2f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", type=Path, required=True, help="the folder that OpenFGL was installed into")
    parser.add_argument("--out", type=Path, default=Path("runs/links-openfgl"))
    parser.add_argument("--data", nargs="+", default=["cora", "citeseer", "pubmed"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3, 4])
    parser.add_argument("--rounds", type=int, default=30)
    args = parser.parse_args()
    torch.set_num_threads(1)
    cells = {}
    for data in args.data:
        cells[data] = [cell(args.out, args.peer, data, seed, args.rounds) for seed in args.seeds]
    print(table(cells))


if __name__ == "__main__":
    main()
