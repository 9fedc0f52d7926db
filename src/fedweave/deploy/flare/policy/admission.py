"""Which configurations a site takes from a server: what it names is judged before any of it is looked up. What the
owner tightens in the policy while a run is under way holds from the next call on, what is loosened from the next job
on."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from fedweave.core import plugins
from fedweave.core.algorithm import capabilities
from fedweave.datasets.edges import EXCHANGE
from fedweave.deploy.flare.parties.exchange import INFO as SHARING
from fedweave.deploy.flare.policy.keys import read_checked
from fedweave.deploy.flare.policy.policy import PolicyViolation, covers, least_told
from fedweave.deploy.flare.policy.precheck import check_told
from fedweave.deploy.flare.site.sitefile import SITE_FILE, Rules, SiteData
from fedweave.deploy.flare.wire.requests import RESERVED
from fedweave.errors import CallRefused, ConfigError, UserError
from fedweave.experiment.config import Choice, Config, Document, own_parameters, resolve

T = TypeVar("T")
_Bounds: TypeAlias = Mapping[str, float]


def admitted(rules: Rules, document: Document) -> Config:
    """The configuration in a server's `document`, if the site's policy lets it run.

    Raises:
        PolicyViolation: it names a Python file, an algorithm or a part that the policy does not. ConfigError: it is not
            valid.
    """
    check_files(rules, document)
    config = resolve(document)
    check_algorithm(rules, config.algorithm)
    return config


def check_sites(rules: Rules, name: str, sites: Sequence[str]) -> None:
    """Refuse the sites that a server names for a run, as the site `name` hears them.

    Raises:
        CallRefused: they are not this one and others, each once; or one of them is no site but has a certificate, with
            which it could be in a secure sum. PolicyViolation: they are too few, or one is none of the owner's list.
    """
    if name not in sites or len(set(sites)) < len(sites):
        raise CallRefused("the sites that the server names are not this one and others, each once")
    if own := sorted(RESERVED & set(sites)):
        raise CallRefused(f"the server names {', '.join(own)} as a site, which is no member of any project")
    check_members(rules, name, sites)


def check_exchange(rules: Rules, data: SiteData, config: Config, sites: int) -> None:
    """Refuse a job of that many sites over edges to other sites' nodes unless the site's own file is for that, too; and
    any other, where its file is for that.

    Raises:
        ConfigError: the two differ. PolicyViolation: the policy does not allow it.
    """
    if (wanted := config.external == EXCHANGE) != (data.external == EXCHANGE):
        job = "exchanges" if wanted else "does not exchange"
        raise ConfigError(
            f"data.external: the job {job} over edges to other sites' nodes, and site.toml says {data.external!r}; "
            f'[data] external = "{EXCHANGE}" is to stand in the experiment and in every site.toml, or in none.'
        )
    if wanted:
        least_told(rules)
        check_told(rules, SHARING, sites)


def check_members(rules: Rules, name: str, sites: Sequence[str]) -> None:
    """Refuse a run of fewer sites than the policy of the site `name` allows, or of others.

    Raises:
        PolicyViolation: says how many, or names them.
    """
    if len(sites) < rules.min_sites:
        raise PolicyViolation(f"policy.min_sites: the run is of {len(sites)}, and {rules.min_sites} are needed")
    if rules.members and (odd := [site for site in sites if site not in (name, *rules.members)]):
        raise PolicyViolation(
            f"policy.members: {', '.join(odd)} is in the run and not on the owner's list; add its certificate's "
            "fingerprint there once you know that it is who it says"
        )


def check_of_sites(algorithm: Choice) -> None:
    """Refuse an algorithm that needs what no site has or gives.

    Raises:
        UserError: names it and what to do.
    """
    needs = capabilities(algorithm.kind)
    if needs.pooled:
        raise UserError(
            f"{algorithm.name} pools all data at one place, which no site allows; choose another.",
            code="user.pools",
        )
    if needs.ids:
        raise UserError(
            f"{algorithm.name} needs to know which nodes of other sites a site's nodes are connected to, which no site "
            "knows; run it with engine.name = 'simulation', or choose another.",
            code="user.neighbours-unknown",
        )


def check_files(rules: Rules, document: Document) -> None:
    """Refuse a document that names a plug-in by a file, "file.py:Name", that `policy.files` does not: to look it up is
    to run it.

    Raises:
        PolicyViolation: names the file and what to do.
    """
    allowed = {Path(file).expanduser().resolve() for file in rules.files}
    for file in plugins.files_in(document):
        if file not in allowed:
            raise PolicyViolation(
                f"policy.files: the job names {file}, which this site would run; its owner can list it there, or "
                "install a package that announces the plug-in (docs/extending.md)"
            )


def check_algorithm(rules: Rules, algorithm: Choice) -> None:
    """Refuse a job whose algorithm is not allowed: where the policy lists algorithms, one means itself without further
    parts, which could make any other of it, unless the policy lists these, too.

    Raises:
        PolicyViolation: names the algorithm, or the part and what to do.
    """
    if not rules.algorithms:
        return
    if algorithm.name not in _named(rules.algorithms):
        listed = ", ".join(rules.algorithms)
        raise PolicyViolation(
            f"policy.algorithms: {algorithm.name} is not among {listed}. Run one of these, or have the site's owner "
            "review it and add it."
        )
    allowed = _named(rules.parts)
    for part in _added(algorithm):
        if part not in allowed:
            raise PolicyViolation(
                f"policy.parts: the job has {algorithm.name} with the part {part}, and may have it by itself alone "
                f'(policy.algorithms). If you have reviewed the part: policy.parts = ["{part}"]'
            )


def _named(listed: tuple[str, ...]) -> set[str]:
    """Plug-ins as a policy lists them, under the names that a configuration keeps of them."""
    return {plugins.absolute(name) if plugins.is_file(name) else name for name in listed}


def _added(algorithm: Choice) -> list[str]:
    """The names of the parts that an algorithm does not have by default."""
    own = own_parameters(algorithm.kind).get("parts")
    kinds = {type(part) for part in own.default} if own is not None and isinstance(own.default, tuple) else set()
    chosen = [part for part in algorithm.values.get("parts", ()) if isinstance(part, Choice)]
    return [part.name for part in chosen if part.kind not in kinds]


class PolicyFile:
    """The policy in a site's folder, looked at again whenever its file has changed."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / SITE_FILE
        self._seen = self._mark()

    def news(self) -> Rules | None:
        """The rules as they are now, if the file has changed since the last look; else None.

        Raises:
            ConfigError: the file is gone, or is not valid any more: what its owner wants cannot be known.
        """
        mark = self._mark()
        if mark == self._seen:
            return None
        rules = read_checked(self._path)[1]
        self._seen = mark
        return rules

    def _mark(self) -> tuple[int, ...]:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return ()
        return stat.st_mtime_ns, stat.st_size, stat.st_ino


