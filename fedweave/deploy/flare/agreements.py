"""What all sites of a federation have to say alike when they join."""

from collections.abc import Mapping
from typing import Any

from fedweave.deploy.flare.holdings import fingerprint
from fedweave.errors import UserError

_NAMED = {"labels": ("names", "classes"), "groups": ("groups", "groups of sens")}  # of an experiment's [data]


def agreed(replies: Any, key: str) -> int:
    """The number that all sites say.

    Raises:
        UserError: they say different ones, or one keeps it back; names each.
    """
    found = {site: replies[site][key] for site in replies.clients}
    if silent := [site for site, value in found.items() if value == -1]:
        raise UserError(
            f"{', '.join(silent)} keeps back the number of {key} (see [policy] in site.toml), without which no model "
            "can be built."
        )
    if len(set(found.values())) > 1:
        each = ", ".join(f"{site}: {value}" for site, value in found.items())
        raise UserError(
            f"the sites hold data with different numbers of {key} ({each}); they must agree (see site.toml)."
        )
    return int(next(iter(found.values())))


def check_names(replies: Any) -> None:
    """Refuse sites whose classes, features, or nodes' and edges' kinds, have names, but not the same in the same order:
    class 0 would be another at each."""
    for key, what, remedy in (
        ("names", "classes", "write the same labels = [...] into every site.toml"),
        ("kinds", "categories, or labels of nodes and edges", "write the same lists into every site.toml"),
        ("groups", "groups of sens", "write the same groups = [...] into every site.toml, group_names into an .npz"),
        ("columns", "features", "give all data the same columns in the same order"),  # categories are among them
    ):
        names = {site: replies[site][key] for site in replies.clients if replies[site][key] > 0}
        first = next(iter(names), "")
        if odd := [site for site in names if names[site] != names[first]]:
            raise UserError(
                f"the {what} of {', '.join(odd)} have other names, or another order of them, than those of {first}; "
                f"{remedy}."
            )


def confirmed(replies: Any, told: Mapping[str, Any]) -> tuple[dict[str, tuple[str, ...]], list[str]]:
    """{"labels", "groups": the names that an experiment's [data], `told`, gives to classes and groups}, () where a site
    has none or others; and notes on those that are not the sites'.

    Sites send fingerprints of names alone, so whoever knows the names can say them, and nobody learns others.
    """
    found, notes = dict[str, tuple[str, ...]](), []
    for setting, (key, what) in _NAMED.items():
        names = tuple(told.get(setting) or ())
        alike = all(replies[site][key] == fingerprint(names) for site in replies.clients)
        found[setting] = names if alike else ()
        if names and not alike:
            notes.append(
                f"the experiment calls the {what} {', '.join(names)}, and not every site does; results number them"
            )
    return found, notes
