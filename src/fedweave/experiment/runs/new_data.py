"""New nodes or graphs, in any form, as the data of a finished run: its columns, classes and scaling."""

import logging
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from fedweave.core.edge_attributes import EdgeAttributes
from fedweave.core.target import LABELS, LOG
from fedweave.core.types import Record, Values
from fedweave.datasets import contents, npz, tu_files
from fedweave.datasets.base import EDGE_ARRAYS, ColumnRange, Dataset, Structure
from fedweave.datasets.check import first, refuse
from fedweave.datasets.column_names import OF_EDGES
from fedweave.datasets.columns import AUTO, TrainingValues
from fedweave.datasets.edges import scaling_rows
from fedweave.datasets.external import EXCHANGE
from fedweave.datasets.features import NORMALIZE, compact
from fedweave.datasets.folder import Folder, Members
from fedweave.datasets.graph_folder import GraphFolder
from fedweave.datasets.lookup import identify, tu_names
from fedweave.datasets.settings import CommonSettings, DataSettings, GraphSettings
from fedweave.datasets.structure import with_places
from fedweave.datasets.table_files import find, read
from fedweave.datasets.targets import Targeted
from fedweave.errors import DataError
from fedweave.experiment.config import Config
from fedweave.experiment.runs.data_form import DataForm, check_targets
from fedweave.partition.preparation import ModelData, model_data

_LOG = logging.getLogger(__name__)


def _settings_of(kind: type) -> set[str]:
    return {field.name for field in fields(kind)}


# Settings that do not affect how new tables are read, because the form of the run's data has what they ask for.
_IN_FORM = {"edge_normalize", "structure", "classes", "labels", "favorable", "sens_feature", "external"}
_IN_FORM |= _settings_of(CommonSettings) | _settings_of(GraphSettings)
_IN_FORM -= {"graph_features", "fingerprint"}  # new tables make these columns again
# Settings that a model keeps: how tables are read, and what new tables are compared by.
_MODEL_SETTINGS = _settings_of(DataSettings) | {"owner", "edge_owner", "unreadable"}
_MODEL_SETTINGS -= _IN_FORM - {"edge_normalize", "targets", "labels"}
_ENCODED = ("label", "degree")  # kinds of columns that are made from the structure of small graphs


@dataclass(frozen=True)
class InputFormat:
    """How new data becomes data of the form that a run was trained on.

    settings: the settings of [data], of a simulation or of a site, by which tables are read. external: see
    `datasets.external.EXTERNAL`. form: as the run recorded it. edge_attrs: the attributes of edges, with any edges or
    none. numbered, kinds: see `DataForm`.
    """

    settings: Values
    external: str
    form: DataForm
    edge_attrs: EdgeAttributes | None
    numbered: bool
    kinds: bool

    @classmethod
    def of_run(cls, config: Config, form: DataForm, data: Dataset) -> "InputFormat":
        """From a run's configuration, its form, and its data as read again."""
        numbered, kinds = not data.columns, data.node_labels is not None
        return cls(config.data.values, config.external, form, data.edge_attrs, numbered, kinds)

    @classmethod
    def of_form(cls, settings: Values, external: str, form: DataForm, ports: bool = False) -> "InputFormat":
        """Without the run's data; ports: whether the model reads edge ports (`edge_settings.has_ports`)."""
        edges, attributes = form.edges, None
        if edges is not None:
            scaling = edges.get("scaling", {})
            numbers = scaling_rows(*(scaling.get(name, ()) for name in ("shift", "divisor", "asinh")))
            attributes = EdgeAttributes.of_form(edges, ports)
            attributes = attributes._replace(columns=tuple(edges.get("columns", ())), scaling=numbers)
        return cls(settings, external, form, attributes, form.numbered, form.kinds)

    def plain(self) -> Record:
        """As JSON, without the place of the data and its partition."""
        settings = {}
        for name, value in self.settings.items():
            if name in _MODEL_SETTINGS and value is not None:
                settings[name] = value
        return {"settings": settings, "external": self.external, "form": asdict(self.form)}

    @classmethod
    def of_plain(cls, record: Record, ports: bool = False) -> "InputFormat":
        """Undo `plain`; ports: see `of_form`."""
        settings = {name: _with_tuples(value) for name, value in record["settings"].items()}
        form: Record = dict(record["form"])
        form["targets"] = check_targets(form["targets"])
        for name in ("columns", "labels"):
            form[name] = tuple(map(str, form[name]))
        return cls.of_form(settings, record["external"], DataForm(**form), ports)

    @property
    def columns(self) -> Sequence[str]:
        """The names of its columns."""
        return self.form.columns or contents.default_names(0, self.form.features)

    @property
    def edge_kinds(self) -> tuple[str, ...]:
        """The kinds of small graphs' edges that are features, in order."""
        columns = () if self.edge_attrs is None else self.edge_attrs.columns
        return tuple(one.value for one in map(contents.column, columns) if one.of == "label")

    @property
    def edge_settings(self) -> Values:
        """The settings by which tables have the attributes of edges that an archive (.npz) had, whose own settings name
        no column: features by their names, and a weight as "edge_weight"."""
        edges, settings = self.form.edges, self.settings
        names_columns = ("directed", "edge_features", "edge_weight", "edge_time", "edge_owner")
        if edges is None or any(settings.get(name) for name in names_columns):
            return {}
        if settings.get("parallel", "keep") != "keep":
            return {}
        columns = (contents.column(name) for name in edges.get("columns", ()))
        names = dict.fromkeys("label" if column.of == "label" else column.name for column in columns)
        features = (tuple(names) or "all") if edges["features"] else None
        weight = next(name for name, field in EDGE_ARRAYS.items() if field == "weight") if edges["weighted"] else None
        result: Record = {"directed": bool(edges["directed"]), "edge_features": features, "edge_weight": weight}
        if self.form.example == "edge":
            result["task"] = "edges"
        elif not (edges["directed"] or features or weight):
            result["loops"] = "refuse"
        return result


