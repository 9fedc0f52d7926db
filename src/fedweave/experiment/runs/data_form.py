"""The names of a run's columns and classes, and how its data is scaled: one record for all forms of data.

The run's directory has it, and `predict` and `export` read it.
"""

import json
import logging
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from fedweave import datasets
from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.target import CLASS, LABELS, LOG, NUMBER
from fedweave.core.types import Record, Values
from fedweave.datasets import contents, npz, tu_files
from fedweave.datasets.base import EDGE_ARRAYS, Dataset
from fedweave.datasets.check import first, refuse
from fedweave.datasets.column_names import OF_EDGES
from fedweave.datasets.columns import AUTO, TrainingValues
from fedweave.datasets.external import EXCHANGE, WIDENING
from fedweave.datasets.features import BY_NODES, NORMALIZE, OVER_NODES, compact, scaling
from fedweave.datasets.folder import Folder, Members
from fedweave.datasets.graph_folder import GraphFolder
from fedweave.datasets.lookup import identify, tu_names
from fedweave.datasets.settings import CommonSettings, DataSettings, GraphSettings
from fedweave.datasets.table_files import find, read
from fedweave.datasets.targets import Targeted
from fedweave.errors import DataError
from fedweave.experiment.config import Config
from fedweave.experiment.loading import client_partition, load_data, read_and_cut
from fedweave.experiment.runs.files import COLUMNS, damage_error, read_table, write_table
from fedweave.partition.base import Partition
from fedweave.partition.preparation import ModelData, model_data, numbers_of
from fedweave.partition.scaling import of_typical

_ABOUT = b"form"  # metadata of the table: JSON of what is not of a single column
_FACTS = ("numbered", "kinds")  # of a `DataForm`


@dataclass(frozen=True)
class DataForm:
    """The form of the data that a model takes.

    columns, labels: names of the features and of the classes in order; () where they have none, or where only sites
    know them. example: "node", "graph" or "edge". scaling: of the features, "how", and where that depends on the run's
    nodes "shift" and "divisor" of every column; the divisor is None for columns that become 0. edges: their attributes,
    `Dataset.edge_form` and, where they are known, their features' "columns" and "scaling"; None without edge
    attributes. targets: of numbers or several labels their "kind", "names" and, of numbers, the "scale" of a model's
    outputs, three rows (`Dataset.target_scale`); None of classes, and where only sites know it. numbered: the data
    named no column, so that `columns` follow from what they hold. kinds: nodes have kinds.
    """

    features: int
    classes: int
    columns: Sequence[str]
    labels: Sequence[str]
    example: str
    scaling: Record
    edges: Record | None = None
    targets: Record | None = None
    numbered: bool = False
    kinds: bool = False

    @property
    def outputs(self) -> int:
        """How many numbers a model gives for each example."""
        return self.classes if self.targets is None else int(self.targets["outputs"])

    @property
    def target_scale(self) -> np.ndarray | None:
        """float64 [3, t], the units of a model's outputs where these are numbers."""
        return None if self.targets is None or "scale" not in self.targets else np.array(self.targets["scale"])

    @property
    def edge_scaling(self) -> Record:
        """How features of edges are scaled, by the numbers of training."""
        scaling: Record = {} if self.edges is None else self.edges.get("scaling", {})
        how = scaling.get("how", "none")
        if how not in NORMALIZE or (how in OVER_NODES and "shift" not in scaling):
            return {**scaling, "how": "none"}  # as they are handed to a site; or training had no edges
        return scaling


def targets_form(data: Dataset) -> Record | None:
    """`DataForm.targets` of `data`."""
    if data.target == CLASS:
        return None
    about: Record = {"kind": data.target, "outputs": data.outputs, "names": list(data.targets)}
    return about | ({} if data.target_scale is None else {"scale": data.target_scale.tolist()})


