"""The server's checks of a reply on arrival, and the faults of sites."""

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
from fedweave.sites.flare.folder import fields

Structure = tuple[tuple[str, str], ...]
MAX_FACTOR = 1e6  # a factor between numbers of one site and of others beyond which a model is useless


class Inspector:
    """Checks replies; remembers the structure that most replies to each step had."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: dict[str, Structure] = {}
        self._typical: dict[tuple[str, str], float] = {}

    def accept(
        self, step: str, info: StepInfo, sent: Mapping[str, Tree], blobs: Mapping[str, bytes], like: Tree | None = None
    ) -> tuple[dict[str, Tree], dict[str, str]]:
        """The usable replies {site: tree}, and {site: reason} for the rejected ones.

        A reply must be in the documented encoding and within the size limit, hold declared names only, be finite, and
        have the ranges and forms that the step declares (`Sends.within`, `Sends.like`). Unless the step is ragged,
        leaves that are also in the message `sent` must have the same shape and dtype there. All other leaves must have
        the same form as in `like` or, without `like`, as at most other sites. The number of rows may differ if the step
        declares one row per node. If no reply has the message's shapes, the step changes them, and only the other sites
        count. Numbers without a declared range must not exceed the usual size at other sites (or in `like`) by more
        than the factor `MAX_FACTOR`.
        """
        good: dict[str, Tree] = {}
        refused: dict[str, str] = {}
        for site, blob in blobs.items():
            try:
                tree = self._read(step, info, blob)
                fault = _range_fault(info, sent.get(site, {}), tree)
                if fault:
                    raise ReplyRefused(fault)
                good[site] = tree
            except ReplyRefused as error:
                refused[site] = f"its reply was refused: {error}"
        changed = dict[str, str]()  # {site: a leaf with another form than in the message}
        if not info.ragged:
            for site, tree in good.items():
                message = leaves(sent.get(site, {}))
                forms_sent = {path: _form(leaf) for path, leaf in message if isinstance(leaf, Tensor)}
                for path, leaf in leaves(tree):
                    if path in forms_sent and _form(leaf) != forms_sent[path]:
                        changed.setdefault(site, f"{path} is {_form(leaf)}, not {forms_sent[path]}")
        if len(good) == 1 or len(changed) < len(good):
            for site, fault in changed.items():
                del good[site]
                refused[site] = f"its reply was refused: {fault}"
        forms = {site: _structure(tree, info) for site, tree in good.items()}
        common = self._common_structure(step, forms) if like is None else _structure(like, info)
        for site, form in forms.items():
            if common is None or form != common:
                fault = "the sites disagree on its structure, and no majority settles it"
                if common is not None:
                    here, elsewhere = dict(form), dict(common)
                    parts = list[str]()
                    for name in here | elsewhere:
                        if here.get(name) != elsewhere.get(name):
                            parts.append(f"{name} is {here.get(name, 'absent')}, not {elsewhere.get(name, 'absent')}")
                    fault = "; ".join(parts[:3]) or "its keys are in another order"
                del good[site]
                refused[site] = f"its reply was refused: {fault}"
        for site, fault in self._too_large(step, info, good, like).items():
            del good[site]
            refused[site] = f"its reply was refused: {fault}"
        return good, refused

    def _read(self, step: str, info: StepInfo, blob: bytes) -> Tree:
        if len(blob) > self._limit:
            raise ReplyRefused(f"{len(blob)} bytes exceed the limit of {self._limit} (engine.reply_mb)")
        tree = decode(blob, self._limit)
        check_declared(step, info, (path for path, _ in leaves(tree)))
        path = not_finite(tree)
        if path:
            raise ReplyRefused(f"{path} {NOT_FINITE}")
        return tree

    def _common_structure(self, step: str, forms: Mapping[str, Structure]) -> Structure | None:
        """The structure that replies of `step` must have; None if there is no majority.

        Several replies determine it by majority. A single reply is compared with the structure from before.
        """
        if forms and (len(forms) > 1 or step not in self._known):
            (form, votes), *_ = Counter(forms.values()).most_common(1)
            if 2 * votes > len(forms):
                self._known[step] = form
        return self._known.get(step)

    def _too_large(self, step: str, info: StepInfo, trees: Mapping[str, Tree], like: Tree | None) -> dict[str, str]:
        """{site: the fault} for the sites whose numbers are much larger than at other sites.

        The usual size is the lower median of all, at least 1. A single reply is compared with the last usual size.
        """
        sizes = {site: _largest(tree, info) for site, tree in trees.items()}
        known = [] if like is None else [_largest(like, info)]
        faults: dict[str, str] = {}
        for key in set[str]().union(*sizes.values()):
            typical = median_low([magnitudes.get(key, 0.0) for magnitudes in (*sizes.values(), *known)])
            if len(sizes) + len(known) == 1:
                typical = self._typical.get((step, key), typical)
            limit = MAX_FACTOR * max(1.0, typical)
            far = {site: magnitudes[key] for site, magnitudes in sizes.items() if magnitudes.get(key, 0.0) > limit}
            faults |= {site: f"{key} reaches {high:g}, where {typical:g} is usual" for site, high in far.items()}
            self._typical[step, key] = typical
        return faults


def _range_fault(info: StepInfo, message: Tree, reply: Tree) -> str:
    """The first leaf of a reply outside its declared range, or not of its declared form; "" if there is none."""
    sent = {path: leaf for path, leaf in leaves(message) if isinstance(leaf, Tensor | Sparsified)}
    for path, leaf in leaves(reply):
        key = info.covering(path) or path
        spec = info.sends[key]
        fault = "" if spec.within is None else spec.within.fault(path, leaf)
        if fault:
            return fault
        model = sent.get(spec.like + path.removeprefix(key)) if spec.like else None
        if model is None or (key in info.sums and leaf.shape == model.shape):
            continue  # no declared form, or masked integers instead of numbers
        if _form(leaf) != _form(model):
            return f"{path} is {_form(leaf)}, not {_form(model)}"
    return ""


def _largest(tree: Tree, info: StepInfo) -> dict[str, float]:
    """{declared key without a range: the largest magnitude of its floating-point numbers}."""
    maxima: dict[str, float] = {}
    for path, leaf in numbers(tree):
        key = info.covering(path) or path
        if leaf.numel() and not info.sends[key].within:
            low, high = leaf.aminmax()
            maxima[key] = max(maxima.get(key, 0.0), -float(low), float(high))
    return maxima


def _structure(tree: Tree, info: StepInfo) -> Structure:
    if info.optional:  # each site decides what it leaves out
        return ()
    nodes = {path for path, _ in leaves(tree) if path.split("/")[0] in info.per_node}
    return tuple((path, _form(leaf, info.ragged, path in nodes)) for path, leaf in leaves(tree))


def _form(leaf: object, ragged: bool = False, per_node: bool = False) -> str:
    if not isinstance(leaf, Tensor | Sparsified):
        return type(leaf).__name__
    shape = f"{len(leaf.shape)}-d" if ragged else str(list(leaf.shape))
    if per_node and not ragged:
        shape = f"[nodes{''.join(f', {size}' for size in leaf.shape[1:])}]" if len(leaf.shape) else "0-d"
    return f"{shape} {str(leaf.dtype).removeprefix('torch.')}"


class SiteFaults:
    """Counts of faults, each (site, "missing" | "refused" | "late"), since the last call of `take`."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[str, str]] = Counter()
        self.reasons: dict[str, str] = {}  # why each site was last missing
        self._log = logging.getLogger("fedweave.server")

    def note(self, round: int, missing: Mapping[str, str], refused: Mapping[str, str]) -> None:
        """Count faults of one call. missing: {site: why} for the sites without a usable reply. refused: the sites among
        these that sent an unusable one."""
        self._counts.update((site, "missing") for site in missing)
        self._counts.update((site, "refused") for site in refused)
        for site, why in {**missing, **refused}.items():
            if site in refused or self.reasons.get(site) != why:  # log a missing site once, not at every call
                more = fields("left-out", round=round, site=site, reason=why)
                self._log.warning("round %d: %s is left out: %s", round, site, why, extra=more)
        self.reasons |= missing

    def update(self, faults: Mapping[tuple[str, str], int] | Iterable[tuple[str, str]]) -> None:
        """Count more faults without a reason: once each, or by the numbers in `faults`."""
        self._counts.update(faults)

    def take(self) -> dict[tuple[str, str], int]:
        """The count of each fault. Resets all counts to zero."""
        counts, self._counts = dict(self._counts), Counter()
        return counts
