"""Many runs of one experiment: seeds, algorithms and settings. The package is called as a function, `fedweave.sweep(…)`
(`in_python.sweep`)."""

from fedweave.core.callable import make_callable

make_callable(__name__, "fedweave.sweep.in_python:sweep")
