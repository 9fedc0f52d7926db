"""The commands `fedweave contract` and `fedweave attack`: conformance tests of an algorithm, and what messages reveal
to a curious server."""

from collections.abc import Iterable
from pathlib import Path
from traceback import extract_tb

import typer
from rich.box import SIMPLE_HEAD
from rich.table import Table

import fedweave
from fedweave.algorithms.parts.part import Attackable, Attacked
from fedweave.apply.link_attack import Inferred, inferred
from fedweave.contract.laws import LAWS, Broken
from fedweave.contract.subject import Subject
from fedweave.core import random
from fedweave.core.plugins import check_trusted
from fedweave.core.types import Record
from fedweave.errors import ConfigError, FedweaveError, UserError
from fedweave.experiment.build import build
from fedweave.experiment.config import Config, check_name, load, override, read, resolve
from fedweave.experiment.runs.files import CONFIG
from fedweave.experiment.runs.trained import finished, trained
from fedweave.reports.terminal import screen


def try_laws(
    name: str,
    settings: list[str] | None,
    only: list[str] | None,
) -> None:
    """Run the conformance tests on an algorithm and print each verdict (`fedweave contract`)."""
    subject = Subject(*_chosen(name, settings or []))
    if unknown := sorted(subject.exemptions.keys() - LAWS.keys()):
        raise ConfigError(f"{name}: exempt_laws names {', '.join(unknown)}; the laws are {', '.join(LAWS)}.")
    for law in only or ():
        check_name("--law", law, LAWS)
    broken, first = [], dict[str, str]()  # {reason: the first law that failed for it}
    for law in only or LAWS:
        result, words = verdict(subject, law), law.replace("_", " ")
        word, _, why = result.partition(" ")
        if word == "BROKEN":
            broken.append(law)
            why = f": as {first[why]}" if why in first else why
            first.setdefault(why, f"“{words}”")
        typer.echo(f"{word:<8} {words}{why}")
    if broken:
        raise FedweaveError(f"{name}: {len(broken)} of {len(only or LAWS)} laws do not hold.")


def verdict(subject: Subject, law: str) -> str:
    """ "holds", "declared: why" or "BROKEN: why", for one law.

    Raises:
        ConfigError: the algorithm rejects its settings under every law.
    """
    if law in subject.exemptions:
        return f"declared : does not hold, {subject.exemptions[law]}"
    try:
        LAWS[law](subject)
    except ConfigError as error:
        subject.build()
        return f"BROKEN : the law changes settings of the algorithm, and {error}; give the reason in exempt_laws"
    except Broken as error:
        return f"BROKEN : {error}"
    except Exception as error:  # any fault of a foreign algorithm
        return f"BROKEN : {type(error).__name__}: {error}{_place(error)}"
    return "holds"


def _place(error: Exception) -> str:
    """ " (my_file.py, line 23)", the algorithm's own last line on the way to the error; "" if there is none."""
    ours = Path(fedweave.__file__).parent
    frames = [frame for frame in extract_tb(error.__traceback__) if not Path(frame.filename).is_relative_to(ours)]
    algorithm_frames = [
        frame for frame in frames if "site-packages" not in frame.filename and Path(frame.filename).is_file()
    ]
    return (
        f" ({Path(algorithm_frames[-1].filename).name}, line {algorithm_frames[-1].lineno})" if algorithm_frames else ""
    )


def _chosen(name: str, settings: list[str]) -> tuple[type, Record]:
    """The algorithm and its settings, checked; a relative file is looked for in the current folder."""
    document: Record = {"data": {"name": "synthetic"}, "algorithm": {"name": name}}
    for text in settings:
        override(document, f"algorithm.{text}")
    options = {key: value for key, value in document["algorithm"].items() if key != "name"}
    choice = resolve(document).algorithm
    return choice.kind, {key: value for key, value in choice.made_values().items() if key in options}


def attacks_table(rows: Iterable[tuple[str, str, float, float]]) -> Table:
    """A line for each attack: its name, its knowledge, and its success rates without and with a defense."""
    shown = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0))
    for name in ("attack", "knows", "right without defense", "with it"):
        shown.add_column(name, justify="left" if name in ("attack", "knows") else "right")
    for named, known, without, protected in rows:
        shown.add_row(named, known, f"{without:.1%}", f"{protected:.1%}")
    return shown


def membership_table(rows: Iterable[Inferred]) -> Table:
    """A line for each attack on the links that models were trained on."""
    shown = Table(box=SIMPLE_HEAD, padding=(0, 2, 0, 0))
    for name in ("link membership, by who knows", "AUC", "advantage"):
        shown.add_column(name, justify="left" if name.startswith("link") else "right")
    for row in rows:
        shown.add_row(row.knows, f"{row.auc:.3f}", f"{row.advantage:.3f}")
    return shown


def show_attacks(
    source: Path,
    settings: list[str] | None,
) -> None:
    """Print what attacks find in what clients send, or in the models of a run on links (`fedweave attack`)."""
    if source.is_dir():
        check_trusted(load(source / CONFIG), source / CONFIG)
    config, _ = read(source / CONFIG if source.is_dir() else source, settings or [], None)
    if config.links is not None:
        if not source.is_dir():
            raise UserError("an attack on links is on trained models; name the directory of a run.", code="user.attack")
        screen().print(membership_table(inferred(trained(source, finished(source), "Its sites attack there."))))
        return
    screen().print(attacks_table(attacked(config)))


def attacked(config: Config) -> list[Attacked]:
    """Results of the attacks on what an experiment's clients send (`algorithms.parts.part.Attackable`).

    Raises:
        UserError: there is no attack on what its clients send.
    """
    built = build(config)
    parts = built.algorithm.composed.values()
    key = random.fold(random.key(config.general.seed), "attack")
    built.fed.begin(0)
    attackable = [part for part in parts if isinstance(part, Attackable)]
    rows = [row for part in attackable for row in part.attacks(built.fed, built.data, built.partition, key)]
    if not rows:
        raise UserError(
            f"the clients of {config.algorithm.name!r} send nothing that has a known attack; give an experiment "
            "with noisy codes or links: algorithm.name = 'fairgfl', with its estimator 'ldp'.",
            code="user.no-attack",
        )
    return rows