def _with_tuples(value: object) -> object:
    """A value of JSON with tuples for its lists, as settings have them."""
    if isinstance(value, dict):
        return {key: _with_tuples(item) for key, item in value.items()}
    return tuple(map(_with_tuples, value)) if isinstance(value, list) else value


def load_new_data(run: InputFormat, path: Path, lenient: bool = False) -> ModelData:
    """The new nodes or graphs at `path`, a folder of tables, of members or in the TU layout, or an .npz file, in the
    form of the run's: the same features in the same order, scaled by what they were then, and the same classes.
    lenient: whether rows may have categories that training did not have; such a row is in none.

    Raises:
        DataError: the data is refused, or has other features or classes; names the column and the remedy.
    """
    try:
        data = _read(run, path, lenient)
    except DataError as error:
        about = (
            "New examples are read by the [data] settings of the run, which stay as they are. Leave columns that it "
            "did not have out of the new tables."
        )
        raise DataError(f"{error}\n{about}", code="data.unlike") from error
    _check_example(data.example, run, path)
    if run.external == EXCHANGE:
        _LOG.warning(
            "note: %s: other members are not asked about new nodes here; what they know counts as nothing", path
        )
    form = run.form
    structure = None
    if form.structure is not None:
        structure = Structure(**{**form.structure, "kinds": tuple(form.structure["kinds"])})
        data = with_places(data, structure.kinds, structure.seed)
    scaling = form.scaling if form.scaling["how"] in NORMALIZE else {"how": "none"}  # as handed to a site

    def arrange(data: Dataset) -> Dataset:
        x = compact(_ordered_features(data, run, path))  # [n, d]
        if form.targets is None:
            y = _class_numbers(data, form, path)
        else:
            y = data.y  # [e, t]
            if data.outputs != form.outputs:
                problem = f"it has {data.target_summary}, and the run {form.outputs}"
                refuse(path, problem, "Give the run's targets, in order.")
        return replace(
            data,
            x=x,
            y=y,
            classes=form.classes,
            labels=tuple(form.labels),
            target_scale=form.target_scale,
            columns=tuple(run.columns),
            structure=structure,
            graph_columns=None if form.graph_columns is None else ColumnRange(**form.graph_columns),
            public=np.zeros((3, data.examples), bool),
        )

    return model_data(_with_ordered_edges(data, run, path), run.external, form.edge_scaling, scaling, arrange)


def _check_example(example: str, run: InputFormat, path: Path) -> None:
    expected = run.form.example
    if example != expected:
        refuse(path, f"it holds {example}s, and the run was trained on {expected}s", f"Give new {expected}s")