def form_of(data: Dataset, how: str, raw: object = None, edges: str = "none") -> DataForm:
    """The form of `data`, which is scaled as `how` says, and features of its edges as `edges`; raw: its features [n, d]
    as they were before, where that depends on the nodes."""
    names = contents.names(data)
    columns = () if all(map(contents.is_default_name, names)) else names
    edge_form = None if data.edge_attrs is None else {**data.edge_form, **_of_edges(data.edge_attrs, edges)}
    facts_of_data = data.features, data.classes, columns, data.labels, data.example
    facts = not data.columns, data.node_labels is not None
    return DataForm(*facts_of_data, numbers(raw, how), edge_form, targets_form(data), *facts)


def _of_edges(attributes: EdgeAttributes, how: str) -> Record:
    return {"columns": list(attributes.columns), "scaling": numbers_of(attributes, how)}


def numbers(x: object, how: str) -> Record:
    """`DataForm.scaling` of features x [n, d], as they are."""
    if how not in BY_NODES:
        return {"how": how}
    return scaling_record(how, *scaling(x, how))


def scaling_record(how: str, shift: np.ndarray, divisor: np.ndarray) -> Record:
    """`DataForm.scaling` by these numbers."""
    finite = [value if math.isfinite(value) else None for value in divisor.tolist()]
    return {"how": how, "shift": shift.tolist(), "divisor": finite}


def form_of_config(config: Config, data: Dataset, partition: Partition) -> DataForm:
    """The form of the `data` that a configuration names. Where every client of the `partition` scales by its own nodes,
    the numbers are a typical client's (`of_typical`)."""
    how = config.data.values.get("normalize", "none")
    of_edges = config.data.values.get("edge_normalize", "none")
    if data.scaling != "none" and any(part.columns is not None for part in partition.parts):
        return form_of(data, "none", None, of_edges)
    if data.scaling != "none":
        seen = client_partition(config.algorithm, partition, data)
        return replace(
            form_of(data, "none", None, of_edges), scaling=scaling_record(data.scaling, *of_typical(data, seen))
        )
    return form_of(data, how, unscaled(config) if how in BY_NODES else None, of_edges)


def unscaled(config: Config) -> np.ndarray | sp.csr_matrix:
    """The features of the run's data as they are, without rows of what the run forgets."""
    if config.external in WIDENING:
        return load_data(config, with_scaling=False)[0].x
    raw = {**config.data.values, "normalize": "none"}
    if config.forget is not None:
        rest = config.forget.apply(*read_and_cut(replace(config, forget=None), raw))
        return rest.data.x[rest.nodes]
    return datasets.read(config.data.name, path=config.folder, seed=config.general.seed, **raw).x


def write_form(directory: Path, form: DataForm) -> None:
    """Write columns.parquet: a row for each column, its name, kind and value (`datasets.contents`), shift, divisor."""
    columns = [contents.column(name) for name in form.columns or contents.default_names(0, form.features)]
    empty = [None] * form.features
    table = pa.table(
        {
            "column": pa.array([column.name for column in columns], pa.string()),
            "kind": pa.array([column.kind for column in columns], pa.string()),
            "value": pa.array([None if column.kind == "number" else column.value for column in columns], pa.string()),
            **{key: pa.array(form.scaling.get(key, empty), pa.float64()) for key in ("shift", "divisor")},
        }
    )
    about = {"classes": form.classes, "labels": list(form.labels), "example": form.example, "how": form.scaling["how"]}
    about |= {} if form.edges is None else {"edges": form.edges}
    about |= {} if form.targets is None else {"targets": form.targets}
    about |= {fact: True for fact in _FACTS if getattr(form, fact)}
    write_table(directory / COLUMNS, table.replace_schema_metadata({_ABOUT: json.dumps(about)}))


