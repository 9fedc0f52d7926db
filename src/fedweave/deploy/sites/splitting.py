"""One data set cut into sites' folders, for trials and tests."""

from dataclasses import replace
from pathlib import Path

from fedweave.core.records import Record
from fedweave.core.text import counted
from fedweave.datasets import npz
from fedweave.datasets.base import Dataset
from fedweave.datasets.outside import EXCHANGE, REFUSE
from fedweave.datasets.sensitive import has_sens
from fedweave.deploy.flare.site.sitefile import FINE, SITE_FILE, write_site_file
from fedweave.deploy.flare.wire.requests import SERVER
from fedweave.errors import UserError
from fedweave.experiment.config import Config
from fedweave.experiment.prepared import cut_as, ready
from fedweave.partition.base import Partition, client_ids
from fedweave.partition.external import named, outsides
from fedweave.partition.pooling import global_test_part, shares

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
    if config.external != REFUSE and "normalise" in values:
        values = values | {"normalise": "none"}  # each site scales all its columns together
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


def hand_out(
    data: Dataset, partition: Partition, project: Path, sites: tuple[str, ...], config: Config | None = None
) -> None:
    """Write a part into each site's folder, and the global test graph, if there is one, into the server's and every
    site's; what else the server holds, into the server's. Of a vertical cut a site gets its columns, its edges, the
    split and, if it sees them, the labels. Nobody gets ids but of its own examples and, where `config` makes something
    of edges between sites, of those that its edges lead to."""
    part, external = global_test_part(data, partition), REFUSE if config is None else config.external
    own_parts, whole = shares(data, partition.parts), data
    policy: Record = {"measures": list(FINE)}  # all that a simulation measures
    across: Record = {}
    if config is not None and external != REFUSE:
        data = named(data)
        pairs = zip(shares(data, partition.parts), outsides(data, partition.parts), strict=True)
        own_parts = (replace(own, outside=outside) for own, outside in pairs)
        whole = ready(data, partition, config)
        across = {"external": external, "normalise": config.data.values.get("normalise", "none")}
        policy |= {"exchange": config.external_least} if external == EXCHANGE else {}
    tests = () if part is None else tuple(shares(whole, [part]))
    clients = client_ids(len(sites), partition.names)
    for site, client, own in zip(sites, clients, own_parts, strict=True):
        npz.write(own, project / site / DATA)
        called = {"labels": list(data.labels)} if data.labels else {"classes": data.classes}
        about: Record = {"path": DATA, **called, "random_id": client, **across}
        about |= {} if data.carried is None else {"loops": "keep"}
        if any(map(has_sens, (own, *tests))):  # the whole was let in, by its configuration or as a part cannot tell
            about["sens_feature"] = True
        more: Record = {} if partition.test is None else {"test": TEST}
        write_site_file(project / site / SITE_FILE, about | more, **policy)
    for test in tests:
        for folder in (SERVER, *sites):
            npz.write(replace(test, ids=()), project / folder / TEST)
    for role, own in zip(partition.held, shares(whole, [*partition.held.values()]), strict=True):
        npz.write(replace(own, ids=()), project / SERVER / f"{role}.npz")