def _read(run: InputFormat, path: Path, lenient: bool) -> Dataset:
    """The data at `path`, which need not be labeled; tables get the classes and kinds of the run."""
    form = run.form
    target_settings: Record = {}  # by which numbers or several labels are read again
    if form.targets is not None:
        columns = run.settings.get("targets")
        if not columns and form.targets["kind"] == LABELS:
            columns = run.settings.get("labels")
        log = form.target_scale is not None and bool(form.target_scale[LOG].any())
        targets = None if columns is None else tuple(columns)
        target_settings = {"target": form.targets["kind"], "target_log": log, "targets": targets}

    # 1. An archive, or the TU layout.
    _, kinds = identify(path, ())
    if "npz" in kinds:
        loops = "refuse" if run.edge_attrs is None else "keep"
        return npz.read(path, path.stem, labelled=False, loops=loops, target=Targeted(**target_settings))
    if "tu" in kinds:
        attributes = any(name.startswith("attribute ") for name in run.columns)
        target, with_kinds = Targeted(**target_settings), bool(run.edge_kinds)
        return tu_files.read(
            path, tu_names(path)[0], attributes, labelled=False, target=target, edge_features=with_kinds
        )

    # 2. A folder of tables: those of the run's settings that its kind has.
    kind: type[Folder | GraphFolder]
    if "graphs" in kinds or (form.example == "graph" and not kinds):
        kind, example = GraphFolder, "graph"
    else:
        kind = Members if "parties" in kinds else Folder
        example = "edge" if form.example == "edge" else "node"
    _check_example(example, run, path)
    names = _settings_of(kind)
    options: Record = {name: value for name, value in run.settings.items() if name in names - _IN_FORM}
    if "external" in names:
        options["external"] = run.external
    if kind is Members:
        owner = options.pop("owner", None)
        if owner:  # a column that the folders of members stand in for
            options["ignore"] = (*(options.get("ignore") or ()), owner)
    options |= {name: value for name, value in run.edge_settings.items() if name in names}

    # 3. What the run's columns, classes and targets determine.
    if options.get("categories"):
        options["categories"] = {of: _categories(of, values, run) for of, values in options["categories"].items()}
    elif any(path.glob("nodes.*")):
        options["categories"] = _text_columns(run.columns, read(find(path, "nodes")).columns)
    if lenient and options.get("categories"):
        options["categories"] = {of: TrainingValues(values) for of, values in options["categories"].items()}
    if kind is GraphFolder:
        columns_of_run = [contents.column(name) for name in run.columns]
        labels = tuple(column.value for column in columns_of_run if column.of == "label")
        degrees = sum(column.of == "degree" for column in columns_of_run)
        if labels:
            options["node_labels"] = labels
        if degrees:
            options["degrees"] = degrees
        if run.edge_kinds and f"{OF_EDGES}label" not in (options.get("categories") or {}):
            options["edge_labels"] = run.edge_kinds
    if form.targets is not None:
        options |= target_settings
    elif form.labels:
        options["labels"] = tuple(form.labels)
    else:
        options["classes"] = form.classes
    return kind(sens_feature=True, **options).load(path, 0, labelled=False)


def _categories(of: str, values: object, run: InputFormat) -> object:
    """The categories of a column; for those taken from training rows, the values that the run's columns have."""
    if values != AUTO:
        return values
    column = of.removeprefix(OF_EDGES)
    names = run.columns
    if column != of:
        names = () if run.edge_attrs is None else run.edge_attrs.columns
    return TrainingValues(one.value for one in map(contents.column, names) if one.of == column)


def _text_columns(names: Sequence[str], columns: Sequence[str]) -> dict[str, tuple[str, ...]] | None:
    """The values of the columns of text among `columns` for which the run had a column."""
    values: dict[str, tuple[str, ...]] = {}
    for one in map(contents.column, names):
        if one.kind == "category" and one.of in columns:
            values[one.of] = (*values.get(one.of, ()), one.value)
    return values or None


def _with_ordered_edges(data: Dataset, run: InputFormat, path: Path) -> Dataset:
    """The `data` with features of edges, not scaled, in the run's order; kinds of edges are left out where the run has
    none among them. Data without edges needs no columns of them.

    Raises:
        DataError: they have other edge attributes.
    """
    expected, attributes = run.edge_attrs, data.edge_attrs
    if expected is None or (attributes is None and not expected.width and expected.weight is None):
        return replace(data, edge_attrs=None)
    if not data.edges.shape[1] and (attributes is None or not attributes.total) and not expected.examples:
        nothing = expected.select(np.arange(0))._replace(scaling=(), split_times=None, auto=False)
        return replace(data, edge_attrs=nothing)
    remedy = f"Give edges with {', '.join(expected.columns) or f'{expected.width} features'}, as the run's have"
    has_weight = expected.weight is not None
    is_named = attributes is not None and bool(attributes.columns) and bool(expected.columns or not expected.width)
    same_width = is_named or (attributes is not None and attributes.width == expected.width)
    if attributes is None or not same_width or (attributes.weight is not None) != has_weight:
        refuse(path, "edges have other features or weights than those that the run was trained on", remedy)
    attributes = attributes._replace(ports=expected.ports)
    if not is_named or expected.columns == attributes.columns:
        return replace(data, edge_attrs=attributes)
    names = list(attributes.columns)
    if "label" not in _encoded_kinds(expected.columns):
        names = ["" if contents.column(name).kind == "label" else name for name in names]

    def reorder(attributes: EdgeAttributes) -> EdgeAttributes:
        if attributes.features is None or not expected.columns:
            return attributes._replace(features=None, columns=expected.columns)
        features = _in_order(attributes.features, names, expected.columns, path, "edges")
        return attributes._replace(features=np.ascontiguousarray(features), columns=expected.columns)

    outside = None if data.outside is None else data.outside._replace(edge_attrs=reorder(data.outside.edge_attrs))
    return replace(data, edge_attrs=reorder(attributes), outside=outside)


