"""Which parts can be combined: what is refused before training, naming the parts and what to do."""

from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from types import FunctionType

from fedweave.algorithms.parts.part import Part, has
from fedweave.core.federation import Sends, step_info
from fedweave.core.mechanism import Gaussian, Mechanism

# Hooks that only one part may have, and what they decide.
DECIDES = {
    "reward": "what each client gets",
    "weigh": "how updates count",
    "aggregate": "the joint update",
    "value": "what an update is worth",
    "step": "the server's step",
    "receive": "what a client receives",
    "start": "where training starts",
    "judged": "which model a client uses",
}
SUCH = {"value": ("cosine_value", "size_value", "agent_value")}  # parts that decide what others need
_OF_UPDATES = ("release", "limit", "aggregate", "step", "reward")  # hooks without a use where no weights are shared
LOOKS = ("observe", "limit", "value")  # hooks of the server that see single clients; others are decided by one part

Parts = Mapping[str, Part]  # in their order


def check(parts: Parts) -> None:
    """Refuse parts that do not go together.

    Raises:
        ValueError: two parts decide the same thing, release something else than the update, or report the same key with
            different meanings; one changes an update after another has bounded or hidden it, looks at what is hidden,
            or lacks another that it needs; or somebody's own part has a method that nothing calls.
    """
    for check_one in (_declaring, _deciding, _reporting, _called, _hidden, _replaced, _steady, _bounded, _complete):
        check_one(parts)


def _declaring(parts: Parts) -> None:
    """Refuse a user's own part whose `sends` or `hears` is of another form."""
    for name, part in parts.items():
        sends, hears = part.sends, part.hears
        if not isinstance(sends, Mapping) or not all(isinstance(own, str | Sends) for own in sends.values()):
            raise ValueError(f"parts: {name}.sends is to be {{key of its report: what that tells, a str or Sends}}")
        told = list(hears.values()) if isinstance(hears, Mapping) else [hears]
        if not all(isinstance(own, str) for own in told):
            raise ValueError(f"parts: {name}.hears is to be a str, or {{key of its download: a str}}")


def _deciding(parts: Parts) -> None:
    for hook, what in DECIDES.items():
        if len(owners := [name for name, part in parts.items() if has(part, hook)]) > 1:
            if len({type(parts[name]) for name in owners}) == 1:
                times = f"{len(owners)} times, with what the algorithm has by itself"
                raise ValueError(f"parts: {owners[0]} is there {times}, and decides {what}; keep one of them")
            raise ValueError(f"parts: {' and '.join(owners)} both decide {what}; keep one of them")
    if len(owners := [name for name, part in parts.items() if part.supervised]) > 1:
        raise ValueError(
            f"parts: {' and '.join(owners)} both train on the examples' classes, which would count twice; keep one"
        )
    if len(owners := [name for name, part in parts.items() if part.releases]) > 1:
        raise ValueError(f"parts: {' and '.join(owners)} both send something else than an update; keep one of them")


def _reporting(parts: Parts) -> None:
    """Refuse a key with two meanings."""
    for key in {key: None for part in parts.values() for key in part.sends}:
        meanings = {part.sends[key]: name for name, part in parts.items() if key in part.sends}
        if len(meanings) > 1:
            raise ValueError(f"parts: {' and '.join(meanings.values())} both report {key!r} with other meanings")


def _called(parts: Parts) -> None:
    """Refuse a method of a user's own part whose name is nearly a hook's: nothing would call it."""
    hooks = [name for name, made in vars(Part).items() if isinstance(made, FunctionType) and name[0] != "_"]
    for name, part in parts.items():
        own = {} if type(part).__module__.startswith("fedweave.") else vars(type(part))
        for method in (key for key, made in own.items() if isinstance(made, FunctionType) and key not in hooks):
            if near := get_close_matches(method, hooks, 1, 0.85):
                raise ValueError(
                    f"parts: nothing calls {name}.{method}; did you mean {near[0]}? A helper of your own may begin "
                    "with _"
                )


def _hidden(parts: Parts) -> None:
    """Refuse parts that look at single clients where another hides them, or that change what it has hidden."""
    hider = next((name for name, part in parts.items() if part.hides), "")
    for name, part in parts.items() if hider else ():
        if name != hider and (part.sends or any(has(part, hook) for hook in LOOKS)):
            raise ValueError(
                f"parts: {name} looks at what each client sends by itself, which {hider} hides; leave out one of them"
            )
    for name, part in parts.items() if hider else ():
        if parts[hider].forgets and (has(part, "start") or has(part, "changes")):
            raise ValueError(
                f"parts: {name} has clients train from more than the present message, and {hider} with everyone = "
                "false is of that alone; set everyone = true"
            )
        if any(step_info(step).replaces_data for step in part.setup):
            raise ValueError(
                f"parts: {name} changes clients' data by what each of them is told, and {hider} is of what all are "
                "told alike; leave out one of them"
            )
    names = list(parts)
    if after := [name for name in names[names.index(hider) + 1 :] if has(parts[name], "release")] if hider else []:
        raise ValueError(f"parts: {after[0]} changes an update that {hider} has hidden; put {hider} behind it")


