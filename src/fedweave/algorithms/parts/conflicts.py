"""Rules for combinations of parts. Errors before training name the parts and the remedy."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from types import FunctionType
from typing import Literal

from fedweave.algorithms.parts.objective import CrossEntropy
from fedweave.algorithms.parts.packing import Packs, Quantize, TopK
from fedweave.algorithms.parts.part import (
    KINDS,
    ChangesData,
    JoinsSum,
    OwnCount,
    Part,
    TriesModels,
    counts_itself,
    has,
)
from fedweave.algorithms.parts.secure_sum import SecureSum
from fedweave.algorithms.registry import ALGORITHMS, PARTS
from fedweave.core import model as models
from fedweave.core import plugins
from fedweave.core.algorithm import NO_LINKS
from fedweave.core.federation import Sends, step_info
from fedweave.core.mechanism import Clipped, Gaussian, Mechanism
from fedweave.core.model import Model
from fedweave.core.plugins import maker_of
from fedweave.core.settings import nearest
from fedweave.errors import ConfigError, SettingError

# ----------------------------------------------------------------------------------------------------
# Names of parts in settings and in messages.


def made(parts: object) -> tuple[Part, ...]:
    """Parts from a user's list, or from a single item. An item is a part, its name, or a table of a name and settings.

    Raises:
        SettingError: there is no part of this name, or the item is no part.
    """
    return tuple(_part(item) for item in (parts if isinstance(parts, list | tuple) else [parts]))


def _part(item: object) -> Part:
    if isinstance(item, Part):
        return item
    if isinstance(item, type) and issubclass(item, Part):
        raise SettingError(f"parts: {item.__name__} is a class. Write {item.__name__}(…).", code="config.value")
    name, values = (item.get("name"), {**item}) if isinstance(item, dict) else (item, {})
    values.pop("name", None)
    if plugins.is_file(name):
        kind = plugins.load(str(name))
    else:
        known = _registered()
        if not isinstance(name, str) or name not in known:
            raise SettingError(
                f"parts: there is no {name!r}.{nearest(name, known)} Choose from fedweave.algorithms.PARTS.",
                code="config.unknown-name",
            )
        kind = known[name]
    part: Part = kind(**values)
    return part


def called(part: Part) -> str:
    """A part's name in messages: its name in settings, or the class name of a user's own part."""
    return plugins.name_of(_registered(), type(part)) or type(part).__name__


def shown(parts: Mapping[str, Part]) -> dict[str, Part]:
    """{name in messages: part}, in the parts' order."""
    named: dict[str, Part] = {}
    for part in parts.values():
        name, again = called(part), sum(type(other) is type(part) for other in named.values())
        named[f"{name} ({again + 1})" if again else name] = part
    return named


def of_algorithm(parts: Mapping[str, Part], names: Sequence[str]) -> str:
    """An addition to a message about parts if an algorithm adds one of them, so that the user did not list it."""
    notes = [f"; {name} is a part of {algorithm} itself" for name in names if (algorithm := _maker(parts[name]))]
    return "".join(notes) if len(notes) < len(names) else ""


def _maker(part: Part) -> str:
    """The name of the algorithm that adds a part; "" for a part that the user listed."""
    if (maker := maker_of(part)) is None:
        return ""
    own_name: str = getattr(getattr(maker.plugin, "paper", maker.plugin), "__name__", "")
    return plugins.name_of(ALGORITHMS, maker.plugin) or own_name


def _registered() -> Mapping[str, type[Part]]:
    return PARTS.extended(plugins.announced("part"))


# Hooks that only one part may have, and what they decide.
DECIDES = {
    "receive": "what each client gets",
    "weigh": "how updates count",
    "aggregate": "the joint update",
    "value": "what an update is worth",
    "step": "the server's step",
    "start": "where training starts",
    "train": "how a client trains",
    "personalize": "which model a client uses",
}
WANTED = DECIDES | {"limit": "how long updates are at most"}  # what a part can need of another (`Needs.decided`)
SUCH = {"value": ("cosine_value", "size_value", "agent_value"), "limit": ("norm_bound",)}  # examples of such parts
OF_UPDATES = ("release", "limit", "aggregate", "step", "receive")  # hooks that have no use if no weights are shared
LOOKS = ("observe", "limit", "value")  # server hooks of any number of parts that read single clients' replies

Parts = Mapping[str, Part]  # in their order
Test = Callable[[Part], bool]


