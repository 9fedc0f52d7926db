"""A site's data, state and accounts while it takes part in a run."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import MappingProxyType

import torch

from fedweave.algorithms.trials import TRIED
from fedweave.core.algorithm import Algorithm, Calls, calls_of, capabilities
from fedweave.core.federation import Step, StepInfo, step_info, step_name
from fedweave.core.graph import Graph
from fedweave.core.graph_arrays import DTYPES
from fedweave.core.operators import Precomputed
from fedweave.core.sizes import padded_rows
from fedweave.core.tree import Tree
from fedweave.core.types import CLASS, EVALUATION, Record
from fedweave.engines.calls import Keys
from fedweave.engines.data import ClientData
from fedweave.engines.resend import LastReceived
from fedweave.engines.steps import find_step
from fedweave.errors import CallRefused, FedweaveError
from fedweave.experiment.config import Config
from fedweave.experiment.graphs import graph_of
from fedweave.experiment.runs.files import write
from fedweave.partition.external import ADD
from fedweave.sites.flare.accounts import CROWD, DATA, Accounts, Exclusion
from fedweave.sites.flare.admission import admit, check_difference, check_exclusion, check_sites, make_algorithm
from fedweave.sites.flare.alignment import PartyData
from fedweave.sites.flare.downloads import Downloads
from fedweave.sites.flare.entities import INFO as UNITING
from fedweave.sites.flare.entities import UNITE, Entities
from fedweave.sites.flare.exchange import INFO as SHARING
from fedweave.sites.flare.exchange import Exchange
from fedweave.sites.flare.folder import RUNS, private_folder
from fedweave.sites.flare.foresight import (
    check_declared,
    conditions,
    models_tried,
    needs_all,
    overspending,
    scored_paths,
    target_replies,
)
from fedweave.sites.flare.holdings import Holdings, LabelVersion, check_as_before
from fedweave.sites.flare.joining import LENGTH
from fedweave.sites.flare.journal import Journal, journal_path
from fedweave.sites.flare.masking import Masking
from fedweave.sites.flare.memory import Memory, NoisedReplies, Store
from fedweave.sites.flare.order import Order
from fedweave.sites.flare.peers import VERSION, Inbox
from fedweave.sites.flare.policy import PolicyViolation, check_batches, check_crowd
from fedweave.sites.flare.policy_changes import PolicyFile, rule_changes, stricter
from fedweave.sites.flare.requests import Agree, Join, Open, StepRequest, pin, release, versions
from fedweave.sites.flare.scores import AS_THEY_ARE, Scoring, scoring_of, scoring_steps
from fedweave.sites.flare.sitefile import Rules

MARKS = "marks.json"
EARLY_SUMS = {ADD: SHARING, UNITE: UNITING}  # the secure aggregations before the first step
# The limit in bytes of a message with its sparse leaves filled in, even if the server's `engine.reply_mb` is larger.
MAX_FILLED = 1 << 30
MAX_RETURNS = 10  # how often a run goes back to one round


class Participation:
    """A site's part in one job of a run: data, state, ledger and progress.

    policy: the policy file, whose state was noted before `rules` were read from it. released: the server's versions
    (`requests.check_versions`). device: where steps run.
    holdings: the site's data in the run; with a `PartyData`, no step can run until `begin`. pin: the fingerprint that
    every request must have (`requests.pin`). limit: the largest size in bytes of a peer's parcel, and of a message with
    its sparse leaves filled in.
    """

    algorithm: Algorithm | None = None
    ready = False  # for steps
    _digest: str = ""  # of the data that the run is trained on, with what it leaves out
    data_mark: str = ""  # of the data that the run is trained on
    _calls: Calls | None = None
    exchange: Exchange | None = None  # over edges between sites, until it is done
    entities: Entities | None = None  # until the sites have numbered them
    target: Mapping[str, int] = MappingProxyType({})  # see `foresight.target_replies`

    def __init__(
        self,
        folder: Path,
        request: Join,
        config: Config,
        holdings: Holdings | PartyData,
        rules: Rules,
        policy: PolicyFile,
        released: dict[str, str],
        device: torch.device,
        random_id: str,
        name: str,
        submitter: str = "",
    ) -> None:
        engine = config.engine.values
        run_folder = folder / RUNS / request.run
        self.dtype = DTYPES[engine["dtype"]]
        self.limit = min(int(engine["reply_mb"] * 1e6), MAX_FILLED)
        self.request, self.run, self.inbox = request, request.run, Inbox(self.limit)
        # Half of the server's timeout, so that an unreachable peer does not make its senders late.
        self.patience = engine["timeout"] / 2
        self.experiment = config  # of all members
        self.config = config.of_member(name, request.sites)
        self.holdings, self.rules, self.random_id = holdings, rules, random_id
        self.keys, self.pin = Keys(config.general.seed), pin(config.plain(), request.sites, released)
        self._server = released["fedweave"]
        # With the site's own versions: a server could otherwise begin a configuration anew under another release.
        self.counted = pin(config.plain(), request.sites)
        self.accounts = Accounts(folder, rules.lost)
        self.folder, self.device = folder, device
        self._policy, self._name = policy, name
        self._waiting: tuple[Holdings, Precomputed] | None = None
        with self.accounts.open():
            self.accounts.chain.check(request.heads.get(name, ""))
            self.ledger = Journal(journal_path(folder, request.run))
            self.ledger.chain = self.accounts.chain
            self._saved = self._check_history()
            facts = {"algorithm": config.algorithm.name, "after": request.round, "predict": request.predict}
            facts |= {"sites": request.sites, "policy": rules.plain()}
            general = config.general
            provenance = {"requester": general.requester, "purpose": general.purpose, "submitter": submitter}
            facts |= {key: word for key, word in provenance.items() if word}
            if self._server != release():
                facts |= {"server_release": self._server, "counted": self.counted}
            self.ledger.note("joined", **facts, pin=self.pin, **versions({}))
            self.accounts.skip(self.ledger)
            self.accounts.pins[self.ledger.path.name] = self.counted
        self.masking = Masking(folder, name, request.run, request.sites, self.ledger, rules.members)
        private_folder(run_folder.parent)
        persistent = not request.predict
        self.noised = NoisedReplies(run_folder)
        self.memory = Memory(run_folder, persistent)
        self._replaced = Store(run_folder, "data", "data-before-", persistent)
        per_step = capabilities(config.algorithm.kind).vertical
        self.downloads = Downloads(run_folder, rules.max_change, per_step, persistent)
        self.last = LastReceived(engine["resend"])

    def renew(self) -> None:
        """Apply the rules that the owner has tightened since the last request. Loosened rules wait for the next job.

        Raises:
            PolicyViolation: the job may not continue under these rules. ConfigError: the site's file is not valid any
                more.
        """
        now = self._policy.news()
        if now is None:
            return
        changes = rule_changes(self.rules, now)
        tightened = [change.name for change in changes if change.tightened]
        loosened = [change.name for change in changes if change.loosened]
        self.rules = stricter(self.rules, now)
        with self.accounts.open(self.ledger):
            self.ledger.note("policy", tightened=tightened, loosened=loosened, changes=[*map(str, changes)])
        admit(now, self.request.document)
        check_sites(now, self._name, self.request.sites)
        self.downloads.tighten(self.rules.max_change)
        self.masking.members = now.members or self.masking.members
        if self._calls is not None:
            labels = bool(self.holdings.data.has_label.any())
            self._scoring = scoring_of(self.rules, self._calls, labels)
            if not self.request.predict:
                scored: tuple[str, ...] = ()
                if isinstance(self.holdings, Holdings):
                    scored = scored_paths(self.rules, self.config, self.holdings.graph, self.holdings.data.outputs)
                check_declared(self.rules, self._calls, labels, len(self.request.sites), scored)

    def _check_history(self) -> int:
        """The round of the last checkpoint that the server has reported to the site."""
        joined = [note for note in self.ledger.notes if note["note"] == "joined"]
        repeats = [note for note in joined if not note.get("predict") and note.get("after") == self.request.round]
        if len(repeats) > MAX_RETURNS and not self.request.predict:
            raise CallRefused(
                f"the run {self.run} has gone on from round {self.request.round} {len(repeats)} times and got no "
                "further; start a new run"
            )
        if joined and joined[0].get("pin") != self.pin:
            raise CallRefused(
                f"the run {self.run} was begun with another configuration, other sites, other files of plug-ins or "
                "other versions of fedweave or torch; start a new run"
            )
        saved = max((note["round"] for note in self.ledger.notes if note["note"] == "saved"), default=-1)
        if self.request.round < saved:
            raise CallRefused(
                f"the run {self.run} is to go on from round {self.request.round}, but its server has said that it "
                f"holds a checkpoint of round {saved}, and the site keeps no state from before; start a new run"
            )
        return int(saved)

    @property
    def run_folder(self) -> Path:
        """The folder with the site's files of the run."""
        return self.folder / RUNS / self.run

    @property
    def other_release(self) -> str:
        """A sentence on the server's release of fedweave if it is not the site's; otherwise ""."""
        if self._server == release():
            return ""
        return (
            f". The site has fedweave {release()[:40]}, the server {self._server[:40]}: their settings differ. Install "
            "the same files, whatever policy.releases allows"
        )

    def go_back(self) -> None:
        """Continue from the state and the data after the round that the server names, unless the data is older than the
        version that the server knows."""
        round = self.request.round
        self.memory.go_back(round)
        self._replaced.go_back(round)
        known = self.request.data[self._name].version if self._name in self.request.data else 0
        version = self._replaced.tree.get("version", 0)
        if version < known:
            raise FedweaveError(
                f"the site's data in the run {self.run} is of version {version}, but was of "
                f"version {known} after round {round}. Restore its folder {RUNS}/{self.run}, or start a new run."
            )

    def check_marks(self, marks: Record, exclusion: Callable[[], Exclusion]) -> None:
        """Note the `marks` of the training data when a run begins. When a run resumes, check that the data is the same;
        when its models predict, check that the data fits them.

        exclusion: computes what is left out of the data. The journal notes it with keyed hashes of ids, and it is
        compared with what earlier runs left out. A run that begins again before its first checkpoint may leave out
        others.
        """
        path, self.data_mark = self.run_folder / MARKS, json.dumps(marks, sort_keys=True)
        resumes = self.request.round >= 0 and path.exists()
        if self.request.predict or resumes:
            if not path.exists():
                raise FedweaveError(
                    f"{path.parent} holds no models of this site: the run {self.run} was not trained here."
                )
            known = dict(marks)
            if self.request.predict:  # a model fits other data of the same form
                known.pop("data")
            check_as_before(path, self.run, known)
        if self.request.predict:
            return
        now, journal = exclusion(), self.ledger.path.name
        with self.accounts.open(self.ledger):
            known, whole = self.accounts.exclusions, self.accounts.of_whole(now)
            check_exclusion(self.rules, whole, self.accounts.earlier(whole))
            self._digest = whole.data
            if now not in known[journal]:
                known[journal].append(now)
                ids = {"left_out": sorted(now.examples), "training": sorted(now.training), "seen": sorted(now.digests)}
                start_run = self.config.general.init_from or ""
                self.ledger.note(DATA, data=now.data, rest=now.rest, init_from=start_run, key=now.key, **ids)
        if not resumes:
            write(path, lambda file: file.write(json.dumps(marks).encode()))

    def begin(self, holdings: Holdings, width: int, scaling: str = "none") -> None:
        """Make the model and the algorithm, and precompute what the algorithm needs of the data. If the sites must
        still agree on lengths of lists (`list_lengths`), no step can run until `pad`.

        width: number of feature columns. scaling: how the features are scaled (`datasets.features`).
        """
        data, sites, predicts = holdings.data, self.request.sites, bool(self.request.predict)
        done, labels = self.request.round, bool(data.has_label.any())
        algorithm = make_algorithm(self.experiment, self._name, sites, data, width, scaling, predicts)
        self.algorithm = algorithm
        calls = calls_of(algorithm, self.config.algorithm.name, len(sites))
        if not predicts:
            # A run that the policy would stop before its end is refused before any data of it leaves. Replies up to the
            # round `answered` are not noised again, and cost nothing more.
            answered, spent = max(done, self.noised.last_round()), self.accounts.spent
            scored = scored_paths(self.rules, self.config, holdings.graph, data.outputs)
            check_declared(self.rules, calls, labels, len(sites), scored)
            self.target = target_replies(algorithm, calls)
            replied = self.accounts.replies_under(self.counted)
            more = len(sites), spent, replied, done, answered
            for condition in conditions(self.rules, self.config, algorithm, calls, *more):
                condition()
            why = overspending(self.rules, spent, calls, self.config.general, answered, labels)
            if why and needs_all(self.config, algorithm):
                raise PolicyViolation(f"{why}, and could not end without it")
            if any(step_info(step).sums for step in calls.all):
                self.join_crowd()
        self._calls = calls
        trying = [step for step in calls.round if TRIED in step_info(step).sends]
        self._scores = {step.__name__ for step in (*scoring_steps(calls), *trying)}
        self._scoring = scoring_of(self.rules, calls, labels)
        if self._scoring.epsilon is not None and (data.target != CLASS or data.links is not None):
            raise PolicyViolation(
                "policy.score_epsilon: supports only classes, and the site predicts links, numbers or several labels"
            )
        self.memory.chained = any(info.sums and not info.stateless for info in map(step_info, calls.all))
        self.memory.labelled = frozenset(map(step_name, calls.labelled))
        general = self.config.general
        max_models = partial(models_tried, algorithm, len(sites))
        self.order = Order(calls, done, general.rounds, self.request.predict, general.eval_every, max_models)
        self.holdings = holdings
        finders = () if predicts else algorithm.finders
        if finders:
            extra = Precomputed.merge([finder.alone(data, self.folder) for finder in finders])
            self._waiting = holdings, extra
        else:
            self.take_up(holdings)
            self.ready = self.exchange is None

    def join_crowd(self) -> None:
        """Note the sites of the run's secure aggregations, and compare them with the sites of earlier runs."""
        journal, sites = self.ledger.path.name, tuple(sorted(self.request.sites))
        with self.accounts.open(self.ledger):
            known = self.accounts.crowds
            earlier = [crowd for crowd, data in known.values() if data == self._digest]
            check_difference(self.rules, sites, earlier)
            if journal not in known:
                known[journal] = sites, self._digest
                self.ledger.note(CROWD, sites=list(sites), data=self._digest)

    @property
    def list_lengths(self) -> dict[str, int]:
        """{list that all sites pad to one length: its length at this site}, until the sites have agreed on lengths."""
        return {} if self._waiting is None else self._waiting[1].lists

    def pad(self, message: Tree) -> None:
        """Pad the lists to the lengths in the server's `message`."""
        if self._waiting is None:
            raise CallRefused("a site agrees on lengths once, right after it has joined, if its algorithm needs that")
        holdings, extra = self._waiting
        if message.keys() != self.list_lengths.keys():
            raise CallRefused("the server sends the lengths of other lists than the site's algorithm has")
        for name, length in self.list_lengths.items():
            size = message[name]
            if type(size) is not int or not length <= size <= LENGTH.maximum or size != padded_rows(size):
                raise CallRefused(f"the server sends {size!r} as the length of {name}, which is not valid")
        graph = graph_of(holdings.data, holdings.data.features, self.dtype, extra=extra.pad(dict(message)))
        self._waiting = None
        self.take_up(replace(holdings, graph=graph))

    def take_up(self, holdings: Holdings) -> None:
        """Use these data, or the data by which the run has replaced them; a prediction uses the loaded data."""
        self.holdings, self.ready = holdings, True
        self._data = ClientData({self.random_id: holdings.graph}, holdings.data.classes, self.device)
        if self._replaced.tree and not self.request.predict:
            self._data.load({self.random_id: self._replaced.tree})
        self._check_numbers({})

    def enter(self, call: StepRequest, message: Tree) -> None:
        """Check that the site may answer a request with this `message`, and keep the state from before its round."""
        self._check_numbers(message)
        if not self._saved <= call.saved <= call.round:
            raise CallRefused(
                f"the server says that its last checkpoint is of round {call.saved}; it was of round {self._saved}, "
                f"and the call is of round {call.round}"
            )
        if call.saved > self._saved and not self.request.predict:
            with self.accounts.open(self.ledger):
                self.ledger.note("saved", round=call.saved)
            self._saved = call.saved
        self.downloads.check(call.step, message)
        self.memory.enter(call.round, call.saved)
        if not self.request.predict:
            self.noised.drop(call.saved)

    def _check_numbers(self, message: Tree) -> None:
        """Raise a PolicyViolation if replies would depend on too few examples of the present data."""
        check_crowd(self.rules, self.graph)
        if self.algorithm is not None and not self.request.predict:  # a prediction does not train
            check_batches(self.rules, self.algorithm, self.graph, message)

    def message_digest(self, request: StepRequest, info: StepInfo, message: Tree) -> str:
        """The fingerprint of all messages on which the step's reply depends (`Memory.message_digest`)."""
        if info.stateless and self._replaced.tree:
            raise CallRefused("secure sum: a step has changed the site's data; such a sum is of all clients alone")
        return self.memory.message_digest(request.step, message, info)

    def prepare_sum(self, request: Agree | Open, message: Tree) -> Tree:
        """The reply to a request for keys, shares or signatures of a secure aggregation (`masking.Masking`)."""
        if isinstance(request, Open):
            return self.masking.open(request, message)
        if self.algorithm is None and not (isinstance(request, Agree) and request.step in EARLY_SUMS):
            raise CallRefused("secure sum: keys were asked for before the site knew the job's algorithm")
        info = EARLY_SUMS.get(request.step) or step_info(find_step(self.algorithm, request.step))
        with self.accounts.open(self.ledger):
            return self.masking.agree(request, info, message)

    def scoring_of(self, step: Step) -> Scoring:
        """How the scores of a step leave the site; unchanged for a step without scores."""
        return self._scoring if step.__name__ in self._scores else AS_THEY_ARE

    @property
    def measures(self) -> tuple[str, ...]:
        """The measures that may leave with scores of this site only; () if its scores leave in sums, rounded, or of
        drawn labels."""
        if self._calls is None or any(step_info(step).sums for step in scoring_steps(self._calls)):
            return ()
        return self._scoring.measures_for(sums=False)

    def ends_with(self, step: Step) -> bool:
        """Whether `step`, the last admitted one, evaluates a model with which the run may end."""
        general = self.config.general
        last = self.order.round == general.rounds or self.config.evaluation.patience > 0
        return last and self.order.purpose == EVALUATION and step.__name__ in self._scores

    @property
    def labels(self) -> LabelVersion | None:
        """The version of the site's present labels, which a step may have changed."""
        version = self.holdings.version if isinstance(self.holdings, Holdings) else None
        return LabelVersion.of_rows(self.graph.y.numpy(), self.classes) if self._replaced.tree else version

    @property
    def classes(self) -> int:
        """The number of classes of the whole federation."""
        return self.holdings.data.classes

    @property
    def graph(self) -> Graph:
        """The site's present data."""
        return self._data.graphs[self.random_id]

    @property
    def graph_on_device(self) -> Graph:
        """The site's present data on the device of steps."""
        return self._data.on_device(self.random_id)

    def replace(self, new: object, call: StepRequest, columns: int) -> dict[str, int]:
        """Keep the `new` data of a step, if it made any; returns the note for the server with their version.

        columns: number of feature columns that the step adds.
        """
        self._data.replace(self.random_id, new, f"the graph that {call.step} made", columns)
        self._replaced.enter(call.round, call.saved)
        self._replaced.keep(self._data.dump()[self.random_id])
        return {VERSION: self._data.versions[self.random_id]}
