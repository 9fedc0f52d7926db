"""The command `fedweave contributions`: what each client of a finished run brought to its global model.

The run is repeated, which gives the same numbers, and listened to. A coalition S of the clients of round t is worth
what the model w_t + Σ_{i in S} a_i Δ_i / Σ_{i in S} a_i gains over w_t on the global test set, with the weights a_i of
the round; what the clients of several rounds brought adds up (Wang et al. 2020, "A principled approach to data
valuation for federated learning", definition 2).
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedweave.errors import UserError

if TYPE_CHECKING:  # the command line imports this module, and should start quickly
    import pyarrow as pa

    from fedweave.incentives.shapley import Value

BATCH = 64  # models that are judged at once


def contributions(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a finished run.")],
    rounds: Annotated[str, typer.Option(help='Which rounds: "last", "all", or numbers such as 1,10,20.')] = "last",
    metric: Annotated[str, typer.Option(help="What a model is worth: by its accuracy or its loss.")] = "accuracy",
    permutations: Annotated[int, typer.Option(help="Orders of joining that are drawn, above 12 clients.")] = 200,
) -> None:
    """What each client brought to the global model, on the global test set: leave-one-out and Shapley values of single
    rounds, and the shares of a budget that would follow; also to RUN/contributions.parquet."""
    from rich.table import Table

    from fedweave.report.terminal import screen
    from fedweave.runs.files import CONTRIBUTIONS, write_table

    table = measured(directory, rounds, metric, permutations)
    write_table(directory / CONTRIBUTIONS, table)
    shown = Table(box=None, header_style="dim")
    summed = totals(table)
    for name in summed.column_names:
        shown.add_column(name.replace("_", " "), justify="left" if name == "client" else "right")
    for row in summed.to_pylist():
        shown.add_row(*(value if isinstance(value, str) else f"{value:.4f}" for value in row.values()))
    console = screen()
    console.print(shown)
    count = len(set(table["round"].to_pylist()))
    console.print(
        f"{count} round{'s' * (count > 1)}, gains in {metric}"
        f"{', summed; shares and cosines are means' * (count > 1)}: {directory / CONTRIBUTIONS}",
        highlight=False,
    )
    if any(value != value for row in summed.to_pylist() for value in row.values()):  # as NaN alone
        console.print("nan: in some round these gains sum to nothing or less, so that no budget can be divided by them")


def measured(directory: Path, rounds: str = "last", metric: str = "accuracy", permutations: int = 200) -> "pa.Table":
    """A row per round and client: "leave_one_out", "shapley" and its standard "error" (0 up to 12 clients),
    "individual", the client's "cosine" with the round's update, and its "equal_share", "union_share",
    "individual_share" and "shapley_share" of a budget (NaN where these gains do not sum to more than 0).

    Raises:
        UserError: the run is not finished or was one of sites, has no global model of the FedAvg family or no global
            test set, or a round is none of its.
    """

    def found(number: int, round: Any, built: Any, seed: int) -> list[dict[str, Any]]:
        return _of_round(number, round, built, metric, permutations, seed)

    return _table(directory, rounds, metric, found)


def left_out(directory: Path, rounds: str = "all", metric: str = "accuracy") -> "pa.Table":
    """The column "leave_one_out" of `measured` alone, which is faster: a model per client and round."""
    from fedweave.incentives.shapley import leave_one_out

    def found(number: int, round: Any, built: Any, seed: int) -> list[dict[str, Any]]:
        import torch

        with torch.no_grad():
            gains = leave_one_out(_worth(round, built.algorithm.model, built.fed.test, metric), len(round.at)).tolist()
        own = zip(round.replies.clients, gains, strict=True)
        return [{"round": number, "client": client, "leave_one_out": gain} for client, gain in own]

    return _table(directory, rounds, metric, found)


def _table(directory: Path, rounds: str, metric: str, found: "Callable[..., list[dict[str, Any]]]") -> "pa.Table":
    """The rows that `found` (number, what was heard, the run, its seed) makes of each of the `rounds`."""
    if metric not in ("accuracy", "loss"):
        raise UserError(f"--metric {metric}: choose accuracy or loss.")
    import pyarrow as pa

    from fedweave.algorithms.fedavg import FedAvg
    from fedweave.runs.run import simulated
    from fedweave.runs.trained import finished

    config = finished(directory)
    if config.engine.name != "simulation":
        raise UserError(
            f"{directory} was trained between sites, whose single updates nobody keeps; contributions are measured by "
            "training again in one process. For a simulation of it: fedweave run CONFIG.toml."
        )
    built, wanted = simulated(config), _numbers(rounds, config.general.rounds)
    algorithm = built.algorithm
    parts = algorithm.composed if isinstance(algorithm, FedAvg) else None
    other = parts is None or parts.personal or parts.owner("step") or parts.owner("aggregate")
    if other or algorithm.share != ("*",):
        raise UserError(
            f"{config.algorithm.name} in {directory} has no global model that is a weighted mean of its clients'; "
            "contributions are measured for such algorithms, for instance fedavg."
        )
    if built.fed.test is None:
        raise UserError(f"{directory} has no global test set to measure on; set a global_test share in [partition].")
    rows = []
    for number, round in _heard(built, max(wanted)):
        if number in wanted:
            rows += found(number, round, built, config.general.seed)
    return pa.Table.from_pylist(rows)


def totals(table: "pa.Table") -> "pa.Table":
    """Sums over rounds per client; of shares, and of the cosine, means."""
    names = [name for name in table.column_names if name not in ("round", "client")]
    how = {name: "mean" if name.endswith("share") or name == "cosine" else "sum" for name in names}
    found = table.group_by("client").aggregate([*how.items()]).sort_by("client")
    return found.select(["client", *(f"{name}_{how[name]}" for name in names)]).rename_columns(["client", *names])


def _numbers(text: str, last: int) -> set[int]:
    """The rounds that `text` names."""
    if text in ("last", "all"):
        return {last} if text == "last" else set(range(1, last + 1))
    words = [word.strip() for word in text.split(",")]
    if not all(word.isdigit() and 1 <= int(word) <= last for word in words):
        raise UserError(f'--rounds {text}: "last", "all", or numbers from 1 to {last} with commas between them.')
    return set(map(int, words))


def _heard(built: Any, rounds: int) -> Iterator[tuple[int, Any]]:
    """Run again, without evaluation: every round's number, and what the server heard in it."""
    from fedweave.algorithms.parts import Part, Round
    from fedweave.core.tree import Tree
    from fedweave.rounds import train

    @dataclass(frozen=True)
    class Listener(Part):
        """Tells what the server heard in a round."""

        tell: Callable[[Round], None]

        def update(self, state: Tree, round: Round) -> Tree:
            """Tell of the round."""
            self.tell(round)
            return state

    heard: list[Round] = []
    algorithm = replace(built.algorithm, parts=(*built.algorithm.parts, Listener(heard.append)))
    for step in train(algorithm, built.fed, rounds, eval_every=0):
        yield step.round, heard.pop()


