"""Algorithms, one paper per file.

`ALGORITHMS` is the registry: name on the command line -> frozen dataclass, or preset of FedAvg; `ALIASES` are further
names. `PARTS` are what the FedAvg family is made of: name in `[algorithm] parts` -> frozen dataclass.
"""

from fedweave.algorithms import parts
from fedweave.algorithms.adafgl import AdaFGL
from fedweave.algorithms.apfl import APFL, MixedModel
from fedweave.algorithms.centralized import Centralized
from fedweave.algorithms.cffl import CFFL, Credibility, CredibilityReward
from fedweave.algorithms.cgsv import CGSV, DW, EU, CosineValue, EuclideanValue, SizeValue, SparseReward
from fedweave.algorithms.coalition_value import CoalitionValue, ValidatedValue
from fedweave.algorithms.dfedgnn import DFedGNN
from fedweave.algorithms.ditto import Ditto, PersonalModel
from fedweave.algorithms.dp_fedavg import DPFedAvg
from fedweave.algorithms.f2gnn import F2GNN, DivergenceStart, FairPenalty, GroupWeights
from fedweave.algorithms.fairaug import FairAug, FairAugmented
from fedweave.algorithms.fairfed import FairFed, FairFedWeights
from fedweave.algorithms.fairgfl import FairGFL, OverlapWeights
from fedweave.algorithms.fairgraphfl import AgentValue, FairGraphFL, MotifPrototypes, Payoff, ValueReward
from fedweave.algorithms.fcfl import FCFL, ParetoDescent
from fedweave.algorithms.fedaux import AuxiliaryMix, FedAux
from fedweave.algorithms.fedavg import FedAvg
from fedweave.algorithms.fedavg_ft import FedAvgFT, FineTuned
from fedweave.algorithms.fedbn import FedBN, OwnNorms
from fedweave.algorithms.fedbuff import FedBuff
from fedweave.algorithms.feddc import FedDC
from fedweave.algorithms.feddep import FedDEP, MissingEmbeddings
from fedweave.algorithms.feddyn import DynamicRegularisation, FedDyn
from fedweave.algorithms.fede import FedE, Holders, HoldersSum, OwnUsers
from fedweave.algorithms.fedego import FedEgo
from fedweave.algorithms.fedgcn import FedGCN
from fedweave.algorithms.fedgta import FedGTA, TopologyMix
from fedweave.algorithms.fednova import FedNova, NormalisedSteps, ProximalSteps
from fedweave.algorithms.fedopt import (
    FedAdagrad,
    FedAdam,
    FedAvgM,
    FedYogi,
    ServerAdagrad,
    ServerAdam,
    ServerMomentum,
    ServerYogi,
)
from fedweave.algorithms.fedper import FedPer, OwnHead
from fedweave.algorithms.fedproto import ClassPrototypes, FedProto, NearestPrototype
from fedweave.algorithms.fedprox import FedProx, Proximal
from fedweave.algorithms.fedpub import FedPUB, FunctionalMix, SparseMasks
from fedweave.algorithms.fedrep import FedRep, HeadThenBody
from fedweave.algorithms.fedsage import FedSage
from fedweave.algorithms.fedsage_plus import FedSagePlus, MissingNeighbours
from fedweave.algorithms.fedstar import FedStar
from fedweave.algorithms.fedtad import Distilled, FedTAD
from fedweave.algorithms.fedtgp import FedTGP, NearestTrained, TrainedPrototypes
from fedweave.algorithms.fggp import FGGP, AugmentedView, NearestCentres
from fedweave.algorithms.fgssl import FGSSL, SemanticStructure
from fedweave.algorithms.gcfl import GCFL, Clusters, GCFLPlus, SeriesClusters
from fedweave.algorithms.glasu import GLASU
from fedweave.algorithms.graphfl import GraphFL, MetaGradient
from fedweave.algorithms.local import Local
from fedweave.algorithms.moon import ModelContrast, Moon
from fedweave.algorithms.parts import conflicts
from fedweave.algorithms.pfedme import MoreauEnvelope, PFedMe
from fedweave.algorithms.qfedavg import FairByLoss, QFedAvg
from fedweave.algorithms.rffl import RFFL, Reputation, ReputationReward
from fedweave.algorithms.scaffold import ControlVariates, Scaffold
from fedweave.algorithms.vertical.special import VFGNN, VFL, PooledGNN, SimulatedCentralized, Standalone
from fedweave.core.types import Record

