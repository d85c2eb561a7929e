"""An experiment file: from its path to a study, or to all of its faults at once.

The file is imported by its own name, with its folder on the Python path, so that functions and classes it
defines can be imported by worker processes. When that fails, it is looked at again to find every fault in one
reading: calls in it are held against the signatures they name; then it is executed with the wrong keywords
taken out, while the checks of the specs collect what they find.
"""

from modelfactory.loading.declared import Study
from modelfactory.loading.findings import in_experiments
from modelfactory.loading.places import flattened
from modelfactory.loading.study import Reading, load_study, read_study

__all__ = ["Reading", "Study", "flattened", "in_experiments", "load_study", "read_study"]
