"""What people see of a run. The package is called as a function, `fedweave.report(…)` (`python.comparing.report`)."""

from fedweave.core.callable import make_callable

make_callable(__name__, "fedweave.python.comparing:report")
