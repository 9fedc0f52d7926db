"""Link prediction by fedweave and by OpenFGL 1.1.0, by FedAvg with a GCN on the same clients, links and test pairs.

10 clients by Louvain, links split 80/10/10, 2-layer GCN of width 64, dropout .5, 30 rounds of 3 full-batch steps, Adam
(lr .01) whose moments are kept, one negative for each training link: OpenFGL's defaults. Each seed runs the sides of
`SIDES` one after the other, with one thread each and an evaluation of AUC and average precision after every round.

OpenFGL trains against pairs that it draws once and decodes the hidden layer of the GCN, after the first convolution, so
that the second one is never trained. fedweave draws pairs anew in each step and decodes the last convolution. OpenFGL's
weight decay is 5e-4; fedweave's is 0 for links.

    pip install --target peer --no-deps openfgl-lib==1.1.0 munkres requests
    python -m benchmarks.links_openfgl --peer peer [--data cora …] [--seeds 0 1 2 3 4] [--out runs/links-openfgl]

Every cell is kept in a file, so that an interrupted call goes on where it was.
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

from benchmarks.against_openfgl import apart
from benchmarks.optimizer_state import spread
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


def built(data: str, seed: int, rounds: int, layers: int, decay: float) -> Built:
    """The experiment of one cell."""
    return build(
        resolve(
            {
                "seed": seed,
                "rounds": rounds,
                "data": {"name": data, "task": "links", "ratios": [0.8, 0.1, 0.1], "rank_negatives": 0},
                "partition": {"name": "louvain", "clients": CLIENTS},
                "model": {"name": "gcn", "hidden": 64, "layers": layers, "dropout": 0.5, "decoder": "dot"},
                "algorithm": {"name": "fedavg", "lr": 0.01, "local_steps": 3, "weight_decay": decay},
                "engine": {"threads": 1},
            }
        )
    )


def export(made: Built, path: Path, seed: int) -> list[int]:
    """Writes the clients for `run_openfgl_links` and returns how many pairs each has."""
    arrays: dict[str, Any] = {"clients": len(made.partition.parts)}
    random, sizes = np.random.default_rng(seed), []
    owned = shares(made.data, made.partition.parts)
    for client, (share, part) in enumerate(zip(owned, made.partition.parts, strict=True)):
        links, ends = links_of(share), share.edge_attrs.ends  # type: ignore[union-attr]
        pairs, y, masks = with_negatives(links, len(part.nodes), random)
        x = share.x.toarray() if sparse.issparse(share.x) else share.x
        arrays |= {f"x{client}": np.asarray(x, np.float32), f"nodes{client}": part.nodes}
        arrays |= {f"edges{client}": np.concatenate([ends, ends[::-1]], 1), f"messages{client}": links.edges}
        arrays |= {f"pairs{client}": pairs, f"y{client}": y, f"masks{client}": masks}
        sizes.append(len(y))
    np.savez(path, **arrays)
    return sizes


def with_negatives(links: LinkExamples, nodes: int, random: np.random.Generator) -> tuple[np.ndarray, ...]:
    """A client's pairs int64 [2, m], their labels and their masks [3, m]; training links have one negative each, drawn
    once, as OpenFGL draws them: distinct, no link of any split, no loop."""
    pairs, y, masks = links.pairs[:2], links.y, links.masks
    taken = {(a, b) for a, b in pairs.T.tolist()} | {(b, a) for a, b in pairs.T.tolist()}
    drawn = list[tuple[int, int]]()
    while len(drawn) < len(links.trained):
        a, b = random.integers(0, nodes, 2).tolist()
        if a != b and (a, b) not in taken:
            taken |= {(a, b), (b, a)}
            drawn.append((a, b))
    new = np.zeros((3, len(drawn)), bool)
    new[0] = True
    pairs = np.concatenate([pairs, np.array(drawn, np.int64).reshape(-1, 2).T], 1)
    return pairs, np.concatenate([y, np.zeros(len(drawn), np.int64)]), np.concatenate([masks, new], 1)


def ours(made: Built, rounds: int, sizes: Sequence[int]) -> dict[str, Any]:
    """What `run_openfgl_links` prints, of fedweave; `sizes` weight the clients."""
    seconds, tables, began = [], [], time.process_time()
    for step in train(made.algorithm, made.fed, rounds):
        tables.append(step.metrics)
        seconds.append(time.process_time() - began)
        began = time.process_time()
    rows = [row for row in tables[-1].to_pylist() if row["split"] == "test"]
    found = dict[str, float]()
    for name, metric in SCORES.items():
        of = {row["client"]: row["value"] for row in rows if row["metric"] == metric}
        found[name] = float(np.average([of[client] for client in made.fed.clients], weights=sizes))
    return {"global": found, "seconds": seconds}


def cell(folder: Path, peer: Path, data: str, seed: int, rounds: int) -> dict[str, Any]:
    """{side: what it found} of every side in `SIDES`."""
    path = folder / f"{data}-{seed}-{rounds}.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    if all(side in found for side in SIDES):
        return found
    with tempfile.TemporaryDirectory() as scratch:
        cut = Path(scratch) / "cut.npz"
        sizes = export(built(data, seed, rounds, 2, DECAY), cut, seed)
        for side, settings in SIDES.items():
            if side in found:
                continue
            if settings is not None:
                found[side] = ours(built(data, seed, rounds, *settings), rounds, sizes)
                continue
            command = [sys.executable, PEER, cut, side, seed, rounds, Path(scratch) / side]
            variables = os.environ | {"PYTHONPATH": str(peer.resolve()), "OMP_NUM_THREADS": "1"}
            done = subprocess.run(list(map(str, command)), check=True, stdout=subprocess.PIPE, env=variables)
            found[side] = json.loads(done.stdout)
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found))
    print(path.stem, {side: one["global"] for side, one in found.items()}, file=sys.stderr, flush=True)
    return found


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
            each = {side: [run[side]["global"][name] for run in runs] for side in SIDES}
            row = [data, name, str(len(runs)), spread(each["shared"])]
            for side in OURS:
                less = [a - b for a, b in zip(each[side], each["shared"], strict=True)]
                row += [spread(each[side]), apart(less)]
            lines.append(f"| {' | '.join(row)} | {spread(each['own'])} |")
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
    print(
        table({data: [cell(args.out, args.peer, data, seed, args.rounds) for seed in args.seeds] for data in args.data})
    )


if __name__ == "__main__":
    main()