ALGORITHMS: Record = {
    "local": Local,
    "centralized": Centralized,
    "fedavg": FedAvg,
    "dp_fedavg": DPFedAvg,
    "fedprox": FedProx,
    "qfedavg": QFedAvg,
    "fedbuff": FedBuff,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fedadagrad": FedAdagrad,
    "fedavgm": FedAvgM,
    "scaffold": Scaffold,
    "moon": Moon,
    "feddyn": FedDyn,
    "feddc": FedDC,
    "fedavg_ft": FedAvgFT,
    "fednova": FedNova,
    "fedper": FedPer,
    "fedrep": FedRep,
    "fedbn": FedBN,
    "ditto": Ditto,
    "apfl": APFL,
    "pfedme": PFedMe,
    "fedproto": FedProto,
    "cgsv": CGSV,
    "dw": DW,
    "fairgfl": FairGFL,
    "fairgraphfl": FairGraphFL,
    "f2gnn": F2GNN,
    "fairfed": FairFed,
    "fairaug": FairAug,
    "adafgl": AdaFGL,
    "feddep": FedDEP,
    "fede": FedE,
    "fedego": FedEgo,
    "dfedgnn": DFedGNN,
    "eu": EU,
    "rffl": RFFL,
    "cffl": CFFL,
    "fcfl": FCFL,
    "fedpub": FedPUB,
    "fedaux": FedAux,
    "fedgcn": FedGCN,
    "fedgta": FedGTA,
    "graphfl": GraphFL,
    "fedsage": FedSage,
    "fedsage_plus": FedSagePlus,
    "fedstar": FedStar,
    "fedtad": FedTAD,
    "fedtgp": FedTGP,
    "fggp": FGGP,
    "fgssl": FGSSL,
    "gcfl": GCFL,
    "gcfl_plus": GCFLPlus,
    "glasu": GLASU,
    "vfl": VFL,
    "vfgnn": VFGNN,
    "standalone": Standalone,
    "simulated_centralized": SimulatedCentralized,
    "pooled_gnn": PooledGNN,
}
GROUPS = {  # what they are for, as `fedweave list algorithms` shows them
    "Reference points": ("local", "centralized"),
    "One model for all": (
        *("fedavg", "fedprox", "scaffold", "feddyn", "feddc", "fednova", "moon", "fedavgm", "fedadam", "dp_fedavg"),
        *("fedyogi", "fedadagrad", "fedbuff", "fedsage", "graphfl"),
    ),
    "A model for each client": (
        *("fedavg_ft", "fedper", "fedrep", "fedbn", "ditto", "apfl", "pfedme", "fedproto", "fedtgp", "fedpub"),
        *("fedgta", "gcfl", "gcfl_plus", "fedstar", "fedaux", "fedego", "adafgl", "dfedgnn"),
    ),
    "Graphs whose edges are cut": ("fedgcn", "fedsage_plus", "feddep", "fedtad", "fgssl", "fggp"),
    "Entities and their relations": ("fede",),
    "Fair between members": ("fairgfl", "qfedavg", "fcfl"),
    "Fair between groups of people": ("f2gnn", "fairfed", "fairaug"),
    "Contributions and pay": ("fairgraphfl", "cgsv", "dw", "eu", "rffl", "cffl"),
    "Parties with the same nodes": (*("glasu", "vfl", "vfgnn", "standalone", "simulated_centralized", "pooled_gnn"),),
}

