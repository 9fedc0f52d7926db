"""What a site holds while it takes part in a run."""

import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

import torch

from fedweave.core.algorithm import Algorithm, Calls, calls_of, capabilities
from fedweave.core.federation import Step, StepInfo, step_info, step_name
from fedweave.core.graph import DTYPES, Graph
from fedweave.core.operators import Precomputed
from fedweave.core.target import CLASS
from fedweave.core.tree import Tree
from fedweave.core.types import EVALUATION, Record
from fedweave.deploy.flare.accounts import CROWD, Accounts
from fedweave.deploy.flare.admission import (
    PolicyFile,
    admitted,
    changed,
    check_declared,
    check_difference,
    check_sites,
    conditions,
    models_tried,
    needs_all,
    overspent,
    stricter,
    suited,
    targeted,
)
from fedweave.deploy.flare.alignment import INFO as SHARING
from fedweave.deploy.flare.alignment import Exchange, PartyData
from fedweave.deploy.flare.entities import INFO as UNITING
from fedweave.deploy.flare.entities import UNITE, Entities
from fedweave.deploy.flare.folder import private_folder
from fedweave.deploy.flare.holdings import Holdings, LabelVersion, check_as_before, checked, fitting
from fedweave.deploy.flare.journal import Journal, journal_path
from fedweave.deploy.flare.memory import Downloads, Memory, Order, Store
from fedweave.deploy.flare.peers import VERSION, Inbox
from fedweave.deploy.flare.policy import PolicyViolation, check_batches, check_crowd
from fedweave.deploy.flare.requests import Agree, Join, Open, StepRequest, pin, versions
from fedweave.deploy.flare.scores import AS_THEY_ARE, Scoring, scoring_of, scoring_steps
from fedweave.deploy.flare.sitefile import Rules
from fedweave.deploy.flare.sums import Masking
from fedweave.engines.calls import Keys, find_step
from fedweave.engines.data import ClientData, accepted
from fedweave.engines.messages import LastReceived
from fedweave.errors import CallRefused, FedweaveError
from fedweave.experiment import requirements
from fedweave.experiment.config import Config
from fedweave.experiment.graphs import graph_of
from fedweave.experiment.runs.files import write
from fedweave.partition.client_data import finders_of
from fedweave.partition.external import ADD

RUNS, MARKS = "runs", "marks.json"
BEFORE = {ADD: SHARING, UNITE: UNITING}  # what is added up before the first step
# Bytes of a message with its sparse leaves filled in, whatever `engine.reply_mb` the server names.
MOST_FILLED = 1 << 30


