"""An experiment for sites: one that was written for a simulation, its data cut into sites' folders, for trials and
tests, and its run for those who observe runs."""

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
from fedweave.core.target import CLASS, NUMBER
from fedweave.core.text import counted
from fedweave.core.types import Record
from fedweave.datasets import npz
from fedweave.datasets.base import EXCHANGE, REFUSE, Dataset
from fedweave.datasets.features import by_holder, has_sens
from fedweave.datasets.links import TASK as LINKS
from fedweave.datasets.links import by_relation
from fedweave.deploy.flare.requests import SERVER
from fedweave.deploy.flare.sitefile import FINE, LEARNED, SITE_FILE, read_site_file, write_site_file
from fedweave.deploy.sites.running import number_of
from fedweave.errors import ConfigError, UserError
from fedweave.experiment.build import cut_as, ready
from fedweave.experiment.config import Config, Document, resolve
from fedweave.experiment.config.plugins import parameters, registry
from fedweave.experiment.requirements import ExperimentFacts
from fedweave.experiment.runs.checkpoint import Checkpoint, Ready
from fedweave.experiment.runs.files import LEDGER, RUN, read_table
from fedweave.experiment.runs.run import RunObserver
from fedweave.partition.base import Partition, client_ids
from fedweave.partition.client_data import global_test_part, shares
from fedweave.partition.external import named, outsides

DATA, TEST = "data.npz", "test.npz"


def split(config: Config, sites: tuple[str, ...]) -> tuple[Dataset, Partition]:
    """The configuration's data and its cut into one part per site.

    Raises:
        UserError: the partition has another number of clients, a site has the name of another part's party, or the
            data is to be noised.
    """
    if config.noise is not None:
        raise UserError("[noise] is of simulations, and sites are handed what the data says; leave it out.")
    values = config.data.values
    if config.external != REFUSE and "normalize" in values:
        values = values | {"normalize": "none"}  # each site scales all its columns together
    data, partition = cut_as(config, values)
    if len(partition.parts) != len(sites):
        more = f"add --set partition.clients={len(sites)}, or " if "clients" in config.partition.values else ""
        as_many = f"--sites {','.join(partition.names)}" if partition.names else "as many sites"
        raise UserError(
            f"the partition makes {counted(len(partition.parts), 'client')} for {counted(len(sites), 'site')}; "
            f"{more}give {as_many}."
        )
    names = partition.names or sites
    if wrong := [f"{site} that of {name}" for site, name in zip(sites, names, strict=True) if site != name in sites]:
        raise UserError(
            f"the sites would get each other's data ({', '.join(wrong)}): give --sites {','.join(names)}.",
            code="user.sites",
        )
    return data, partition


def unknown_to_server(config: Config, data: Dataset) -> list[str]:
    """Settings, as TOML, that a simulation finds in the data and a server of sites is told."""
    if not isinstance(config.evaluation.positive, str):
        return []
    return [f"[evaluation] positive = {config.evaluation.of(data.labels, data.classes).positive}"]


def _links(links: Links) -> Record:
    """What a site.toml says of links; their split is in the data."""
    kinds = {} if links.items is None else {"users": links.users, "items": links.items}
    return {"task": LINKS, **kinds, **({} if links.relation else {"relation": False})}


def hand_out(
    data: Dataset, partition: Partition, project: Path, sites: tuple[str, ...], config: Config | None = None
) -> None:
    """Write a part into each site's folder, and the global test graph, if there is one, into the server's and every
    site's; what else the server holds, into the server's. Of a vertical cut a site gets its columns, its edges, the
    split and, if it sees them, the labels. Nobody gets ids but of its own examples and, where `config` makes something
    of edges between sites, of those that its edges lead to."""
    if data.target_scaling == "all" or (partition.test is not None and data.target == NUMBER):
        raise ConfigError(
            'data.target_normalize: sites scale numbers by their own training examples, for which "all" and a global '
            'test do not fit. Set it to "own", and leave the global test out of [partition].',
            code="config.target-scale",
        )
    if data.links is not None and partition.test is not None:
        raise ConfigError(
            "partition: there is no global test of links between sites; each tests on its own. Leave the global test "
            "out of [partition].",
            code="config.links",
        )
    links, data = data.links, data if data.links is None else by_relation(data)
    part, external = global_test_part(data, partition), REFUSE if config is None else config.external
    scaling, data = data.scaling, replace(data, scaling="none")  # by each site itself, as its site.toml says
    features: Record = {}
    if config is not None and config.learned:  # columns that the sites number themselves
        features = {"features": LEARNED}
        data = replace(named(data), x=sp.csr_matrix((data.nodes, 1), dtype=np.float32))
    own_parts, whole = shares(data, partition.parts), data
    policy: Record = {"measures": list(FINE)}  # all that a simulation measures
    across: Record = {"normalize": scaling}
    if config is not None and external != REFUSE:
        data = named(data)
        pairs = zip(shares(data, partition.parts), outsides(data, partition.parts), strict=True)
        own_parts = (replace(share, outside=outside) for share, outside in pairs)
        whole = replace(ready(data, partition, config), scaling="none")
        across = {"external": external, "normalize": config.data.values.get("normalize", "none")}
        policy |= {"exchange": config.min_external} if external == EXCHANGE else {}
    tests = () if part is None else tuple(shares(whole, [part]))
    clients = client_ids(len(sites), partition.names)
    for site, client, share in zip(sites, clients, own_parts, strict=True):
        npz.write(share, project / site / DATA)
        called: Record = {"labels": list(data.labels)} if data.labels else {"classes": data.classes}
        called = called if data.target == CLASS else data.target_settings
        called |= features | ({} if links is None else _links(links))
        about: Record = {"path": DATA, **called, "random_id": client, **across}
        about |= {} if data.edge_attrs is None else {"loops": "keep"}
        if any(map(has_sens, (share, *tests))):  # the whole was let in, by its configuration or as a part cannot tell
            about["sens_feature"] = True
        more: Record = {} if partition.test is None else {"test": TEST}
        write_site_file(project / site / SITE_FILE, about | more, **policy)
    for raw in tests:
        raw = replace(raw, ids=())
        test = by_holder(replace(raw, scaling=across["normalize"]))
        for site in sites:  # which scales it itself, but where it lacks columns of edges between sites
            npz.write(raw if external == REFUSE else test, project / site / TEST)
        npz.write(test, project / SERVER / TEST)
    for role, share in zip(partition.held, shares(whole, [*partition.held.values()]), strict=True):
        npz.write(by_holder(replace(share, ids=(), scaling=across["normalize"])), project / SERVER / f"{role}.npz")


