"""Knowledge graphs by fedweave and by pykeen with the same settings: filtered MRR and Hits@10 of test triples.

    python -m benchmarks.knowledge ours OUT.csv             # with fedweave
    python benchmarks/knowledge.py theirs OUT.csv           # with a Python that has pykeen
    python -m benchmarks.knowledge table OUT.csv            # both, as a table

`--data`, `--models` and `--seeds` choose some. Each run is a line of the file, and runs that are in it are not
repeated. Both train on all triples in each step, and draw a negative again if a split has it. Both rank among all
entities without links of training and validation, and without loops. pykeen also leaves out the other links of the
test. The table has MRR, mean ± deviation over seeds, the difference with its 95 % interval (Welch), and the numbers of
seeds.
"""

import argparse
import csv
import gc
import math
import os
import statistics
import time
from itertools import product
from pathlib import Path
from typing import Any

DATA = {"nations": 150, "kinships": 100, "umls": 100}  # steps, each with all training triples
MODELS = {"transe": 9.0, "rotate": 3.0, "distmult": 0.0, "complex": 0.0}  # margin of the loss; 0 is cross-entropy
WIDTH, NEGATIVES, RATE = 32, 4, 0.05
COLUMNS = ("who", "data", "model", "seed", "mrr", "hits_at_10", "seconds")


def steps(data: str, model: str) -> int:
    """How many steps a model is trained; rotate's validation MRR still rises where those of the others do not."""
    return DATA[data] * (2 if model == "rotate" else 1)


def run_fedweave(data: str, model: str, seed: int) -> tuple[float, float]:
    """MRR and Hits@10 of fedweave on test triples."""
    from fedweave.core.tree import leaves
    from fedweave.experiment.build import build
    from fedweave.experiment.config import resolve

    loss = {"loss": "self_adversarial", "margin": MODELS[model]} if MODELS[model] else {"loss": "cross_entropy"}
    document: dict[str, Any] = {
        "rounds": 1,
        "seed": seed,
        "data": {"name": data, "task": "links", "rank_negatives": "all"},
        "partition": {"name": "edges", "by": "random", "clients": 1},
        "model": {"name": "embedding", "hidden": WIDTH, "decoder": model},
        "algorithm": {
            "name": "centralized",
            "local_steps": steps(data, model),
            "lr": RATE,
            "weight_decay": 0.0,
            "parts": [{"name": "link_prediction", "negatives": NEGATIVES, **loss}],
        },
        "engine": {"threads": 1},
    }
    built = build(resolve(document))
    built.fed.begin(0)
    state = built.algorithm.init(built.fed)
    built.fed.begin(1)
    state = built.algorithm.round(state, built.fed)
    scores = built.algorithm.evaluate(state, built.fed).clients
    pairs = dict(leaves(scores[scores.clients[0]]))

    means = []
    for name in ("mrr", "hits_at_10"):
        total, count = pairs[f"own/{name}"].reshape(3, 2)[2].tolist()  # of test
        means.append(float(total / count))
    return means[0], means[1]


