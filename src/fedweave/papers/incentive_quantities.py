"""What is read of runs whose clients are rewarded: fairness of rewards, payoffs, and what each client contributed."""

import math
from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from fedweave.errors import FedweaveError
from fedweave.experiment.runs.files import read_table, write_table
from fedweave.metrics.client_fairness import pearson, per_group
from fedweave.papers.paper import Quantity
from fedweave.report.reading import Run, read_run

QUALITIES = ("low", "medium", "high")
LEFT_OUT = "leave_one_out.parquet"  # beside a run: its accuracies' gains by round and client
OWN = "FairGraphFL"  # payoffs of the run itself, beside those of `incentives.payoffs.SCHEMES`


def fairness() -> Quantity:
    """Pearson's correlation of the clients' last test accuracies with those of the baseline, local training with the
    same seed and split."""

    def value(run: Path, baseline: Path) -> float | None:
        together, alone = read_run(run), read_run(baseline)
        if together.partition is None or not together.partition.equals(alone.partition):
            raise FedweaveError(
                f"the clients of {run} and of {baseline} hold other data; they cannot be compared.",
                code="paper.other-data",
            )
        both = [found.clients("accuracy") for found in (alone, together)]
        shared = sorted(both[0].keys() & both[1].keys())
        found = pearson(*(np.array([own[client] for client in shared]) for own in both)).value
        return None if math.isnan(found) else found

    return Quantity("correlation", value, digits=3, absent="all clients are equally accurate")


def payoff(scheme: str, quality: str) -> Quantity:
    """Mean payoff per round and client of a `quality` (`partition.graphs.Perturbed`), by the run itself (`OWN`) or by
    one of `incentives.payoffs.SCHEMES` of data volumes; a round's sum to 1."""
    return Quantity("share", lambda run: _paid(run, scheme)[quality])


def ordered(scheme: str) -> Quantity:
    """1 where clients of high quality are paid more than medium, and these more than low; the mean over runs is the
    share of those where it is so."""

    def value(run: Path) -> float:
        low, medium, high = (_paid(run, scheme)[quality] for quality in QUALITIES)
        return float(low < medium < high)

    return Quantity("share of runs", value, digits=1)


def contribution(client: int, part: int, parts: int) -> Quantity:
    """By how much a client's update raises the global model's accuracy after a round, in the mean over one of equal
    `parts` of the rounds, from 0 on (see `contributions`); kept beside the run."""

    def value(run: Path) -> float | None:
        rounds = int(read_run(run).config["rounds"])
        found = _contributions(run, rounds)
        name = sorted(set(found["client"].to_pylist()))[client]
        own = found.filter(pc.field("client") == name)
        pairs = zip(own["round"].to_pylist(), own["leave_one_out"].to_pylist(), strict=True)
        chosen = [gain for number, gain in pairs if (number - 1) * parts // rounds == part]
        return fmean(chosen) if chosen else None

    return Quantity("accuracy", value, absent="no round in it")


@cache
def _paid(run: Path, scheme: str) -> dict[str, float]:
    found = read_run(run)
    return per_group(_paid_by_run(found) if scheme == OWN else _paid_by_volume(found, scheme))


def _paid_by_run(run: Run) -> dict[str, float]:
    budget = run.section("algorithm")["budget"]
    return {client: fmean(own.values()) / budget for client, own in run.known("payoff").items()}


def _paid_by_volume(run: Run, scheme: str) -> dict[str, float]:
    import torch

    from fedweave.incentives.payoffs import data_volume, shares

    if run.partition is None:
        raise FedweaveError(f"{run.directory} does not say what its clients hold.")
    clients, sizes = run.partition["client"].to_pylist(), run.partition["train"].to_pylist()
    paid = shares(scheme, data_volume(torch.tensor(sizes, device="cpu")), len(clients))
    return dict(zip(clients, paid.tolist(), strict=True))


def _contributions(run: Path, rounds: int) -> pa.Table:
    """Of all rounds; those beside the run if it is all there, else measured and put there."""
    from fedweave.payments.contributions import left_out

    if (run / LEFT_OUT).is_file():
        kept = read_table(run, LEFT_OUT)
        if len(set(kept["round"].to_pylist())) == rounds:
            return kept
    table = left_out(run)
    write_table(run / LEFT_OUT, table)
    return table
