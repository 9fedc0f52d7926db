"""What a first run is worth to a member: a template's model, trained together, against what a member does alone.

A set is run by its template (`fedweave init --from …`) without a changed setting but those that say where the data is
and which metric counts: five members, by communities, scaffolds, relations or users. Columns: the joint model; the same
model alone; the best of a member's shelf, chosen on its validation examples, alone, pooled, and with the joint model's
columns if examples have labels; each the mean over members on their test examples, mean ± deviation over seeds. Then
the paired differences of the joint model, with their 95 % interval, and whether it is at least the shelf less .01.

    python -m benchmarks.shelf [--seeds 5] [--sets credit …] [--minutes 20] [--folds 3] [--rows FILE] [--table FILE]

With --minutes the template is tuned first (`fedweave tune`) for so long, by validation. With --folds the shelf with the
joint model's columns is measured too, from as many further runs (`evaluation.joint_columns`). Rows that the file has
already are not measured again. Needs the sets in $FEDWEAVE_DATA.
"""

import argparse
import math
import os
import resource
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

import fedweave
from benchmarks.common import EXPERIMENTS, SavedRows, commit, mean_deviation, mean_interval
from fedweave.metrics.selection import lower

MEMBERS = 5
COLUMNS = ("joint", "alone", "shelf", "pooled_shelf", "shelf_joint", "seconds", "shelf_seconds", "alone_seconds")


class Set(NamedTuple):
    """A set of data: its template, its metric, and what the template cannot know."""

    template: str
    metric: str
    changes: Mapping[str, Any]


SHARES = {"train", "val", "test"}
OF_PUBLISHED = {"structure", "task", "features", "users", "items", "relation", "ratios", "rank_negatives"}
UNLABELED = {"links", "knowledge", "ratings"}  # templates whose examples have no labels that a fold could withhold
LOUVAIN = {"name": "louvain", "clients": MEMBERS}
SCAFFOLDS = {"name": "scaffold", "clients": MEMBERS}
ASSAYS = (
    *("NR-AR", "NR-AR-LBD", "NR-AhR", "NR-Aromatase", "NR-ER", "NR-ER-LBD", "NR-PPAR-gamma"),
    *("SR-ARE", "SR-ATAD5", "SR-HSE", "SR-MMP", "SR-p53"),
)


def nodes(metric: str, **data: Any) -> Set:
    """A set whose examples are nodes, cut into communities."""
    return Set("nodes", metric, {"data": data, "partition": LOUVAIN})


def frauds(positive: str | int, **data: Any) -> Set:
    """Nodes of which a rare class is looked for, whose edges have neither features nor a direction."""
    changes = {"model": {"name": "sage", "directed": None}, "evaluation": {"positive": positive}}
    return Set("fraud", "average_precision", {**changes, "data": {"preset": None, **data}, "partition": LOUVAIN})


def links(**data: Any) -> Set:
    """A set whose examples are links within communities."""
    return Set("links", "auc", {"data": {**data, "task": "links"}, "partition": LOUVAIN})


def triples(name: str) -> Set:
    """A knowledge graph whose relations are dealt out; nations and kinships have enough for five members."""
    return Set("knowledge", "mrr", {"data": {"name": name, "task": "links"}, "partition": {"clients": MEMBERS}})


def molecules(name: str, metric: str, **data: Any) -> Set:
    """A set of molecules, whose scaffolds are dealt out."""
    return Set("molecules", metric, {"data": {"name": "graphs", "path": name, **data}, "partition": SCAFFOLDS})


