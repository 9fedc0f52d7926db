"""Experiments between sites: use a simulation's configuration for sites, partition its data into sites' folders for
trials and tests, and report the run to observers."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pyarrow as pa
import scipy.sparse as sp

from fedweave.core.ledger import Ledger
from fedweave.core.links import Links
from fedweave.core.text import counted
from fedweave.core.types import CLASS, NUMBER, Record
from fedweave.datasets import npz
from fedweave.datasets.base import Dataset
from fedweave.datasets.external import EXCHANGE, REFUSE
from fedweave.datasets.features import by_holder
from fedweave.datasets.leakage import has_sensitive_feature
from fedweave.datasets.links import TASK as LINKS
from fedweave.datasets.links import by_relation
from fedweave.datasets.structure import filled
from fedweave.errors import ConfigError, UserError
from fedweave.experiment.config import Config, Document, parameters, registry, resolve
from fedweave.experiment.loading import add_external_columns, read_and_cut
from fedweave.experiment.requirements import check
from fedweave.experiment.runs.checkpoint import Checkpoint
from fedweave.experiment.runs.files import LEDGER, RUN, read_table
from fedweave.experiment.runs.run import RunObserver
from fedweave.experiment.runs.saving import Ready
from fedweave.experiment.stages import Configured
from fedweave.partition.base import Partition, client_ids
from fedweave.partition.client_data import global_test_part, shares
from fedweave.partition.external import outside_edges, with_ids
from fedweave.partition.preparation import with_scaled_edges
from fedweave.sites.flare.requests import SERVER
from fedweave.sites.flare.sitefile import FINE, LEARNED, SITE_FILE, read_site_file, write_site_file
from fedweave.sites.operation.running import number_of

DATA, TEST = "data.npz", "test.npz"


def split(config: Config, sites: tuple[str, ...]) -> tuple[Dataset, Partition]:
    """The configuration's data and its partition into one part per site.

    Raises:
        UserError: the partition has another number of clients, a site has the name of another part's party, or the
            configuration adds noise to the data.
    """
    if config.noise is not None:
        raise UserError("noise: applies only to simulations; sites get the data without noise. Remove [noise].")
    values = config.data.values
    if config.external != REFUSE and "normalize" in values:
        values = values | {"normalize": "none"}  # each site scales all its columns together
    data, partition = read_and_cut(config, values)
    if len(partition.parts) != len(sites):
        more = f"add --set partition.clients={len(sites)}, or " if "clients" in config.partition.values else ""
        remedy = f"--sites {','.join(partition.names)}" if partition.names else f"{len(partition.parts)} --sites"
        raise UserError(
            f"the partition makes {counted(len(partition.parts), 'client')} for {counted(len(sites), 'site')}; "
            f"{more}give {remedy}."
        )
    names = partition.names or sites
    pairs = zip(sites, names, strict=True)
    wrong = [f"{site} the data of {name}" for site, name in pairs if site != name in sites]
    if wrong:
        raise UserError(
            f"the sites would get each other's data ({', '.join(wrong)}): give --sites {','.join(names)}.",
            code="user.sites",
        )
    return data, partition


def unknown_to_server(config: Config, data: Dataset) -> list[str]:
    """Settings, as TOML, that a simulation reads from the data, and that a server of sites needs in the experiment."""
    if not isinstance(config.evaluation.positive, str):
        return []
    return [f"[evaluation] positive = {config.evaluation.of(data.labels, data.classes).positive}"]


def _links(links: Links) -> Record:
    """The settings of link prediction for a site.toml. The split is in the data."""
    kinds = {} if links.items is None else {"users": links.users, "items": links.items}
    return {"task": LINKS, **kinds, **({} if links.relation else {"relation": False})}


def hand_out(
    data: Dataset, partition: Partition, project: Path, sites: tuple[str, ...], config: Config | None = None
) -> None:
    """Write a part into each site's folder, and the global test graph, if there is one, into the server's folder and
    every site's. The server's folder also gets the other graphs of the server.

    In a vertical partition, a site gets its columns, its edges, the split and, if it sees them, the labels. A site gets
    only the ids of its own examples and, if `config` uses edges between sites, of the nodes that its edges lead to.

    Raises:
        ConfigError: sites do not support the scaling of the target, or a global test of links.
    """
    if data.target_scaling == "all" or (partition.test is not None and data.target == NUMBER):
        raise ConfigError(
            'data.target_normalize: sites scale numbers by their own training examples, so that "all" and a global '
            'test are not supported. Set it to "own", and remove the global test from [partition].',
            code="config.target-scale",
        )
    if data.structure is not None and partition.test is not None and config is not None and config.external != REFUSE:
        raise ConfigError(
            "data.structure: beside columns of edges between sites (data.external), a global test has none of its "
            "graph's structure. Remove the global test from [partition], or structure.",
            code="config.structure",
        )
    if data.links is not None and partition.test is not None:
        raise ConfigError(
            "partition: a global test of links is not supported between sites; each site tests on its own links. "
            "Remove the global test from [partition].",
            code="config.links",
        )
    links, data = data.links, data if data.links is None else by_relation(data)
    part, external = global_test_part(data, partition), REFUSE if config is None else config.external
    scaling, data = data.scaling, replace(data, scaling="none")  # each site scales by its site.toml
    edge_scaling: Record = {}
    if data.edge_attrs is not None and data.edge_features:
        edge_scaling = {"edge_normalize": "auto" if data.edge_attrs.auto else "none"}
        data = replace(data, edge_attrs=data.edge_attrs._replace(auto=False))
    features: Record = {}
    if config is not None and config.learned:  # the sites number these columns themselves
        features = {"features": LEARNED}
        data = replace(with_ids(data), x=sp.csr_matrix((data.nodes, 1), dtype=np.float32))
    site_parts, whole = shares(data, partition.parts), data
    policy: Record = {"measures": list(FINE)}  # all that a simulation measures
    across: Record = {"normalize": scaling}
    if config is not None and external != REFUSE:
        data = with_ids(data)
        pairs = zip(shares(data, partition.parts), outside_edges(data, partition.parts), strict=True)
        site_parts = (replace(share, outside=outside) for share, outside in pairs)
        whole = replace(add_external_columns(data, partition, config), scaling="none")
        across = {"external": external, "normalize": config.data.values.get("normalize", "none")}
        policy |= {"exchange": config.min_external} if external == EXCHANGE else {}
    tests = () if part is None else tuple(shares(whole, [part]))
    clients = client_ids(len(sites), partition.names)
    for site, client, share in zip(sites, clients, site_parts, strict=True):
        npz.write(share, project / site / DATA)
        called: Record = {"labels": list(data.labels)} if data.labels else {"classes": data.classes}
        called = called if data.target == CLASS else data.target_settings
        called |= features | ({} if links is None else _links(links))
        about: Record = {"path": DATA, **called, "random_id": client, **across, **edge_scaling}
        about |= {} if data.edge_attrs is None else {"loops": "keep"}
        about |= {} if data.structure is None else {"structure": list(data.structure.kinds)}
        if any(map(has_sensitive_feature, (share, *tests))):  # the configuration has allowed this for the whole
            about["sens_feature"] = True
        more: Record = {} if partition.test is None else {"test": TEST}
        write_site_file(project / site / SITE_FILE, about | more, **policy)
    for raw in tests:
        raw = replace(raw, ids=())
        test = by_holder(replace(raw, scaling=across["normalize"]))
        for site in sites:  # a site scales it itself, unless it lacks columns of edges between sites
            npz.write(raw if external == REFUSE else test, project / site / TEST)
        npz.write(_complete(test, edge_scaling), project / SERVER / TEST)
    for role, share in zip(partition.held, shares(whole, [*partition.held.values()]), strict=True):
        scaled = by_holder(replace(share, ids=(), scaling=across["normalize"]))
        npz.write(_complete(scaled, edge_scaling), project / SERVER / f"{role}.npz")


def _complete(data: Dataset, edge_scaling: Record) -> Dataset:
    """The data of the server with features of edges scaled as a site scales its own, and columns of structure."""
    scaled = with_scaled_edges(data, {"how": edge_scaling.get("edge_normalize", "none")})
    return replace(filled(scaled), structure=None)  # a file of the server is read as it is


class Observed:
    """Receives a job's progress (`sites.flare.server.Progress`) and reports every round to an observer once.

    Its reports contain no state. Its ledger has sizes, and a table once the run's files are here.
    """

    def __init__(self, observer: RunObserver, config: Config, directory: Path) -> None:
        self._observer, self._config, self._directory = observer, config, directory
        self._done: int | None = None  # the last round that the observer knows
        self._sizes: dict[str, int] = {}

    def __call__(self, now: Record) -> None:
        """Receive the progress `now`."""
        if self._done is None and now["status"] in ("running", "done", "stopped") and now.get("rounds"):
            self._done = int(now["after"])
            built = SimpleNamespace(fed=SimpleNamespace(ledger=self))
            self._observer.begin(self._config, cast(Ready, built), self._directory, self._done)
        for one in now.get("recent") or ():
            if self._done is not None and one["round"] > self._done:
                self._done, self._sizes = one["round"], one["bytes"]
                self._observer.step(Checkpoint(one["round"], one["seconds"], summary=one["summary"]))

    def end(self) -> None:
        """End the observer's run, whether the run succeeded or not."""
        if self._done is not None:
            self._observer.end()

    def sizes(self) -> dict[str, int]:
        """See `core.ledger.Ledger`."""
        return self._sizes

    def table(self) -> pa.Table:
        """See `core.ledger.Ledger`; without rows if the job left no files."""
        return read_table(self._directory, LEDGER) if (self._directory / LEDGER).exists() else Ledger().table()