def stricter(before: Rules, now: Rules) -> Rules:
    """Rules that forbid what either forbids. What is judged as a job begins (`algorithms`, `parts`, `files`, `members`)
    is that of `now`, by which a job has to be judged again; `lost` is of entries that are looked for then alone."""
    found = {name: combine(vars(before)[name], vars(now)[name]) for name, combine in _STRICTER.items()}
    return replace(now, **found)


def changed(before: Rules, now: Rules) -> tuple[list[str], list[str]]:
    """The names of the rules that are tightened, and of those that are loosened in whole or in part."""
    was, new, both = vars(before), vars(now), vars(stricter(before, now))
    odd = [own.name for own in fields(Rules) if was[own.name] != new[own.name]]
    tightened = [name for name in odd if name not in _STRICTER or both[name] != was[name]]
    return tightened, [name for name in odd if name in _STRICTER and both[name] != new[name]]


def _both(before: Iterable[T], now: Iterable[T]) -> tuple[T, ...]:
    return tuple(dict.fromkeys((*before, *now)))


def _common(before: tuple[str, ...], now: tuple[str, ...]) -> tuple[str, ...]:
    """The keys that are, or are below, one of either."""
    kept = [key for key in now if any(covers(own, key) for own in before)]
    return _both(kept, [key for key in before if any(covers(own, key) for own in now)])


def _least(before: float | None, now: float | None) -> float | None:
    return min((own for own in (before, now) if own is not None), default=None)


def _of_each(choose: Callable[[float, float], float]) -> Callable[[_Bounds, _Bounds], _Bounds]:
    def combine(before: _Bounds, now: _Bounds) -> _Bounds:
        return {**before, **now} | {key: choose(before[key], now[key]) for key in before.keys() & now.keys()}

    return combine


def _all(before: bool, now: bool) -> bool:
    return before and now


def _fewest(before: bool | int, now: bool | int) -> bool | int:
    """Nothing, or only sums of as many nodes as both ask for."""
    return max(before, now) if before and now else False


_STRICTER: dict[str, Callable[..., Any]] = (
    dict.fromkeys(("deny", "secure_sum"), _both)
    | dict.fromkeys(("unbounded", "measures"), _common)
    | dict.fromkeys(("mixup", "noise"), _of_each(max))
    | dict.fromkeys(("partial_sums", "repeats", "true_labels"), _all)
    | dict.fromkeys(("epsilon", "delta", "bytes", "max_ids", "max_change", "score_epsilon", "evaluations"), _least)
    | dict.fromkeys(("min_nodes", "min_sites", "min_summed", "round_scores"), max)
    | {"calls": _of_each(min), "exchange": _fewest}
)
