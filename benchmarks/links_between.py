"""Links between members: what `[data] external = "predict"` brings on generated banks and on Bitcoin Alpha.

Members score the same pairs of a local node u and another member's node v, with h_u of their GCN and, for v:

- `predict`: the row that v's holder sends each round, as fedweave does.
- `…, by holder`: the same, with rows of learned features averaged over their holders, only for Bitcoin Alpha.
- `predict, neighbors`: the sum of that row and the one of `alone` (`neighbors = true` of `foreign_ends`).
- `features`: the holder sends the features of v once, and the asking member's GCN encodes them as a node without edges.
- `alone, FedAvg`: the mean of the rows of the member's nodes that its training links join to v, without the link that
  is scored in training; of a node without such links the mean over all of them. Weights are averaged.
- `alone`: the same, but no weights are averaged, so that nothing leaves a member.
- scores from the member's training links only: common neighbors, Adamic-Adar, preferential attachment.

All train on the same links and pairs, with a term for links within members and one for links between them. Columns, in
the round with the best average precision on validation: the decoder that is best there, average precision and AUC on
crossing test links, average precision on links within members, and the average precision of `predict` less that of the
method, paired over seeds, with its 95 % interval.

    python -m benchmarks.links_between [--seeds 5] [--sets banks …] [--rows rows.csv] [--table table.md]

Rows that the file has already are not measured again. Needs `bitcoin-alpha` in $FEDWEAVE_DATA.
"""

import argparse
import csv
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import torch
from torch import Tensor

import fedweave
from benchmarks.common import mean_deviation, mean_interval
from fedweave.algorithms import Holders
from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.fedgcn import SelfEdges
from fedweave.algorithms.parts import Context, ForeignEnds
from fedweave.core import model as models
from fedweave.core.graph import TEST, VAL, Graph
from fedweave.core.model import Model
from fedweave.core.tree import Tree, add
from fedweave.engines.simulation import Simulation
from fedweave.experiment.build import Built, build
from fedweave.experiment.config import resolve
from fedweave.experiment.shelf.pair_scores import link_references
from fedweave.experiment.shelf.pairs import member_pairs
from fedweave.metrics.classification import values
from fedweave.ops.rows import gather_rows
from fedweave.ops.sparse import dense

ROUNDS, EVERY, HIDDEN, LR, DECAY = 40, 5, 32, 0.01, 5e-4
DECODERS = ("dot", "mlp")  # one is chosen for each method and set, by validation over all seeds
COLUMNS = ("set", "method", "decoder", "seed", "round", "val_ap", "test_ap", "test_auc", "inner_ap", "seconds")


@dataclass(frozen=True)
class Features(ForeignEnds):
    """Holders send features, and the asking member's model encodes them as nodes without edges."""

    needs = replace(ForeignEnds.needs, reads=("features",))
    one_hot: bool = False  # each node has a column of its own, and its number is sent

    def tell(self, ctx: Context, model: Model, w: Tree) -> Tree:
        """Rows of features."""
        x = dense(ctx.client.graph.x)
        return self.parcels(ctx.memory, x.argmax(1, keepdim=True).to(x.dtype) if self.one_hot else x)

    def foreign(self, model: Model, w: Tree, graph: Graph, memory: Tree, h: Tensor | None = None) -> Tensor:
        """Their embeddings."""
        x = memory["h"]
        if self.one_hot:  # x W is a row of W
            weight = w["0"]["weight"]
            x = gather_rows(weight, x[:, 0].long())
            w = {**w, "0": {**w["0"], "weight": torch.eye(weight.shape[1], dtype=weight.dtype)}}
        return models.embedded(model, w, graph._replace(x=x, edges=SelfEdges(len(x))))


@dataclass(frozen=True)
class Alone(ForeignEnds):
    """What the member's own training links say of a foreign node, and nothing that its holder sent."""

    neighbors: bool = True

    def sent(self, memory: Tree) -> Tensor:
        """Nothing."""
        return torch.zeros_like(memory["h"])


@dataclass(frozen=True)
class Both(ForeignEnds):
    """What the holder sends, and what the member's own training links say."""

    neighbors: bool = True


