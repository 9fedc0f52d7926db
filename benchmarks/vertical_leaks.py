"""What an honest-but-curious server infers about a party's data from the representations that GLASU exchanges.

Cora, three parties with a third of the words and 80 % of the citations each; only the first party has labels. GCNII of
width 64 with two layers and one exchange, all training nodes at once, Adam. After training, the server uses what it
receives from the second party in one evaluation; with `secure_sum` that is the mean of all three. It knows labels and
words of a tenth of the nodes, and fits a logistic regression to labels, and a ridge regression to each of the party's
words that 20 or more of these nodes have; both are evaluated on the other nodes. It ranks pairs of nodes by the cosine
of their rows: the party's citations against as many random pairs.

    python -m benchmarks.vertical_leaks --out FILE.csv [--seeds 0-1] [--rounds 100]

A line of the file is a run: the setting, the seed, accuracy of the model, accuracy for labels and of the most frequent
label, and AUC for words (mean) and for citations. "its words" uses the words themselves as representations.
"""

import argparse
import csv
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.metrics import roc_auc_score

import fedweave
from fedweave.algorithms import GLASU
from fedweave.algorithms.vertical.aggregation import WORDS
from fedweave.core.replies import Replies
from fedweave.datasets.base import Dataset
from fedweave.models import MODELS
from fedweave.partition.base import Part

KNOWN_SHARE, MIN_NODES, PARTY = 0.1, 20, 1
COLUMNS = ("setting", "seed", "accuracy", "labels", "most frequent", "words", "citations")
SETTINGS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "secure_sum": {"secure_sum": True},
    "sigma = 0.1": {"sigma": 0.1},
    "sigma = 0.3": {"sigma": 0.3},
    "sigma = 1": {"sigma": 1.0},
    "label_epsilon = 2": {"label_epsilon": 2.0},
    "label_epsilon = 4": {"label_epsilon": 4.0},
}


def server_view(glasu: GLASU, fed: Any, state: Any) -> np.ndarray:
    """[n, h]: the rows that the party sends in an evaluation or, with a secure sum, the mean of all."""
    recorded: dict[str, Replies] = {}
    original_map = fed.map

    def recording_map(step: Any, *args: Any, **options: Any) -> Replies:
        replies = original_map(step, *args, **options)
        recorded[step.__name__] = replies
        return replies

    fed.map = recording_map
    glasu.evaluate(state, fed)
    fed.map = original_map
    replies, key = recorded["infer_full"], glasu.release.key
    if glasu.secure_sum:
        return np.asarray((WORDS.decode(replies.total(key), fed.dtype) / len(replies)).cpu())
    return np.asarray(replies.stack(key)[PARTY].cpu())


def attack(h: np.ndarray, data: Dataset, part: Part, rng: np.random.Generator) -> dict[str, float]:
    """How well labels, words and citations are inferred from rows h [n, h]."""
    h = h[: data.nodes] / (np.linalg.norm(h[: data.nodes], axis=1, keepdims=True) + 1e-9)
    known = rng.random(data.nodes) < KNOWN_SHARE
    classifier = LogisticRegression(C=100.0, max_iter=500).fit(h[known], data.y[known])
    words = np.asarray(data.x[:, part.columns].todense())  # type: ignore[index]
    common = words[:, words[known].astype(bool).sum(0) >= MIN_NODES].astype(bool)
    guess = Ridge(alpha=0.1).fit(h[known], common[known]).predict(h[~known])
    edges = np.asarray(part.edges)
    pairs = rng.integers(0, data.nodes, edges.shape)
    cosines = [(h[source] * h[target]).sum(1) for source, target in (edges, pairs)]
    return {
        "labels": float(classifier.score(h[~known], data.y[~known])),
        "most frequent": float(np.bincount(data.y[~known]).max() / (~known).sum()),
        "words": float(roc_auc_score(common[~known], guess, average="macro")),
        "citations": float(roc_auc_score(np.repeat([1, 0], edges.shape[1]), np.concatenate(cosines))),
    }


def rows(seed: int, rounds: int) -> Iterator[dict[str, Any]]:
    """One for each setting, and one of the party's words themselves."""
    data = fedweave.datasets.load("cora")
    vertical = fedweave.partition.Vertical(clients=3, labels="first", use_dataset_split=True, train_on_rest=True)
    cut = vertical.cut(data, seed=seed)
    part = cut.parts[PARTY]
    words = np.asarray(data.x[:, part.columns].todense())  # type: ignore[index]
    scores = attack(words, data, part, np.random.default_rng(seed))
    yield {"setting": "its words", "seed": seed, "accuracy": ""} | scores
    net = MODELS["gcnii"](hidden=64, layers=2, dropout=0.2).build(fedweave.width(data, cut), data.classes)
    for name, setting in SETTINGS.items():
        glasu = replace(GLASU(net, exchanges=1, steps=4, batch=0), **setting)
        fed = fedweave.federation(data, cut, glasu, seed=seed)
        *_, last = fedweave.train(glasu, fed, rounds, eval_every=rounds)
        scores = attack(server_view(glasu, fed, last.state), data, part, np.random.default_rng(seed))
        yield {"setting": name, "seed": seed, "accuracy": last.summary["local/accuracy"]} | scores


def main() -> None:
    """Write a row for each setting as it ends."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("runs/vertical-leaks.csv"))
    parser.add_argument("--seeds", default="0-1")
    parser.add_argument("--rounds", type=int, default=100)
    args = parser.parse_args()
    first, last = map(int, args.seeds.split("-"))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with args.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for seed in range(first, last + 1):
            for row in rows(seed, args.rounds):
                cells = {key: f"{value:.3f}" if isinstance(value, float) else value for key, value in row.items()}
                writer.writerow(cells)
                file.flush()


if __name__ == "__main__":
    main()
