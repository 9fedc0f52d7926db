"""Every error that fedweave raises on purpose: each says what is wrong, where, and what to do."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from itertools import chain
from pathlib import Path
from typing import Any

MANY = 10  # names that a message writes out
_NO_MEMORY = ("can't allocate memory", "out of memory")  # how PyTorch says it, which raises a RuntimeError
_CARRIERS = ("core", "engines", "ops")  # of steps that others wrote
NOT_FINITE = "holds numbers that are not finite"
_CALMER = "Lower algorithm.lr, or bound the updates (algorithm.parts = [{name = 'clip', norm = 1.0}])."


_AT_COMMAND_LINE = ContextVar("_AT_COMMAND_LINE", default=False)


@contextmanager
def command_line() -> Iterator[None]:
    """Within it, `option` names options of commands, and outside the arguments of Python's functions."""
    token = _AT_COMMAND_LINE.set(True)
    try:
        yield
    finally:
        _AT_COMMAND_LINE.reset(token)


def option(name: str, value: object = None, python: str = "") -> str:
    """An option as the caller gives it: "--round last", or in Python "round = 'last'".

    value: None to name the option alone; True of a flag. python: what stands in Python for another name or form.
    """
    if _AT_COMMAND_LINE.get():
        return f"--{name}" if value is None or value is True else f"--{name} {value}"
    if python or value is None:
        return python or name
    return f"{name} = {value if isinstance(value, bool | int) else repr(str(value))}"


def listed(names: Sequence[object], between: str = ", ") -> str:
    """Names in a sentence; more than `MANY` show the first two and the last: "c0, c1, … c9999"."""
    shown = names if len(names) <= MANY else [*names[:2], f"… {names[-1]}"]
    return between.join(map(str, shown))


class FedweaveError(Exception):
    """Base of all errors below; the command line prints its message without a traceback.

    code: the kind of fault, for programs: the word of its class, or a more precise one, such as "config.unknown-key".
    """

    code = "failed"

    def __init__(self, *messages: object, code: str = "") -> None:
        super().__init__(*messages)
        if code:
            self.code = code


class UserError(FedweaveError):
    """The caller's mistake (configuration, data, arguments); the command line exits with 2. Several faults are several
    arguments; the first 20 are shown.

    omitted: how many more faults there are that were not examined.
    """

    code = "user"
    SHOWN = 20
    omitted = 0

    def __str__(self) -> str:
        lines = [str(fault) for fault in self.args[: self.SHOWN]]
        more = len(self.args) - self.SHOWN + self.omitted
        if more > 0:
            lines.append(f"and {more} more faults")
        return "\n".join(lines)


class ConfigError(UserError):
    """A configuration key, name or value is not valid; the message lists what is."""

    code = "config"


class SettingError(ConfigError, TypeError, ValueError):
    """A setting in Python is unknown, or its value has another type. It is also the error that Python itself raises."""

    code = "config.setting"


class DataError(UserError):
    """Input data is invalid; the message names file, row and remedy."""

    code = "data"


class Fault(str):
    """Something wrong with data and its remedy, in one line: "nodes.csv: row 2: f is 'x'. Remedy".

    examples: (file or other origin, what is wrong there, how many rows it stands for), at least one.
    rest: how many more rows, or places, have a fault with this remedy.
    """

    SHOWN = 3
    examples: tuple[tuple[str, str, int], ...] = ()
    remedy: str = ""
    rest: int = 0

    @classmethod
    def of(cls, examples: Sequence[tuple[str, str, int]], remedy: str, rest: int = 0) -> "Fault":
        """The line; it names a file only if the example before it is in another file."""
        texts, last_file = list[str](), ""
        for where, what, _ in examples:
            texts.append(what if where == last_file else f"{where}: {what}")
            last_file = where
        if rest:
            texts.append(f"and {rest:,} more")
        fault = cls(f"{'; '.join(texts)}. {remedy}")
        fault.examples, fault.remedy, fault.rest = tuple(examples), remedy, rest
        return fault


def _merge_by_remedy(faults: Sequence[object]) -> list[object]:
    """The faults; more than three with one remedy become a single fault with three examples."""
    groups = dict[object, list[Any]]()
    for at, fault in enumerate(faults):
        remedy = fault.remedy if isinstance(fault, Fault) else ""
        groups.setdefault(remedy or at, []).append(fault)
    merged = list[object]()
    for key, group in groups.items():
        if len(group) == 1:
            merged += group
            continue
        examples = list(chain.from_iterable(fault.examples for fault in group))
        if len(examples) <= Fault.SHOWN:
            merged += group
            continue
        rest = sum(fault.rest for fault in group) + sum(count for _, _, count in examples[Fault.SHOWN :])
        merged.append(Fault.of(examples[: Fault.SHOWN], str(key), rest))
    return merged


