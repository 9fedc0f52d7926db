"""Reasons for one score: the columns, neighbors and edges that move it, each with the score without it or, as a second
opinion, by integrated gradients. Both need the model alone."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from fedweave.apply.case import Case, Example, case_of_link, case_of_run, case_of_tables
from fedweave.apply.explanation import METHODS, Explanation, Method
from fedweave.apply.gradients import gradients
from fedweave.apply.leave_out import leave_out
from fedweave.apply.neighborhood import Neighborhood, around, reach, scores
from fedweave.apply.surroundings import Surroundings
from fedweave.core.algorithm import capabilities
from fedweave.core.target import CLASS, NUMBER
from fedweave.errors import UserError, listed, option
from fedweave.experiment.runs.checkpoint import When
from fedweave.experiment.runs.files import CONFIG
from fedweave.experiment.runs.trained import finished_config

TOLERANCE = 1e-4  # of the score, or of a number's scale: what rounding may differ by
ROUNDING = 1e-6  # effects that are no larger are not reasons


def explain(
    place: Path,
    name: str | Sequence[str],
    client: str | None = None,
    data: Path | None = None,
    model: str | None = None,
    target: str | None = None,
    method: Method = "leave-out",
    when: When = "chosen",
) -> Explanation:
    """The reasons for the score of the example called `name`; of a run on links, of a pair: the names of its source and
    target and, with several relations, of the relation.

    place: the directory of a simulation's run, or what `scorer.scorer_at` takes. client: whose example it is, and whose
    model. data: tables with the example; None is the run's own data. target: the class, label or number to explain; by
    default the class that is looked for, or the predicted one.

    Raises:
        UserError: there is no such run, client, example or target, or the model predicts jointly. DataError: the tables
            are of another form than those of training.
    """
    if method not in METHODS:
        raise UserError(f"method = {method!r}: unknown. Choose {' or '.join(METHODS)}.", code="explain.method")
    config = finished_config(place) if (place / CONFIG).is_file() else None
    if config is not None and (
        (config.learned and config.links is None) or capabilities(config.algorithm.kind).predicts
    ):
        raise UserError(
            "explain: this run learns a vector for each node that it classifies, or is of parties that predict "
            "jointly. Nodes, edges, links and small graphs of other runs are explained.",
            code="explain.alone",
        )

    # A pair of nodes.
    if config is not None and config.links is not None:
        if isinstance(name, str) or data is not None or target is not None:
            raise UserError(
                "explain: the run predicts links among its own nodes. Name a pair, "
                f"{option('pair', 'SOURCE TARGET', 'its source and target')}, and leave out {option('data')} and "
                f"{option('target')}.",
                code="explain.pair",
            )
        if config.learned and method == "gradients":
            raise UserError(
                f"{option('method', 'gradients')}: it weighs columns, and the nodes of this run have learned vectors. "
                "Leave it out.",
                code="explain.method",
            )
        case, pair = case_of_link(place, config, name, client, model, when)
        return reasons(case, pair, None, method)

    # A node, an edge or a small graph.
    if not isinstance(name, str):
        raise UserError(
            "only runs on links have pairs to explain. Name one node, edge or small graph.",
            code="explain.pair",
        )
    if data is not None:
        case = case_of_tables(place, data, client, model, when)
    elif config is not None:
        case = case_of_run(place, config, client, model, when)
    else:
        raise UserError(
            f"{place} holds a model and no data. Give tables with the example as {option('data')}.", code="explain.data"
        )
    return reasons(case, case.place_of(name), target, method)


def reasons(case: Case, example: Example, target: str | None = None, method: Method = "leave-out") -> Explanation:
    """The reasons for the score of an example.

    Raises:
        UserError: there is no such target, or the model reads more than columns and edges.
    """
    # 1. The score, and what is around the example.
    data, expected = case.data, case.predict(example)  # [outputs]
    is_pair = isinstance(example, np.ndarray)
    output, quantity = (1, "probability of a link") if is_pair else _target(case, expected, target)
    score = float(expected[output])
    near, alone = _neighborhood(case, example, expected)
    smiles = data.smiles[example] if data.smiles and isinstance(example, int) else ""
    surroundings = Surroundings(case, near, output, smiles)
    kind, name = "link", surroundings.pair_name()
    if isinstance(example, int):
        kind, name = data.example, case.name_of(example)

    # 2. What moves it.
    notes = []
    if data.example != "graph" and not near.neighbors:
        reads = "vectors" if case.learned else "columns"
        notes.append(f"This {kind} has no neighbors: the model reads its {reads} alone.")
    elif reach(case.net) == 0:
        notes.append("The model passes no messages: no neighbor and no edge moves its scores.")
    base = None
    if method == "gradients":
        ranked, base = gradients(surroundings, alone)
        if data.edge_attrs is not None:
            notes.append("Gradients weigh the columns of nodes, and not what edges carry.")
    else:
        ranked, untried = leave_out(surroundings, score, alone)
        if untried:
            notes.append(
                f"{untried:,} neighbors and edges were not tried one by one: the score is least sensitive to them, and "
                "neighbors in groups led to others."
            )
    rounding = ROUNDING * max(1.0, abs(score))
    ranked = [reason for reason in ranked if abs(reason.effect) > rounding]
    ranked.sort(key=lambda reason: -abs(reason.effect))

    # 3. The threshold is of the class that is looked for.
    threshold = None
    if case.flagging is not None and data.target == CLASS and output == case.flagging.positive:
        threshold = case.flagging.threshold
    return Explanation(
        client=case.client,
        example=kind,
        name=name,
        quantity=quantity,
        score=score,
        threshold=threshold,
        method=method,
        usual=surroundings.usual,
        reasons=tuple(ranked),
        notes=tuple(notes),
        base=base,
        graph=surroundings.graph,
    )


def _target(case: Case, expected: np.ndarray, target: str | None) -> tuple[int, str]:
    """Which output is explained, and what it is.

    Raises:
        UserError: there is no such class, label or number.
    """
    kind = case.data.target
    default = 0 if kind == NUMBER else int(expected.argmax())
    if kind == CLASS:
        names = list(case.form.labels)
        if case.flagging is not None:
            default = case.flagging.positive
    else:
        names = list((case.form.targets or {}).get("names", ()))
    what = "predicted" if kind == NUMBER else "probability of" if names else "probability of class"
    names = names or [str(number) for number in range(len(expected))]
    if target is not None and target not in names:
        raise UserError(
            f"{option('target', target)}: the model has {listed(names)}. Choose one.", code="explain.target"
        )
    output = default if target is None else names.index(target)
    return output, f"{what} {names[output]}"


def _neighborhood(case: Case, example: Example, expected: np.ndarray) -> tuple[Neighborhood, bool]:
    """The smallest neighborhood on which the model gives the score of the whole graph, and whether each copy has to be
    scored alone.

    Raises:
        UserError: there is none: the model reads what no copy has.
    """
    tolerance = TOLERANCE
    if case.data.target == NUMBER:
        tolerance *= max(1.0, float(np.abs(expected).max()))
    # Messages depend on the degrees of nodes, so on edges one step beyond the nodes that are read.
    hops = reach(case.net)
    trials: list[tuple[int | None, bool]] = []
    if case.data.example == "graph":
        trials = [(None, False)]
    elif hops is not None:
        trials = [(hops + 1, False), (hops + 2, False)]
    for size, alone in [*trials, (None, True)]:
        near = around(case.data, example, size, bool(case.relations), case.learned)
        copies = [near] if alone else [near, near.blank()]  # the model must not read the blank one for the first
        p = scores(case.net, case.w, copies, case.dtype)[0]
        if np.abs(p - expected).max() < tolerance:
            return near, alone
    raise UserError(
        "the model reads more than the columns and edges of the example's graph, such as codes that its algorithm "
        "computed before training. Explain a model of another algorithm.",
        code="explain.model",
    )