def check_sum(parts: Parts, remembers: str, participation: float) -> None:
    """Refuse a secure sum that is impossible with such clients.

    remembers: what clients train from besides the present message, as a setting with what to take instead; "" if
    nothing. participation: the share of the clients that a round calls.

    Raises:
        ValueError: says what to set.
    """
    for name, part in parts.items():
        if part.forgets and remembers:
            raise ValueError(
                f"parts: {name} with everyone = false is of what clients make of the present message alone, and "
                f"{remembers} is of earlier ones; change that, or set everyone = true"
            )
        if part.hides and not part.forgets and participation < 1:
            raise ValueError(
                f"parts: {name} with everyone = true is of all clients, and participation is {participation:g}; set "
                "participation = 1.0, or everyone = false"
            )


def check_shares_nothing(parts: Parts, share: Sequence[str]) -> None:
    """Refuse clients that share no weights unless a part exchanges something else, and parts that are about updates.

    Raises:
        ValueError: says what to set.
    """
    if share:
        return
    if not any(has(part, "report") and part.sends for part in parts.values()):
        raise ValueError(
            "share is empty, and no part has clients report anything, so that nothing would be learnt together: choose "
            "the algorithm local for that, or a part with `report` and `download`"
        )
    for name, part in parts.items():
        if about := next((hook for hook in _OF_UPDATES if has(part, hook)), ""):
            raise ValueError(
                f"parts: {name}.{about} is about updates, and with share = () clients send none; set share"
            )


def check_examples(parts: Parts, own_weights: bool) -> None:
    """Refuse noise for single examples where other examples' gradients depend on one, so that its bound does not hold.

    own_weights: whether clients train from weights that the server does not send them.

    Raises:
        ValueError: says what makes them depend on each other.
    """
    for name, part in parts.items():
        if not any(isinstance(own, Gaussian) and own.per == "example" for own in mechanisms(part)):
            continue
        changing = next((other for other, own in parts.items() if has(own, "changes")), "")
        if own_weights or changing:
            why = (
                f"{changing} copies data between examples"
                if changing
                else "weights that clients keep of their own come from all examples (set share = ['*'], and no reward)"
            )
            raise ValueError(f"parts: {name} bounds what one example tells through its own gradient, but {why}")


def _bounded(parts: Parts) -> None:
    """Refuse parts that change what an earlier part has bounded; one that hides it may follow."""
    changing = [name for name, part in parts.items() if has(part, "release") and not part.hides]
    for at, name in enumerate(changing[:-1]):
        if any(not own.cost().unbounded for own in mechanisms(parts[name])):
            raise ValueError(
                f"parts: {changing[at + 1]} would make something else of an update after {name} has protected it; "
                f"list {name} last"
            )


def _replaced(parts: Parts) -> None:
    """Refuse a part that changes the update before one that sends something else instead: it would have no effect, but
    ledgers would still state it."""
    names = list(parts)
    for at, name in enumerate(names):
        if parts[name].releases and (before := [one for one in names[:at] if has(parts[one], "release")]):
            remedy = "leave one of them out" if mechanisms(parts[name]) else f"list {name} first"
            raise ValueError(
                f"parts: {name} sends something else in the place of an update, so that {before[0]} before it would do "
                f"nothing; {remedy}"
            )


def _steady(parts: Parts) -> None:
    """Refuse data that change under a part that works on them once, before the first round."""
    changing = next((name for name, part in parts.items() if has(part, "changes")), "")
    for name, part in parts.items() if changing else ():
        if any(step_info(step).replaces_data for step in part.setup):
            raise ValueError(
                f"parts: {name} makes other data of the clients' before the first round, and {changing} would change "
                "those in place of what the clients hold; leave out one of them"
            )


def _complete(parts: Parts) -> None:
    decided = {hook for part in parts.values() for hook in DECIDES if has(part, hook)}
    for name, part in parts.items():
        if missing := [hook for hook in part.requires if hook not in decided]:
            such = f", such as {', '.join(SUCH[missing[0]])}" if missing[0] in SUCH else ""
            raise ValueError(f"parts: {name} needs another part that decides {DECIDES[missing[0]]}; add one{such}")


def mechanisms(part: Part) -> tuple[Mechanism, ...]:
    """How a part's `release` protects an update, in the order in which it does."""
    return Sends("", part.mechanism).mechanisms
