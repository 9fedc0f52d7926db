"""What left whom, for whoever answers for it: a compliance report of a run, and what one of a site has alike."""

from collections import defaultdict
from collections.abc import Sequence
from hashlib import sha256

from rich.filesize import decimal

from fedweave.core.purposes import EVALUATION, FRAMING, SETUP, TRAINING
from fedweave.core.text import counted
from fedweave.errors import listed
from fedweave.experiment.config import dumps
from fedweave.privacy.spent import of_members, remarks
from fedweave.report.disclosure import SIMULATED
from fedweave.report.document import Document, Section, grid
from fedweave.report.flows import UNTOLD, Flow, flows, members, period, unbounded, who
from fedweave.report.ledger import called, pooled, told
from fedweave.report.reading import Run

FOOT = (
    "A journal or ledger records the name, shape and size of every message, and what the algorithm declares that a "
    "receiver learns from it. It does not look into contents. Kilo is 1,000."
)
_PLACES = {TRAINING: 0, EVALUATION: 2, SETUP: 3, "": 4}  # of what is read first
_MOST = 60  # members whose ε is a line of its own


def of_run(run: Run) -> Document:
    """The report of a run, as whoever started it has it."""
    found, everyone = flows(run.ledger), members(run.ledger)
    general = run.config
    kind = "between sites" if run.between_sites else "a simulation: all members' data was on one machine"
    facts = {
        "run": f"{run.summary['algorithm']} on {run.summary['dataset']}, seed {run.summary.get('seed')}; {kind}",
        "period": period(run.ledger),
        "asked by": str(general.get("requester") or "not stated"),
        "purpose": str(general.get("purpose") or "not stated"),
        "members": f"{len(everyone):,}: {listed(everyone)}",
        "configuration": f"SHA-256 {sha256(dumps(run.config).encode()).hexdigest()}",
    }
    whole = pooled(run.config, at_one_place=len(everyone) == 1 < int(run.summary["clients"]))
    return Document(
        title=f"What left the members: {run.summary['algorithm']} on {run.summary['dataset']}",
        facts=tuple(facts.items()),
        lead=(*whole, _left(found)),
        sections=(
            sent(found, len(everyone)),
            _spent(run, found, everyone),
            Section(
                "Policies",
                ("What may leave is each site's own decision, and no part of a run; the report of the site shows it.",),
            ),
        ),
        foot=FOOT,
    )


def sent(found: Sequence[Flow], everyone: int, receivers: dict[str, str] | None = None) -> Section:
    """What left, a line for each thing that a receiver learns; receivers: what they are called."""
    kinds, left = defaultdict[tuple[str, ...], list[Flow]](list), [one for one in found if one.direction != "down"]
    for one in left:
        to = who([(receivers or {}).get(name, name) for name in one.receivers], everyone)
        about = FRAMING if one.key == FRAMING else learnt(one)
        kinds[about, to, one.mechanism if about != FRAMING else "", one.purpose if about != FRAMING else ""].append(one)
    rows = [
        {
            "what the receiver learns": learnt(own[0]),
            "key": ", ".join(sorted({one.key for one in own})) if about != FRAMING else "",
            "who received it": to,
            "protection": protection,
            "used for": purpose if about == FRAMING else purpose or "not stated",
            "sent by": who(sorted({name for one in own for name in one.senders}), everyone),
            "messages": f"{sum(one.messages for one in own):,}",
            "size": decimal(sum(one.bytes for one in own)),
        }
        for (about, to, protection, purpose), own in sorted(kinds.items(), key=lambda item: _PLACES.get(item[0][3], 1))
    ]
    if len({name for one in left for name in one.senders}) < 2:
        rows = [{name: word for name, word in row.items() if name != "sent by"} for row in rows]
    words = ("what the receiver learns", "key", "who received it", "protection", "used for", "sent by")
    return Section("What left, and what it tells", () if rows else ("Nothing has left.",), grid=grid(rows, words))


def learnt(one: Flow) -> str:
    """What a receiver learns; of what nobody has described, which part of which call it is."""
    words = "names and framing of messages" if one.key == FRAMING else told(one)
    return f"{words} ({called(one)})" if words == UNTOLD else words


def moved(found: Sequence[Flow]) -> str:
    """How much left members; "" where nothing did."""
    size = sum(one.bytes for one in found if one.direction != "down")
    return decimal(size) if size else ""


def _left(found: Sequence[Flow]) -> str:
    size, apart = moved(found), moved([one for one in found if one.direction == "peer"])
    between = f", {apart} of it from member to member" if apart else ", all of it to the server"
    return f"{size} left the members{between}; the ledger shows nothing else." if size else "Nothing has left."


def _spent(run: Run, found: Sequence[Flow], everyone: Sequence[str]) -> Section:
    """The ε of each member; of many members alike, or of the most and the least, once."""
    costs = of_members(run.ledger)
    alike = defaultdict[tuple[str, str, str], list[str]](list)
    for name, own in costs.items():
        for bound in own:
            at = f"{bound.epsilon:.4g}" + ("" if bound.delta is None else f" at δ = {bound.delta:g}")
            alike[bound.per, at, counted(bound.messages, "message")].append(name)
    rows = [
        {"member": who(sorted(names), len(everyone)), "ε": at, "per": per, "of": of}
        for (per, at, of), names in sorted(alike.items(), key=lambda item: sorted(item[1]))
    ]
    text = [unbounded(found)] if rows else ["No ε follows from anything that was sent: nothing limits what it tells."]
    if len(rows) > _MOST:
        text.append(f"The first {_MOST} of {len(rows):,} lines.")
    text += remarks(bound for own in costs.values() for bound in own)
    text += [SIMULATED] if costs and not run.between_sites else []
    return Section(
        "What it cost in privacy", tuple(filter(None, text)), grid=grid(rows[:_MOST], ("member", "per", "of"))
    )