def _worth(round: Any, model: Any, test: Any, metric: str) -> "Value":
    """The value function of a round: what coalitions, bool [c, P], gain, float64 [c]."""
    import torch

    from fedweave.core import model as models
    from fedweave.core.graph import TEST
    from fedweave.core.tree import leaves, nest
    from fedweave.learn import cross_entropy

    moved = {path: round.update(path).double() for path, _ in leaves(round.w)}
    before, weight = dict(leaves(round.w)), test.masks[TEST].to(test.x.dtype)
    target = test.y.clamp(min=0)

    def judged(flat: Any) -> Any:
        logits = models.apply(model, nest(flat), test)
        if metric == "loss":
            return -cross_entropy(logits, target, weight)
        return ((logits.argmax(1) == target) * weight).sum() / weight.sum()

    def of(masks: Any) -> Any:
        share = masks.double() * round.weights.relu()
        share = share / share.sum(1, keepdim=True).clamp(min=1e-300)
        found = []
        for part in share.split(BATCH):
            mixed = {
                p: (before[p].double() + torch.tensordot(part, u, 1)).to(before[p].dtype) for p, u in moved.items()
            }
            found.append(torch.func.vmap(judged)(mixed).double())
        return torch.cat(found)

    nobody = of(torch.zeros(1, len(round.at), dtype=torch.bool))
    return lambda masks: of(masks) - nobody


def _of_round(number: int, round: Any, built: Any, metric: str, permutations: int, seed: int) -> list[dict[str, Any]]:
    import torch

    from fedweave.core.random import generator
    from fedweave.incentives.payoffs import SCHEMES, divisible
    from fedweave.incentives.shapley import leave_one_out, shapley
    from fedweave.incentives.values import alignment

    players, value = len(round.at), _worth(round, built.algorithm.model, built.fed.test, metric)
    with torch.no_grad():
        rng = generator(seed, f"contributions/{number}")
        estimate = shapley(value, players, rng, permutations)
        columns = {
            "leave_one_out": leave_one_out(value, players),
            "shapley": estimate.values,
            "error": estimate.error,
            "individual": value(torch.eye(players, dtype=torch.bool)),
            "cosine": alignment(round.updates, round.weights @ round.updates),
        }
    worth = {"union": "leave_one_out", "individual": "individual", "shapley": "shapley"}
    for scheme in SCHEMES:
        raw = columns[worth[scheme]] if scheme in worth else torch.ones(players, dtype=torch.float64)
        columns[f"{scheme}_share"] = raw / raw.sum() if divisible(raw) else torch.full_like(raw, torch.nan)
    lists = {name: own.tolist() for name, own in columns.items()}
    return [
        {"round": number, "client": client, **{name: own[at] for name, own in lists.items()}}
        for at, client in enumerate(round.replies.clients)
    ]
