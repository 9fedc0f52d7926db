"""What the server checks of a reply on arrival, and who was asked and gave nothing of use."""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from statistics import median_low

from torch import Tensor

from fedweave.core.federation import StepInfo
from fedweave.core.tree import Tree, decode, leaves, not_finite, numbers
from fedweave.engines.calls import check_declared
from fedweave.errors import NOT_FINITE, ReplyRefused
from fedweave.ops.sparsified import Sparsified

Structure = tuple[tuple[str, str], ...]
FAR = 1e6  # a model whose weights differ from others' by more is of no use to anybody


class Inspector:
    """Checks replies; remembers the structure that most replies to each step had."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[str, Structure] = {}
        self._usual: dict[tuple[str, str], float] = {}

    def accept(
        self,
        step: str,
        info: StepInfo,
        sent: Mapping[str, Tree],
        blobs: Mapping[str, bytes],
        like: Tree | None = None,
    ) -> tuple[dict[str, Tree], dict[str, str]]:
        """The replies {site: tree} that may be used, and {site: reason} of those that are refused.

        A reply must be in the documented encoding and within the size limit, hold declared names only, be finite, and
        have the ranges and forms that the step declares (`Sends.within`, `Sends.like`). Unless the step is ragged, what
        it has in common with the message `sent` must have the same shape and dtype, and the rest the same as `like` or,
        without it, as at most other sites, apart from the number of rows where the step declares one per node. Where no
        reply has the message's shapes, the step is one that changes them, and other sites alone count. Numbers without
        a declared range must not be larger than most other sites' (or `like`) by more than `FAR`.
        """
        good: dict[str, Tree] = {}
        refused: dict[str, str] = {}
        for site, blob in blobs.items():
            try:
                tree = self._read(step, info, blob)
                if fault := _beyond(info, sent.get(site, {}), tree):
                    raise ReplyRefused(fault)
                good[site] = tree
            except ReplyRefused as error:
                refused[site] = f"its reply was refused: {error}"
        changed = {} if info.ragged else {site: _changes(sent.get(site, {}), good[site]) for site in good}
        if len(good) == 1 or not all(changed.values()):
            for site in [site for site, what in changed.items() if what]:
                del good[site]
                refused[site] = f"its reply was refused: {changed[site]}"
        forms = {site: _structure(tree, info) for site, tree in good.items()}
        common = self._settle(step, forms) if like is None else _structure(like, info)
        for site, form in forms.items():
            if common is None or form != common:
                del good[site]
                refused[site] = f"its reply was refused: {_difference(form, common)}"
        for site, fault in self._far(step, info, good, like).items():
            del good[site]
            refused[site] = f"its reply was refused: {fault}"
        return good, refused

    def _read(self, step: str, info: StepInfo, blob: bytes) -> Tree:
        if len(blob) > self._limit:
            raise ReplyRefused(f"{len(blob)} bytes exceed the limit of {self._limit} (engine.reply_mb)")
        tree = decode(blob, self._limit)
        check_declared(step, info, (path for path, _ in leaves(tree)))
        if path := not_finite(tree):
            raise ReplyRefused(f"{path} {NOT_FINITE}")
        return tree

    def _settle(self, step: str, forms: Mapping[str, Structure]) -> Structure | None:
        """The structure that replies of `step` must have; None if no majority settles it.

        Several replies settle it among themselves; a single one is held against what was settled before.
        """
        if forms and (len(forms) > 1 or step not in self._known):
            (form, votes), *_ = Counter(forms.values()).most_common(1)
            if 2 * votes > len(forms):
                self._known[step] = form
        return self._known.get(step)

    def _far(self, step: str, info: StepInfo, trees: Mapping[str, Tree], like: Tree | None) -> dict[str, str]:
        """{site: which key} of those whose numbers are much larger than others'.

        The usual size is the lower median of all, at least 1; a single reply is held against the last one's.
        """
        sizes = {site: _largest(tree, info) for site, tree in trees.items()}
        known = [] if like is None else [_largest(like, info)]
        found: dict[str, str] = {}
        for key in {key for own in sizes.values() for key in own}:
            usual = median_low([own.get(key, 0.0) for own in (*sizes.values(), *known)])
            if len(sizes) + len(known) == 1:
                usual = self._usual.get((step, key), usual)
            limit = FAR * max(1.0, usual)
            far = {site: own[key] for site, own in sizes.items() if own.get(key, 0.0) > limit}
            found |= {site: f"{key} reaches {most:g}, where {usual:g} is usual" for site, most in far.items()}
            self._usual[step, key] = usual
        return found


def _changes(message: Tree, reply: Tree) -> str:
    """Which leaf of a reply has another shape or dtype than the message's of that name; empty if none has."""
    sent = {path: leaf for path, leaf in leaves(message) if isinstance(leaf, Tensor)}
    found = ((path, _form(leaf), _form(sent[path])) for path, leaf in leaves(reply) if path in sent)
    return next((f"{path} is {form}, not {like}" for path, form, like in found if form != like), "")