def read_form(directory: Path) -> DataForm | None:
    """The form of the data of the run in `directory`; None where an earlier version made it.

    Raises:
        FedweaveError: the file is damaged.
    """
    path = directory / COLUMNS
    if not path.exists():
        return None
    table = read_table(directory, COLUMNS)
    try:
        about = json.loads((table.schema.metadata or {})[_ABOUT])
        names, how = table["column"].to_pylist(), about["how"]
        numbers_of_scaling = {key: table[key].to_pylist() for key in ("shift", "divisor")} if how in BY_NODES else {}
        columns = () if all(map(contents.is_default_name, names)) else tuple(names)
        labels, example = tuple(map(str, about["labels"])), about["example"]
        if example not in ("node", "graph", "edge") or len(labels) not in (0, about["classes"]):
            raise ValueError(
                f"it is of {example}s of {about['classes']} classes, and has {len(labels)} names of classes"
            )
        scaling = {"how": how, **numbers_of_scaling}
        more = about.get("edges"), _read_targets(about.get("targets")), *(about.get(fact) is True for fact in _FACTS)
        return DataForm(len(names), about["classes"], columns, labels, example, scaling, *more)
    except (ValueError, KeyError, TypeError) as error:
        raise damage_error(path, f"{type(error).__name__} {error}") from error


def _read_targets(record: Record | None) -> Record | None:
    """`DataForm.targets` as a file has it.

    Raises:
        ValueError, KeyError, TypeError: it is none.
    """
    if record is None:
        return None
    number, names, scale = record["kind"] == NUMBER, record["names"], np.array(record.get("scale", []), np.float64)
    fits = scale.shape == (3, record["outputs"]) and np.isfinite(scale).all() if number else "scale" not in record
    if record["kind"] not in (NUMBER, LABELS) or len(names) not in (0, record["outputs"]) or not fits:
        raise ValueError(f"its targets are {record}")
    return record


# ----------------------------------------------------------------------------------------------------
# New nodes or graphs, in any form, as the data of a finished run: its columns, classes and scaling.


_LOG = logging.getLogger(__name__)
# Settings that do not affect how new tables are read: the form that the run noted has what they ask for.
_NOTED = {
    *(field.name for field in fields(CommonSettings)),
    *("edge_normalize", "classes", "labels", "favorable", "sens_feature", "external"),
    *(field.name for field in fields(GraphSettings)),
}
# Settings that a model keeps: how tables are read, and what new tables are compared by.
_MODEL_SETTINGS = {field.name for field in fields(DataSettings)} | {"owner", "edge_owner", "unreadable"}
_MODEL_SETTINGS -= _NOTED - {"edge_normalize", "targets", "labels"}
_ENCODED = ("label", "degree")  # kinds of columns that are made from the structure of small graphs


@dataclass(frozen=True)
class Before:
    """How new data becomes data of the form that a run was trained on.

    settings: the settings of [data], of a simulation or of a site, by which tables are read. external: see
    `datasets.external.EXTERNAL`. form: as the run noted it. edge_attrs: the edge attributes, any or none of them.
    numbered, kinds: see `DataForm`.
    """

    settings: Values
    external: str
    form: DataForm
    edge_attrs: EdgeAttributes | None
    numbered: bool
    kinds: bool

    @classmethod
    def of_run(cls, config: Config, form: DataForm, data: Dataset) -> "Before":
        """From a run's configuration, its form, and its data as read again."""
        facts = data.edge_attrs, not data.columns, data.node_labels is not None
        return cls(config.data.values, config.external, form, *facts)

    @classmethod
    def noted(cls, settings: Values, external: str, form: DataForm, ports: bool = False) -> "Before":
        """Only from what the run noted; ports: whether the model reads edge ports (`edge_settings.has_ports`)."""
        edges, attributes = form.edges, None
        if edges is not None:
            scaling = edges.get("scaling", {})
            pairs = zip(scaling.get("shift", ()), (by or 0.0 for by in scaling.get("divisor", ())), strict=True)
            attributes = EdgeAttributes.of_form(edges, ports)
            attributes = attributes._replace(columns=tuple(edges.get("columns", ())), scaling=tuple(pairs))
        return cls(settings, external, form, attributes, form.numbered, form.kinds)

    def plain(self) -> Record:
        """As JSON, without the place of the data and its partition."""
        settings = {
            name: value for name, value in self.settings.items() if name in _MODEL_SETTINGS and value is not None
        }
        return {"settings": settings, "external": self.external, "form": asdict(self.form)}

    @classmethod
    def of_plain(cls, record: Record, ports: bool = False) -> "Before":
        """Undo `plain`; ports: see `noted`."""
        settings = {name: _frozen(value) for name, value in record["settings"].items()}
        form = {**record["form"], "targets": _read_targets(record["form"]["targets"])}
        lists = {name: tuple(map(str, form[name])) for name in ("columns", "labels")}
        return cls.noted(settings, record["external"], DataForm(**(form | lists)), ports)

    @property
    def columns(self) -> Sequence[str]:
        """The names of its columns."""
        return self.form.columns or contents.default_names(0, self.form.features)

    @property
    def edge_settings(self) -> Values:
        """The settings by which tables have the attributes of edges that an archive (.npz) had, whose own settings name
        no column: features by their names, and a weight as "edge_weight"."""
        edges, settings = self.form.edges, self.settings
        if edges is None or any(settings.get(name) for name in ("directed", "edge_features", "edge_weight")):
            return {}
        if settings.get("edge_time") or settings.get("edge_owner") or settings.get("parallel", "keep") != "keep":
            return {}
        features = (tuple(edges.get("columns", ())) or "all") if edges["features"] else None
        weight = next(name for name, field in EDGE_ARRAYS.items() if field == "weight") if edges["weighted"] else None
        attributes = bool(edges["directed"] or features or weight) or self.form.example == "edge"
        more = {"task": "edges"} if self.form.example == "edge" else {}
        loops = {} if attributes else {"loops": "refuse"}
        return {"directed": bool(edges["directed"]), "edge_features": features, "edge_weight": weight, **more, **loops}