class Observed:
    """Hears of a job's progress (`deploy.flare.server.server.Progress`) and tells an observer of every round, once.

    What it tells has no state; the federation's ledger has sizes, and its table once the run's files are here.
    """

    def __init__(self, observer: RunObserver, config: Config, directory: Path) -> None:
        self._observer, self._config, self._directory = observer, config, directory
        self._done: int | None = None  # the last round that the observer knows of
        self._sizes: dict[str, int] = {}

    def __call__(self, now: Record) -> None:
        """Hear of `now`."""
        if self._done is None and now["status"] in ("running", "done", "stopped") and now.get("rounds"):
            self._done = int(now["after"])
            built = SimpleNamespace(fed=SimpleNamespace(ledger=self))
            self._observer.begin(self._config, cast(Ready, built), self._directory, self._done)
        for one in now.get("recent") or ():
            if self._done is not None and one["round"] > self._done:
                self._done, self._sizes = one["round"], one["bytes"]
                self._observer.step(Checkpoint(one["round"], one["seconds"], summary=one["summary"]))

    def end(self) -> None:
        """The run is over, for whatever reason."""
        if self._done is not None:
            self._observer.end()

    def sizes(self) -> dict[str, int]:
        """See `core.ledger.Ledger`."""
        return self._sizes

    def table(self) -> pa.Table:
        """See `core.ledger.Ledger`; without rows where the job left no files.

        Raises:
            FedweaveError: the ledger is damaged.
        """
        return read_table(self._directory, LEDGER) if (self._directory / LEDGER).exists() else Ledger().table()


def with_engine(settings: Sequence[str]) -> list[str]:
    """Settings given with --set, after one that names the engine of sites if they set a key that it alone has."""
    engines = registry("engine")
    flare_only = parameters("engine", engines["flare"]).keys() - parameters("engine", engines["simulation"]).keys()
    keys = {text.partition("=")[0].strip().removeprefix("engine.") for text in settings if text.startswith("engine.")}
    return [*(["engine.name=flare"] if keys & flare_only else []), *settings]


def for_sites(document: Document) -> Config:
    """The same experiment with the engine "flare", keeping those of the engine's keys that it has too."""
    engine = document.get("engine", {})
    known = parameters("engine", registry("engine")["flare"])
    settings = {key: value for key, value in engine.items() if key in known}
    return resolve({**document, "engine": {**settings, "name": "flare"}})


def begun_from(config: Config, earlier: Path | None) -> Config:
    """The same experiment, begun from the run in `earlier`, or in the directory that its `init_from` says: by that
    run's number, for the server keeps its own files of it.

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


def judged_by_number(config: Config, project: Path, sites: Sequence[str]) -> Config:
    """The same experiment with the number of the positive class that it names, by what the `sites` whose folders are
    here call classes: the server hears fingerprints of names alone. Labels in its own [data] it compares with these.

    Raises:
        ConfigError: the sites here do not all name the same classes, or this is none of them.
    """
    judging = config.evaluation
    if not isinstance(judging.positive, str) or config.data.values.get("labels") or config.links is not None:
        return config
    here = [project / site / SITE_FILE for site in sites if (project / site / SITE_FILE).is_file()]
    named = {read_site_file(file)[0].labels for file in here}
    labels = named.pop() if len(named) == 1 else None
    if not labels:
        raise ConfigError(
            f"evaluation.positive: is {judging.positive!r}, and the server does not know what classes are called, nor "
            "do all sites whose folders are here name the same (labels in site.toml). Give the number of the class.",
            code="config.no-class",
        )
    return replace(config, evaluation=replace(judging, positive=judging.of(labels, len(labels)).positive))


def check_experiment(config: Config, sites: Sequence[str]) -> None:
    """Refuse settings that none of the `sites` could run, whatever its data.

    Raises:
        ConfigError: the model or the algorithm refuses them. UserError: a requirement is not met.
    """
    ExperimentFacts.of_config(config).more(members=sites).check()
    config.check_made()
