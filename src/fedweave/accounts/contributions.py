"""Each client's contribution to the global model of a finished run.

The run is repeated, which gives the same numbers, and observed. `incentives.shapley` values the coalitions of a round's
clients; contributions of several rounds add up (Wang et al. 2020, "A principled approach to data valuation for
federated learning", definition 2).
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import torch

from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.parts import Part, Round
from fedweave.core.algorithm import Engine
from fedweave.core.random import generator
from fedweave.core.tree import Tree, norm, ravel, sub
from fedweave.core.types import Record
from fedweave.errors import UserError, listed
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT, SUMMARY, read_summary
from fedweave.experiment.runs.reading import read_run
from fedweave.experiment.runs.run import simulated
from fedweave.experiment.runs.trained import check_again, check_finite, finished
from fedweave.incentives.payoffs import divided
from fedweave.incentives.shapley import (
    COPIED,
    GAINS_IN,
    MEASURED_ON,
    OTHERS,
    PLAIN,
    Value,
    copies,
    gradient_shapley,
    judging,
    leave_one_out,
    shapley,
    worth,
)
from fedweave.metrics.selection import METRICS, positive_of, selection_metric_of

REPEATED = 0.05  # allowed relative distance of a repetition's model, since machines round differently
TRIED_AS = {  # column: measure
    "leave_one_out": "leave_one_out",
    "shapley": "shapley",
    "error": "shapley_error",
    "validated": "validated",
}
COPIES = b"copies"  # metadata of a table: {round: [client with a copied update, its source; "" the last global update]}
SHARED = {  # scheme: measure
    "equal": "",
    "union": "leave_one_out",
    "individual": "individual",
    "shapley": "shapley",
    "validated": "validated",
}


def measured(directory: Path, rounds: str = "last", metric: str = "auto", permutations: int = 200) -> "pa.Table":
    """A row per round and client.

    Columns: "leave_one_out", "shapley" and its standard "error" (0 up to 12 clients), "individual", the client's
    "cosine" with the round's update and "cosine_shapley", the Shapley value of coalitions' cosines that the cosine
    approximates (Xu et al. 2021), and "equal_share", "union_share", "individual_share" and "shapley_share" of a budget
    (NaN where these gains have no positive sum).

    metric: the metric of a model's value; "auto" is the run's selection metric (`metrics.selection.Judging`).

    The table's metadata have the examples on which gains were measured, and the metric (`incentives.shapley`).

    Raises:
        UserError: the run is not finished or was one of sites, has no global model of the FedAvg family or no test
            examples, or it has no such round.
    """

    def rows_of(number: int, round: "Round", value: "Value", seed: int) -> list[Record]:
        return _of_round(number, round, value, permutations, seed)

    return _table(directory, rounds, metric, rows_of)


def left_out(directory: Path, rounds: str = "all", metric: str = "accuracy") -> "pa.Table":
    """Only the column "leave_one_out" of `measured`, which is faster: a model per client and round."""

    def rows_of(number: int, round: "Round", value: "Value", seed: int) -> list[Record]:
        with torch.no_grad():
            gains = leave_one_out(value, len(round.at)).tolist()
        pairs = zip(round.replies.clients, gains, strict=True)
        return [{"round": number, "client": client, "leave_one_out": gain} for client, gain in pairs]

    return _table(directory, rounds, metric, rows_of)


def _table(directory: Path, rounds: str, metric: str, rows_of: "Callable[..., list[Record]]") -> "pa.Table":
    """The rows that `rows_of` (number, the server's round, its value function, the seed) makes of each of `rounds`."""
    config = finished(directory)
    if config.between_sites:
        return between_sites(directory, rounds, metric, config.general.rounds)
    metric, positive = _gain_metric(directory, metric)
    built, wanted = simulated(config), _numbers(rounds, config.general.rounds)
    algorithm = built.algorithm
    means = isinstance(algorithm, FedAvg) and not any(map(algorithm.composed.owner, ("step", "aggregate")))
    if not isinstance(algorithm, FedAvg) or not means or not algorithm.evaluates_one_model:
        raise UserError(
            f"{config.algorithm.name} in {directory} is not evaluated by a global model that is a weighted mean of its "
            "clients' models; contributions are measured for such algorithms, for instance fedavg.",
            code="user.not-judged",
        )
    checkpoint = Checkpoint.load(directory / CHECKPOINT)
    check_again(directory, config, built, checkpoint)
    check_finite(algorithm.one_model(checkpoint.state))  # a repetition could not be compared with it
    where, _ = judging(built.fed)
    last, copied_updates = None, dict[int, list[tuple[str, str]]]()
    net = algorithm.net if built.fed.test is None else algorithm.test_net
    rows = []
    for number, round, state in _heard(
        algorithm, built.fed, checkpoint.round
    ):  # to the last round, whose model shows whether the repetition equals the run
        if number == checkpoint.round:
            _check_repeated(algorithm.one_model(state), algorithm.one_model(checkpoint.state), directory)
        if number in wanted:
            names = round.replies.clients
            alike = copies(round.updates, last)
            if pairs := [(names[one], "") if other < 0 else (names[other], names[one]) for one, other in alike]:
                copied_updates[number] = pairs
            _, graphs = judging(built.fed)  # with the data as they are now
            rows += rows_of(number, round, worth(round, net, graphs, metric, positive), config.general.seed)
        last = ravel(round.delta)
    return pa.Table.from_pylist(rows).replace_schema_metadata(
        {MEASURED_ON: where, GAINS_IN: metric, COPIES: json.dumps(copied_updates).encode()}
    )


def between_sites(directory: Path, rounds: str, metric: str, last: int) -> "pa.Table":
    """The measurements of the parts coalition_value and validated_value while sites trained, with shares of a budget.

    Raises:
        UserError: the run did not have the part, or it measured nothing in these rounds or in this metric.
    """
    run, wanted = read_run(directory), _numbers(rounds, last)
    known = {column: values for column, name in TRIED_AS.items() if (values := run.known(name))}
    selects = selection_metric_of(run.summary["metrics"])
    if not known or metric not in ("auto", selects):
        raise UserError(
            f"{directory} was trained between sites and cannot be repeated without the members' data. The parts "
            "coalition_value and validated_value measure contributions, in the selection metric, as sites train: set "
            "algorithm.parts = ['coalition_value'], without secure_sum, which hides what they need. Or run the same "
            "experiment in one process, if all data may be there.",
            code="contributions.unmeasured",
        )
    first = next(iter(known))
    clients, rows = sorted(known[first]), list[Record]()
    for number in sorted(wanted):
        columns = {
            column: [values[client].get(number, float("nan")) for client in clients] for column, values in known.items()
        }
        if columns[first][0] == columns[first][0]:  # no NaN: the round has values
            for scheme, name in SHARED.items():
                if not name or name in columns:
                    gains = (
                        torch.tensor(columns[name], device="cpu") if name else torch.ones(len(clients), device="cpu")
                    )
                    columns[f"{scheme}_share"] = divided(gains.double()).tolist()
            rows += [
                {"round": number, "client": client, **{name: values[at] for name, values in columns.items()}}
                for at, client in enumerate(clients)
            ]
    if not rows:
        raise UserError(
            f"nothing was measured in round {rounds} of {directory}; see the part's `every`, or --rounds all."
        )
    where = b"all members' test examples, which each counted for itself"
    copied_updates: dict[int, list[tuple[str, str]]] = {}
    for client, of_client in run.known(COPIED).items():
        for number in sorted(of_client.keys() & wanted):
            sources = [*known[first], ""]  # "" for the last global update
            copied_updates.setdefault(number, []).append((client, sources[int(of_client[number])]))
    metadata = {MEASURED_ON: where, GAINS_IN: selects.encode()}
    metadata[COPIES] = json.dumps(copied_updates).encode()
    return pa.Table.from_pylist(rows).replace_schema_metadata(metadata)


def _gain_metric(directory: Path, metric: str) -> tuple[str, int]:
    """The metric of the gains, and the number of the positive class."""
    metrics = read_summary(directory / SUMMARY)["metrics"]
    positive, name = positive_of(metrics), selection_metric_of(metrics) if metric == "auto" else metric
    measured = {key.rpartition("/")[2] for key in metrics}
    choices = [one for one in (*PLAIN, *OTHERS) if one in measured]
    if name not in choices or (METRICS[name].positive and positive is None and metric != "auto"):
        raise UserError(
            f"--metric {metric}: choose {', '.join(choices)}. Metrics of one class need a run with such a selection "
            "metric ([evaluation] metric)."
        )
    return name, 1 if positive is None else positive


def withheld(sums: "pa.Table") -> dict[str, str]:
    """{kind of shares in `over_rounds` that cannot divide a budget: why}."""
    reasons: dict[str, str] = {}
    for name in (name for name in sums.column_names if name.endswith("_share")):
        shares = dict(zip(sums["client"].to_pylist(), sums[name].to_pylist(), strict=True))
        negative = [client for client, share in shares.items() if share < 0]
        if any(share != share for share in shares.values()):
            reasons[name] = "these gains sum to nothing or less, so that no budget can be divided by them"
        elif negative:
            reasons[name] = (
                f"the gains of {listed(negative)} are negative, so that others' shares would sum to more than the "
                "budget; measure more rounds, or take another share"
            )
    return reasons


def _check_repeated(w: "Tree", before: "Tree", directory: Path) -> None:
    """Raise an error if a repetition ends at other weights than the run did."""
    if not float(norm(sub(w, before))) <= REPEATED * float(norm(before)):
        raise UserError(
            f"training {directory} again ends at another model than it holds: its config.toml or checkpoint was "
            "changed, or it is of another version of fedweave. Do not pay by it; run it again.",
            code="user.other-model",
        )


def over_rounds(table: "pa.Table") -> "pa.Table":
    """Totals over rounds per client: the mean of cosines, the root of summed squares for standard errors, which are
    independent, and otherwise sums. Shares are computed from the sums."""
    names = [name for name in table.column_names if name not in ("round", "client") and not name.endswith("_share")]
    if "error" in names:
        table = table.set_column(table.column_names.index("error"), "error", pc.power(table["error"], 2))
    how = {name: "mean" if name.startswith("cosine") else "sum" for name in names}
    result = table.group_by("client").aggregate([*how.items()]).sort_by("client")
    result = result.select(["client", *(f"{name}_{how[name]}" for name in names)]).rename_columns(["client", *names])
    if "error" in names:
        result = result.set_column(result.column_names.index("error"), "error", pc.sqrt(result["error"]))
    for scheme, name in SHARED.items():
        if name and name not in names:
            continue  # not measured between sites
        gains = torch.from_numpy(result[name].to_numpy().copy()) if name else torch.ones(len(result), device="cpu")
        result = result.append_column(f"{scheme}_share", pa.array(divided(gains.double()).numpy()))
    return result


def _numbers(text: str, last: int) -> set[int]:
    """The rounds that `text` names."""
    if text in ("last", "all"):
        return {last} if text == "last" else set(range(1, last + 1))
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= last for word in words):
        raise UserError(f'--rounds {text}: "last", "all", or numbers from 1 to {last} with commas between them.')
    return set(map(int, words))


