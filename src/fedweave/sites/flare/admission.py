"""Which configurations a site accepts from a server. The site checks all names before it looks any of them up."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from fedweave.core import plugins
from fedweave.core.algorithm import Algorithm, capabilities
from fedweave.datasets.base import Dataset
from fedweave.datasets.external import EXCHANGE
from fedweave.datasets.links import TASK as LINKS
from fedweave.errors import CallRefused, ConfigError
from fedweave.experiment.config import Choice, Config, Document, field_parameters, resolve
from fedweave.experiment.requirements import check, check_rounds
from fedweave.experiment.stages import Configured
from fedweave.models.edges import model_for
from fedweave.sites.flare.accounts import Exclusion
from fedweave.sites.flare.exchange import INFO as SHARING
from fedweave.sites.flare.foresight import check_fields
from fedweave.sites.flare.policy import PolicyViolation, min_exchange_nodes
from fedweave.sites.flare.requests import RESERVED
from fedweave.sites.flare.sitefile import LEARNED, Rules, SiteData


def make_algorithm(
    config: Config, name: str, sites: Sequence[str], data: Dataset, width: int, scaling: str, predicts: bool = False
) -> Algorithm:
    """The algorithm that the site `name` of these `sites` runs on its `data`.

    width: number of feature columns. scaling: how the features are scaled. predicts: whether a trained model predicts,
    and no site trains.
    """
    site_config = config.of_member(name, sites)
    enrolled = replace(Configured.of(site_config).with_members(sites), member_models=config.member_models)
    loaded = check(enrolled.with_data(data, scaling, engine=config.engine.values, predicts=predicts))
    attributes = None if loaded.declared.vertical else data.edge_attrs  # vertical models do not read edge attributes
    model = model_for(site_config.model.make(), attributes, width, data.outputs, data.links, config.decoder)
    modelled = check(loaded.with_model(model))
    algorithm: Algorithm = config.algorithm.make(model)
    check(modelled.with_algorithm(algorithm))
    check_rounds(algorithm, config.general.rounds)
    return algorithm


def admit(rules: Rules, document: Document) -> Config:
    """The configuration in a server's `document`, if the site's policy allows it."""
    check_files(rules, document)
    config = resolve(document)
    check_algorithm(rules, config.algorithm)
    return config


def check_sites(rules: Rules, name: str, sites: Sequence[str]) -> None:
    """Refuse a run if the `sites` that the server names are not acceptable to the site `name`: this site is not among
    them, a name occurs twice, or one of them is not a site but has a certificate, with which it could take part in a
    secure aggregation."""
    if name not in sites or len(set(sites)) < len(sites):
        raise CallRefused("the server must name this site and the others once each, and does not")
    reserved = sorted(RESERVED & set(sites))
    if reserved:
        raise CallRefused(f"the server names {', '.join(reserved)} as a site, and no project has such a site")
    check_members(rules, name, sites)


def check_members(rules: Rules, name: str, sites: Sequence[str]) -> None:
    """Refuse a run of fewer sites than the policy of the site `name` requires, or of sites that it does not list."""
    if len(sites) < rules.min_sites:
        raise PolicyViolation(f"policy.min_sites: the run is of {len(sites)}, and {rules.min_sites} are needed")
    unlisted = [site for site in sites if site not in (name, *rules.members)]
    if rules.members and unlisted:
        raise PolicyViolation(
            f"policy.members: {', '.join(unlisted)} is in the run and not on the owner's list; verify who runs that "
            "site, and then add its certificate's fingerprint to the list"
        )


def check_exchange(rules: Rules, data: SiteData, config: Config, sites: int) -> None:
    """Refuse a job if it exchanges features over edges between sites and the site's own file does not, or the reverse.

    sites: number of sites in the job.
    """
    exchanges = config.external == EXCHANGE
    if exchanges != (data.external == EXCHANGE):
        job = "exchanges" if exchanges else "does not exchange"
        raise ConfigError(
            f"data.external = {data.external!r}: the job {job} over edges to other sites' nodes. Write [data] external "
            f'= "{EXCHANGE}" into the experiment and every site.toml, or into none of them.'
        )
    if exchanges:
        min_exchange_nodes(rules)
        check_fields(rules, SHARING, sites)


def check_task(data: SiteData, config: Config) -> None:
    """Refuse a job if it and the site's own file differ about link prediction: whether links are predicted, whether
    entities' vectors are learned, and which kinds of nodes and relations are used. The owner decides how the data is
    used, not the server."""
    links = config.links
    settings = (  # name, value at the site, value in the job
        (f"task = {LINKS!r}", data.task == LINKS, links is not None),
        ("users", data.users, None if links is None else links.users),
        ("items", data.items, None if links is None else links.items),
        ("relation", data.relation, True if links is None else links.relation),
        (f"features = {LEARNED!r}", data.features == LEARNED, config.learned),
    )
    for name, of_site, of_job in settings:
        if of_site != of_job:
            raise ConfigError(
                f"data.{name}: the job and site.toml differ. Write the same task, users, items, relation and features "
                "into [data] of the experiment and of every site.toml.",
                code="config.links",
            )


def check_difference(rules: Rules, sites: Sequence[str], crowds: Iterable[Sequence[str]]) -> None:
    """Refuse secure aggregations over `sites` if an earlier run on the same data had too few other sites: the server
    could subtract one sum from the other.

    crowds: the sites of each earlier run with secure aggregations.
    """
    for crowd in crowds:
        difference = sorted({*sites} ^ {*crowd})
        if 0 < len(difference) < rules.min_difference:
            raise PolicyViolation(
                f"policy.min_difference: an earlier run on the same data had secure sums over other sites, and the "
                f"difference of the two sums reveals the sum of only {', '.join(difference)}. Run with the earlier "
                f"sites, wait for new data, or have the owner accept this: policy.min_difference = {len(difference)}"
            )


def check_exclusion(rules: Rules, now: Exclusion, earlier: Sequence[Exclusion]) -> None:
    """Refuse a run that would tell few examples, or few training examples, from all others: sums and differences of
    what it and earlier runs on the same data send would show what these few change."""
    if rules.min_nodes > 1 and any(now.examples and one.examples and one.key != now.key for one in earlier):
        raise ConfigError(
            "ledgers/marks.key is not the key with which earlier runs on the same data marked what they left out, so "
            "that no list can be compared with theirs. Restore it from a backup of the site's folder, or accept this: "
            "policy.min_nodes = 1",
            code="forget.key",
        )
    counts = (
        *_distinguishable(now.examples, {one.examples for one in earlier}),
        *_distinguishable(now.training, {one.training for one in earlier}),
    )
    if any(0 < count < rules.min_nodes for count in counts):
        raise ConfigError(
            f"policy.min_nodes: earlier runs on the same data left out others than this run, and fewer than "
            f"{rules.min_nodes} examples, or training examples, make a difference that what the runs send shows. Wait "
            "until data.forget lists more, or, for a vertical run, until the parties share more or the same nodes. Or "
            "accept this: policy.min_nodes = 1",
            code="forget.few",
        )


def _distinguishable(marks: frozenset[str], earlier: Iterable[frozenset[str]]) -> Iterator[int]:
    """Numbers of examples that a run without `marks` tells from all others: those in which it differs from one earlier
    run, and those that every one of the `earlier` runs used, or every one left out, and that this run divides.

    Any two runs may differ in many, and several still show one example x. With sets A and B of ten each, runs on all,
    without A ∪ B ∪ {x} and without A show what A changes, and what B ∪ {x} does; a run without B would divide B from x.
    Examples that all runs treat equally are not part of any difference. So if each other set of examples that the runs
    treat equally is large, every difference of what they send is of many.
    """
    before = tuple(earlier)
    for other in before:
        yield len(marks ^ other)
    groups = defaultdict[tuple[bool, ...], Counter[bool]](Counter)  # {left out by each earlier run: left out now}
    for one in marks.union(*before):
        groups[tuple(one in other for other in before)][one in marks] += 1
    for out_before, count in groups.items():
        if all(out_before):
            yield count[False]
        elif not any(out_before):
            yield count[True]
        elif count[False] and count[True]:
            yield from count.values()


def check_forget(data: SiteData, config: Config) -> None:
    """Refuse a vertical job at a site that leaves examples out: its parties hold the same examples."""
    if data.forget is not None and capabilities(config.algorithm.kind).vertical:
        raise ConfigError(
            f"data.forget = {data.forget!r}: parties of a vertical run hold the same examples, so that none can leave "
            "alone. Remove the rows from every party's tables, at least ten at once. The next alignment shows the "
            "other parties who has left (docs/forgetting.md).",
            code="forget.vertical",
        )


def check_files(rules: Rules, document: Document) -> None:
    """Refuse a document that names a plug-in by a file, "file.py:Name", that `policy.files` does not list. Looking up
    the plug-in would run the file."""
    allowed = {Path(file).expanduser().resolve() for file in rules.files}
    for file in plugins.files_in(document):
        if file not in allowed:
            raise PolicyViolation(
                f"policy.files: the job names {file}, which this site would run; its owner can list it there, or "
                "install a package that announces the plug-in (docs/extending-data.md)"
            )


def check_algorithm(rules: Rules, algorithm: Choice) -> None:
    """Refuse a job whose algorithm the policy does not list. A listed algorithm is allowed without further parts,
    because parts could turn it into any other algorithm. The policy can list parts, too."""
    if not rules.algorithms:
        return

    def as_configured(names: Sequence[str]) -> set[str]:
        return {plugins.absolute(name) if plugins.is_file(name) else name for name in names}

    if algorithm.name not in as_configured(rules.algorithms):
        listed = ", ".join(rules.algorithms)
        raise PolicyViolation(
            f"policy.algorithms: {algorithm.name} is not among {listed}. Run one of these, or have the site's owner "
            "review it and add it."
        )
    allowed, default_kinds = as_configured(rules.parts), set[type]()
    parameter = field_parameters(algorithm.kind).get("parts")
    if parameter is not None and isinstance(parameter.default, tuple):
        default_kinds = set(map(type, parameter.default))
    for part in algorithm.values.get("parts", ()):
        if isinstance(part, Choice) and part.kind not in default_kinds and part.name not in allowed:
            raise PolicyViolation(
                f"policy.parts: the job has {algorithm.name} with the part {part.name}, and may have it by itself "
                f'alone (policy.algorithms). If you have reviewed the part: policy.parts = ["{part.name}"]'
            )