def _beyond(info: StepInfo, message: Tree, reply: Tree) -> str:
    """Which leaf of a reply is beyond its declared range, or not of the declared form; empty if none is."""
    sent = {path: leaf for path, leaf in leaves(message) if isinstance(leaf, Tensor | Sparsified)}
    for path, leaf in leaves(reply):
        key = info.covering(path) or path
        told = info.sends[key]
        if told.within is not None and (fault := told.within.fault(path, leaf)):
            return fault
        of = sent.get(told.like + path.removeprefix(key)) if told.like else None
        if of is not None and key in info.sums and leaf.shape == of.shape:
            continue  # words in the place of numbers
        if of is not None and _form(leaf) != (form := _form(of)):
            return f"{path} is {_form(leaf)}, not {form}"
    return ""


def _largest(tree: Tree, info: StepInfo) -> dict[str, float]:
    """{declared key: the largest magnitude of its floating-point numbers} of those without a range."""
    found: dict[str, float] = {}
    for path, leaf in numbers(tree):
        key = info.covering(path) or path
        if leaf.numel() and not info.sends[key].within:
            least, most = leaf.aminmax()
            found[key] = max(found.get(key, 0.0), -float(least), float(most))
    return found


def _structure(tree: Tree, info: StepInfo) -> Structure:
    nodes = {path for path, _ in leaves(tree) if path.split("/")[0] in info.per_node}
    return tuple((path, _form(leaf, info.ragged, path in nodes)) for path, leaf in leaves(tree))


def _form(leaf: object, ragged: bool = False, per_node: bool = False) -> str:
    if not isinstance(leaf, Tensor | Sparsified):
        return type(leaf).__name__
    shape = f"{len(leaf.shape)}-d" if ragged else str(list(leaf.shape))
    if per_node and not ragged:
        shape = f"[nodes{''.join(f', {size}' for size in leaf.shape[1:])}]" if len(leaf.shape) else "0-d"
    return f"{shape} {str(leaf.dtype).removeprefix('torch.')}"


def _difference(form: Structure, common: Structure | None) -> str:
    if common is None:
        return "the sites disagree on its structure, and no majority settles it"
    ours, theirs = dict(form), dict(common)
    names = [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]
    parts = [f"{name} is {ours.get(name, 'absent')}, not {theirs.get(name, 'absent')}" for name in names[:3]]
    return "; ".join(parts) or "its keys are in another order"


class Faults:
    """The faults of sites since they were last taken, each (site, "missing" | "refused" | "late")."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self.reasons: dict[str, str] = {}  # why each site was last missing
        self._log = logging.getLogger("fedweave.server")

    def note(self, round: int, missing: Mapping[str, str], refused: Mapping[str, str]) -> None:
        """{site: why} of those whose replies a call lacks, and of those among them that sent something of no use."""
        self._counts.update((site, "missing") for site in missing)
        self._counts.update((site, "refused") for site in refused)
        for site, why in {**missing, **refused}.items():
            if site in refused or self.reasons.get(site) != why:  # who stays away is named once, not at every call
                self._log.warning("round %d: %s is left out: %s", round, site, why)
        self.reasons |= missing

    def update(self, found: Mapping[tuple[str, str], int] | Iterable[tuple[str, str]]) -> None:
        """Count more faults, once each or as often as `found` says, of which there is no reason."""
        self._counts.update(found)

    def taken(self) -> dict[tuple[str, str], int]:
        """How many of each there are, which then count no more."""
        found, self._counts = dict(self._counts), Counter()
        return found