class Faults:
    """Collects the errors of one `kind` that `with faults:` blocks raise, so that users can mend all at once."""

    def __init__(self, kind: type[UserError]) -> None:
        self._kind, self._messages, self._codes, self._omitted = kind, list[object](), set[str](), 0

    def __enter__(self) -> "Faults":
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if not isinstance(error, self._kind):
            return False
        self._messages += error.args
        self._codes.add(error.code)
        self._omitted += error.omitted
        return True

    def refuse(self, omitted: int = 0) -> None:
        """Raise one error for all faults, if there are any, with their code if they share one. More than three faults
        with one remedy become one. `omitted` counts faults that were not examined."""
        if self._messages:
            code = self._codes.pop() if len(self._codes) == 1 else ""
            error = self._kind(*_merge_by_remedy(self._messages), code=code)
            error.omitted = self._omitted + omitted
            raise error


class DiskFull(FedweaveError):
    """A file cannot be written for want of space; the message names it."""

    code = "disk-full"


class StepFailed(FedweaveError):
    """A step raised on a client; the message names both."""

    code = "step-failed"


class OutOfMemory(FedweaveError):
    """There is not enough memory for a step; the message names how many clients ran at once, and the setting."""

    code = "out-of-memory"


class WorkerLost(FedweaveError):
    """A worker of a cluster is gone and cannot be rebuilt; the message names it and its clients."""

    code = "worker-lost"


class ReplyRefused(FedweaveError):
    """A client's reply is not a tree of tensors and numbers that may cross the boundary."""

    code = "reply-refused"


class CallRefused(FedweaveError):
    """A site rejects a call of the server; names the call and what was expected, and nothing of the site's data."""

    code = "call-refused"


class ClientsMissing(FedweaveError):
    """Fewer clients replied than the call's quorum asks for; `missing` maps each absent client to its reason. fixed:
    whether no setting could lower the quorum."""

    code = "clients-missing"

    def __init__(self, step: str, missing: dict[str, str], needed: int, called: int, fixed: bool = False) -> None:
        self.step, self.missing = step, dict(missing)
        if len(missing) <= MANY:
            reasons = "; ".join(f"{client}: {reason.removesuffix('.')}" for client, reason in missing.items())
        else:  # the clients with the same reason together
            clients_by_reason: dict[str, list[str]] = {}
            for client, reason in missing.items():
                clients_by_reason.setdefault(reason.removesuffix("."), []).append(client)
            texts = [f"{listed(them)} ({len(them):,}): {reason}" for reason, them in clients_by_reason.items()]
            reasons = listed(texts, "; ")
        if len(missing) == called and all(NOT_FINITE in reason for reason in missing.values()):
            summary = "training diverged at every client, or what a part computes is not a number"
            super().__init__(f"step {step!r}: {summary}. {reasons}. {_CALMER}")
            return
        remedy = (
            "them back, put right what they refuse or, if the algorithm can do without them, lower [engine] quorum."
        )
        if fixed:
            remedy = "them back, or put right what they refuse; no setting lowers how many are needed."
        super().__init__(
            f"step {step!r}: {called - len(missing)} of {called} clients replied, {needed} are needed. "
            f"Missing: {reasons}. Bring {remedy}"
        )


