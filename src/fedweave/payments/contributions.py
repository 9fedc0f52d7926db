"""What each client of a finished run brought to its global model.

The run is repeated, which gives the same numbers, and listened to. `incentives.shapley` says what a coalition of a
round's clients is worth; what the clients of several rounds brought adds up (Wang et al. 2020, "A principled approach
to data valuation for federated learning", definition 2).
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
from fedweave.experiment.runs.run import simulated
from fedweave.experiment.runs.trained import check_again, check_finite, finished
from fedweave.incentives.payoffs import divided
from fedweave.incentives.shapley import (
    COPIED,
    FAULT,
    FAULTS,
    GAINS_IN,
    JOINT,
    MEASURED_ON,
    OTHERS,
    PLAIN,
    UNTIED,
    Value,
    copies,
    gradient_shapley,
    judging,
    leave_one_out,
    shapley,
    worth,
)
from fedweave.metrics.selection import METRICS, judged_by, positive_of
from fedweave.report.reading import Run, read_run

REPEATED = 0.05  # of a model's norm: how far off it may end where a run is repeated, since machines round otherwise
TRIED_AS = {"leave_one_out": "leave_one_out", "shapley": "shapley", "error": "shapley_error"}  # column: measure
COPIES = b"copies"  # metadata of a table: {round: [whose update is nearly another's, whose; "" the last global one]}
VOID = b"void rounds"  # metadata of a table: {round: why it has no values}
_EQUAL = 1e-6  # shares of the same examples differ by less: they are whole numbers divided, or their means as words
SHARED = {"equal": "", "union": "leave_one_out", "individual": "individual", "shapley": "shapley"}  # scheme: by what


def measured(directory: Path, rounds: str = "last", metric: str = "auto", permutations: int = 200) -> "pa.Table":
    """A row per round and client: "leave_one_out", "shapley" and its standard "error" (0 up to 12 clients),
    "individual", the client's "cosine" with the round's update and "cosine_shapley", the Shapley value of coalitions'
    cosines that it stands for (Xu et al. 2021), and its "equal_share", "union_share",
    "individual_share" and "shapley_share" of a budget (NaN where these gains do not sum to more than 0).

    metric: what a model is worth by; "auto" is what judges the run (`metrics.selection.Judging`).

    The table's metadata say on which examples gains were measured, and in what (`incentives.shapley`).

    Raises:
        UserError: the run is not finished or was one of sites, has no global model of the FedAvg family or no test
            examples, or a round is none of its.
    """

    def rows_of(number: int, round: "Round", value: "Value", seed: int) -> list[Record]:
        return _of_round(number, round, value, permutations, seed)

    return _table(directory, rounds, metric, rows_of)


def left_out(directory: Path, rounds: str = "all", metric: str = "accuracy") -> "pa.Table":
    """The column "leave_one_out" of `measured` alone, which is faster: a model per client and round."""

    def rows_of(number: int, round: "Round", value: "Value", seed: int) -> list[Record]:
        with torch.no_grad():
            gains = leave_one_out(value, len(round.at)).tolist()
        pairs = zip(round.replies.clients, gains, strict=True)
        return [{"round": number, "client": client, "leave_one_out": gain} for client, gain in pairs]

    return _table(directory, rounds, metric, rows_of)


def _table(directory: Path, rounds: str, metric: str, rows_of: "Callable[..., list[Record]]") -> "pa.Table":
    """The rows that `rows_of` (number, what was heard, its value function, the seed) makes of each of the `rounds`."""
    config = finished(directory)
    if config.between_sites:
        return between_sites(directory, rounds, metric, config.general.rounds)
    metric, positive = _gain_metric(directory, metric)
    built, wanted = simulated(config), _numbers(rounds, config.general.rounds)
    algorithm = built.algorithm
    means = isinstance(algorithm, FedAvg) and not any(map(algorithm.composed.owner, ("step", "aggregate")))
    if not isinstance(algorithm, FedAvg) or not means or not algorithm.one_judged:
        raise UserError(
            f"{config.algorithm.name} in {directory} is not judged by a global model that is a weighted mean of its "
            "clients'; contributions are measured for such algorithms, for instance fedavg.",
            code="user.not-judged",
        )
    reached = Checkpoint.load(directory / CHECKPOINT)
    check_again(directory, config, built, reached)
    check_finite(algorithm.one_model(reached.state))  # no repetition could be held against another
    where, _ = judging(built.fed)
    last, copied = None, dict[int, list[tuple[str, str]]]()
    net = algorithm.net if built.fed.test is None else algorithm.test_net
    rows = []
    for number, round, state in _heard(
        algorithm, built.fed, reached.round
    ):  # to the end, whose model tells whether it is the run
        if number == reached.round:
            _check_repeated(algorithm.one_model(state), algorithm.one_model(reached.state), directory)
        if number in wanted:
            names = round.replies.clients
            alike = copies(round.updates, last)
            if pairs := [(names[one], "") if other < 0 else (names[other], names[one]) for one, other in alike]:
                copied[number] = pairs
            _, graphs = judging(built.fed)  # of the data as they are now
            rows += rows_of(number, round, worth(round, net, graphs, metric, positive), config.general.seed)
        last = ravel(round.delta)
    return pa.Table.from_pylist(rows).replace_schema_metadata(
        {MEASURED_ON: where, GAINS_IN: metric, COPIES: json.dumps(copied).encode()}
    )


def between_sites(directory: Path, rounds: str, metric: str, last: int) -> "pa.Table":
    """What the part coalition_value has measured while sites trained, with shares of it.

    Raises:
        UserError: it was no part of the run, or measured nothing in these rounds or in this metric.
    """
    run, wanted = read_run(directory), _numbers(rounds, last)
    known = {column: run.known(name) for column, name in TRIED_AS.items()}
    if not known["shapley"] or metric not in ("auto", "accuracy"):
        raise UserError(
            f"{directory} was trained between sites, where nobody can train again without the members' data; what they "
            "brought is measured as they train, in accuracy, by the part coalition_value: algorithm.parts = "
            "['coalition_value']. Or run the same experiment in one process, if all data may be there.",
            code="contributions.unmeasured",
        )
    clients, rows = sorted(known["shapley"]), list[Record]()
    for number in sorted(wanted):
        columns = {
            column: [values[client].get(number, float("nan")) for client in clients] for column, values in known.items()
        }
        if columns["shapley"][0] == columns["shapley"][0]:  # no NaN: the round has values
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
    void = {number: why for number, why in void_rounds(run).items() if number in wanted}
    rows = [row for row in rows if row["round"] not in void]
    if void and not rows:
        raise UserError(
            f"{directory}: round {next(iter(void))} has no values: {next(iter(void.values()))}. A member counts wrong "
            "or lies; compare what each site's journal says of its counts.",
            code="contributions.void",
        )
    if not rows:
        raise UserError(
            f"nothing was measured in round {rounds} of {directory}; see the part's `every`, or --rounds all."
        )
    where = b"all members' test examples, which each counted for itself"
    copied: dict[int, list[tuple[str, str]]] = {}
    for client, of_client in run.known(COPIED).items():
        for number in sorted(of_client.keys() & wanted):
            copied.setdefault(number, []).append((client, [*known["shapley"]][int(of_client[number])]))
    metadata = {MEASURED_ON: where, GAINS_IN: b"accuracy", VOID: json.dumps(void).encode()}
    metadata[COPIES] = json.dumps(copied).encode()
    return pa.Table.from_pylist(rows).replace_schema_metadata(metadata)


def _gain_metric(directory: Path, metric: str) -> tuple[str, int]:
    """The metric of which gains are, and the number of the positive class."""
    metrics = read_summary(directory / SUMMARY)["metrics"]
    positive, name = positive_of(metrics), judged_by(metrics) if metric == "auto" else metric
    measured = {key.rpartition("/")[2] for key in metrics}
    choices = [one for one in (*PLAIN, *OTHERS) if one in measured]
    if name not in choices or (METRICS[name].positive and positive is None and metric != "auto"):
        raise UserError(
            f"--metric {metric}: choose {', '.join(choices)}; those of one class where such a one judges the run "
            "([evaluation] metric)."
        )
    return name, 1 if positive is None else positive


def withheld(sums: "pa.Table") -> dict[str, str]:
    """{kind of shares in `over_rounds` by which nobody can be paid: why}."""
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


def void_rounds(run: Run) -> dict[int, str]:
    """{round: why its values of coalitions do not hold}: the server found counts that cannot be right, or the model
    after the round got another share of the test examples right there than in the evaluation."""
    rounds: dict[int, str] = {}
    for of_client in run.known(FAULT).values():
        rounds |= {number: FAULTS[int(code)] for number, code in of_client.items()}
    accuracy = run.curve("accuracy", "test", pooled=True)
    for of_client in run.known(JOINT).values():
        for number, share in of_client.items():
            if number in accuracy and abs(accuracy[number] - share) > _EQUAL:
                rounds[number] = FAULTS[UNTIED]
    return dict(sorted(rounds.items()))


def _check_repeated(w: "Tree", before: "Tree", directory: Path) -> None:
    """Refuse a repetition that ends at other weights than the run did."""
    if not float(norm(sub(w, before))) <= REPEATED * float(norm(before)):
        raise UserError(
            f"training {directory} again ends at another model than it holds: its config.toml or checkpoint was "
            "changed, or it is of another version of fedweave. Nobody can be paid by it; run it again.",
            code="user.other-model",
        )


def over_rounds(table: "pa.Table") -> "pa.Table":
    """Sums over rounds per client; of cosines the mean, of standard errors, which are independent, the root of the sum
    of squares. Shares are those that follow from the sums."""
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
            continue  # of runs between sites
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
    """Run again, without evaluation: every round's number, what the server heard in it, and its state after it."""

    @dataclass(frozen=True)
    class Listener(Part):
        """Tells what the server heard in a round."""

        tell: Callable[[Round], None]

        def update(self, state: Tree, round: Round) -> Tree:
            """Tell of the round."""
            self.tell(round)
            return state

    heard: list[Round] = []
    listening = replace(algorithm, parts=(*algorithm.parts, Listener(heard.append)))
    for step in train(listening, fed, rounds, eval_every=0):
        yield step.round, heard.pop(), step.state


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
    for scheme, name in SHARED.items():
        alike = torch.ones(players, dtype=torch.float64, device="cpu")
        columns[f"{scheme}_share"] = divided(columns[name] if name else alike)
    lists = {name: values.tolist() for name, values in columns.items()}
    return [
        {"round": number, "client": client, **{name: values[at] for name, values in lists.items()}}
        for at, client in enumerate(round.replies.clients)
    ]