@dataclass(frozen=True)
class Combination:
    """The settings of an algorithm that its parts must suit.

    share: whether clients send only a share of the weights. own_weights: whether clients train from weights that the
                   server does not send. remembers: the setting that lets clients train from values of earlier messages;
                   "" if none.
    participation: the share of the clients that a round calls. optimizer, lr: settings of the local training. one_step:
                   whether it is one step from the received weights. pace: {setting: value} of the settings that change
                   the number of steps or the learning rate (`part.LocalSteps.excludes`).
    statistics:    place of running statistics of batch norm, as in `part.Needs.statistics`: "home", "any" if clients
                   share them, or "none" if there are none.
    """

    share: bool
    own_weights: bool
    remembers: str
    participation: float
    optimizer: str
    lr: float
    one_step: bool
    pace: Mapping[str, object] = field(default_factory=dict)
    statistics: Literal["any", "home", "none"] = "none"

    def excluded(self, part: Part) -> str:
        """The setting that a part does not support, and its value; "" if there is none."""
        return next((f"{name} = {self.pace[name]!r}" for name in part.needs.steps.excludes if name in self.pace), "")


def mechanisms(part: Part) -> tuple[Mechanism, ...]:
    """The mechanisms of a part's `release`, in the order in which it applies them."""
    return Sends("", part.protection.mechanism).mechanisms


# --- properties of parts for the tables below ------------------------------------------------------------------------


def _has(*hooks: str) -> Test:
    return lambda part: any(has(part, hook) for hook in hooks)


def _changes(part: Part) -> bool:
    return isinstance(part, ChangesData)


def _remakes_data(part: Part) -> bool:
    return any(step_info(step).replaces_data for step in part.setup)


def _hides(part: Part) -> bool:
    return part.protection.hides


def _of_the_message_alone(part: Part) -> bool:
    return part.protection.hides and part.protection.stateless


def _of_all(part: Part) -> bool:
    return part.protection.hides and not part.protection.stateless


def _tries(part: Part) -> bool:
    return isinstance(part, TriesModels)


def _looks(part: Part) -> bool:
    return bool(part.sends) or _looks_beyond_sends(part)


def _looks_beyond_sends(part: Part) -> bool:
    return _has(*LOOKS)(part) or _tries(part)


def _adds_up(part: Part) -> bool:
    return isinstance(part, SecureSum)


def _looks_beyond_means(part: Part) -> bool:
    """Whether the server reads more of the part's reports than means and updates' weights."""
    alone = (sends for sends in part.sends.values() if not (isinstance(sends, Sends) and sends.mean))
    return (not counts_itself(part) and any(alone)) or _looks_beyond_sends(part)


def _weighs_otherwise(part: Part) -> bool:
    return has(part, "weigh") and not counts_itself(part)


def _joins_no_sum(part: Part) -> bool:
    return _remakes_data(part) and not isinstance(part, JoinsSum)


def _becomes(part: Part) -> bool:
    return bool(part.protection.becomes)


def _bounds(part: Part) -> bool:
    return (
        not _hides(part)
        and _has("release")(part)
        and any(not mechanism.cost().unbounded for mechanism in mechanisms(part))
    )


def _remakes_updates(part: Part) -> bool:
    return not _hides(part) and _has("release")(part)


def _of_single_examples(part: Part) -> bool:
    return any(isinstance(mechanism, Gaussian) and mechanism.per == "example" for mechanism in mechanisms(part))


def _packs(part: Part) -> bool:
    return isinstance(part, Packs)


def _clips(part: Part) -> bool:
    return bool(mechanisms(part)) and all(isinstance(mechanism, Clipped) for mechanism in mechanisms(part))


def _adds_to_the_loss(part: Part) -> bool:
    return not isinstance(part, CrossEntropy) and _has("objective", "penalty", "train")(part)


# --- the tables ------------------------------------------------------------------------------------------------------