METHODS: dict[str, type[ForeignEnds]] = {
    "predict": ForeignEnds,
    "predict, by holder": ForeignEnds,
    "predict, neighbors": Both,
    "predict, neighbors, by holder": Both,
    "alone, FedAvg by holder": Alone,
    "features": Features,
    "alone, FedAvg": Alone,
    "alone": Alone,
}
REFERENCES = ("common_neighbors", "adamic_adar", "preferential_attachment")


def document(name: str, seed: int, decoder: str, folder: Path) -> dict[str, Any]:
    """The experiment on a set."""
    task = {"task": "links", "external": "predict", "rank_negatives": 0}
    data: dict[str, Any]
    if name == "banks":
        data = {"name": "transfers", "accounts": 8000, "transfers": 40_000, "fraud": 0.03}
        partition = {"name": "column"}
    else:
        data = {"path": str(folder), "features": "learned"}
        partition = {"name": "louvain", "clients": 5}
    return {
        "seed": seed,
        "rounds": ROUNDS,
        "data": data | task,
        "partition": partition,
        "model": {"name": "gcn", "hidden": HIDDEN, "decoder": decoder},
        "algorithm": {"name": "fedavg", "lr": LR, "weight_decay": DECAY},
    }


def bitcoin(folder: Path) -> Path:
    """Bitcoin Alpha as tables: who rated whom."""
    ends = pyarrow.parquet.read_table(Path(os.environ["FEDWEAVE_DATA"]) / "bitcoin-alpha" / "edges.parquet")
    ends = ends.select(["source", "target"])
    ids = sorted(set(ends["source"].to_pylist()) | set(ends["target"].to_pylist()))
    pyarrow.csv.write_csv(pa.table({"id": ids, "one": [1] * len(ids)}), folder / "nodes.csv")
    pyarrow.csv.write_csv(ends, folder / "edges.csv")
    return folder


def evaluations(built: Built, method: str) -> Iterator[tuple[int, dict[str, Any], dict[str, Any]]]:
    """(round, crossing metrics, inner metrics), [3] of each, every few rounds."""
    one_hot = {"one_hot": True} if method == "features" and built.data.features == built.data.nodes else {}
    holders = (Holders(),) if method.endswith("by holder") else ()
    fed, algorithm = built.fed, replace(built.algorithm, parts=(METHODS[method](**one_hot), *holders))
    if not isinstance(fed, Simulation) or not isinstance(algorithm, FedAvg):
        raise TypeError("this benchmark needs FedAvg in one process")
    fed.begin(0)
    state = algorithm.init(fed)
    local = dict.fromkeys(fed.clients, state["w"]) if method == "alone" else {}  # weights that are not averaged
    for number in range(1, ROUNDS + 1):
        fed.begin(number)
        if local:
            replies = fed.map(algorithm.train, each={client: {"w": w} for client, w in local.items()})
            local = {client: add(w, replies[client]["update"]) for client, w in local.items()}
        else:
            state = algorithm.round(state, fed)
        if number % EVERY == 0:
            if local:
                scores = fed.map(algorithm.score, {}, {client: {"w": w} for client, w in local.items()})
            else:
                scores = fed.map(algorithm.score, *algorithm.evaluation_message(state, fed))
            yield number, pooled_metrics(list(scores), "crossing"), pooled_metrics(list(scores), "own")


def pooled_metrics(replies: list[Tree], key: str) -> dict[str, Any]:
    """The metrics of all clients' pairs together."""
    names = [name for name in replies[0][key] if isinstance(replies[0][key][name], Tensor)]
    return values({name: sum(reply[key][name] for reply in replies).numpy() for name in names}, 1)


def measure(name: str, method: str, decoder: str, seed: int, folder: Path) -> Iterator[dict[str, Any]]:
    """A row for each evaluation."""
    began = time.time()
    built = build(resolve(document(name, seed, decoder, folder)))
    key = {"set": name, "method": method, "decoder": decoder, "seed": seed}
    if method == "scores":
        references = link_references(built, member_pairs(built.data, built.partition))
        for score in REFERENCES:
            prefix = f"reference/{score}/crossing"
            test = {"test_ap": references[f"{prefix}/average_precision"], "test_auc": references[f"{prefix}/auc"]}
            yield key | {"method": score, "round": 0, "val_ap": 0, "inner_ap": 0, "seconds": 0} | test
        return
    for number, crossing, inner in evaluations(built, method):
        yield key | {
            "round": number,
            "val_ap": float(crossing["average_precision"][VAL]),
            "test_ap": float(crossing["average_precision"][TEST]),
            "test_auc": float(crossing["auc"][TEST]),
            "inner_ap": float(inner["average_precision"][TEST]),
            "seconds": round(time.time() - began, 1),
        }


