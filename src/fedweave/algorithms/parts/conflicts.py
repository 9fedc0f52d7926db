"""Which parts can be combined. Errors before training name the parts and the remedy.

Most parts need no rule: terms of the objective add up. What only one part may decide is listed in `DECISIONS`. The
releases of updates form a chain, whose order `MAY_FOLLOW` gives. `CONFLICTS` lists the other pairs.
"""

from collections.abc import Mapping
from difflib import get_close_matches
from itertools import combinations, permutations
from types import FunctionType
from typing import Literal, NoReturn

from fedweave.algorithms.parts.cross_entropy import CrossEntropy
from fedweave.algorithms.parts.names import preset_note
from fedweave.algorithms.parts.packing import Packs, TopK
from fedweave.algorithms.parts.part import OwnCount, Part, counts_itself, has
from fedweave.algorithms.parts.secure_sum import SecureSum
from fedweave.core.federation import Sends, step_info
from fedweave.core.mechanism import Clipped, Gaussian, Mechanism
from fedweave.partition.precompute import Precompute

Parts = Mapping[str, Part]  # in their order

# {hook, or a declaration in `needs`: what it decides}. Only one part may have each of them.
DECISIONS = {
    "receive": "what each client gets",
    "weigh": "how updates count",
    "aggregate": "the joint update",
    "value": "what an update is worth",
    "step": "the server's step",
    "start": "where training starts",
    "train": "how a client trains",
    "personalize": "which model a client uses",
    "try_models": "what clients are worth in models that clients try",
    "supervised": "the loss on the examples' classes",
}
NEEDED = DECISIONS | {"limit": "how long updates are at most"}  # what `Needs.decided` can require
EXAMPLES = {"value": ("cosine_value", "size_value", "agent_value"), "limit": ("norm_bound",)}  # of such parts

# The form of an update after a part's `release`, and the forms that updates may have before it.
Form = Literal["replaced", "changed", "sparse", "rounded", "bounded", "noised", "hidden"]
MAY_FOLLOW: Mapping[Form, tuple[Form, ...]] = {
    "replaced": (),  # it would drop what comes before
    "sparse": (),
    "rounded": ("sparse",),
    "changed": ("replaced", "changed", "bounded"),
    "bounded": ("replaced", "changed", "bounded", "sparse", "rounded"),
    "noised": ("replaced", "changed", "bounded"),
    "hidden": ("replaced", "changed", "bounded", "noised"),
}


def facts(part: Part) -> dict[str, bool]:
    """What `CONFLICTS` needs to know of a part."""
    needs, protection = part.needs, part.protection
    sums = isinstance(part, SecureSum)
    replaces_data = any(step_info(step).replaces_data for step in part.setup)
    changes_data = has(part, "changes")
    replaces_mean = has(part, "step") or has(part, "aggregate")
    # At the server: what a part reads of single clients, and whether the mean of reports and counts would do.
    reads_updates = any(has(part, hook) for hook in ("observe", "limit", "value", "try_models"))
    single = [key for key, sends in part.sends.items() if not (isinstance(sends, Sends) and sends.mean)]
    reads_more_than_sums = (bool(single) or has(part, "weigh")) and not counts_itself(part)
    return {
        "adds to the loss": not isinstance(part, CrossEntropy)
        and any(has(part, hook) for hook in ("objective", "penalty", "train")),
        "bounds examples": any(isinstance(one, Gaussian) and one.per == "example" for one in mechanisms(part)),
        "changes data": changes_data,
        "counts all equally": sums and needs.alike,
        "counts examples": isinstance(part, OwnCount) and has(part, "weigh") and bool(part.counted),
        "global model": "global" in needs.models or replaces_mean,
        "hides": protection.hides,
        "hides all": protection.hides and not sums,
        "packs": isinstance(part, Packs),
        "personal models": "personal" in needs.models,
        "plain loss": protection.plain_loss,
        "protects updates": bool(mechanisms(part)) and not sums,
        "reads replies": reads_updates or reads_more_than_sums,
        "reads reports": reads_updates or bool(part.sends),
        "receives": has(part, "receive"),
        "remembers": changes_data or replaces_data or has(part, "start"),
        "replaces data": replaces_data,
        "replaces data by client": replaces_data and not has(part, "join_sum"),
        "replaces the mean": replaces_mean,
        "sends gradients": needs.sends_gradients,
        "stateless": protection.hides and protection.stateless,
        "sums": sums,
        "tries models": has(part, "try_models"),
    }