def with_engine(settings: Sequence[str]) -> list[str]:
    """The settings of --set. If they set a key that only the engine of sites has, a setting of that engine precedes
    them."""
    engines = registry("engine")
    flare_only = parameters("engine", engines["flare"]).keys() - parameters("engine", engines["simulation"]).keys()
    keys = {text.partition("=")[0].strip().removeprefix("engine.") for text in settings if text.startswith("engine.")}
    return [*(["engine.name=flare"] if keys & flare_only else []), *settings]


def for_sites(document: Document) -> Config:
    """The experiment with the engine "flare". It keeps the engine's settings that this engine has, too."""
    engine = document.get("engine", {})
    known = parameters("engine", registry("engine")["flare"])
    settings = {key: value for key, value in engine.items() if key in known}
    return resolve({**document, "engine": {**settings, "name": "flare"}})


def with_start_run(config: Config, earlier: Path | None) -> Config:
    """The experiment with `init_from` set to the number of the run in `earlier`, or in the directory `init_from`: the
    server has its own files of that run.

    Raises:
        UserError: the directory holds no run between sites.
    """
    where = earlier if earlier is not None else Path(config.general.init_from or "")
    if earlier is None and (config.general.init_from is None or not where.is_dir()):
        return config
    if not (where / RUN).is_file():
        problem = f"{where} is not the directory of a run between sites: it has no {RUN}. Give one of this project's."
        raise UserError(f"init_from: {problem}", code="init.run")
    return replace(config, general=replace(config.general, init_from=number_of(where)))