def _ordered_features(data: Dataset, run: InputFormat, path: Path) -> np.ndarray | sp.csr_matrix:
    """The features of `data` in the run's order [n, d]."""
    return _in_order(data.x, _column_names(data, run, path), run.columns, path, "nodes")


def _in_order(
    x: np.ndarray | sp.csr_matrix, names: Sequence[str], expected: Sequence[str], path: Path, of: str
) -> np.ndarray | sp.csr_matrix:
    """The columns of x [m, d] with these `names` as those that are `expected`; one-hot columns that no row needs may be
    lacking. A column "" is left out. of: what the rows are, "nodes" or "edges".

    Raises:
        DataError: a column is lacking, or there is another one; names it.
    """
    encoded_in_run, encoded_here = _encoded_kinds(expected), _encoded_kinds(names)
    places = {name: place for place, name in enumerate(names)}
    for name in expected:
        if name not in places and contents.column(name).kind not in encoded_here:
            what = f"{of} lack the feature column {name!r} that the run was trained on"
            refuse(path, what, f"Give every column of {', '.join(expected)}")
    unexpected = places.keys() - {*expected, ""}
    for name in names:
        if name not in unexpected:
            continue
        if contents.column(name).kind not in encoded_in_run or (x[:, [places[name]]] != 0).sum():
            what = f"the run was trained without the feature column {name!r} of {of}"
            refuse(path, what, f"Remove it; the columns were {', '.join(expected)}")
    zeros = np.zeros((x.shape[0], 1), np.float32)  # for the columns that are lacking
    wide = np.hstack([x, zeros]) if isinstance(x, np.ndarray) else sp.hstack([x, zeros], "csr")
    return wide[:, [places.get(name, len(names)) for name in expected]]


def _encoded_kinds(names: Sequence[str]) -> set[str]:
    return {contents.column(name).kind for name in names} & {*_ENCODED}


def _column_names(data: Dataset, run: InputFormat, path: Path) -> list[str]:
    """The names of the columns of `data` in the run: columns without names, here or there, are taken in order; ""
    for one that encodes nodes' labels, where these were known to the run and no features."""
    expected = run.columns
    if not data.columns:
        _check_count(data.features, len(expected), path)
        if not run.numbered:
            _LOG.warning("note: %s: its columns have no names and are taken in the run's order", path)
        return list(expected)
    names, labels_are_features = list(data.columns), "label" in _encoded_kinds(expected)
    if run.kinds and not labels_are_features:
        names = ["" if contents.column(name).kind == "label" else name for name in names]
    if run.numbered and labels_are_features:
        _LOG.warning("note: %s: labels of nodes are taken as the numbers from 0 that they are in the run's data", path)
    free = [name for name in names if name and contents.column(name).kind not in _ENCODED]
    free_in_run = [name for name in expected if name and contents.column(name).kind not in _ENCODED]
    if not any(map(contents.is_default_name, (*free, *free_in_run))):
        return names
    _check_count(len(free), len(free_in_run), path)
    name_in_run = dict(zip(free, free_in_run, strict=True))
    return [name_in_run.get(name, name) for name in names]


def _check_count(features: int, expected: int, path: Path) -> None:
    if features != expected:
        count = f"nodes have {features} feature columns, and the run was trained on {expected}"
        refuse(path, count, "Give the same ones in the same order")


def _class_numbers(data: Dataset, form: DataForm, path: Path) -> np.ndarray:
    """int64 [e]: the labels of `data` as places among the run's classes, -1 where there is none."""
    classes = list(form.labels or map(str, range(form.classes)))
    if not data.labels and path.is_file():
        names: Sequence[str] = classes  # an archive's numbers are places, even if classes have names
    else:
        names = data.labels or [str(number) for number in range(data.classes)]
    unknown = -2
    places = np.array([classes.index(name) if name in classes else unknown for name in names] + [unknown], np.int64)
    y = np.where(data.y < 0, -1, places[np.minimum(data.y, len(places) - 1)])
    row = first(y == unknown)
    if row is not None:
        name = names[data.y[row]] if data.y[row] < len(names) else data.y[row]
        refuse(path, f"{data.example} {row}: label {str(name)!r} is none of {', '.join(classes)}", "Correct it")
    return y