def _heard(algorithm: "FedAvg", fed: "Engine", rounds: int) -> "Iterator[tuple[int, Round, Tree]]":
    """Run again, without evaluation: every round's number, the server's view of the round, and the state after it."""

    @dataclass(frozen=True)
    class Listener(Part):
        """Passes the server's view of a round on."""

        tell: Callable[[Round], None]

        def update(self, state: Tree, round: Round) -> Tree:
            """Pass the round on."""
            self.tell(round)
            return state

    rounds_heard: list[Round] = []
    listening = replace(algorithm, parts=(*algorithm.parts, Listener(rounds_heard.append)))
    for step in train(listening, fed, rounds, eval_every=0):
        yield step.round, rounds_heard.pop(), step.state


def _of_round(number: int, round: "Round", value: "Value", permutations: int, seed: int) -> list[Record]:
    players = len(round.at)
    with torch.no_grad():
        rng = generator(seed, f"contributions/{number}")
        estimate = shapley(value, players, rng, permutations)
        angles = gradient_shapley(round.updates, round.weights, generator(seed, f"cosines/{number}"), permutations)
        columns = {
            "leave_one_out": leave_one_out(value, players),
            "shapley": estimate.values,
            "error": estimate.error,
            "individual": value(torch.eye(players, dtype=torch.bool, device="cpu")),
            "cosine": angles.cosine,
            "cosine_shapley": angles.values,
        }
    for scheme, name in ((scheme, name) for scheme, name in SHARED.items() if not name or name in columns):
        alike = torch.ones(players, dtype=torch.float64, device="cpu")
        columns[f"{scheme}_share"] = divided(columns[name] if name else alike)
    lists = {name: values.tolist() for name, values in columns.items()}
    return [
        {"round": number, "client": client, **{name: values[at] for name, values in lists.items()}}
        for at, client in enumerate(round.replies.clients)
    ]
