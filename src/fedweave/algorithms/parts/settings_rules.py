"""Which parts suit the settings and the model of their algorithm. Errors before training name the part and the remedy;
notes are about settings that have no effect or a bad one with a part."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal

from fedweave.algorithms.parts.conflicts import facts
from fedweave.algorithms.parts.names import preset_name
from fedweave.algorithms.parts.part import Part, has
from fedweave.core import model as models
from fedweave.core.algorithm import NO_LINKS
from fedweave.core.model import Model
from fedweave.errors import ConfigError

Parts = Mapping[str, Part]  # in their order
OF_UPDATES = ("release", "limit", "aggregate", "step", "receive")  # hooks that have no use if no weights are shared


@dataclass(frozen=True)
class TrainingSettings:
    """The settings of an algorithm that its parts must suit.

    share: whether clients send only a share of the weights. local_weights: whether clients train from weights that the
                   server does not send. remembers: the setting that lets clients train from values of earlier messages;
                   "" if there is none.
    participation: the share of the clients that a round calls. optimizer, lr: settings of the local training. one_step:
                   whether it is one step from the received weights. pace: {setting: value} of the settings that change
                   the number of steps or the learning rate (`part.LocalSteps.excludes`).
    statistics:    place of running statistics of batch norm, as in `part.Needs.statistics`: "home", "any" if clients
                   share them, or "none" if there are none.
    """

    share: bool
    local_weights: bool
    remembers: str
    participation: float
    optimizer: str
    lr: float
    one_step: bool
    pace: Mapping[str, object] = field(default_factory=dict)
    statistics: Literal["any", "home", "none"] = "none"


def check_settings(parts: Parts, settings: TrainingSettings) -> None:
    """Check that the parts suit the algorithm's settings.

    Raises:
        ValueError: they do not; the message contains the remedy.
    """
    for name, part in parts.items():
        fault = next(_faults(name, part, settings), "")
        if fault:
            raise ValueError(f"parts: {fault}")


def _faults(name: str, part: Part, settings: TrainingSettings) -> Iterator[str]:
    needs, steps, protection = part.needs, part.needs.steps, part.protection
    if "whole" in needs.models and settings.share:
        yield f"{name} lets the server evaluate whole models, but clients send only a share of the weights"
    if protection.stateless and settings.remembers:
        yield (
            f"{name} with require_all = false needs updates from the present message only, but {settings.remembers} "
            "uses earlier ones; change that, or set require_all = true"
        )
    if settings.participation < 1:
        missing = f"participation is {settings.participation:g}; set participation = 1.0"
        if needs.all_clients:
            yield f"{name} needs all clients, and {missing}"
        if protection.hides and not protection.stateless:
            yield f"{name} with require_all = true needs all clients, and {missing}, or require_all = false"
    if facts(part)["bounds examples"] and settings.local_weights:
        yield (
            f"{name} bounds what one example reveals through its own gradient, but weights that stay at clients come "
            "from all examples (set share = ['*'], and no reward)"
        )
    if steps.optimizer is not None and settings.optimizer != steps.optimizer:
        yield (
            f"{name} treats updates as sums of gradients, and updates by {settings.optimizer} are not such sums; set "
            f"optimizer = '{steps.optimizer}'"
        )
    if steps.optimizer == "sgd" and "local_momentum" in settings.pace:
        yield (
            f"{name} treats updates as sums of gradients, and updates with momentum are not such sums; set "
            "local_momentum = 0"
        )
    for setting in steps.excludes:
        if setting in settings.pace:
            excluded = f"{setting} = {settings.pace[setting]!r}"
            yield f"{name} needs local_steps steps at the rate lr in every round; leave out {excluded}"
    if needs.statistics == "home" and settings.statistics == "any":
        yield (
            f"{name} does not average updates, so running statistics of batch norm cannot be in them; "
            "add the part own_norms, so that they stay at their client, or set model.norm = 'layer'"
        )
    if needs.statistics == "none" and settings.statistics != "none":
        yield (
            f"{name} computes with weights, and running statistics of batch norm are not weights; set model.norm = "
            "'layer'"
        )


def training_notes(parts: Parts, settings: TrainingSettings) -> Iterator[str]:
    """Notes on parts that run with these settings, but have no effect or a bad one."""
    for name, part in parts.items():
        steps = part.needs.steps
        if steps.several and settings.one_step:
            yield f"{name}: with local_steps = 1 training ends before {steps.several}"
        if steps.suits is not None and settings.optimizer != steps.suits:
            yield (
                f"{name} is made for steps of {steps.suits}; steps of {settings.optimizer} do not get shorter on a "
                f"flat objective. Set optimizer = '{steps.suits}'"
            )
        if steps.pull > 0 and settings.optimizer == "sgd" and settings.lr * steps.pull > 2:
            yield (
                f"{name}: steps of lr = {settings.lr:g} along a pull of strength {steps.pull:g} overshoot and "
                "diverge. Set lr · strength below 2"
            )


def check_links(parts: Parts, model: Model) -> None:
    """Check that no part needs classes or nodes if the examples are links.

    Raises:
        ConfigError: a part does; the message contains the first one and the remedy.
    """
    if models.example(model) != "link":
        return
    for name, part in parts.items():
        needs = part.needs
        of_nodes = "nodes" in needs.data or "sensitive" in needs.data
        if of_nodes or part.protection.plain_loss or (has(part, "objective") and not needs.links):
            preset = preset_name(part)
            remedy = 'Set algorithm.name = "fedavg" or "fedprox".' if preset else "Leave it out of algorithm.parts."
            of_preset = f' of algorithm.name = "{preset}"' if preset else ""
            raise ConfigError(
                f'data.task = "links": the part {name}{of_preset} is about classes or nodes. {remedy}', code=NO_LINKS
            )


def check_exchange(parts: Parts) -> None:
    """Check parts without shared weights: one of them must exchange other values, and none may need updates.

    Raises:
        ValueError: they do not; the message contains the remedy.
    """
    if not any(has(part, "report") and part.sends for part in parts.values()):
        raise ValueError(
            "share is empty, and clients report nothing to any part, so they would learn nothing from each other: "
            "choose the algorithm local for that, or a part with `report` and `download`"
        )
    for name, part in parts.items():
        for hook in OF_UPDATES:
            if has(part, hook):
                raise ValueError(
                    f"parts: {name}.{hook} is about updates, and with share = () clients send none; set share"
                )
