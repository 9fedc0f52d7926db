"""A site's audit in words: what was asked, refused and spent, a line each."""

from collections.abc import Iterable
from contextlib import suppress

from fedweave.core.purposes import FRAMING
from fedweave.core.records import Record
from fedweave.core.text import counted
from fedweave.deploy.flare.policy.policy import covers
from fedweave.deploy.flare.policy.tightening import changed
from fedweave.deploy.flare.site.audit import Audit, Run
from fedweave.deploy.flare.site.sitefile import Rules
from fedweave.errors import ConfigError
from fedweave.report.ledger import called


def asked(run: Run) -> list[str]:
    """What was asked in a run, and by whom."""
    told = []
    for note in run.joined:
        where = "from the start" if note.get("after") == -1 else f"from round {note.get('after')}"
        versions = f"fedweave {note.get('fedweave')}, torch {note.get('torch')}"
        config = f"configuration {str(note.get('pin'))[:12]}"
        what = f"the server began {job(note)}, {where}: {note.get('algorithm')}, {config}, {versions}"
        told.append(f"{note['at']}  {what}; {by_whom(note)}, {what_for(note)}")
    for note in run.lists:
        counts = ", ".join(f"{site} {count}" for site, count in dict(note.get("counts") or {}).items())
        told.append(f"{note['at']}  ids on the lists that were compared: {counts}")
    for note in run.aligned:
        kept = f"{note.get('common')} of the site's {note.get('own')} nodes"
        told.append(f"{note['at']}  the server named {kept} as common to all")
    return [*told, *(f"{at}  the owner changed the policy: {said}" for at, said in changes([run]))]


def job(note: Record) -> str:
    """What kind of job a site joined."""
    return "prediction" if note.get("predict") else "training"


def by_whom(note: Record) -> str:
    """Who asked for a job, as the request says it, and with whose certificate it was submitted, as the server says."""
    named, submitter = (str(note.get(key) or "") for key in ("requester", "submitter"))
    said = f"asked by {named}" if named else "the request does not say who asked"
    return f"{said} (submitted, as the server says, with the certificate of {submitter})" if submitter else said


def what_for(note: Record) -> str:
    """What a job was for, as the request says it."""
    return f"for: {note['purpose']}" if note.get("purpose") else "with no purpose stated"


def changes(runs: Iterable[Run]) -> list[tuple[str, str]]:
    """(when, what) of changes of the policy, by time: while a job ran, and from one job to the next."""
    found, before = list[tuple[str, str]](), None
    for run in runs:
        for note in run.policy:
            of = {what: ", ".join(map(str, note.get(what) or ())) for what in ("tightened", "loosened")}
            ends = {"tightened": "tightened", "loosened": "loosened, which holds from the next job on"}
            said = "; ".join(f"{of[what]} {ends[what]}" for what in ends if of[what])
            found.append((str(note["at"]), said or "to the same rules"))
    for at, now in sorted(((str(one["at"]), _rules(one)) for run in runs for one in run.joined), key=lambda it: it[0]):
        if before is not None and now is not None and (odd := changed(before, now)) != ([], []):
            ways = zip(odd, ("tightened", "loosened"), strict=True)
            said = "; ".join(f"{', '.join(of)} {way}" for of, way in ways if of)
            found.append((at, f"{said} since the job before"))
        before = now or before
    return sorted(found)


def _rules(note: Record) -> Rules | None:
    """The rules that a job began under; None of an earlier version, which did not say."""
    with suppress(KeyError, ConfigError):
        return Rules.read(note["policy"])
    return None


def refused(run: Run) -> list[str]:
    """Refusals and damage in a run."""
    told = [f"{note['at']}  refused {note.get('asked')}: {note.get('why')}" for note in run.refused]
    if run.cut:
        cut, values = (sum(note[key] for note in run.cut) for key in ("cut", "values"))
        first = min(note["round"] for note in run.cut)
        told.append(
            f"{cut:,} of {values:,} values were cut to the bound of {counted(len(run.cut), 'secure sum')}, the first "
            f"in round {first}: the sums had less than what was computed here"
        )
    if run.damaged:
        told.append(f"{counted(run.damaged, 'damaged line')}: what is said there to have left is counted nowhere")
    return told


def in_all(found: Audit) -> str:
    """What has left over all runs, and its ε."""
    cost, without = found.spent.account.cost, "left without noise, and nothing limits what it tells"
    told = f"all runs: {found.spent.bytes:,} bytes have left"
    if cost.unbounded and not (cost.epsilon or cost.squared_mu):
        return f"{told}; no ε follows: it {without}"
    bounded = f"{found.spent.epsilon(found.rules.delta):.4g}"
    if cost.unbounded:
        return f"{told}; of what had noise ε is {bounded} at δ = {found.rules.delta:g}; the rest {without}"
    return f"{told}; their ε is {bounded} at δ = {found.rules.delta:g}"


def caps(found: Audit) -> list[str]:
    """How much of what the policy allows is spent, a line for each cap."""
    rules, spent, told = found.rules, found.spent, []
    if rules.epsilon is not None:
        now = f"{spent.epsilon(rules.delta):.4g} is spent at δ = {rules.delta:g}"
        told.append(f"of policy.epsilon = {rules.epsilon:g}, {now}{free(found)}")
    if rules.bytes is not None:
        told.append(f"of policy.bytes = {rules.bytes:,}, {spent.bytes:,} are spent")
    return told


def free(found: Audit) -> str:
    """What a cap on ε does not hold for, as the end of a sentence: what may leave without a bound, and what has left,
    mostly before there was a cap, that the policy would not let leave now."""
    sent = [one for run in found.runs for one in run.flows if one.direction != "down" and one.key != FRAMING]
    bare = [one for one in sent if one.account.cost.unbounded]
    loose = sorted({called(one) for one in bare if not any(covers(key, one.key) for key in found.rules.unbounded)})
    held = [*found.rules.unbounded, *([f"what has left without a bound: {', '.join(loose)}"] if loose else [])]
    return f"; it does not hold for {', '.join(held)}" if held else ""