SETS = {
    "credit": nodes("auc", name="credit"),
    "bail": nodes("auc", name="bail"),
    "german": nodes("auc", name="german"),
    "yelpchi-reviews": frauds(1, name="folder", path="yelpchi-reviews", ignore=["edges.label", "edges.prior"]),
    "reddit-anomaly": frauds("banned", name="npz", path="reddit-anomaly/reddit-anomaly.npz"),
    "minesweeper": nodes("auc", name="minesweeper"),
    "chameleon-filtered": nodes("accuracy", name="chameleon-filtered"),
    "pubmed": nodes("accuracy", name="pubmed"),
    "amazon-photo": nodes("accuracy", name="amazon-photo"),
    "amlsim-20k": Set(
        "edges",
        "average_precision",
        {"data": {"path": "amlsim-edges", "edge_features": ["value"]}, "partition": LOUVAIN},
    ),
    "cora-links": links(name="cora"),
    "citeseer-links": links(name="citeseer"),
    "amazon-photo-links": links(name="amazon-photo"),
    "douban": Set(
        "ratings", "ndcg_at_20", {"data": {"name": "douban", "validation": 0.1}, "partition": {"clients": MEMBERS}}
    ),
    "kinships": triples("kinships"),
    "umls": triples("umls"),
    "wn18rr": triples("wn18rr"),
    "delaney": Set(
        "molecules",
        "r2",
        {
            "data": {"name": "graphs", "path": "delaney", "target": "number", "targets": ["log_solubility"]},
            "partition": SCAFFOLDS,
            "algorithm": {"parts": [{"name": "own_share", "alone": True}]},  # the template's line for numbers
        },
    ),
    "bace": molecules("bace", "auc"),
    "bbbp": molecules("bbbp", "auc"),
    "tox21": molecules("tox21", "auc", labels=list(ASSAYS)),
    "proteins": Set("molecules", "auc", {"data": {"name": "proteins"}, "partition": {"name": "graphs_iid"}}),
}


def document(name: str, seed: int, scratch: Path, folds: int = 0) -> dict[str, Any]:
    """The template's settings, for this set.

    scratch: a folder for tables that are made here. folds: of `evaluation.joint_columns`; 0 leaves them out.
    """
    kind = SETS[name]
    settings = tomllib.loads((EXPERIMENTS / f"{kind.template}.toml").read_text())
    data, partition = dict(kind.changes["data"]), dict(kind.changes["partition"])
    if "path" in data:
        data["path"] = str(_laundering(scratch) if name == "amlsim-20k" else _folder() / data["path"])
    else:  # a published set, which is read by its name
        for key in settings["data"].keys() - OF_PUBLISHED:
            del settings["data"][key]
    if "name" in partition:
        settings["partition"] = {key: settings["partition"][key] for key in SHARES & settings["partition"].keys()}
    if settings["partition"].get("name") == "graphs_iid" or "clients" not in partition:
        partition["clients"] = MEMBERS
    settings["data"].pop("owner", None)
    evaluation = {"metric": kind.metric, "shelf": True, "alone": True}
    evaluation["joint_columns"] = 0 if kind.template in UNLABELED else folds
    given = {"data": data, "partition": partition, "evaluation": evaluation}
    for changes in (kind.changes, given):
        for section, values in changes.items():
            kept = {**settings.get(section, {}), **values}
            settings[section] = {key: value for key, value in kept.items() if value is not None}
    return {**settings, "seed": seed, "engine": {"threads": 1}}


def _folder() -> Path:
    return Path(os.environ["FEDWEAVE_DATA"])


def _laundering(scratch: Path) -> Path:
    """The transfers of amlsim-20k as examples: 1 where both accounts are marked."""
    folder, source = scratch / "amlsim-edges", _folder() / "amlsim-20k"
    if not folder.exists():
        folder.mkdir()
        accounts = pq.read_table(source / "nodes.parquet")
        marked = dict(zip(accounts["id"].to_pylist(), accounts["label"].to_pylist(), strict=True))
        transfers = pq.read_table(source / "edges.parquet")
        ends = zip(transfers["source"].to_pylist(), transfers["target"].to_pylist(), strict=True)
        labels = [marked[source] * marked[target] for source, target in ends]
        pq.write_table(
            transfers.drop_columns(["time"]).append_column("label", pa.array(labels)), folder / "edges.parquet"
        )
        pq.write_table(accounts.select(["id"]), folder / "nodes.parquet")
    return folder