PARTS: dict[str, type[parts.Part]] = {
    "cross_entropy": parts.CrossEntropy,
    "ego_cross_entropy": parts.EgoCrossEntropy,
    "sampled_cross_entropy": parts.SampledCrossEntropy,
    "graph_cross_entropy": parts.GraphCrossEntropy,
    "link_prediction": parts.LinkPrediction,
    "foreign_ends": parts.ForeignEnds,
    "proximal": Proximal,
    "model_contrast": ModelContrast,
    "class_prototypes": ClassPrototypes,
    "nearest_prototype": NearestPrototype,
    "control_variates": ControlVariates,
    "dynamic_regularisation": DynamicRegularisation,
    "fine_tuned": FineTuned,
    "normalised_steps": NormalisedSteps,
    "own_head": OwnHead,
    "own_norms": OwnNorms,
    "proximal_steps": ProximalSteps,
    "head_then_body": HeadThenBody,
    "mixed_start": parts.MixedStart,
    "drift": parts.Drift,
    "by_size": parts.BySize,
    "uniform": parts.Uniform,
    "uniform_trained": parts.UniformTrained,
    "fair_by_loss": FairByLoss,
    "median": parts.Median,
    "trimmed_mean": parts.TrimmedMean,
    "krum": parts.Krum,
    "geometric_median": parts.GeometricMedian,
    "bulyan": parts.Bulyan,
    "centered_clip": parts.CenteredClip,
    "norm_bound": parts.NormBound,
    "top_k": parts.TopK,
    "quantize": parts.Quantize,
    "secure_sum": parts.SecureSum,
    "holders": Holders,
    "holders_sum": HoldersSum,
    "own_users": OwnUsers,
    "class_counts": parts.ClassCounts,
    "clip": parts.Clip,
    "dp": parts.MemberNoise,
    "dp_examples": parts.ExampleNoise,
    "normalised": parts.Normalised,
    "server_momentum": ServerMomentum,
    "server_adam": ServerAdam,
    "server_yogi": ServerYogi,
    "server_adagrad": ServerAdagrad,
    "personal_model": PersonalModel,
    "mixed_model": MixedModel,
    "moreau_envelope": MoreauEnvelope,
    "trained_model": parts.TrainedModel,
    "cosine_value": CosineValue,
    "size_value": SizeValue,
    "sparse_reward": SparseReward,
    "euclidean_value": EuclideanValue,
    "reputation": Reputation,
    "reputation_reward": ReputationReward,
    "credibility": Credibility,
    "credibility_reward": CredibilityReward,
    "pareto_descent": ParetoDescent,
    "functional_mix": FunctionalMix,
    "sparse_masks": SparseMasks,
    "meta_gradient": MetaGradient,
    "agent_value": AgentValue,
    "value_reward": ValueReward,
    "payoff": Payoff,
    "coalition_value": CoalitionValue,
    "validated_value": ValidatedValue,
    "motif_prototypes": MotifPrototypes,
    "fair_penalty": FairPenalty,
    "divergence_start": DivergenceStart,
    "group_weights": GroupWeights,
    "fairfed_weights": FairFedWeights,
    "fair_augmented": FairAugmented,
    "clusters": Clusters,
    "series_clusters": SeriesClusters,
    "missing_neighbours": MissingNeighbours,
    "missing_embeddings": MissingEmbeddings,
    "overlap_weights": OverlapWeights,
    "auxiliary_mix": AuxiliaryMix,
    "topology_mix": TopologyMix,
    "semantic_structure": SemanticStructure,
    "augmented_view": AugmentedView,
    "nearest_centres": NearestCentres,
    "distilled": Distilled,
    "trained_prototypes": TrainedPrototypes,
    "nearest_trained": NearestTrained,
}

conflicts.ALGORITHMS |= ALGORITHMS
conflicts.PARTS |= PARTS

ALIASES = {"fgfl": "fairgraphfl"}  # other names of algorithms on the command line and in configurations

__all__ = [
    "ALGORITHMS",
    "ALIASES",
    "APFL",
    "CFFL",
    "CGSV",
    "DW",
    "EU",
    "F2GNN",
    "FCFL",
    "FGGP",
    "FGSSL",
    "GCFL",
    "GLASU",
    "PARTS",
    "RFFL",
    "VFGNN",
    "VFL",
    "AdaFGL",
    "Centralized",
    "DFedGNN",
    "DPFedAvg",
    "Ditto",
    "FairAug",
    "FairFed",
    "FairGFL",
    "FairGraphFL",
    "FedAdagrad",
    "FedAdam",
    "FedAux",
    "FedAvg",
    "FedAvgFT",
    "FedAvgM",
    "FedBN",
    "FedBuff",
    "FedDC",
    "FedDEP",
    "FedDyn",
    "FedE",
    "FedEgo",
    "FedGCN",
    "FedGTA",
    "FedNova",
    "FedPUB",
    "FedPer",
    "FedProto",
    "FedProx",
    "FedRep",
    "FedSage",
    "FedSagePlus",
    "FedStar",
    "FedTAD",
    "FedTGP",
    "FedYogi",
    "GCFLPlus",
    "GraphFL",
    "Local",
    "Moon",
    "PFedMe",
    "PooledGNN",
    "QFedAvg",
    "Scaffold",
    "SimulatedCentralized",
    "Standalone",
]
