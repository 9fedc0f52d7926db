"""Each client's contribution to the global model of a finished run.

The run is repeated, which gives the same numbers, and observed. `incentives.coalitions` values the coalitions of a
round's clients; contributions of several rounds add up (Wang et al. 2020, "A principled approach to data valuation for
federated learning", definition 2).
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.parts import Part, Round
from fedweave.core.algorithm import Engine
from fedweave.core.random import generator
from fedweave.core.tree import Tree, norm, ravel, sub
from fedweave.errors import UserError, listed
from fedweave.experiment.rounds import train
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import CHECKPOINT, SUMMARY, read_summary
from fedweave.experiment.runs.reading import read_run
from fedweave.experiment.runs.run import build_simulation
from fedweave.experiment.runs.trained import check_finite, check_unchanged, finished_config
from fedweave.incentives.agent_values import alignment, cosine_value
from fedweave.incentives.coalitions import (
    COPIED,
    GAINS_IN,
    MEASURED_ON,
    NOT_PLAIN,
    PLAIN,
    copies,
    evaluation_graphs,
    round_value,
)
from fedweave.incentives.payoffs import proportions
from fedweave.incentives.shapley import Value, leave_one_out, shapley
from fedweave.metrics.selection import METRICS, positive_in, selection_metric_of

MAX_DISTANCE = 0.05  # allowed relative distance of a repetition's model, since machines round differently
SITE_MEASURES = {  # column: what the parts coalition_value and validated_value measure
    "leave_one_out": "leave_one_out",
    "shapley": "shapley",
    "error": "shapley_error",
    "validated": "validated",
}
COPIES = b"copies"  # metadata of a table: {round: [client with a copied update, its source; "" the last global update]}
SCHEMES = {  # scheme: the gains in proportion to which it divides a budget; "" for equal shares
    "equal": "",
    "union": "leave_one_out",
    "individual": "individual",
    "shapley": "shapley",
    "validated": "validated",
}
GainsOf = Callable[[int, Round, Value, int], Mapping[str, Tensor]]  # round's number, round, value, seed -> columns [P]


def measure_contributions(
    directory: Path, rounds: str = "last", metric: str = "auto", permutations: int = 200
) -> pa.Table:
    """A row per round and client.

    Columns: "leave_one_out", "shapley" and its standard "error" (0 up to 12 clients), "individual", the client's
    "cosine" with the round's update and "cosine_shapley", the Shapley value of coalitions' cosines that the cosine
    approximates (Xu et al. 2021), and "equal_share", "union_share", "individual_share" and "shapley_share" of a budget
    (NaN where these gains have no positive sum).

    metric: the metric of a model's value; "auto" is the run's selection metric (`metrics.selection.Judging`).

    The table's metadata have the examples on which gains were measured, and the metric (`incentives.coalitions`).

    Raises:
        UserError: the run is not finished or was one of sites, has no global model of the FedAvg family or no test
            examples, or it has no such round.
    """

    def gains_of(number: int, round: Round, value: Value, seed: int) -> Mapping[str, Tensor]:
        players, updates, weights = len(round.at), round.updates, round.weights
        estimate = shapley(value, players, generator(seed, f"contributions/{number}"), permutations)
        of_cosine = shapley(cosine_value(updates, weights), players, generator(seed, f"cosines/{number}"), permutations)
        global_update = weights.to(updates.device, torch.float64).relu() @ updates.double()
        columns = {
            "leave_one_out": leave_one_out(value, players),
            "shapley": estimate.values,
            "error": estimate.error,
            "individual": value(torch.eye(players, dtype=torch.bool, device="cpu")),
            "cosine": alignment(updates, global_update),
            "cosine_shapley": of_cosine.values,
        }
        return columns | budget_shares(columns, players)

    return _repeat_run(directory, rounds, metric, gains_of)


def leave_one_out_gains(directory: Path, rounds: str = "all", metric: str = "accuracy") -> pa.Table:
    """Only the column "leave_one_out" of `measure_contributions`, which is faster: a model per client and round."""

    def gains_of(number: int, round: Round, value: Value, seed: int) -> Mapping[str, Tensor]:
        return {"leave_one_out": leave_one_out(value, len(round.at))}

    return _repeat_run(directory, rounds, metric, gains_of)


def budget_shares(columns: Mapping[str, Tensor], clients: int) -> dict[str, Tensor]:
    """{"<scheme>_share": shares of a budget, float64 [N]} of each scheme whose gains are among the columns [N]."""
    result = {}
    for scheme, name in SCHEMES.items():
        if not name:
            result[f"{scheme}_share"] = proportions(torch.ones(clients, dtype=torch.float64, device="cpu"))
        elif name in columns:
            result[f"{scheme}_share"] = proportions(columns[name].double())
    return result


def _table(
    rows: Sequence[tuple[int, Sequence[str], Mapping[str, Tensor]]],
    examples: str,
    metric: str,
    copied_updates: Mapping[int, object],
) -> pa.Table:
    """The columns [P] of each (round, P clients), one under the other, with the metadata of a table of gains."""
    tables = []
    for number, clients, columns in rows:
        values = {name: column.tolist() for name, column in columns.items()}
        tables.append(pa.table({"round": [number] * len(clients), "client": list(clients)} | values))
    metadata = {MEASURED_ON: examples, GAINS_IN: metric, COPIES: json.dumps(copied_updates)}
    return pa.concat_tables(tables).replace_schema_metadata(metadata)


def _repeat_run(directory: Path, rounds: str, metric: str, gains_of: GainsOf) -> pa.Table:
    """The columns that `gains_of` gives for each of `rounds`, of a run that is repeated; of a run between sites, which
    cannot be, `between_sites`."""
    config = finished_config(directory)
    if config.between_sites:
        return between_sites(directory, rounds, metric)
    metric, positive = _gain_metric(directory, metric)
    built, checkpoint = build_simulation(config), Checkpoint.load(directory / CHECKPOINT)
    numbers = _round_numbers(rounds, checkpoint.round)  # fewer than general.rounds if the run stopped early
    algorithm = built.algorithm
    if (
        not isinstance(algorithm, FedAvg)
        or any(map(algorithm.composed.owner, ("step", "aggregate")))  # its update is not a weighted mean
        or not algorithm.evaluates_one_model
    ):
        raise UserError(
            f"{config.algorithm.name} in {directory} is not evaluated by a global model that is a weighted mean of its "
            "clients' models; contributions are measured for such algorithms, for instance fedavg.",
            code="user.not-judged",
        )
    check_unchanged(directory, config, built, checkpoint)
    check_finite(algorithm.one_model(checkpoint.state))  # a repetition could not be compared with it
    examples, _ = evaluation_graphs(built.fed)
    net = algorithm.net if built.fed.test is None else algorithm.test_net
    rows = []
    last, copied_updates = None, dict[int, list[tuple[str, str]]]()
    # To the last round: its model shows whether the repetition equals the run.
    for number, round, state in observe_rounds(algorithm, built.fed, checkpoint.round):
        if number == checkpoint.round:
            check_repetition(algorithm.one_model(state), algorithm.one_model(checkpoint.state), directory)
        if number in numbers:
            clients = round.replies.clients
            for one, other in copies(round.updates, last):
                pair = (clients[one], "") if other < 0 else (clients[other], clients[one])
                copied_updates.setdefault(number, []).append(pair)
            _, graphs = evaluation_graphs(built.fed)  # with the data as they are now
            value = round_value(round, net, graphs, metric, positive)
            with torch.no_grad():
                rows.append((number, clients, gains_of(number, round, value, config.general.seed)))
        last = ravel(round.delta)
    return _table(rows, examples, metric, copied_updates)


def between_sites(directory: Path, rounds: str, metric: str) -> pa.Table:
    """What the parts coalition_value and validated_value measured while sites trained, with shares of a budget."""
    run = read_run(directory)
    numbers = _round_numbers(rounds, run.summary["rounds"])
    known = {column: run.server_values(name) for column, name in SITE_MEASURES.items()}
    known = {column: values for column, values in known.items() if values}  # {column: {client: {round: value}}}
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
    clients = sorted(known[first])
    rows = []
    for number in sorted(numbers):
        columns = {}
        for column, by_client in known.items():
            values = [by_client[client].get(number, float("nan")) for client in clients]
            columns[column] = torch.tensor(values, dtype=torch.float64, device="cpu")
        if not columns[first][0].isnan():
            rows.append((number, clients, columns | budget_shares(columns, len(clients))))
    if not rows:
        raise UserError(
            f"nothing was measured in round {rounds} of {directory}; see the part's `every`, or --rounds all."
        )
    copied_updates: dict[int, list[tuple[str, str]]] = {}
    sources = [*known[first], ""]  # "" for the last global update
    for client, by_round in run.server_values(COPIED).items():
        for number in sorted(by_round.keys() & numbers):
            copied_updates.setdefault(number, []).append((client, sources[int(by_round[number])]))
    return _table(rows, "all members' test examples, which each counted for itself", selects, copied_updates)


def _gain_metric(directory: Path, metric: str) -> tuple[str, int]:
    """The metric of the gains, and the number of the positive class."""
    metrics = read_summary(directory / SUMMARY)["metrics"]
    name = selection_metric_of(metrics) if metric == "auto" else metric
    positive = positive_in(metrics)
    in_summary = {key.rpartition("/")[2] for key in metrics}
    choices = [choice for choice in (*PLAIN, *NOT_PLAIN) if choice in in_summary]
    if name not in choices or (METRICS[name].positive and positive is None and metric != "auto"):
        raise UserError(
            f"--metric {metric}: choose {', '.join(choices)}. Metrics of one class need a run with such a selection "
            "metric ([evaluation] metric)."
        )
    return name, 1 if positive is None else positive


def _round_numbers(text: str, last: int) -> set[int]:
    """The rounds that `text` names."""
    if text == "last":
        return {last}
    if text == "all":
        return set(range(1, last + 1))
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdecimal() and 1 <= int(word) <= last for word in words):
        raise UserError(f'--rounds {text}: "last", "all", or numbers from 1 to {last} with commas between them.')
    return set(map(int, words))


def observe_rounds(algorithm: FedAvg, fed: Engine, rounds: int) -> Iterator[tuple[int, Round, Tree]]:
    """Run again, without evaluation: every round's number, the server's view of the round, and the state after it."""
    observed: list[Round] = []

    @dataclass(frozen=True)
    class Observer(Part):
        """Passes the server's view of a round on."""

        def update(self, state: Tree, round: Round) -> Tree:
            observed.append(round)
            return state

    observable = replace(algorithm, parts=(*algorithm.parts, Observer()))
    for step in train(observable, fed, rounds, eval_every=0):
        yield step.round, observed.pop(), step.state


