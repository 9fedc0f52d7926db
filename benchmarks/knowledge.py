"""Knowledge graphs beside pykeen with the same settings: MRR and Hits@10 of test triples, filtered, over seeds.

    python -m benchmarks.knowledge ours OUT.csv             # with fedweave
    python benchmarks/knowledge.py theirs OUT.csv           # with a Python that has pykeen
    python -m benchmarks.knowledge table OUT.csv            # both, as a table

`--data`, `--models` and `--seeds` choose some. Each run is a line of the file, and a run that has its line is left out,
so that a stop loses nothing. Both train on all triples in each step and draw negatives that no split has, again where
one has. Both rank among all entities without links of training and validation, and without loops. pykeen also leaves
out the other links of the test.
"""

import argparse
import csv
import gc
import math
import os
import statistics
import time
from pathlib import Path
from typing import Any

DATA = {"nations": 150, "kinships": 100, "umls": 100}  # steps, each with all training triples
MODELS = {"transe": 9.0, "rotate": 3.0, "distmult": 0.0, "complex": 0.0}  # margin of the loss; 0 is cross-entropy
WIDTH, NEGATIVES, RATE = 32, 4, 0.05
COLUMNS = ("who", "data", "model", "seed", "mrr", "hits_at_10", "seconds")


def steps(data: str, model: str) -> int:
    """How many steps a model is trained; rotate's validation MRR still rises where the others' do no more."""
    return DATA[data] * (2 if model == "rotate" else 1)


def ours(data: str, model: str, seed: int, split: int = 2) -> tuple[float, float]:
    """MRR and Hits@10 of fedweave on test triples (or on those of another split)."""
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

    def mean(name: str) -> float:
        total, count = pairs[f"own/{name}"].reshape(3, 2)[split].tolist()
        return float(total / count)

    return mean("mrr"), mean("hits_at_10")


def theirs(data: str, model: str, seed: int) -> tuple[float, float]:
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
    known = [part.mapped_triples for part in (train, val, test)]
    there = torch.zeros(train.num_relations, train.num_entities, train.num_entities, dtype=torch.bool)
    heads, relations, tails = torch.cat(known).unbind(1)
    there[relations, heads, tails] = True

    class Redrawn(BasicNegativeSampler):  # type: ignore[misc]
        """Draws again what is a triple or joins an entity with itself, as fedweave does; pykeen's filter drops it."""

        def corrupt_batch(self, positive_batch: torch.Tensor) -> torch.Tensor:
            found = super().corrupt_batch(positive_batch)
            for _ in range(10):
                heads, relations, tails = found.unbind(-1)
                bad = there[relations, heads, tails] | (heads == tails)
                found[bad] = super().corrupt_batch(positive_batch)[bad]
            return found

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
        negative_sampler=Redrawn,
        negative_sampler_kwargs={"num_negs_per_pos": NEGATIVES},
    )
    gc.freeze()  # pykeen collects garbage in each epoch, which takes longer than the epoch otherwise
    loop.train(train, num_epochs=steps(data, model), batch_size=len(known[0]), use_tqdm=False, use_tqdm_batch=False)
    entity = torch.arange(train.num_entities).repeat(train.num_relations)
    relation = torch.arange(train.num_relations).repeat_interleave(train.num_entities)
    loops = torch.stack([entity, relation, entity], 1)
    ranks = RankBasedEvaluator(filtered=True).evaluate(
        net, known[2], additional_filter_triples=[*known[:2], loops], use_tqdm=False, batch_size=128
    )
    names = ("both.realistic.inverse_harmonic_mean_rank", "both.realistic.hits_at_10")
    return tuple(float(ranks.get_metric(name)) for name in names)  # type: ignore[return-value]


def table(rows: list[dict[str, str]]) -> str:
    """Markdown: mean and deviation over seeds of both, and the difference with its 95 % interval (Welch)."""
    from scipy import stats

    head = ["data", "model", "fedweave", "pykeen", "difference, 95 % interval", "seeds"]
    lines = [" | ".join(head), " | ".join(["---"] * len(head))]
    for data in DATA:
        for model in MODELS:
            of = [row for row in rows if (row["data"], row["model"]) == (data, model)]
            runs = [[float(row["mrr"]) for row in of if row["who"] == who] for who in ("ours", "theirs")]
            if min(map(len, runs)) < 2:
                continue
            low, high = stats.ttest_ind(*runs, equal_var=False).confidence_interval()
            said = [f"{statistics.mean(each):.3f} ± {statistics.stdev(each):.3f}" for each in runs]
            apart = f"{statistics.mean(runs[0]) - statistics.mean(runs[1]):+.3f} ({low:+.3f} to {high:+.3f})"
            lines.append(" | ".join([data, model, *said, apart, "/".join(str(len(each)) for each in runs)]))
    return "\n".join(f"| {line} |" for line in lines)


def main() -> None:
    """Runs what the command line asks for."""
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
    there = {tuple(row[name] for name in COLUMNS[:4]) for row in rows}
    with args.file.open("a") as file:
        writer = csv.writer(file)
        if not rows:
            writer.writerow(COLUMNS)
        for seed in args.seeds:
            for data in args.data:
                for model in args.models:
                    if (args.what, data, model, str(seed)) in there:
                        continue
                    start = time.process_time()
                    scores = (ours if args.what == "ours" else theirs)(data, model, seed)
                    seconds = math.ceil(time.process_time() - start)
                    writer.writerow([args.what, data, model, seed, *(f"{score:.4f}" for score in scores), seconds])
                    file.flush()


if __name__ == "__main__":
    main()