class Participation:
    """A site's part in one job of a run: data, state, ledger, and how far the job has come.

    policy: the file that `rules` are of, marked before they were read.
    found: what it has of the run's data; of a `PartyData` no step can be run until `begin`. pin: what every call has to
    carry (`requests.pin`). limit: bytes that a message's sparse leaves may take, and a peer's parcel.
    """

    algorithm: Algorithm | None = None
    ready = False  # for steps
    _digest: str = ""  # of the data that the run is trained on
    _moved: tuple[int, Graph] | None = None  # the version of the data that was moved, and where to
    _calls: Calls | None = None
    exchange: Exchange | None = None  # over edges to other sites' nodes, until it is done
    entities: Entities | None = None  # that the sites are about to number alike, until that is done
    target: Mapping[str, int] = MappingProxyType({})  # see `admission.targeted`

    def __init__(
        self,
        folder: Path,
        request: Join,
        config: Config,
        holdings: Holdings | PartyData,
        rules: Rules,
        policy: PolicyFile,
        random_id: str,
        name: str,
        submitter: str = "",
    ) -> None:
        engine, run_folder = config.engine.values, folder / RUNS / request.run
        self.limit = min(int(engine["reply_mb"] * 1e6), MOST_FILLED)
        self.asked, self.run, self.inbox = request, request.run, Inbox(self.limit)
        # Half of what the server waits, so that a peer that cannot be reached does not make its senders late.
        self.patience = engine["timeout"] / 2
        self.config = config.of_member(name, request.sites)
        self.found, self.rules, self.random_id = holdings, rules, random_id
        self.keys, self.pin = Keys(config.general.seed), pin(config.plain(), request.sites)
        self.accounts, self.folder = Accounts(folder, rules.lost), folder
        self._policy, self._name = policy, name
        self._waiting: tuple[Holdings, Precomputed] | None = None
        with self.accounts.open():
            self.accounts.chain.check(request.heads.get(name, ""))
            self.ledger = Journal(journal_path(folder, request.run))
            self.ledger.chain = self.accounts.chain
            self._saved = self._check_history()
            what = {"algorithm": config.algorithm.name, "after": request.round, "predict": request.predict}
            provenance = {
                "requester": config.general.requester,
                "purpose": config.general.purpose,
                "submitter": submitter,
            }
            what |= {
                "sites": request.sites,
                "policy": rules.plain(),
                **{key: word for key, word in provenance.items() if word},
            }
            self.ledger.note("joined", **what, pin=self.pin, **versions({}))
            self.accounts.skip(self.ledger)
            self.accounts.pins[self.ledger.path.name] = self.pin
        self.masking = Masking(folder, name, request.run, request.sites, self.ledger, rules.members)
        private_folder(run_folder.parent)
        lasting = not request.predict
        self.memory, self._replaced = Memory(run_folder, lasting), Store(run_folder, "data", "data-before-", lasting)
        apart = capabilities(config.algorithm.kind).vertical
        self.downloads, self.last = (
            Downloads(run_folder, rules.max_change, apart, lasting),
            LastReceived(engine["resend"]),
        )

    def renew(self) -> None:
        """Take up what the owner has tightened in the policy since the last call; what is loosened waits for a job.

        Raises:
            PolicyViolation: the job may not go on under it. ConfigError: the site's file is not valid any more.
        """
        now = self._policy.news()
        if now is None:
            return
        tightened, loosened = changed(self.rules, now)
        self.rules = stricter(self.rules, now)
        with self.accounts.open(self.ledger):
            self.ledger.note("policy", tightened=tightened, loosened=loosened)
        admitted(now, self.asked.document)
        check_sites(now, self._name, self.asked.sites)
        self.downloads.tighten(self.rules.max_change)
        self.masking.members = now.members or self.masking.members
        if self._calls is not None:
            labels = bool(self.found.data.labeled.any())
            self._scoring = scoring_of(self.rules, self._calls, labels)
            if not self.asked.predict:
                check_declared(self.rules, self._calls, labels, len(self.asked.sites))

    def _check_history(self) -> int:
        """The round of the server's last checkpoint, as far as it told the site.

        Raises:
            CallRefused: the run began with another configuration, or the server is to go on from a round of which the
                site keeps no state any more.
        """
        joined = [note for note in self.ledger.notes if note["note"] == "joined"]
        if joined and joined[0].get("pin") != self.pin:
            raise CallRefused(
                f"the run {self.run} was begun with another configuration, other sites, other files of plug-ins or "
                "other versions of fedweave or torch; start a new run"
            )
        saved = max((note["round"] for note in self.ledger.notes if note["note"] == "saved"), default=-1)
        if self.asked.round < saved:
            raise CallRefused(
                f"the run {self.run} is to go on from round {self.asked.round}, but its server has said that it holds "
                f"a checkpoint of round {saved}, and the site keeps no state from before; start a new run"
            )
        return int(saved)

    @property
    def run_folder(self) -> Path:
        """Where what the site keeps of the run is."""
        return self.folder / RUNS / self.run

    @property
    def begun(self) -> tuple[int, bool]:
        """The round to go on from, and whether the job is one of prediction, as the server said at joining."""
        return self.asked.round, self.asked.predict

    def go_back(self) -> None:
        """Continue from the state and the data after the round that the server names.

        Raises:
            FedweaveError: the data is older than the version that the server knows.
        """
        round = self.asked.round
        self.memory.go_back(round)
        self._replaced.go_back(round)

    def check_version(self, known: int) -> None:
        """Refuse to go on with data older than the version that the server has `known`."""
        version = self._replaced.tree.get("version", 0)
        if version < known:
            raise FedweaveError(
                f"the site's data in the run {self.run} is of version {version}, but was of "
                f"version {known} after round {self.asked.round}. Bring back its folder {RUNS}/{self.run}, or start "
                "the run anew."
            )

    def check_marks(self, marks: Record) -> None:
        """Note what the run is trained on; or see that what is there now is the same, where the run resumes, or fits
        its models, where these are to `predict`.

        Raises:
            FedweaveError: it is not, or there are none.
        """
        path, resumes = self.run_folder / MARKS, self.asked.round >= 0
        self._digest = sha256(json.dumps(marks.get("data", marks), sort_keys=True).encode()).hexdigest()
        if not self.asked.predict and not (resumes and path.exists()):
            return write(path, lambda file: file.write(json.dumps(marks).encode()))
        if not path.exists():
            raise FedweaveError(f"{path.parent} holds no models of this site: the run {self.run} was not trained here.")
        check_as_before(path, self.run, marks if not self.asked.predict else fitting(marks))
        return None

    def begin(self, found: Holdings, width: int, scaling: str = "none") -> None:
        """Make the model, for graphs of `width` features that are scaled so (`datasets.features`), and what the
        algorithm asks of the data; if that is `needed` in a length that the sites are yet to agree on, no step can be
        run until `pad`.

        Raises:
            ConfigError, DataError: algorithm or model is for other data. PolicyViolation: the policy would end the run.
        """
        self.algorithm = suited(self.config, found.data, width, scaling)
        calls = calls_of(self.algorithm, self.config.algorithm.name, len(self.asked.sites))
        if not self.asked.predict:
            requirements.check_people(self.config, found.data, self.algorithm)
            self._foresee(calls, bool(found.data.labeled.any()))
            if any(step_info(step).sums for step in calls.all):
                self.join_crowd()
        self._calls = calls
        self._scores = {step.__name__ for step in scoring_steps(calls)}
        self._scoring = scoring_of(self.rules, calls, bool(found.data.labeled.any()))
        if self._scoring.epsilon is not None and (found.data.target != CLASS or found.data.links is not None):
            raise PolicyViolation(
                "policy.score_epsilon: draws classes anew, and the site predicts links, numbers or several labels"
            )
        self.memory.chained = any(info.sums and not info.stateless for info in map(step_info, calls.all))
        self.memory.labelled = frozenset(map(step_name, calls.labelled))
        general = self.config.general
        most = partial(models_tried, self.algorithm, len(self.asked.sites))
        self.order = Order(calls, self.asked.round, general.rounds, self.asked.predict, general.eval_every, most)
        self.found = found
        finders = () if self.asked.predict else finders_of(self.algorithm)
        if finders:
            self._waiting = found, Precomputed.joined([finder.alone(found.data, self.folder) for finder in finders])
        else:
            self.take_up(found)
            self.ready = self.exchange is None

    def _foresee(self, calls: Calls, labels: bool) -> None:
        """Refuse a run that could not end within the policy, before anything of it leaves.

        Raises:
            PolicyViolation: says why.
        """
        sites, done, spent = len(self.asked.sites), self.asked.round, self.accounts.spent
        check_declared(self.rules, calls, labels, sites)
        self.target = targeted(self.algorithm, calls)
        replied = self.accounts.repeated(self.pin)
        for condition in conditions(self.rules, self.config, self.algorithm, calls, sites, spent, replied, done):
            condition()
        why = overspent(self.rules, spent, calls, self.config.general, done, labels)
        if why and needs_all(self.config, self.algorithm):
            raise PolicyViolation(f"{why}, and could not end without it")

    def join_crowd(self) -> None:
        """Note over which sites the run has secure sums, if those of earlier runs differ from them by enough.

        Raises:
            PolicyViolation: they do not.
        """
        journal, sites = self.ledger.path.name, tuple(sorted(self.asked.sites))
        with self.accounts.open(self.ledger):
            known = self.accounts.crowds
            check_difference(
                self.rules, sites, [crowd for name, (crowd, data) in known.items() if data == self._digest]
            )
            if journal not in known:
                known[journal] = sites, self._digest
                self.ledger.note(CROWD, sites=list(sites), data=self._digest)

    @property
    def needed(self) -> dict[str, int]:
        """The lists that the algorithm has every site hold in one length, and how long this one's are, until that is
        agreed."""
        return {} if self._waiting is None else self._waiting[1].lists

    def pad(self, told: Tree) -> None:
        """Pad the lists as the server `told`.

        Raises:
            CallRefused: there is nothing to agree on, any more or at all, or what it told cannot be.
        """
        if self._waiting is None:
            raise CallRefused("a site agrees on lengths once, right after it has joined, if its algorithm needs that")
        holdings, extra = self._waiting
        sizes, dtype = checked(told, self.needed), DTYPES[self.config.engine.values["dtype"]]
        graph = graph_of(holdings.data, holdings.features, dtype, extra=extra.padded(sizes))
        self._waiting = None
        self.take_up(replace(holdings, graph=graph))

    def take_up(self, holdings: Holdings) -> None:
        """Take up the data as the run has changed it, unless what was loaded is wanted."""
        self.found, self.ready = holdings, True
        self._data = ClientData({self.random_id: holdings.graph}, holdings.classes)
        if self._replaced.tree and not self.asked.predict:
            self._data.load({self.random_id: self._replaced.tree})
        self._check_numbers({})

    def enter(self, call: StepRequest, message: Tree) -> None:
        """See that a call may be answered with its `message`, and keep the state from before its round.

        Raises:
            CallRefused: it may not.
        """
        self._check_numbers(message)
        if not self._saved <= call.saved <= call.round:
            raise CallRefused(
                f"the server says that its last checkpoint is of round {call.saved}; it was of round {self._saved}, "
                f"and the call is of round {call.round}"
            )
        if call.saved > self._saved and not self.asked.predict:
            with self.accounts.open(self.ledger):
                self.ledger.note("saved", round=call.saved)
            self._saved = call.saved
        self.downloads.check(call.step, message)
        self.memory.enter(call.round, call.saved)

    def _check_numbers(self, message: Tree) -> None:
        """Refuse to go on where numbers would be of few examples of the data as it is now."""
        check_crowd(self.rules, self.graph)
        if not self.asked.predict:  # where models predict, nothing is trained
            check_batches(self.rules, self.algorithm, self.graph, message)

    def heard(self, asked: StepRequest, info: StepInfo, message: Tree) -> str:
        """The fingerprint of what the step makes its reply of besides the site's own data (`Memory.heard`).

        Raises:
            CallRefused: the data is not what it was, and the sum is of what is told now.
        """
        if info.stateless and self._replaced.tree:
            raise CallRefused("secure sum: a step has changed the site's data; such a sum is of all clients alone")
        return self.memory.heard(asked.step, message, info)

    def prepare_sum(self, request: Agree | Open, message: Tree) -> Tree:
        """What a secure sum needs besides the terms (`masking.Masking`)."""
        if isinstance(request, Open):
            return self.masking.open(request, message)
        if self.algorithm is None and not (isinstance(request, Agree) and request.step in BEFORE):
            raise CallRefused("secure sum: keys were asked for before the site knew the job's algorithm")
        info = BEFORE[request.step] if request.step in BEFORE else step_info(find_step(self.algorithm, request.step))
        with self.accounts.open(self.ledger):
            return self.masking.agree(request, info, message)

    def scoring_of(self, step: Step) -> Scoring:
        """How what a step replies leaves as scores; as it is of a step that makes none."""
        return self._scoring if step.__name__ in self._scores else AS_THEY_ARE

    def ends_with(self, step: Step) -> bool:
        """Whether `step`, which was admitted last, judges the model that the run may end with."""
        general = self.config.general
        last = self.order.round == general.rounds or self.config.evaluation.patience > 0
        return last and self.order.purpose == EVALUATION and step.__name__ in self._scores

    @property
    def labels(self) -> LabelVersion | None:
        """Of its labels as they are now, which a step may have changed."""
        version = self.found.version if isinstance(self.found, Holdings) else None
        return LabelVersion.of_rows(self.graph.y.numpy()) if self._replaced.tree else version

    @property
    def classes(self) -> int:
        """Number of classes of the whole federation."""
        return self.found.data.classes

    @property
    def graph(self) -> Graph:
        """The site's data now."""
        return self._data.graphs[self.random_id]

    def graph_on(self, device: torch.device) -> Graph:
        """The site's data now, on a device, to which each version is moved once."""
        version = self._data.versions[self.random_id]
        if self._moved is None or self._moved[0] != version:
            self._moved = version, self.graph.to(device)
        return self._moved[1]

    def replace(self, made: object, call: StepRequest, columns: int) -> dict[str, int]:
        """Keep the data that a step made, if it made any, with so many `columns` more; what the server hears of it."""
        where = f"the graph that {call.step} made"
        graph = None if made is None else accepted(made, self.graph, self._data.classes, where, columns)
        self._data.replace(self.random_id, graph)
        self._replaced.enter(call.round, call.saved)
        self._replaced.keep(self._data.dump()[self.random_id])
        return {VERSION: self._data.versions[self.random_id]}
