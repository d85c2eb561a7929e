"""Python programs that a model wrote, executed where they can do no harm.

`run_program` runs one, `run_programs` many at once; each gets a bubblewrap of its own: no network, a system
that is read only, a /tmp that is thrown away, no sight of other processes, limits on what it can use up.
"""

from modelfactory.sandbox.bubblewrap import require_sandbox, sandbox_version
from modelfactory.sandbox.limits import Limits
from modelfactory.sandbox.outcome import Outcome
from modelfactory.sandbox.process import run_program, run_programs

__all__ = ["Limits", "Outcome", "require_sandbox", "run_program", "run_programs", "sandbox_version"]
