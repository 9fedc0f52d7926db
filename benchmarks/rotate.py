"""RotatE in a plain loop, with relations as angles and as complex numbers: test MRR on `kinships` and `umls`.

fedweave trains the angles of relations. pykeen trains complex numbers and scales them to length 1 after each step. The
rest is as in `benchmarks.knowledge`: width 32, 4 negatives, Adam at 0.05, all triples in each of 200 steps, and the
same start for both. A line of the file is a run: data, way, seed, MRR.

    python -m benchmarks.rotate OUT.csv [--seeds 0 1 2]
"""

import argparse
import csv
import math
import os
from itertools import product
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

HALF, NEGATIVES, RATE, MARGIN, STEPS = 16, 4, 0.05, 3.0, 200
WAYS = ("angles", "complex")


def read(data: str) -> tuple[list[Tensor], int, int]:
    """Triples int64 [m, 3] to train on, to validate and to test, and the numbers of entities and relations."""
    entities, relations, splits = dict[str, int](), dict[str, int](), list[Tensor]()
    for name in ("train", "valid", "test"):
        lines = (Path(os.environ["FEDWEAVE_DATA"]) / data / f"{name}.txt").read_text().splitlines()
        triples = [line.split("\t") for line in lines]
        for head, relation, _ in triples:  # all heads first, then all tails: the numbers order the random start
            entities.setdefault(head, len(entities))
            relations.setdefault(relation, len(relations))
        for _, _, tail in triples:
            entities.setdefault(tail, len(entities))
        splits.append(torch.tensor([[entities[head], relations[name], entities[tail]] for head, name, tail in triples]))
    return splits, len(entities), len(relations)


def mrr(data: str, seed: int, way: str) -> float:
    """The mean reciprocal rank of both ends of test triples among all entities, without known triples and loops."""
    (train, val, test), entities, relations = read(data)
    torch.manual_seed(seed)
    bound = math.sqrt(6 / (2 * HALF))
    rows = torch.empty(entities, HALF, 2).uniform_(-bound, bound)
    angles = torch.empty(relations, HALF).uniform_(-math.pi, math.pi)
    turns = angles if way == "angles" else torch.view_as_real(torch.polar(torch.ones_like(angles), angles)).clone()
    optimizer = torch.optim.Adam([rows.requires_grad_(), turns.requires_grad_()], RATE)
    exists = torch.zeros(relations, entities, entities, dtype=torch.bool)
    for split in (train, val, test):
        exists[split[:, 1], split[:, 0], split[:, 2]] = True

    def rotations() -> Tensor:
        return torch.polar(torch.ones_like(turns), turns) if way == "angles" else torch.view_as_complex(turns)

    def score(head: Tensor, relation: Tensor, tail: Tensor) -> Tensor:
        e = torch.view_as_complex(rows)
        difference = e[head] * rotations()[relation] - e[tail]
        return -(difference.real.square() + difference.imag.square()).sum(-1).clamp(min=1e-24).sqrt()

    for _ in range(STEPS):
        head, relation, tail = train.repeat_interleave(NEGATIVES, 0).unbind(1)
        replaces_head, bad = torch.rand(len(head)) < 0.5, torch.ones(len(head), dtype=torch.bool)
        for _ in range(8):
            drawn = torch.randint(0, entities, (len(head),))
            head = torch.where(bad & replaces_head, drawn, head)
            tail = torch.where(bad & ~replaces_head, drawn, tail)
            bad = exists[relation, head, tail] | (head == tail)
        positive, negative = score(*train.unbind(1)), score(head, relation, tail).view(-1, NEGATIVES)
        weight = torch.softmax(negative.detach(), 1)
        loss = F.softplus(-MARGIN - positive) + (weight * F.softplus(MARGIN + negative)).sum(1)
        optimizer.zero_grad()
        loss.mean().backward()
        optimizer.step()
        if way == "complex":
            with torch.no_grad():
                turns.div_(turns.norm(dim=-1, keepdim=True))
    with torch.no_grad():
        e, q, ranks = torch.view_as_complex(rows), rotations(), list[Tensor]()
        for batch in test.split(256):
            head, relation, tail = batch.unbind(1)
            row = torch.arange(len(head))
            tails = (e[head] * q[relation])[:, None] - e  # [batch, entities, HALF]
            heads = e * q[relation][:, None] - e[tail][:, None]
            for differences, answer, other_end, triples in (
                (tails, tail, head, exists[relation, head]),
                (heads, head, tail, exists[relation, :, tail]),
            ):
                scores, excluded = -differences.abs().square().sum(-1).sqrt(), triples.clone()  # [batch, entities]
                excluded[row, answer] = excluded[row, other_end] = True
                answer_score, scores = scores[row, answer, None], scores.masked_fill(excluded, -torch.inf)
                ranks.append(1 + (scores > answer_score).sum(1) + 0.5 * (scores == answer_score).sum(1))
    return float((1 / torch.cat(ranks).double()).mean())


def main() -> None:
    """Measure, one line a run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    args = parser.parse_args()
    torch.set_num_threads(1)
    with args.file.open("a") as file:
        for seed, data, way in product(args.seeds, ("kinships", "umls"), WAYS):
            csv.writer(file).writerow([data, way, seed, f"{mrr(data, seed, way):.4f}"])
            file.flush()


if __name__ == "__main__":
    main()
