"""The commands `fedweave contract` and `fedweave attack`: conformance tests of an algorithm, and what messages reveal
to a curious server."""

from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Annotated

import typer

import fedweave
from fedweave.cli.options import Settings
from fedweave.core.types import Record
from fedweave.errors import ConfigError, FedweaveError, UserError
from fedweave.experiment.config import Config, check_name, load, override, read, resolve

if TYPE_CHECKING:  # import torch
    from fedweave.algorithms.parts.part import Attacked
    from fedweave.contract.subject import Subject


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
    from fedweave.contract.laws import LAWS
    from fedweave.contract.subject import Subject

    document: Record = {"data": {"name": "synthetic"}, "algorithm": {"name": name}}
    for text in settings or ():
        override(document, f"algorithm.{text}")
    choice = resolve(document).algorithm
    options = {key: value for key, value in choice.make_values().items() if key in document["algorithm"]}
    subject = Subject(choice.kind, options)
    unknown = sorted(subject.exemptions.keys() - LAWS.keys())
    if unknown:
        raise ConfigError(f"{name}: exempt_laws names {', '.join(unknown)}; the laws are {', '.join(LAWS)}.")
    for law in only or ():
        check_name("--law", law, LAWS)
    broken, first = 0, dict[str, str]()  # {reason: the first law that failed for it}
    for law in only or LAWS:
        title = law.replace("_", " ")
        word, _, why = verdict(subject, law).partition(" ")
        if word == "BROKEN":
            broken += 1
            why = f": as {first[why]}" if why in first else why
            first.setdefault(why, f"“{title}”")
        typer.echo(f"{word:<8} {title}{why}")
    if broken:
        raise FedweaveError(f"{name}: {broken} of {len(only or LAWS)} laws do not hold.")


def attack(
    source: Annotated[Path, typer.Argument(metavar="DIR|CONFIG.toml", help="A run or an experiment.")],
    settings: Settings = None,
) -> None:
    """Attack what clients send: what each attack finds with and without the defense. For a run on links: what the
    models reveal of the links that they were trained on."""
    from fedweave.apply.link_attack import infer_membership
    from fedweave.core.plugins import check_trusted
    from fedweave.experiment.runs.files import CONFIG
    from fedweave.experiment.runs.trained import finished_config, load_trained
    from fedweave.reports.terminal import screen, show_rows

    if source.is_dir():
        check_trusted(load(source / CONFIG), source / CONFIG)
    config, _ = read(source / CONFIG if source.is_dir() else source, settings or [], None)
    rows = []
    if config.links is not None:
        if not source.is_dir():
            raise UserError("an attack on links is on trained models; name the directory of a run.", code="user.attack")
        for attack in infer_membership(load_trained(source, finished_config(source), "Its sites attack there.")):
            scores = {"AUC": f"{attack.auc:.3f}", "advantage": f"{attack.advantage:.3f}"}
            rows.append({"link membership, by who knows": attack.knows} | scores)
    else:
        for name, knowledge, without, with_defense in attack_results(config):
            shares = {"right without defense": f"{without:.1%}", "with it": f"{with_defense:.1%}"}
            rows.append({"attack": name, "knows": knowledge} | shares)
    show_rows(screen(), rows, ("attack", "knows", "link membership, by who knows"))


def verdict(subject: "Subject", law: str) -> str:
    """ "holds", "declared: why" or "BROKEN: why", for one law."""
    from fedweave.contract.laws import LAWS, Broken

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
        return f"BROKEN : {type(error).__name__}: {error}{_line_text(error)}"
    return "holds"


def _line_text(error: Exception) -> str:
    """ " (my_file.py, line 23)", the algorithm's own last line on the way to the error; "" if there is none."""
    ours = Path(fedweave.__file__).parent
    for frame in reversed(extract_tb(error.__traceback__)):
        file = Path(frame.filename)
        if file.is_file() and not file.is_relative_to(ours) and "site-packages" not in frame.filename:
            return f" ({file.name}, line {frame.lineno})"
    return ""


def attack_results(config: Config) -> "list[Attacked]":
    """Results of the attacks on what an experiment's clients send (`algorithms.parts.Part.attacks`)."""
    from fedweave.core.random import fold, key
    from fedweave.experiment.build import build

    built = build(config.in_process())
    built.fed.begin(0)
    rows: list[Attacked] = []
    for part in built.algorithm.composed.values():
        rows += part.attacks(built.fed, built.data, built.partition, fold(key(config.general.seed), "attack"))
    if not rows:
        raise UserError(
            f"the clients of {config.algorithm.name!r} send nothing that has a known attack; give an experiment "
            "with noisy codes or links: algorithm.name = 'fairgfl', with its estimator 'ldp'.",
            code="user.no-attack",
        )
    return rows