Order = Literal["any", "first behind", "first before"]
# A first part, a second part, their order in the list, and why they cannot be combined.
BETWEEN_PARTS: tuple[tuple[Test, Test, Order, str], ...] = (
    (
        _adds_up,
        _weighs_otherwise,
        "any",
        "{other} weights updates by their values at the server, which {one} hides; leave out one of them",
    ),
    (
        _tries,
        _has("step", "aggregate"),
        "any",
        "{one} computes clients' shares in a mean of updates, but {other} replaces the mean; leave out one of them",
    ),
    (
        _tries,
        _tries,
        "first before",
        "{one} and {other} both value clients by trying models, and their measurements have the same names; keep one",
    ),
    (
        lambda part: part.needs.supervised,
        lambda part: part.needs.supervised,
        "first before",
        "{one} and {other} both train on the examples' classes, so these would count twice; keep one",
    ),
    (
        _becomes,
        _becomes,
        "first before",
        "{one} and {other} both replace the update; keep one of them",
    ),
    (
        lambda part: "personal" in part.needs.models,
        lambda part: "global" in part.needs.models or _has("step", "aggregate")(part),
        "any",
        "{other} makes one global step, but every client has weights of its own",
    ),
    (
        lambda part: part.protection.plain_loss,
        _adds_to_the_loss,
        "any",
        "{one} sends a step on the cross-entropy of single examples, so {other} would have no effect on it; "
        "leave out one of them",
    ),
    (
        lambda part: _adds_up(part) and part.needs.alike,
        lambda part: isinstance(part, OwnCount) and has(part, "weigh") and bool(part.counted),
        "any",
        "{one} with weights = 'equal' and {other} both decide how updates count; leave out weights",
    ),
    (
        _adds_up,
        _looks_beyond_means,
        "any",
        "{other} reads each client's reply, which {one} hides; leave out one of them",
    ),
    (
        lambda part: _hides(part) and not _adds_up(part),
        _looks,
        "any",
        "{other} reads each client's reply, which {one} hides; leave out one of them",
    ),
    (
        lambda part: part.needs.sends_gradients,
        lambda part: bool(mechanisms(part)) and not _adds_up(part),
        "any",
        "{one} also sends gradients, which {other} does not protect; leave out one of them, or "
        "set option = 2 of scaffold, which sends none",
    ),
    (
        _of_the_message_alone,
        lambda part: _has("start")(part) or _changes(part),
        "any",
        "{other} lets clients train from more than the present message, and {one} with require_all = false forbids "
        "that; set require_all = true",
    ),
    (
        _of_the_message_alone,
        _remakes_data,
        "any",
        "{other} lets clients train on data of an earlier message, and {one} with require_all = false forbids that; "
        "set require_all = true",
    ),
    (
        _hides,
        _joins_no_sum,
        "any",
        "{other} changes clients' data by messages that differ between clients, and {one} needs the same message for "
        "all; leave out one of them",
    ),
    (
        _hides,
        _has("release"),
        "first before",
        "{other} changes an update that {one} has hidden; put {one} behind it",
    ),
    (
        lambda part: _becomes(part) and bool(mechanisms(part)),
        _has("release"),
        "first behind",
        "{one} replaces the update, so {other} before it would have no effect; leave out one of them",
    ),
    (
        _becomes,
        _has("release"),
        "first behind",
        "{one} replaces the update, so {other} before it would have no effect; list {one} first",
    ),
    (
        _remakes_data,
        _changes,
        "any",
        "{one} replaces clients' data before the first round, so {other} would change the replacement instead of the "
        "clients' data; leave out one of them",
    ),
    (
        _bounds,
        _remakes_updates,
        "first before",
        "{other} would change an update after {one} has protected it; list {one} last",
    ),
    (
        _packs,
        _has("receive"),
        "any",
        "{one} packs a change of weights that the server knows, but {other} sends clients other weights; leave one out",
    ),
    (
        _packs,
        _clips,
        "first behind",
        "{one} would change an update that {other} has bounded; list {one} before it",
    ),
    (
        lambda part: isinstance(part, TopK),
        lambda part: isinstance(part, TopK | Quantize),
        "first behind",
        "{one} adds what it left out before to an update that {other} has packed; list {one} once, and before it",
    ),
    (
        lambda part: isinstance(part, Quantize),
        lambda part: isinstance(part, Quantize),
        "first before",
        "{one} and {other} both round updates; keep one of them",
    ),
    (
        _packs,
        lambda part: _has("release")(part) and not _packs(part) and not _clips(part),
        "any",
        "{one} packs updates that have few different numbers, and {other} changes these numbers; leave out one of them",
    ),
    (
        _of_single_examples,
        _changes,
        "any",
        "{one} bounds what one example reveals through its own gradient, but {other} copies data between examples",
    ),
)

