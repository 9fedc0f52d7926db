"""Two members' tables that have something for every setting of [data], and combinations of these settings."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

MEMBERS = ("a", "b")
NODES, TRANSFERS = 24, 90
HEADS = ("id,income,age,debt,job,label,price,split", "source,target,amount,fee,currency,day,label,split,sum")
SETTINGS: dict[str, Any] = {
    "normalize": "auto",
    "edge_normalize": "none",
    "external": "refuse",
    "directed": True,
    "edge_features": ["amount", "fee", "currency"],
    "categories": {"job": ["clerk", "nurse", "cook"], "edges.currency": ["eur", "usd"]},
    "missing": ["debt", "edges.fee"],
    "classes": 2,
}
NODE_SCALES = ("auto", "none", "row", "binary", "scale", "standard", "minmax")
EDGE_SCALES = NODE_SCALES
SEEN = {"categories": {"job": "auto", "edges.currency": "auto"}}
NUMBERS = {"target": "number", "targets": ["price"], "classes": None, "ignore": ["label"]}
ALL_OF_EDGES = {"edge_features": "all", "categories": {"job": "auto", "edges.currency": "auto"}}
OTHERS: Mapping[str, dict[str, Any]] = {
    "undirected": {"directed": False, "edge_normalize": "minmax", "external": "features"},
    "weight-time": {"edge_weight": "amount", "edge_time": "day", "edge_normalize": "standard", "external": "features"},
    "sum": {"parallel": "sum", "edge_normalize": "standard", "external": "features"} | SEEN,
    "count": {"parallel": "count", "edge_normalize": "scale", "external": "features", "normalize": "minmax"},
    "last": {"parallel": "last", "edge_time": "day", "edge_normalize": "row", "external": "features"},
    "bare": {"edge_features": None, "missing": ["debt"], "categories": {"job": "auto"}, "external": "features"},
    "all": ALL_OF_EDGES | {"edge_time": "day", "edge_normalize": "minmax", "normalize": "standard"},
    "date": {"edge_features": ["amount", "day"], "edge_time": "day", "edge_normalize": "scale", "missing": ["debt"]}
    | {"categories": {"job": "auto"}},
    "number": NUMBERS | {"target_log": True, "edge_normalize": "standard"},
    "number-all": NUMBERS | {"target_normalize": "all", "normalize": "standard"},
    "number-none": NUMBERS | {"target_normalize": "none", "external": "features", "edge_normalize": "standard"},
    "labels": {"target": "labels", "targets": ["label"], "classes": None, "edge_normalize": "binary"},
    "edges": {"task": "edges", "edge_normalize": "standard", "external": "features"},
    "edges-number": {"task": "edges", "edge_normalize": "minmax", "target": "number", "targets": ["sum"]}
    | {"classes": None, "ignore": ["edges.label"]},
}


def combinations() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every pair of scalings with columns of edges to other members' nodes, each scaling without, and `OTHERS`."""
    for nodes in NODE_SCALES:
        for edges in EDGE_SCALES:
            yield f"{nodes}-{edges}-features", {"normalize": nodes, "edge_normalize": edges, "external": "features"}
    for nodes, edges in zip(NODE_SCALES, (*EDGE_SCALES[1:], "auto"), strict=True):
        yield f"{nodes}-{edges}", {"normalize": nodes, "edge_normalize": edges}
    yield from OTHERS.items()


def settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings `given`, and the others of `SETTINGS`; columns that they leave no meaning are ignored."""
    data = SETTINGS | given
    of_edges, of_task = data["edge_features"] or [], data.get("task") == "edges"
    used = {data.get("edge_weight"), data.get("edge_time"), *([] if of_edges == "all" else of_edges)}
    used |= {"amount", "fee", "currency", "day"} if of_edges == "all" else set()
    used |= {"label", "split", *(data.get("targets") or ())} if of_task else set()
    more = [f"edges.{name}" for name in HEADS[1].split(",")[2:] if name not in used]
    more += [] if data.get("targets") == ["price"] else ["price"]
    data["ignore"] = list(dict.fromkeys([*data.get("ignore", ()), *more]))
    return {name: value for name, value in data.items() if value is not None}


def member(folder: Path, name: str, scale: float, outside: bool, seed: int = 0) -> Path:
    """A member's tables; `outside`: with transfers to the other member's nodes, and to nodes of nobody."""
    draw, other = np.random.default_rng([seed, MEMBERS.index(name)]), MEMBERS[1 - MEMBERS.index(name)]
    folder.mkdir(parents=True)
    rows, transfers = [HEADS[0]], [HEADS[1]]
    for at in range(NODES):
        debt = "" if at % 5 == 4 else f"{draw.lognormal(5, 1):.2f}"
        income, job = int(scale * draw.integers(1000, 90000)), draw.choice(["clerk", "nurse", "cook"])
        split = ("train", "val", "test")[at // 2 % 3]
        price = scale * draw.lognormal(2, 1)
        rows.append(f"{name}{at},{income},{draw.normal(40, 9):.3f},{debt},{job},{at % 2},{price:.3f},{split}")
    for at in range(TRANSFERS):
        source, target = (f"{name}{number}" for number in draw.choice(NODES, 2, replace=False))
        if outside and at % 3 == 0:
            target = f"{other}{draw.integers(NODES)}"
        elif outside and at % 7 == 0:
            source = f"x{draw.integers(9)}"
        amount, fee = scale * draw.lognormal(4, 1), "" if at % 6 == 5 else f"{draw.exponential():.3f}"
        split = ("train", "val", "test")[at // 4 % 3]
        more = f"{draw.choice(['eur', 'usd'])},2024-0{1 + at % 9}-1{at % 9},{at % 2},{split}"
        transfers.append(f"{source},{target},{amount:.2f},{fee},{more},{amount + at:.2f}")
    (folder / "nodes.csv").write_text("\n".join(rows) + "\n")
    (folder / "edges.csv").write_text("\n".join(transfers) + "\n")
    return folder


def members(root: Path, outside: bool) -> Path:
    """Two members, whose numbers are of two sizes."""
    for name, scale in zip(MEMBERS, (1.0, 3.0), strict=True):
        member(root / name, name, scale, outside)
    return root