def _frozen(value: object) -> object:
    """A value of JSON with tuples for its lists, as settings have them."""
    if isinstance(value, dict):
        return {key: _frozen(below) for key, below in value.items()}
    return tuple(map(_frozen, value)) if isinstance(value, list) else value


def like(before: Before, path: Path) -> Dataset:
    """The new nodes or graphs at `path` as the run's models read them; see `prepare`."""
    return prepare(before, path).data


def prepare(before: Before, path: Path, lenient: bool = False) -> ModelData:
    """The new nodes or graphs at `path`, a folder of tables, of members or in the TU layout, or an .npz file, in the
    form of the run's: the same features in the same order, scaled by what they were then, and the same classes.
    lenient: whether rows may have categories that training did not have; such a row is in none.

    Raises:
        DataError: the data is refused, or has other features or classes; names the column and the remedy.
    """
    try:
        data = _read(before, path, lenient)
    except DataError as error:
        about = "New examples are read by the [data] settings of the run, which stay as they are."
        raise DataError(f"{error}\n{about}", code="data.unlike") from error
    _check_example(data.example, before, path)
    if before.external == EXCHANGE:
        _LOG.warning(
            "note: %s: other members are not asked about new nodes here; what they know counts as nothing", path
        )
    form = before.form
    scaling = form.scaling if form.scaling["how"] in NORMALIZE else {"how": "none"}  # as handed to a site

    def arrange(data: Dataset) -> Dataset:
        return replace(
            data,
            x=compact(_matched(data, before, path)),
            y=_classes(data, form, path) if form.targets is None else _targets(data, form, path),
            classes=form.classes,
            labels=tuple(form.labels),
            target_scale=form.target_scale,
            columns=tuple(before.columns),
            public=np.zeros((3, data.examples), bool),
        )

    return model_data(_with_edges_in_order(data, before, path), before.external, form.edge_scaling, scaling, arrange)


def _with_edges_in_order(data: Dataset, before: Before, path: Path) -> Dataset:
    """The `data` with features of edges, not scaled, in the order of those `before`.

    Raises:
        DataError: they have other edge attributes.
    """
    was, now = before.edge_attrs, data.edge_attrs
    if was is None or (now is None and not was.width and was.weight is None):
        return replace(data, edge_attrs=None)
    remedy = f"Give edges with {', '.join(was.columns) or f'{was.width} features'}, as the run's have"
    if now is None or now.width != was.width or (was.weight is None) != (now.weight is None):
        refuse(path, "edges have other features or weights than those that the run was trained on", remedy)
    now = now._replace(ports=was.ports)
    if not was.columns or not now.columns or was.columns == now.columns:
        return replace(data, edge_attrs=now)
    if sorted(was.columns) != sorted(now.columns):
        refuse(path, f"the features of edges are {', '.join(now.columns)}", remedy)
    order = [now.columns.index(name) for name in was.columns]

    def ordered(attributes: EdgeAttributes) -> EdgeAttributes:
        features = None if attributes.features is None else np.ascontiguousarray(attributes.features[:, order])
        return attributes._replace(features=features, columns=was.columns)

    outside = None if data.outside is None else data.outside._replace(edge_attrs=ordered(data.outside.edge_attrs))
    return replace(data, edge_attrs=ordered(now), outside=outside)