# A part, settings, and why they cannot be combined.
WITH_SETTINGS: tuple[tuple[Test, Callable[[Part, Combination], object], str], ...] = (
    (
        lambda part: "whole" in part.needs.models,
        lambda part, settings: settings.share,
        "{one} lets the server evaluate whole models, but clients send only a share of the weights",
    ),
    (
        lambda part: part.protection.stateless,
        lambda part, settings: settings.remembers,
        "{one} with require_all = false needs updates from the present message only, but {settings.remembers} uses "
        "earlier ones; change that, or set require_all = true",
    ),
    (
        lambda part: part.needs.all_clients,
        lambda part, settings: settings.participation < 1,
        "{one} needs all clients, and participation is {settings.participation:g}; set participation = 1.0",
    ),
    (
        _of_all,
        lambda part, settings: settings.participation < 1,
        "{one} with require_all = true needs all clients, and participation is {settings.participation:g}; set "
        "participation = 1.0, or require_all = false",
    ),
    (
        _of_single_examples,
        lambda part, settings: settings.own_weights,
        "{one} bounds what one example reveals through its own gradient, but weights that stay at clients come "
        "from all examples (set share = ['*'], and no reward)",
    ),
    (
        lambda part: part.needs.steps.optimizer is not None,
        lambda part, settings: settings.optimizer != part.needs.steps.optimizer,
        "{one} treats updates as sums of gradients, and updates by {settings.optimizer} are no such sums; set "
        "optimizer = '{part.needs.steps.optimizer}'",
    ),
    (
        lambda part: part.needs.steps.optimizer == "sgd",
        lambda part, settings: "local_momentum" in settings.pace,
        "{one} treats updates as sums of gradients, and updates with momentum are no such sums; set local_momentum = 0",
    ),
    (
        lambda part: bool(part.needs.steps.excludes),
        lambda part, settings: settings.excluded(part),
        "{one} needs local_steps steps at the rate lr in every round; leave out {excluded}",
    ),
    (
        lambda part: part.needs.statistics == "home",
        lambda part, settings: settings.statistics == "any",
        "{one} does not average updates, so running statistics of batch norm cannot be in them; "
        "add the part own_norms, so that they stay at their client, or set model.norm = 'layer'",
    ),
    (
        lambda part: part.needs.statistics == "none",
        lambda part, settings: settings.statistics != "none",
        "{one} computes with weights, and running statistics of batch norm are no weights; set model.norm = 'layer'",
    ),
)


def check(parts: Parts) -> None:
    """Check that the parts can be combined.

    Raises:
        ValueError: a part's declarations have the wrong form; two parts decide the same hook, report the same key with
            different meanings, precompute different features, or are in the table; a part lacks another that it needs;
            or a user's own part has a method that no hook calls.
    """
    for faults in (_declaring, _deciding, _meanings, _between, _uncalled, _incomplete):
        if sentence := next(faults(parts), ""):
            raise ValueError(f"parts: {sentence}")