# A fact of one part, a fact of another, and why they cannot be combined.
CONFLICTS: tuple[tuple[str, str, str], ...] = (
    ("sums", "reads replies", "{other} reads each client's reply, which {one} hides; leave out one of them"),
    ("hides all", "reads reports", "{other} reads each client's reply, which {one} hides; leave out one of them"),
    (
        "hides",
        "replaces data by client",
        "{other} changes clients' data by messages that differ between clients, and {one} needs the same message for "
        "all; leave out one of them",
    ),
    (
        "stateless",
        "remembers",
        "{other} lets clients train from more than the present message, and {one} with require_all = false forbids "
        "that; set require_all = true",
    ),
    (
        "counts all equally",
        "counts examples",
        "{one} with weights = 'equal' and {other} both decide how updates count; leave out weights",
    ),
    (
        "sends gradients",
        "protects updates",
        "{one} also sends gradients, which {other} does not protect; leave out one of them, or "
        "set option = 2 of scaffold, which sends none",
    ),
    (
        "tries models",
        "replaces the mean",
        "{one} computes clients' shares in a mean of updates, but {other} replaces the mean; leave out one of them",
    ),
    ("personal models", "global model", "{other} makes one global step, but every client has weights of its own"),
    (
        "plain loss",
        "adds to the loss",
        "{one} sends a step on the cross-entropy of single examples, so {other} would have no effect on it; "
        "leave out one of them",
    ),
    (
        "replaces data",
        "changes data",
        "{one} replaces clients' data before the first round, so {other} would change the replacement instead of the "
        "clients' data; leave out one of them",
    ),
    (
        "bounds examples",
        "changes data",
        "{one} bounds what one example reveals through its own gradient, but {other} copies data between examples",
    ),
    (
        "packs",
        "receives",
        "{one} packs a change of weights that the server knows, but {other} sends clients other weights; leave one out",
    ),
)


def mechanisms(part: Part) -> tuple[Mechanism, ...]:
    """The mechanisms of a part's `release`, in the order in which it applies them."""
    return Sends("", part.protection.mechanism).mechanisms


