"""The command `fedweave sites forget`: a run between sites again, without what their owners list, or without sites."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from fedweave.apply.forgetting import SHARE
from fedweave.apply.forgetting_record import BEFORE, EXACT, FAST, new_folder
from fedweave.core.types import Record
from fedweave.errors import UserError, listed
from fedweave.experiment.config import Choice
from fedweave.experiment.config.choices import MemberModels
from fedweave.experiment.runs.files import RUN, SUMMARY, read_summary
from fedweave.experiment.runs.trained import finished_config
from fedweave.sites.operation.project import read_project
from fedweave.sites.operation.running import Notify, number_of, run, sites_of


class Rerun(NamedTuple):
    """Runs without what is forgotten. summaries: {"before", "exact", "fast": the summary}. notes: why one is absent."""

    directory: Path
    summaries: dict[str, Record]
    notes: tuple[str, ...]


def rerun(
    project: Path,
    directory: Path,
    clients: Sequence[str] = (),
    rounds: int | None = None,
    out: Path | None = None,
    notify: Callable[[], Notify] = lambda: lambda now: None,
) -> Rerun:
    """Train the finished run in `directory` again at its sites: from the start (exact), and on from its model (fast).
    Each site leaves out what its own site.toml lists (data.forget), which no other member learns.

    clients: sites that leave; those that have left the project are left out, too. rounds: of the fast way; 0 leaves it
    out, None takes a tenth of the run's. out: a new folder for the runs; by default the next number in the run's
    folder. notify: makes what each run reports to.

    Raises:
        UserError: the run was not made between sites, has no such site, or none would be left. FedweaveError: a site
            refuses, or a run fails.
    """
    config = finished_config(directory)
    if not config.between_sites or not (directory / RUN).exists():
        raise UserError(
            f"sites forget: {directory} was not trained between sites. Use `fedweave forget {directory}`.",
            code="forget.simulation",
        )
    sites = sites_of(directory)
    unknown = [name for name in clients if name not in sites]
    if unknown:
        raise UserError(
            f"--client {unknown[0]}: the run has no such site. Choose among {listed(sites)}.", code="forget.no-client"
        )
    present = read_project(project).sites
    rest = [name for name in sites if name in present and name not in clients]
    if not rest:
        raise UserError("--client: no site is left. Leave one or more.", code="forget.empty")
    exact, folder = config, new_folder(directory, out)
    if len(rest) < len(sites):  # the models and names of the sites that stay
        models = dict[str, Choice]()
        for at, name in enumerate(sites):
            model = config.member_models.of(name, at) if config.member_models else None
            if name in rest and model is not None:
                models[name] = model
        names = {name: label for name, label in config.pay.names.items() if name in rest}
        exact = replace(config, member_models=MemberModels((), models), pay=replace(config.pay, names=names))
    summaries, notes = {BEFORE: read_summary(directory / SUMMARY)}, list[str]()
    configs, count = {EXACT: exact}, max(1, config.general.rounds // SHARE) if rounds is None else rounds
    if count:
        general = replace(exact.general, init_from=number_of(directory), rounds=count)
        configs[FAST] = replace(exact, general=general)
    without = [name for name in present if name not in rest]  # also sites that are new since the run
    for name, one in configs.items():
        try:
            summaries[name] = run(one, project, folder / name, False, notify(), without=without)
        except UserError as error:
            if name == EXACT or not error.code.startswith("init."):
                raise
            notes.append(f"There is no fast model: {error}")
    return Rerun(folder, summaries, tuple(notes))