def check_settings(parts: Parts, settings: Combination) -> None:
    """Check that the parts suit the algorithm's settings.

    Raises:
        ValueError: they do not; the message contains the remedy.
    """
    for name, part in parts.items():
        for concerned, conflicting, sentence in WITH_SETTINGS:
            if concerned(part) and conflicting(part, settings):
                words = {"one": name, "part": part, "settings": settings, "excluded": settings.excluded(part)}
                raise ValueError("parts: " + sentence.format(**words))


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
            preset = _maker(part)
            remedy = "Leave it out of algorithm.parts." if not preset else 'Set algorithm.name = "fedavg" or "fedprox".'
            of = f' of algorithm.name = "{preset}"' if preset else ""
            raise ConfigError(
                f'data.task = "links": the part {name}{of} is about classes or nodes. {remedy}', code=NO_LINKS
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
        if about := next((hook for hook in OF_UPDATES if has(part, hook)), ""):
            raise ValueError(
                f"parts: {name}.{about} is about updates, and with share = () clients send none; set share"
            )


def _declaring(parts: Parts) -> Iterator[str]:
    """User's own parts whose `sends` or `client_learns` has the wrong form."""
    for name, part in parts.items():
        sends, learns = part.sends, part.client_learns
        if not isinstance(sends, Mapping) or not all(isinstance(value, str | Sends) for value in sends.values()):
            yield f"{name}.sends is to be {{key of its report: what that reveals, a str or Sends}}"
        texts = list(learns.values()) if isinstance(learns, Mapping) else [learns]
        if not all(isinstance(value, str) for value in texts):
            yield f"{name}.client_learns is to be a str, or {{key of its download: a str}}"


def _between(parts: Parts) -> Iterator[str]:
    names = list(parts)
    for first, second, order, sentence in BETWEEN_PARTS:
        for one, other in ((one, other) for one in names for other in names if one != other):
            behind = names.index(one) > names.index(other)
            listed = order == "any" or behind == (order == "first behind")
            if listed and first(parts[one]) and second(parts[other]):
                yield sentence.format(one=one, other=other) + of_algorithm(parts, (one, other))


def _deciding(parts: Parts) -> Iterator[str]:
    for hook, what in DECIDES.items():
        owners = [name for name, part in parts.items() if has(part, hook)]
        if len(owners) > 1 and len({type(parts[name]) for name in owners}) == 1:
            times = f"{len(owners)} times, with what the algorithm has by itself"
            yield f"{owners[0]} is there {times}, and decides {what}; keep one of them"
        elif len(owners) > 1:
            yield f"{' and '.join(owners)} both decide {what}; keep one of them{of_algorithm(parts, owners)}"


def _meanings(parts: Parts) -> Iterator[str]:
    """Keys with two meanings, or two ways to precompute a feature. A `SecureSum` also holds other parts' keys."""
    parts = {name: part for name, part in parts.items() if not _adds_up(part)}
    for key in {key: None for part in parts.values() for key in part.sends}:
        meanings = {part.sends[key]: name for name, part in parts.items() if key in part.sends}
        if len(meanings) > 1:
            yield f"{' and '.join(meanings.values())} both report {key!r} with other meanings"
    wanted = {finder: name for name, part in parts.items() if (finder := part.needs.finder)}
    for kind in {type(finder) for finder in wanted}:
        unlike = [finder for finder in wanted if type(finder) is kind]
        if len(unlike) > 1:
            names, settings = ([wanted[finder] for finder in unlike], list(vars(unlike[0])))
            yield f"{' and '.join(names)} precompute different features; set {' and '.join(settings)} alike"


def _uncalled(parts: Parts) -> Iterator[str]:
    """Methods of a user's own part with nearly a hook's name, which no hook would call."""
    hooks = [
        name
        for kind in KINDS
        for name, member in vars(kind).items()
        if isinstance(member, FunctionType) and name[0] != "_"
    ]
    for name, part in parts.items():
        namespace = {} if type(part).__module__.startswith("fedweave.") else vars(type(part))
        for method in (
            key for key, member in namespace.items() if isinstance(member, FunctionType) and key not in hooks
        ):
            if near := get_close_matches(method, hooks, 1, 0.85):
                helper = "A helper of your own may begin with _"
                yield f"nothing calls {name}.{method}; did you mean {near[0]}? {helper}"


def _incomplete(parts: Parts) -> Iterator[str]:
    decided = {hook for part in parts.values() for hook in WANTED if has(part, hook)}
    for name, part in parts.items():
        if missing := [hook for hook in part.needs.decided if hook not in decided]:
            such = f", such as {', '.join(SUCH[missing[0]])}" if missing[0] in SUCH else ""
            yield f"{name} needs another part that decides {WANTED[missing[0]]}; add one{such}"


# ----------------------------------------------------------------------------------------------------
# Notes before training on settings that do not suit a part. They name the part and the remedy.


# A part, settings, and a note for both together: the combination runs, but has no effect or a bad one.
NOTED: tuple[tuple[Test, Callable[[Part, Combination], object], str], ...] = (
    (
        lambda part: bool(part.needs.steps.several),
        lambda part, settings: settings.one_step,
        "{one}: with local_steps = 1 training ends before {part.needs.steps.several}",
    ),
    (
        lambda part: part.needs.steps.suits is not None,
        lambda part, settings: settings.optimizer != part.needs.steps.suits,
        "{one} is made for steps of {part.needs.steps.suits}; steps of {settings.optimizer} do not get shorter on a "
        "flat objective. Set optimizer = '{part.needs.steps.suits}'",
    ),
    (
        lambda part: part.needs.steps.pull > 0,
        lambda part, settings: settings.optimizer == "sgd" and settings.lr * part.needs.steps.pull > 2,
        "{one}: steps of lr = {settings.lr:g} along a pull of strength {part.needs.steps.pull:g} overshoot and "
        "diverge. Set lr · strength below 2",
    ),
)


def noted(parts: Parts, settings: Combination) -> Iterator[str]:
    """The notes on parts and settings."""
    for name, part in parts.items():
        for concerned, condition, sentence in NOTED:
            if concerned(part) and condition(part, settings):
                yield sentence.format(one=name, part=part, settings=settings)
