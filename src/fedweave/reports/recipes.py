"""How a run's members train, by its configuration: a comparison of algorithms should train all of them in the same
way."""

from collections.abc import Sequence
from itertools import combinations

from fedweave.core.types import Record
from fedweave.experiment.config import differences, flat
from fedweave.experiment.runs.reading import Group, Run
from fedweave.reports.cells import NONE

_UNEQUAL_TRAINING = (
    "The algorithms do not train in the same way: {ways}. A difference between them may come from the learning rate or "
    "from the amount of training. Give all the same settings, or choose the best of each on validation by a sweep."
)
_NOT_COMPARED = (  # what a comparison may differ in
    *("algorithm", "engine", "seed", "eval_every", "fair_margin", "evaluation"),
    *("privacy", "requester", "purpose"),
)


def recipe(run: Run) -> str:
    """ "adam, lr 0.01, 25 steps of 32 examples": how each member trains in a round."""
    section = run.section("algorithm")
    words = []
    if "optimizer" in section:
        words.append(str(section["optimizer"]))
    if "lr" in section:
        words.append(f"lr {section['lr']}")
    steps = _steps(section)
    if steps:
        words.append(f"{steps} step{'s' * (steps != 1)} of {_examples(section)}")
    return ", ".join(words) or NONE


def _steps(section: Record) -> int:
    """The number of steps in a round; 0 if it depends on the data."""
    for name in ("local_steps", "steps"):
        if isinstance(section.get(name), int):
            return int(section[name])
    batches, epochs = section.get("batches"), section.get("epochs")
    return batches * epochs if isinstance(batches, int) and isinstance(epochs, int) else 0


def _examples(section: Record) -> str:
    parts = [part for part in section.get("parts") or () if isinstance(part, dict)]
    for settings in (section, *parts):
        if settings.get("batch"):
            return f"{settings['batch']} examples"
    return "all examples"


def training_differences(groups: Sequence[Group]) -> list[str]:
    """Sentences on algorithms that ran under other conditions than the first one, or that share no way to train; [] if
    none."""
    sentences = list[str]()
    first = groups[0]
    for group in groups[1:]:
        if group.first.summary["algorithm"] == first.first.summary["algorithm"]:
            continue
        settings = other_settings(group.first, first.first)
        if settings:
            sentences.append(f"{group.label} has {settings}: a difference to {first.label} may come from that.")

    # The ways to train: each algorithm may have several, of which another algorithm has to share one.
    recipes: dict[str, dict[str, None]] = {}  # {algorithm: its recipes, in order}
    for group in groups:
        recipes.setdefault(str(group.first.summary["algorithm"]), {})[recipe(group.first)] = None
    if any(one.isdisjoint(other) for one, other in combinations(map(dict.keys, recipes.values()), 2)):
        algorithms: dict[str, list[str]] = {}  # {recipe: the algorithms with it}
        for algorithm, of_algorithm in recipes.items():
            algorithms.setdefault(" or ".join(of_algorithm), []).append(algorithm)
        ways = "; ".join(f"{', '.join(names)} with {way}" for way, names in algorithms.items())
        sentences.append(_UNEQUAL_TRAINING.format(ways=ways))
    return sentences


def other_settings(run: Run, other: Run) -> str:
    """The settings in which two runs differ, except the algorithm, "rounds = 3 where the other has 100"; "" if none
    differ."""
    settings, settings_of_other = flat(run.config), flat(other.config)
    keys = [key for key in differences(settings, settings_of_other) if key.partition(".")[0] not in _NOT_COMPARED]
    return ", ".join(f"{key} = {settings.get(key)} where the other has {settings_of_other.get(key)}" for key in keys)