def check_repetition(w: Tree, before: Tree, directory: Path) -> None:
    """Raise an error if a repetition ends at other weights than the run did."""
    if not float(norm(sub(w, before))) <= MAX_DISTANCE * float(norm(before)):
        raise UserError(
            f"training {directory} again ends at another model than it holds: its config.toml or checkpoint was "
            "changed, or it is of another version of fedweave. Do not pay by it; run it again.",
            code="user.other-model",
        )


def over_rounds(table: pa.Table) -> pa.Table:
    """Totals over rounds per client: the mean of cosines, the root of summed squares for standard errors, which are
    independent, and otherwise sums. Shares are computed from the sums."""
    names = [name for name in table.column_names if name not in ("round", "client") and not name.endswith("_share")]
    if "error" in names:
        table = table.set_column(table.column_names.index("error"), "error", pc.power(table["error"], 2))
    how = [(name, "mean" if name.startswith("cosine") else "sum") for name in names]
    result = table.group_by("client").aggregate(how).sort_by("client")
    result = result.select(["client", *(f"{name}_{function}" for name, function in how)])
    result = result.rename_columns(["client", *names])
    if "error" in names:
        result = result.set_column(result.column_names.index("error"), "error", pc.sqrt(result["error"]))
    columns = {name: torch.from_numpy(result[name].to_numpy().copy()) for name in names}
    for name, shares in budget_shares(columns, len(result)).items():
        result = result.append_column(name, pa.array(shares.numpy()))
    return result


def indivisible_shares(sums: pa.Table) -> dict[str, str]:
    """{kind of shares in `over_rounds` that cannot divide a budget: why}."""
    reasons: dict[str, str] = {}
    for name in sums.column_names:
        if not name.endswith("_share"):
            continue
        shares = sums[name]
        negative = sums["client"].filter(pc.less(shares, 0)).to_pylist()
        if pc.any(pc.is_nan(shares)).as_py():
            reasons[name] = "these gains sum to nothing or less, so that no budget can be divided by them"
        elif negative:
            reasons[name] = (
                f"the gains of {listed(negative)} are negative, so that others' shares would sum to more than the "
                "budget; measure more rounds, or take another share"
            )
    return reasons
