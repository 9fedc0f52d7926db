"""Numbers of runs whose clients are rewarded: fairness of rewards, payoffs, and each client's contribution."""

import math
from functools import cache
from pathlib import Path
from statistics import fmean

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch

from fedweave.accounts.contributions import leave_one_out_gains
from fedweave.errors import FedweaveError
from fedweave.experiment.runs.files import read_table, write_table
from fedweave.experiment.runs.reading import read_run
from fedweave.incentives.payoffs import data_volume, shares
from fedweave.metrics.client_fairness import pearson, per_group
from fedweave.papers.paper import Quantity

QUALITIES = ("low", "medium", "high")
GAINS_FILE = "leave_one_out.parquet"  # in a run's directory: its accuracies' gains by round and client
METHOD = "FairGraphFL"  # payoffs of the run itself, in addition to `incentives.payoffs.SCHEMES`


def fairness() -> Quantity:
    """Pearson's correlation of the clients' last test accuracies with their accuracies in the baseline.

    The baseline is local training with the same seed and split.
    """

    def value(run: Path, baseline: Path) -> float | None:
        together = read_run(run)
        reference = read_run(baseline)
        if together.partition is None or not together.partition.equals(reference.partition):
            raise FedweaveError(
                f"the clients of {run} and of {baseline} hold other data; they cannot be compared.",
                code="paper.other-data",
            )
        local_accuracy = reference.clients("accuracy", round=reference.last_evaluation)
        accuracy = together.clients("accuracy", round=together.last_evaluation)
        clients = sorted(local_accuracy.keys() & accuracy.keys())
        local_values = np.array([local_accuracy[client] for client in clients])
        values = np.array([accuracy[client] for client in clients])
        result = pearson(local_values, values).value
        return None if math.isnan(result) else result

    return Quantity("correlation", value, digits=3, absent="all clients are equally accurate")


def payoff(scheme: str, quality: str) -> Quantity:
    """Mean payoff per round and client of a `quality` (`partition.graphs.Perturbed`).

    Payoffs come from the run itself (`METHOD`) or from one of `incentives.payoffs.SCHEMES` of data volumes; the payoffs
    of a round sum to 1.
    """
    return Quantity("share", lambda run: _mean_payoffs(run, scheme)[quality])


def order_of_payoffs(scheme: str) -> Quantity:
    """1 where clients of high quality are paid more than medium, and these more than low, else 0.

    The mean over runs is the share of runs with this order.
    """

    def value(run: Path) -> float:
        payoffs = _mean_payoffs(run, scheme)
        return float(payoffs["low"] < payoffs["medium"] < payoffs["high"])

    return Quantity("share of runs", value, digits=1)


def contribution(client: int, part: int, parts: int) -> Quantity:
    """How much a client's update raises the global model's accuracy after a round, as a mean over a part of the rounds.

    part: one of equal `parts` of the rounds, from 0 on. The measured contributions are stored in the run's directory.
    """

    def value(run: Path) -> float | None:
        rounds = int(read_run(run).config["rounds"])
        table = _contributions(run, rounds)
        name = sorted(set(table["client"].to_pylist()))[client]
        rows = table.filter(pc.field("client") == name)
        pairs = zip(rows["round"].to_pylist(), rows["leave_one_out"].to_pylist(), strict=True)
        gains = [gain for number, gain in pairs if (number - 1) * parts // rounds == part]
        return fmean(gains) if gains else None

    return Quantity("accuracy", value, absent="no round in it")


@cache
def _mean_payoffs(run: Path, scheme: str) -> dict[str, float]:
    record = read_run(run)
    if scheme == METHOD:
        budget = record.section("algorithm")["budget"]
        return per_group(
            {client: fmean(paid.values()) / budget for client, paid in record.server_values("payoff").items()}
        )
    if record.partition is None:
        raise FedweaveError(f"{run} has no partition.parquet, so the clients' data is not known.")
    clients = record.partition["client"].to_pylist()
    sizes = torch.tensor(record.partition["train"].to_pylist(), device="cpu")
    payoffs = shares(scheme, data_volume(sizes), len(clients))
    return per_group(dict(zip(clients, payoffs.tolist(), strict=True)))


def _contributions(run: Path, rounds: int) -> pa.Table:
    """The contributions in all rounds: read from the run's directory if it has all of them, else measured and stored
    there."""
    if (run / GAINS_FILE).is_file():
        existing = read_table(run, GAINS_FILE)
        if len(set(existing["round"].to_pylist())) == rounds:
            return existing
    table = leave_one_out_gains(run)
    write_table(run / GAINS_FILE, table)
    return table