def _read(before: Before, path: Path, lenient: bool) -> Dataset:
    """The data at `path`, which need not be labeled; tables get the classes and kinds of the run."""
    form, (_, kinds) = before.form, identify(path, ())
    targets = _target_settings(before)
    if "npz" in kinds:
        loops = "refuse" if before.edge_attrs is None else "keep"
        return npz.read(path, path.stem, labelled=False, loops=loops, target=Targeted(**targets))
    if "tu" in kinds:
        attributes = any(name.startswith("attribute ") for name in before.columns)
        return tu_files.read(path, tu_names(path)[0], attributes, labelled=False, target=Targeted(**targets))
    settings: Record = {"labels": tuple(form.labels)} if form.labels else {"classes": form.classes}
    settings = settings if form.targets is None else targets
    of_graphs = "graphs" in kinds or (form.example == "graph" and not kinds)
    _check_example("graph" if of_graphs else "edge" if form.example == "edge" else "node", before, path)
    kind = GraphFolder if of_graphs else Members if "parties" in kinds else Folder
    kind_settings = {field.name for field in fields(kind)}
    options = {name: value for name, value in before.settings.items() if name in kind_settings - _NOTED}
    if "external" in kind_settings:
        options["external"] = before.external
    if kind is Members and (owner := options.pop("owner", None)):  # a column that its folders stand in for
        options["ignore"] = (*(options.get("ignore") or ()), owner)
    options |= {name: value for name, value in before.edge_settings.items() if name in kind_settings}
    if options.get("categories"):
        options["categories"] = {of: _seen(of, values, before) for of, values in options["categories"].items()}
    elif any(path.glob("nodes.*")):
        options["categories"] = _categories(before.columns, read(find(path, "nodes")).columns)
    if lenient and options.get("categories"):
        options["categories"] = {of: TrainingValues(values) for of, values in options["categories"].items()}
    encoded = _encoded(before) if kind is GraphFolder else {}
    return kind(sens_feature=True, **settings, **encoded, **options).load(path, 0, labelled=False)


def _target_settings(before: Before) -> Record:
    """The settings by which the run's numbers or labels are read again."""
    form, values = before.form, before.settings
    if form.targets is None:
        return {}
    log = form.target_scale is not None and bool(form.target_scale[LOG].any())
    columns = values.get("targets") or (values.get("labels") if form.targets["kind"] == LABELS else None)
    return {"target": form.targets["kind"], "target_log": log, "targets": None if columns is None else tuple(columns)}


def _targets(data: Dataset, form: DataForm, path: Path) -> np.ndarray:
    """The numbers or labels [e, t] of `data`, checked against the run's."""
    if data.outputs != form.outputs:
        refuse(path, f"it has {data.target_summary}, and the run {form.outputs}", "Give the run's targets, in order.")
    return data.y


def _seen(of: str, values: object, before: Before) -> object:
    """The categories of a column; for those taken from training rows, the values that the run's columns have."""
    if values != AUTO:
        return values
    attributes, bare = before.edge_attrs, of.removeprefix(OF_EDGES)
    names = before.columns if bare == of else () if attributes is None else attributes.columns
    return TrainingValues(one.value for one in map(contents.column, names) if one.of == bare)


def _check_example(example: str, before: Before, path: Path) -> None:
    if example != (expected := before.form.example):
        refuse(path, f"it holds {example}s, and the run was trained on {expected}s", f"Give new {expected}s")