def check(parts: Parts) -> None:
    """Check that the parts can be combined.

    Raises:
        ValueError: a part's declarations have the wrong form; two parts decide the same, report the same key with
            different meanings, precompute different features, or are in `CONFLICTS`; updates are released in a wrong
            order; a part lacks another that it needs; or a user's own part has a method that no hook calls.
    """

    def refuse(fault: str) -> NoReturn:
        raise ValueError(f"parts: {fault}")

    # 1. A user's own parts whose `sends` or `client_learns` has the wrong form.
    for name, part in parts.items():
        sends, learns = part.sends, part.client_learns
        if not isinstance(sends, Mapping) or not all(isinstance(value, str | Sends) for value in sends.values()):
            refuse(f"{name}.sends is to be {{key of its report: what that reveals, a str or Sends}}")
        texts = list(learns.values()) if isinstance(learns, Mapping) else [learns]
        if not all(isinstance(value, str) for value in texts):
            refuse(f"{name}.client_learns is to be a str, or {{key of its download: a str}}")

    # 2. Two parts that decide the same.
    for decision, what in DECISIONS.items():
        if decision == "supervised":
            names = [name for name, part in parts.items() if part.needs.supervised]
        else:
            names = [name for name, part in parts.items() if has(part, decision)]
        if len(names) > 1 and len({type(parts[name]) for name in names}) == 1:
            times = f"{len(names)} times, with what the algorithm has by itself"
            refuse(f"{names[0]} is there {times}, and decides {what}; keep one of them")
        if len(names) > 1:
            refuse(f"{' and '.join(names)} both decide {what}; keep one of them{preset_note(parts, names)}")

    # 3. Keys with two meanings, or two ways to precompute a feature. A `SecureSum` also reports other parts' keys.
    meanings: dict[str, tuple[str, Sends | str]] = {}  # {key: the first part that reports it, and its meaning}
    finders: dict[type[Precompute], tuple[str, Precompute]] = {}
    for name, part in parts.items():
        if isinstance(part, SecureSum):
            continue
        for key, meaning in part.sends.items():
            first, known = meanings.setdefault(key, (name, meaning))
            if meaning != known:
                refuse(f"{first} and {name} both report {key!r} with other meanings")
        finder = part.needs.finder
        if finder is not None:
            first, earlier = finders.setdefault(type(finder), (name, finder))
            if finder != earlier:
                settings = " and ".join(vars(finder))
                refuse(f"{first} and {name} precompute different features; set {settings} to equal values")

    # 4. Parts whose `release` may not follow that of an earlier part.
    forms = {name: _forms(part) for name, part in parts.items()}
    for first, second in combinations(parts, 2):
        if not _may_follow(forms[second], forms[first]):
            swap = f"list {second} before {first}"
            remedy = swap if _may_follow(forms[first], forms[second]) else "leave out one of them"
            state, note = " and ".join(forms[first]), preset_note(parts, (first, second))
            refuse(f"{second} cannot come behind {first}, after which updates are {state}; {remedy}{note}")

    # 5. Pairs in `CONFLICTS`.
    known_facts = {name: facts(part) for name, part in parts.items()}
    for fact, conflicting, sentence in CONFLICTS:
        for one, other in permutations(parts, 2):
            if known_facts[one][fact] and known_facts[other][conflicting]:
                refuse(sentence.format(one=one, other=other) + preset_note(parts, (one, other)))

    # 6. Methods of a user's own part with nearly a hook's name, which nothing would call.
    hooks = [name for name in (*_methods(Part), *_methods(OwnCount)) if name[0] != "_"]
    for name, part in parts.items():
        if type(part).__module__.startswith("fedweave."):
            continue
        for method in _methods(type(part)):
            similar = [] if method in hooks else get_close_matches(method, hooks, 1, 0.85)
            if similar:
                helper = "A helper of your own may begin with _"
                refuse(f"nothing calls {name}.{method}; did you mean {similar[0]}? {helper}")

    # 7. Parts that need another part.
    for name, part in parts.items():
        for decision in part.needs.decided:
            if not any(has(other, decision) for other in parts.values()):
                examples = f", such as {', '.join(EXAMPLES[decision])}" if decision in EXAMPLES else ""
                refuse(f"{name} needs another part that decides {NEEDED[decision]}; add one{examples}")


def _forms(part: Part) -> list[Form]:
    """The forms that a part's `release` gives to an update; [] if it releases what it gets."""
    protection = part.protection
    if protection.hides:
        return ["hidden"]
    if isinstance(part, Packs):
        return ["sparse" if isinstance(part, TopK) else "rounded"]
    forms: list[Form] = ["replaced"] if protection.becomes else []
    if mechanisms(part) and all(isinstance(mechanism, Clipped) for mechanism in mechanisms(part)):
        return [*forms, "bounded"]
    if has(part, "release") and any(not mechanism.cost().unbounded for mechanism in mechanisms(part)):
        return [*forms, "noised"]
    return forms or (["changed"] if has(part, "release") else [])


def _may_follow(forms: list[Form], earlier: list[Form]) -> bool:
    return all(set(earlier).issubset(MAY_FOLLOW[form]) for form in forms)


def _methods(kind: type) -> list[str]:
    return [name for name, member in vars(kind).items() if isinstance(member, FunctionType)]