def table(rows: list[dict[str, str]]) -> Iterator[str]:
    """Lines of Markdown: mean ± deviation over seeds, and `predict` less each other one, with a 95 % interval."""
    yield f"fedweave {fedweave.__version__}, {ROUNDS} rounds, evaluated every {EVERY}\n"
    yield "| set | method | decoder | AP | AUC | AP within members | predict less it |"
    yield "| --- | --- | ---: | ---: | ---: | ---: | ---: |"
    for name in dict.fromkeys(row["set"] for row in rows):
        of_set = [row for row in rows if row["set"] == name]
        best = {method: choose(of_set, method) for method in dict.fromkeys(row["method"] for row in of_set)}
        predict = best["predict"][1]
        for method, (decoder, by_seed) in best.items():
            cells = []
            for key in ("test_ap", "test_auc", "inner_ap"):
                cells.append(mean_deviation(float(row[key]) for row in by_seed.values()))
            if method in REFERENCES:
                cells[2] = ""
            seeds = [seed for seed in by_seed if seed in predict]
            differences = [float(predict[seed]["test_ap"]) - float(by_seed[seed]["test_ap"]) for seed in seeds]
            paired = "" if method == "predict" or len(seeds) < 2 else mean_interval(differences)
            yield f"| {name} | {method} | {decoder} | {' | '.join(cells)} | {paired} |"


def choose(rows: list[dict[str, str]], method: str) -> tuple[str, dict[str, dict[str, str]]]:
    """The decoder with the best mean over seeds of the best round's validation score, and each seed's best round."""
    best: dict[str, dict[str, dict[str, str]]] = {}
    for row in rows:
        if row["method"] == method:
            by_seed = best.setdefault(row["decoder"], {})
            if row["seed"] not in by_seed or float(row["val_ap"]) > float(by_seed[row["seed"]]["val_ap"]):
                by_seed[row["seed"]] = row

    def mean(decoder: str) -> float:
        return statistics.fmean(float(row["val_ap"]) for row in best[decoder].values())

    decoder = max(best, key=mean)
    return decoder, best[decoder]


def main() -> None:
    """Measure what is not in the file, and write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sets", nargs="+", default=["banks", "bitcoin-alpha"])
    parser.add_argument("--methods", nargs="+", default=["scores", *METHODS])
    parser.add_argument("--decoders", nargs="+", default=DECODERS)
    parser.add_argument("--rows", type=Path, default=Path("links_between.csv"))
    parser.add_argument("--table", type=Path)
    args = parser.parse_args()
    rows = list(csv.DictReader(args.rows.open())) if args.rows.exists() else []
    done = {(row["set"], row["method"], row["decoder"], row["seed"]) for row in rows}
    with tempfile.TemporaryDirectory() as temporary, args.rows.open("a", newline="") as file:
        writer, folder = csv.DictWriter(file, COLUMNS), bitcoin(Path(temporary))
        if not rows:
            writer.writeheader()
        for seed, name, method, decoder in product(range(args.seeds), args.sets, args.methods, args.decoders):
            if method.endswith("by holder") and name == "banks":
                continue  # no features are learned there
            if method == "scores" and decoder != args.decoders[0]:
                continue  # they use no decoder
            row_method = REFERENCES[0] if method == "scores" else method
            if (name, row_method, decoder, str(seed)) not in done:
                writer.writerows(list(measure(name, method, decoder, seed, folder)))
                file.flush()
    text = "\n".join(table(list(csv.DictReader(args.rows.open()))))
    if args.table:
        args.table.write_text(text + "\n")
    else:
        sys.stdout.write(text + "\n")


if __name__ == "__main__":
    main()