def _categories(names: Sequence[str], columns: Sequence[str]) -> dict[str, tuple[str, ...]] | None:
    """The values of the columns of text among `columns` for which the run had a column."""
    values: dict[str, list[str]] = {}
    for one in map(contents.column, names):
        if one.kind == "category" and one.of in columns:
            values.setdefault(one.of, []).append(one.value)
    return {of: tuple(column_values) for of, column_values in values.items()} or None


def _encoded(before: Before) -> Record:
    """The one-hot columns of small graphs, as settings."""
    columns = [contents.column(name) for name in before.columns]
    labels, degrees = ([one.value for one in columns if one.of == of] for of in _ENCODED)
    return ({"node_labels": tuple(labels)} if labels else {}) | ({"degrees": len(degrees)} if degrees else {})


def _matched(data: Dataset, before: Before, path: Path) -> "np.ndarray | sp.csr_matrix":
    """The features of `data` in the order of those `before`; one-hot columns that no node needs may be lacking."""
    expected, have = before.columns, _called(data, before, path)
    kinds, kinds_here = ({contents.column(name).kind for name in names} & {*_ENCODED} for names in (expected, have))
    place = {name: at for at, name in enumerate(have)}
    for name in expected:
        if name not in place and contents.column(name).kind not in kinds_here:
            what = f"nodes lack the feature column {name!r} that the run was trained on"
            refuse(path, what, f"Give every column of {', '.join(expected)}")
    more = place.keys() - {*expected, ""}
    for name in (name for name in have if name in more):
        if contents.column(name).kind not in kinds or (data.x[:, [place[name]]] != 0).sum():
            what = f"the run was trained without the feature column {name!r} of nodes"
            refuse(path, what, f"Remove it; the columns were {', '.join(expected)}")
    nothing = np.zeros((data.nodes, 1), np.float32)
    wide = np.hstack([data.x, nothing]) if isinstance(data.x, np.ndarray) else sp.hstack([data.x, nothing], "csr")
    return wide[:, [place.get(name, data.features) for name in expected]]


def _called(data: Dataset, before: Before, path: Path) -> list[str]:
    """The names of the columns of `data` in the run: columns without names, here or there, are taken in order; ""
    for one that encodes nodes' labels, where these were known to the run and no features."""
    expected, numbered = before.columns, before.numbered
    if not data.columns:
        _check_count(data.features, len(expected), path)
        if not numbered:
            _LOG.warning("note: %s: its columns have no names and are taken in the run's order", path)
        return list(expected)
    have, labels = list(data.columns), any(contents.column(name).kind == "label" for name in expected)
    if before.kinds and not labels:
        have = ["" if contents.column(name).kind == "label" else name for name in have]
    if numbered and labels:
        _LOG.warning("note: %s: labels of nodes are taken as the numbers from 0 that they are in the run's data", path)
    free, run_names = (
        [name for name in names if name and contents.column(name).kind not in _ENCODED] for names in (have, expected)
    )
    if not any(map(contents.is_default_name, (*free, *run_names))):
        return have
    _check_count(len(free), len(run_names), path)
    order = dict(zip(free, run_names, strict=True))
    return [order.get(name, name) for name in have]


def _check_count(features: int, expected: int, path: Path) -> None:
    if features != expected:
        count = f"nodes have {features} feature columns, and the run was trained on {expected}"
        refuse(path, count, "Give the same ones in the same order")


def _classes(data: Dataset, form: DataForm, path: Path) -> np.ndarray:
    """int64 [e]: the labels of `data` as places among the run's classes, -1 where there is none."""
    classes = list(form.labels or map(str, range(form.classes)))
    numbered = not data.labels and path.is_file()  # an archive's numbers are places, even if classes have names
    names = classes if numbered else data.labels or [str(number) for number in range(data.classes)]
    places = np.array([classes.index(name) if name in classes else -2 for name in names] + [-2], np.int64)
    y = np.where(data.y < 0, -1, places[np.minimum(data.y, len(places) - 1)])
    if (row := first(y == -2)) is not None:
        name = names[data.y[row]] if data.y[row] < len(names) else data.y[row]
        refuse(path, f"{data.example} {row}: label {str(name)!r} is none of {', '.join(classes)}", "Correct it")
    return y