def run_pykeen(data: str, model: str, seed: int) -> tuple[float, float]:
    """The same of pykeen."""
    import torch
    from pykeen import models
    from pykeen.evaluation import RankBasedEvaluator
    from pykeen.losses import BCEWithLogitsLoss, NSSALoss
    from pykeen.nn.init import xavier_uniform_
    from pykeen.sampling import BasicNegativeSampler
    from pykeen.training import SLCWATrainingLoop
    from pykeen.triples import TriplesFactory

    torch.set_num_threads(1)
    folder = Path(os.environ["FEDWEAVE_DATA"]) / data
    train = TriplesFactory.from_path(str(folder / "train.txt"))
    numbers = {"entity_to_id": train.entity_to_id, "relation_to_id": train.relation_to_id}
    val, test = (TriplesFactory.from_path(str(folder / f"{name}.txt"), **numbers) for name in ("valid", "test"))
    triples = [part.mapped_triples for part in (train, val, test)]
    exists = torch.zeros(train.num_relations, train.num_entities, train.num_entities, dtype=torch.bool)
    heads, relations, tails = torch.cat(triples).unbind(1)
    exists[relations, heads, tails] = True

    class RedrawingSampler(BasicNegativeSampler):  # type: ignore[misc]
        """Draws a negative again if it is a triple or joins an entity with itself, as fedweave does; pykeen's filter
        drops it."""

        def corrupt_batch(self, positive_batch: torch.Tensor) -> torch.Tensor:
            negatives = super().corrupt_batch(positive_batch)
            for _ in range(10):
                heads, relations, tails = negatives.unbind(-1)
                bad = exists[relations, heads, tails] | (heads == tails)
                negatives[bad] = super().corrupt_batch(positive_batch)[bad]
            return negatives

    margin = MODELS[model]
    loss = NSSALoss(margin=margin, adversarial_temperature=1.0) if margin else BCEWithLogitsLoss()
    xavier = {"entity_initializer": xavier_uniform_, "relation_initializer": xavier_uniform_}
    free = {"entity_constrainer": None}
    settings: dict[str, dict[str, Any]] = {
        "transe": {"embedding_dim": WIDTH, "scoring_fct_norm": 1, "relation_constrainer": None, **free, **xavier},
        "rotate": {"embedding_dim": WIDTH // 2},
        "distmult": {"embedding_dim": WIDTH, "regularizer": None, **free, **xavier},
        "complex": {"embedding_dim": WIDTH // 2, "regularizer": None, **xavier},
    }
    kind = {"transe": models.TransE, "rotate": models.RotatE, "distmult": models.DistMult, "complex": models.ComplEx}
    net = kind[model](triples_factory=train, random_seed=seed, loss=loss, **settings[model])
    loop = SLCWATrainingLoop(
        model=net,
        triples_factory=train,
        optimizer=torch.optim.Adam(net.parameters(), lr=RATE),
        negative_sampler=RedrawingSampler,
        negative_sampler_kwargs={"num_negs_per_pos": NEGATIVES},
    )
    gc.freeze()  # pykeen collects garbage in each epoch, which takes longer than the epoch otherwise
    loop.train(train, num_epochs=steps(data, model), batch_size=len(triples[0]), use_tqdm=False, use_tqdm_batch=False)
    entity = torch.arange(train.num_entities).repeat(train.num_relations)
    relation = torch.arange(train.num_relations).repeat_interleave(train.num_entities)
    loops = torch.stack([entity, relation, entity], 1)
    ranks = RankBasedEvaluator(filtered=True).evaluate(
        net, triples[2], additional_filter_triples=[*triples[:2], loops], use_tqdm=False, batch_size=128
    )
    names = ("both.realistic.inverse_harmonic_mean_rank", "both.realistic.hits_at_10")
    return tuple(float(ranks.get_metric(name)) for name in names)  # type: ignore[return-value]


def table(rows: list[dict[str, str]]) -> str:
    """Markdown: mean and deviation over seeds of both, and the difference with its 95 % interval (Welch)."""
    from scipy import stats

    head = ["data", "model", "fedweave", "pykeen", "difference, 95 % interval", "seeds"]
    lines = [" | ".join(head), " | ".join(["---"] * len(head))]
    for data, model in product(DATA, MODELS):
        mrr: dict[str, list[float]] = {"ours": [], "theirs": []}
        for row in rows:
            if (row["data"], row["model"]) == (data, model):
                mrr[row["who"]].append(float(row["mrr"]))
        ours, theirs = mrr.values()
        if min(len(ours), len(theirs)) < 2:
            continue
        low, high = stats.ttest_ind(ours, theirs, equal_var=False).confidence_interval()
        cells = [f"{statistics.mean(side):.3f} ± {statistics.stdev(side):.3f}" for side in (ours, theirs)]
        difference = f"{statistics.mean(ours) - statistics.mean(theirs):+.3f} ({low:+.3f} to {high:+.3f})"
        lines.append(" | ".join([data, model, *cells, difference, f"{len(ours)}/{len(theirs)}"]))
    return "\n".join(f"| {line} |" for line in lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("ours", "theirs", "table"))
    parser.add_argument("file", type=Path)
    parser.add_argument("--data", nargs="+", default=list(DATA))
    parser.add_argument("--models", nargs="+", default=list(MODELS))
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    args = parser.parse_args()
    rows = list(csv.DictReader(args.file.open())) if args.file.exists() else []
    if args.what == "table":
        print(table(rows))
        return
    run = {"ours": run_fedweave, "theirs": run_pykeen}[args.what]
    done = {tuple(row[name] for name in COLUMNS[:4]) for row in rows}
    with args.file.open("a") as file:
        writer = csv.writer(file)
        if not rows:
            writer.writerow(COLUMNS)
        for seed, data, model in product(args.seeds, args.data, args.models):
            if (args.what, data, model, str(seed)) in done:
                continue
            began = time.process_time()
            mrr, hits = run(data, model, seed)
            seconds = math.ceil(time.process_time() - began)
            writer.writerow([args.what, data, model, seed, f"{mrr:.4f}", f"{hits:.4f}", seconds])
            file.flush()


if __name__ == "__main__":
    main()
