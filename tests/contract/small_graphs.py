"""The contract's small graphs, under the name that tests know them by."""

from fedweave.contract.small_graphs import CLASSES as CLASSES
from fedweave.contract.small_graphs import COUNTS as COUNTS
from fedweave.contract.small_graphs import FEATURES as FEATURES
from fedweave.contract.small_graphs import arrays as arrays
from fedweave.contract.small_graphs import global_test as global_test
from fedweave.contract.small_graphs import graphs as graphs
