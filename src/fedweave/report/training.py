"""How a run's members train, as its configuration has it: what a comparison of algorithms should have alike."""

from collections.abc import Sequence

from fedweave.core.records import Record
from fedweave.experiment.config import differences, flat
from fedweave.report.cells import NONE
from fedweave.report.reading import Group, Run

UNLIKE = (
    "The algorithms do not train alike: {told}. A difference between them may be that of the learning rate or of the "
    "amount of training. Give them the same, or each its own best, chosen on validation (--grid)."
)


_ASIDE = (
    "algorithm",
    "engine",
    "seed",
    "eval_every",
    "fair_margin",
    "evaluation",
    "privacy",
    "requester",
    "purpose",
)  # what a comparison may differ in


def recipe(run: Run) -> str:
    """ "adam, lr 0.01, 25 steps of 32 examples": how each member trains in a round."""
    section = run.section("algorithm")
    words = [str(section["optimizer"])] if "optimizer" in section else []
    words += [f"lr {section['lr']}"] if "lr" in section else []
    if steps := _steps(section):
        words.append(f"{steps} step{'s' * (steps != 1)} of {_examples(section)}")
    return ", ".join(words) or NONE


def unlike(groups: Sequence[Group]) -> list[str]:
    """Sentences where an algorithm was run under other conditions than the first one, or two of them have no way to
    train in common; none where all is alike."""
    found, first = list[str](), groups[0].first
    for group in groups[1:]:
        apart = conditions(group.first, first) if group.first.summary["algorithm"] != first.summary["algorithm"] else ""
        found += [f"{group.label} has {apart}: a difference to {groups[0].label} may come from that."] if apart else []
    return [*found, *_trained_unlike(groups)]


def _trained_unlike(groups: Sequence[Group]) -> list[str]:
    ways: dict[str, dict[str, None]] = {}
    for group in groups:
        ways.setdefault(str(group.first.summary["algorithm"]), {})[recipe(group.first)] = None
    if all(not one.keys().isdisjoint(other) for one in ways.values() for other in ways.values()):
        return []
    alike: dict[str, list[str]] = {}
    for name, found in ways.items():
        alike.setdefault(" or ".join(found), []).append(name)
    return [UNLIKE.format(told="; ".join(f"{', '.join(names)} with {way}" for way, names in alike.items()))]


def conditions(one: Run, other: Run) -> str:
    """In what two runs differ besides the algorithm, "rounds = 3 where the other has 100"; "" if in nothing."""
    mine, theirs = flat(one.config), flat(other.config)
    keys = [key for key in differences(mine, theirs) if key.partition(".")[0] not in _ASIDE]
    return ", ".join(f"{key} = {mine.get(key)} where the other has {theirs.get(key)}" for key in keys)


def _steps(section: Record) -> int:
    for name in ("local_steps", "steps"):
        if isinstance(section.get(name), int):
            return int(section[name])
    batches, epochs = section.get("batches"), section.get("epochs")
    return batches * epochs if isinstance(batches, int) and isinstance(epochs, int) else 0


def _examples(section: Record) -> str:
    parts = [part for part in section.get("parts") or () if isinstance(part, dict)]
    batch = next((own["batch"] for own in (section, *parts) if own.get("batch")), None)
    return "all examples" if batch is None else f"{batch} examples"
