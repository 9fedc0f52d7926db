"""The command `fedweave attack`: what a curious server finds out of what an experiment's clients send."""

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

from fedweave.cli.options import Settings
from fedweave.errors import UserError


def attacks_table(rows: Iterable[tuple[str, str, float, float]]) -> Table:
    """A line for each attack: its name, what it knows, and the shares that it gets right without and with a defence."""
    shown = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0))
    for name in ("attack", "knows", "right without defence", "with it"):
        shown.add_column(name, justify="left" if name in ("attack", "knows") else "right")
    for named, known, without, protected in rows:
        shown.add_row(named, known, f"{without:.1%}", f"{protected:.1%}")
    return shown


if TYPE_CHECKING:  # the command line imports this module, and should start quickly
    from torch import Tensor

    from fedweave.algorithms.fairgfl import OverlapWeights
    from fedweave.experiment.build import Built
    from fedweave.experiment.config import Config

Row = tuple[str, str, float, float]
QUERIES = (1, 5, 10, 20, 30)
HOLDERS = (1, 3, 5, 10, 27)
PAIRS = 10_000  # that links are asked of


def attack(
    source: Annotated[Path, typer.Argument(metavar="DIR|CONFIG.toml", help="A run or an experiment with fairgfl.")],
    settings: Settings = None,
) -> None:
    """Attack what clients send: what each attack finds out with and without the defence."""
    from fedweave.core.plugins import check_trusted
    from fedweave.experiment.config import load, read
    from fedweave.experiment.runs.files import CONFIG
    from fedweave.report.terminal import screen

    if source.is_dir():
        check_trusted(load(source / CONFIG), source / CONFIG)
    config, _ = read(source / CONFIG if source.is_dir() else source, settings or [], None)
    screen().print(attacks_table(found(config)))


def found(config: "Config") -> list[Row]:
    """A row for each attack: its name, what the server hears or knows, and the shares that it gets right without and
    with the defence.

    Raises:
        UserError: the experiment's clients send nothing that these attacks are on.
    """
    from fedweave.algorithms.fairgfl import OverlapWeights
    from fedweave.algorithms.parts.composition import MadeOfParts
    from fedweave.core import random
    from fedweave.experiment.build import build

    built = build(config)
    parts = built.algorithm.composed.values() if isinstance(built.algorithm, MadeOfParts) else ()
    part = next((part for part in parts if isinstance(part, OverlapWeights) and part.estimator == "ldp"), None)
    if part is None:
        raise UserError(
            f"the clients of {config.algorithm.name!r} send no noisy codes or links, which the attacks here are on; "
            "give an experiment with the algorithm fairgfl and its estimator 'ldp'."
        )
    key = random.fold(random.key(config.general.seed), "attack")
    rows = _of_links(_links(built), part.epsilon_b, key) if part.alpha < 1 else []
    return rows + _of_codes(built, part, key)


def _of_links(truth: "Tensor", epsilon: float, key: "Tensor") -> list[Row]:
    from fedweave.privacy.attacks import repeated_queries

    def share(copies: int, permanent: bool) -> float:
        return repeated_queries(truth, epsilon, copies, key, permanent)

    asked = [("links, asked again", f"{n} answer{'s' * (n > 1)}", share(n, False), share(n, True)) for n in QUERIES]
    return asked + [("links, majority of holders", f"{n} client{'s' * (n > 1)}", 1.0, share(n, False)) for n in HOLDERS]


def _of_codes(built: "Built", part: "OverlapWeights", key: "Tensor") -> list[Row]:
    """Naming the node of one noisy code among all nodes that clients hold."""
    import numpy as np
    import torch

    from fedweave.algorithms.overlap.encoder import encoded
    from fedweave.privacy.attacks import reidentified

    built.fed.begin(0)
    encoder = part.made_encoder(built.fed)["encoder"]
    nodes = np.unique(np.concatenate([own.nodes for own in built.partition.parts]))
    x = built.data.x[nodes]
    clean = encoded(encoder, torch.from_numpy(x if isinstance(x, np.ndarray) else x.toarray()).to(built.fed.dtype))
    owner = torch.arange(len(nodes), device="cpu")
    bare, hidden = (
        reidentified(own.noisy(clean, key) / own.steps, clean, owner)
        for own in (replace(part, epsilon_a=float("inf")), part)
    )
    return [("node of one code", f"{len(nodes):,} nodes' features", bare, hidden)]


def _links(built: "Built") -> "Tensor":
    """Of `PAIRS` pairs of nodes at clients whether they are linked: half, or all links that there are. bool."""
    import torch

    from fedweave.partition.statistics import statistics

    links = sum(statistics(built.data, built.partition)["edges_kept"])
    result: Tensor = torch.arange(PAIRS, device="cpu") < min(links, PAIRS // 2)
    return result