def error_place(error: BaseException) -> str:
    """ " (file.py, line 12)" of the algorithm, part or model in which an error was raised; "" if it was in none."""
    import sysconfig  # with the next one takes as long as the rest of this module, which every command imports
    import traceback

    package, libraries = Path(__file__).parent, [sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")]
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        path = Path(frame.filename)
        if path.is_relative_to(package):
            is_users = path.relative_to(package).parts[0] not in _CARRIERS
        else:
            is_users = path.is_file() and not any(path.is_relative_to(folder) for folder in libraries)
        if is_users:
            return f" ({path.name}, line {frame.lineno})"
    return ""


def out_of_memory(error: BaseException) -> bool:
    """Whether an error means that there is not enough memory."""
    matches = isinstance(error, RuntimeError) and any(text in str(error) for text in _NO_MEMORY)
    return matches or isinstance(error, MemoryError)


def diverged_message(what: str) -> str:
    """The message where `what` holds numbers that are not finite."""
    return f"training diverged: {what} {NOT_FINITE}. {_CALMER}"


def part_diverged_message(name: str, what: str) -> str:
    """The message for a part `name` whose `what` is not finite, while all weights are finite."""
    return f"part {name!r}: {what} {NOT_FINITE}, and the weights are finite. Put right what {name} computes."


# {part of a code before its point: (its meaning, the page of the documentation about it, "title: page")}
CODES: dict[str, tuple[str, str]] = {
    "config": ("The configuration has a key, a name or a value that is not valid.", "Settings: reference/general.md"),
    "data": ("A file or an array of your data is not as it has to be.", "How cells are read: data-cells.md"),
    "user": ("A command or a function has an argument that it cannot use.", "Commands: reference/commands.md"),
    "model": ("The members' models do not go together.", "Settings of models: reference/model.md"),
    "init": ("Training cannot begin from the earlier run.", "Training again: predicting.md#training-again-next-month"),
    "run": ("The files of a run do not go together.", "Compare and read runs: comparing.md"),
    "explain": ("The reasons for a score cannot be given.", "Reasons for one score: explaining.md"),
    "drift": ("New tables cannot be compared with those of training.", "Drift: after-deployment.md#see-drift"),
    "forget": ("A run cannot be trained without these clients or examples.", "Forget: forgetting.md"),
    "member": ("A site cannot join or leave the project.", "Add or remove a site: add-site.md"),
    "release": ("A site and the server have different releases.", "Releases: deployment.md#releases"),
    "score": ("A model cannot score, or a request has no answer.", "Score at a site: scoring.md"),
    "file": ("A file of a run is damaged.", "Compare and read runs: comparing.md"),
    "report": ("A report cannot be verified.", "Send a compliance report: compliance.md"),
    "tune": ("An experiment cannot be tuned, or not here.", "Sweeps and tuning: sweeps.md"),
    "paper": ("Results do not belong to the table of the paper.", "The papers' tables: reproducing.md"),
    "tracker": ("The tracker of experiments failed.", "Watch a run: watching.md"),
    "contributions": (
        "What each member contributed is unknown, or is not of this run.",
        "What each member contributed: contributions.md",
    ),
    "statement": ("A statement of account cannot be written or compared.", "FairGraphFL: fairgraphfl.md"),
    "certificate": ("A site's certificate is not accepted.", "Certificates: certificates.md"),
    "signature": ("A message's signature does not match the message.", "Security: security.md"),
    "host": ("A host of the federation cannot be reached.", "Set up three hosts: three-hosts.md"),
    "job": ("No site of the project is connected.", "Keep sites running: operations.md"),
    "process": ("A process of a site or of the server ended with an error.", "Keep sites running: operations.md"),
    "peer": ("A message from site to site is not accepted.", "Sites: guarantees-others.md#messages-from-site-to-site"),
    "call": ("An algorithm asks clients for something that it may not ask.", "Algorithms: extending-algorithms.md"),
    "step": ("A client step is not declared as it has to be.", "Algorithms: extending-algorithms.md"),
    "sum": ("Replies cannot be added up.", "Algorithms: extending-algorithms.md"),
    "reply": ("A reply does not have what the algorithm reads from it.", "Algorithms: extending-algorithms.md"),
    "mechanism": ("A ledger names a protection that this version does not know.", "Read a ledger: ledger.md"),
    "motif": ("The file of a run's motifs cannot be drawn.", "Graphs of FairGraphFL: fairgraphfl.md"),
    "call-refused": ("A site does not do what the server asks for.", "Write a site's policy: policy.md"),
    "reply-refused": ("A client's reply may not leave the client.", "What leaves: what-leaves.md"),
    "clients-missing": ("Too few clients replied.", "When something fails: failures.md"),
    "step-failed": ("A client step raised an error.", "Your own algorithm: extending.md"),
    "diverged": ("Training diverged: some weights or losses are not finite.", "How clients train: training.md"),
    "disk-full": ("There is no space left for a file.", "Retention and disk: operations.md#retention-and-disk"),
    "out-of-memory": ("There is not enough memory for a step.", "Many clients, large graphs: scale.md"),
    "worker-lost": ("A worker of a cluster is gone.", "Many clients, large graphs: scale.md"),
    "interrupted": ("You stopped the run; run it again to continue.", "Compare and read runs: comparing.md"),
    "failed": ("Something else failed; the message says what.", "Commands: reference/commands.md"),
}