def measure(name: str, seed: int, minutes: float, folds: int, scratch: Path) -> list[float]:
    """`COLUMNS` of a run; minutes: 0 for the template as it is."""
    config, kind = document(name, seed, scratch, folds), SETS[name]
    if minutes:
        config = fedweave.tune(config, minutes=minutes, out=str(scratch / f"tune-{name}-{seed}")).config
    began = _processor_seconds()
    summary = fedweave.run(config, out=str(scratch / f"{name}-{seed}-{minutes:g}"), progress=False).summary
    seconds, scores = _processor_seconds() - began, summary["metrics"]
    joint = scores.get(f"best_val/local/{kind.metric}", scores.get(f"local/{kind.metric}", math.nan))
    places = ("alone/local", "shelf/local", "shelf/pooled", "shelf_joint/local")
    others = [scores.get(f"{place}/{kind.metric}", math.nan) for place in places]
    shelf = summary.get("shelf") or {}
    return [
        joint,
        *others,
        seconds,
        float(shelf.get("seconds", math.nan)),
        float(summary.get("alone_seconds") or math.nan),
    ]


def _processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def table(saved: SavedRows, minutes: float) -> Iterator[str]:
    """The page, line by line."""
    how = f"tuned for {minutes:g} minutes" if minutes else "first run"
    yield f"Commit {commit()}; {how}, {MEMBERS} members."
    yield ""
    values = "joint | alone | shelf | shelf, pooled | shelf, with joint columns"
    differences = "joint less shelf | joint less alone | joint columns less shelf"
    yield f"| set | metric | {values} | {differences} | goal |"
    yield f"| {' | '.join(['---'] * 11)} |"
    met = measured = 0
    for name, kind in SETS.items():
        rows = list(saved.by_seed(name, f"{minutes:g}").values())
        if not rows:
            continue
        joint, alone, shelf, pooled, columns, *_ = zip(*rows, strict=True)
        sign = -1 if lower(kind.metric) else 1
        gains = [_differences(*pair, sign) for pair in ((joint, shelf), (joint, alone), (columns, shelf))]
        is_met = bool(gains[0]) and sum(gains[0]) / len(gains[0]) >= (0 if minutes else -0.01)
        met, measured = met + is_met, measured + 1
        values = " | ".join(_mean(column) for column in (joint, alone, shelf, pooled, columns))
        differences = " | ".join(mean_interval(each) if each else "" for each in gains)
        yield f"| {name} | {kind.metric} | {values} | {differences} | {'met' if is_met else 'missed'} |"
    yield ""
    yield f"{met} of {measured} sets meet the goal."


def _mean(values: Sequence[float]) -> str:
    known = [value for value in values if not math.isnan(value)]
    return mean_deviation(known) if known else "-"


def _differences(ours: Sequence[float], others: Sequence[float], sign: int) -> list[float]:
    """By how much ours are better, seed by seed; seeds that one of both lacks are left out."""
    differences = (sign * (one - other) for one, other in zip(ours, others, strict=True))
    return [difference for difference in differences if not math.isnan(difference)]


def main() -> None:
    """Measure what is missing, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sets", nargs="+", choices=SETS, default=list(SETS))
    parser.add_argument("--minutes", type=float, default=0)
    parser.add_argument("--folds", type=int, default=0)
    parser.add_argument("--rows", type=Path, default=Path("shelf.csv"))
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    saved = SavedRows(arguments.rows, ("set", "minutes", "seed"), COLUMNS)
    with tempfile.TemporaryDirectory() as scratch:
        for seed in range(arguments.seeds):
            for name in arguments.sets:
                key = (name, f"{arguments.minutes:g}", str(seed))
                if key not in saved.rows:
                    saved.add(key, measure(name, seed, arguments.minutes, arguments.folds, Path(scratch)))
                    print(*key, *(f"{value:.4g}" for value in saved.rows[key]), flush=True)
    text = "\n".join(table(saved, arguments.minutes)) + "\n"
    print(text)
    if arguments.table:
        arguments.table.write_text(text)


if __name__ == "__main__":
    main()
