"""Which configurations a site takes from a server: what it names is judged before any of it is looked up."""

from collections.abc import Sequence
from pathlib import Path

from fedweave.core import plugins
from fedweave.core.algorithm import capabilities
from fedweave.datasets.outside import EXCHANGE
from fedweave.deploy.flare.policy.policy import PolicyViolation, least_told
from fedweave.deploy.flare.site.sitefile import Rules, SiteData
from fedweave.deploy.flare.wire.requests import RESERVED
from fedweave.errors import CallRefused, ConfigError, UserError
from fedweave.experiment.config import Choice, Config, Document, own_parameters, resolve


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


def check_exchange(rules: Rules, data: SiteData, config: Config) -> None:
    """Refuse a job over edges to other sites' nodes unless the site's own file is for that, too; and any other, where
    its file is for that.

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
