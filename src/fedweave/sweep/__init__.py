"""Many runs of one experiment: seeds, algorithms and settings. The package itself can be called: `fedweave.sweep(…)`
(`in_python.sweep`)."""

from fedweave.core.callable import make_callable

make_callable(__name__, "fedweave.sweep.in_python:sweep")
