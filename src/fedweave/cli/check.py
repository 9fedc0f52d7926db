"""The command `fedweave check`: finds all faults of an experiment that can be found before it is started."""

from typing import Annotated

import typer

from fedweave.cli.options import Earlier, Experiment, Settings, Trust, check_consent, with_init_from


def check(
    config: Experiment,
    settings: Settings = None,
    algorithm: Annotated[
        str | None, typer.Option(metavar="NAME", help="Check the same experiment with another algorithm.")
    ] = None,
    init_from: Earlier = None,
    trust: Trust = False,
) -> None:
    """Load and partition the data, build model and algorithm, and report oddities; no client trains, nothing is
    written."""
    from fedweave.accounts.document import print_line
    from fedweave.experiment.build import build, train_counts
    from fedweave.experiment.config import read
    from fedweave.experiment.requirements import check_training_examples
    from fedweave.reports.clients import header
    from fedweave.reports.oddities import facts, initialize, oddities
    from fedweave.reports.terminal import screen

    console = screen()
    check_consent(config, trust)
    experiment, notes = read(config, with_init_from(settings, init_from), algorithm)
    built = build(experiment.in_process())
    check_training_examples(train_counts(built.partition))
    if not experiment.between_sites:  # whose data may be of other classes
        experiment.evaluation.of(built.data.labels, built.data.classes, built.data.target)
    notes += initialize(experiment, built)
    header(console, experiment, built)
    for line in facts(experiment, built):
        print_line(console, line)
    for note in (*oddities(experiment, built), *notes):
        print_line(console, f"note: {note}")
    console.print("no fault found", highlight=False)