def positive_by_number(config: Config, project: Path, sites: Sequence[str]) -> Config:
    """The experiment with the number of its positive class instead of the name, from the class names of the `sites`
    whose folders are here. The server gets only fingerprints of names. If the experiment's [data] has labels, the
    server compares these with the fingerprints, and the experiment stays as it is.

    Raises:
        ConfigError: the sites here do not all have the same class names, or the positive class is none of them.
    """
    judging = config.evaluation
    if not isinstance(judging.positive, str) or config.data.values.get("labels") or config.links is not None:
        return config
    here = [project / site / SITE_FILE for site in sites if (project / site / SITE_FILE).is_file()]
    named = {read_site_file(file)[0].labels for file in here}
    labels = named.pop() if len(named) == 1 else None
    if not labels:
        raise ConfigError(
            f"evaluation.positive = {judging.positive!r}: the server does not know the names of classes, and the sites "
            "whose folders are here do not all have the same (labels in site.toml). Give the number of the class.",
            code="config.no-class",
        )
    return replace(config, evaluation=replace(judging, positive=judging.of(labels, len(labels)).positive))


def check_experiment(config: Config, sites: Sequence[str]) -> None:
    """Refuse settings that none of the `sites` could run with any data.

    Raises:
        ConfigError: the model or the algorithm refuses them. UserError: a requirement is not met.
    """
    check(Configured.of(config).with_members(sites))
    config.check_made()
