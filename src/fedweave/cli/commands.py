"""The arguments of the commands `audit`, `attack`, `check`, `contract`, `export` and `predict`. What they do is in
modules of these names, which import what a run needs: a command imports its module when it is called."""

from pathlib import Path
from typing import Annotated

import typer

from fedweave.cli.options import (
    CardFile,
    Chosen,
    Client,
    Earlier,
    Experiment,
    Format,
    Kind,
    ModelRound,
    Out,
    Settings,
    Trust,
    When,
)


def audit(
    directory: Annotated[Path, typer.Argument(metavar="SITE_DIR", help="The folder of a site.")],
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write a page to print, .html or .pdf.")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option(
            metavar="RUN",
            help="Compare with a run as its starter has it, or with a member's copy of its statement.",
        ),
    ] = None,
) -> None:
    """Show a site's owner all requests, what left for whom, what it cost in ε, and what was rejected.

    With --against, only compare the site's own journal with a run: what left the site, and the configuration; exit
    code 1 if they differ.
    """
    from fedweave.cli.audit import show_audit

    show_audit(directory, out, against)


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
    from fedweave.cli.check import examine

    examine(config, settings, algorithm, init_from, trust)


def contract(
    name: Annotated[str, typer.Argument(metavar="FILE.py:NAME", help="An algorithm from a file, or a registered one.")],
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="key=value", help="Change one of its settings; repeatable.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option("--law", metavar="LAW", help="Try only this law; repeatable.")
    ] = None,
) -> None:
    """Run the conformance tests on an algorithm: the same numbers in every engine, and no undeclared message.

    A class lists exceptions with reasons: exempt_laws = {"one_client_is_ordinary_training": "momentum"};
    and settings that suit clients of a few dozen nodes: test_settings = {"batch": 8}.
    """
    from fedweave.cli.contract import try_laws

    try_laws(name, settings, only)


def attack(
    source: Annotated[Path, typer.Argument(metavar="DIR|CONFIG.toml", help="A run or an experiment.")],
    settings: Settings = None,
) -> None:
    """Attack what clients send: what each attack finds with and without the defense. For a run on links: what the
    models reveal of the links that they were trained on."""
    from fedweave.cli.contract import show_attacks

    show_attacks(source, settings)


def predict(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a finished run.")],
    data: Annotated[
        Path | None,
        typer.Option(metavar="PATH", help="New nodes or graphs, in any form that `run` takes (docs/data-format.md)."),
    ] = None,
    model: Chosen = None,
    client: Client = None,
    when: When = ModelRound.last,
    out: Annotated[
        Path | None,
        typer.Option(
            "-o",
            "--out",
            metavar="FILE",
            help="A .parquet or .csv file (RUN/predictions.parquet; with --data RUN/new-predictions.parquet).",
        ),
    ] = None,
    pairs: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="For a run on links: score the pairs in this table of source and target."),
    ] = None,
    node: Annotated[
        str | None,
        typer.Option(metavar="ID", help="For a run on links: the pairs of this node with the highest scores."),
    ] = None,
    top: Annotated[
        int | None, typer.Option("--top", min=1, help="Number of pairs of --node, without known links (10).")
    ] = None,
    relation: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Relation of the pairs of --node; all relations by default."),
    ] = None,
    metric: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE.py:NAME", help="Also print your own metric, on test examples; repeatable."),
    ] = None,
    embeddings: Annotated[
        bool,
        typer.Option("--embeddings", help="Write the last layer's input, not predictions (RUN/embeddings.parquet)."),
    ] = False,
    spreadsheet: Annotated[
        bool,
        typer.Option(
            "--spreadsheet",
            help="Protect a .csv file for spreadsheets: put an apostrophe before text that they would compute.",
        ),
    ] = False,
) -> None:
    """Predict classes, numbers or labels with the models of a finished run.

    Without --data it predicts the run's own examples: each client's with the model that the client uses, and the global
    test graph's with the global model. New examples get the global model if there is one, else a row for every client.
    The parties of a vertical run predict jointly, and --data holds the new nodes together with the old.
    """
    from fedweave.cli.predict import write_predictions

    write_predictions(
        directory, data, model, client, when, out, pairs, node, top, relation, metric, embeddings, spreadsheet
    )


def export(
    directory: Annotated[Path, typer.Argument(metavar="RUN", help="The directory of a finished run.")],
    form: Kind = Format.safetensors,
    model: Chosen = None,
    client: Client = None,
    when: When = ModelRound.last,
    out: Out = None,
    card_file: CardFile = None,
    histograms: Annotated[
        bool,
        typer.Option(
            "--histograms", help="Also write histograms of the training data, for `fedweave drift`. They tell of it."
        ),
    ] = False,
) -> None:
    """Export a model of a finished run: weights, a PyTorch Geometric module that loads them, and a model card.

    It exports the global model if there is one; --model personal or trained exports the --client's model. A run between
    sites has only the global model; `fedweave sites export` also writes the names of columns and classes.
    """
    from fedweave.cli.export import export_run

    export_run(directory, form, model, client, when, out, card_file, histograms)
