"""An experiment file: from its path to a study, or to all of its faults at once.

The file is imported by its own name, with its folder on the Python path, so that functions and classes it
defines can be imported by worker processes. When that fails, it is looked at again to find every fault in one
reading: calls in it are held against the signatures they name; then it is executed with the wrong keywords
taken out, while the checks of the specs collect what they find.
"""

from modelfactory.loading.declared import Study
from modelfactory.loading.places import flattened
from modelfactory.loading.study import load_study

__all__ = ["Study", "flattened", "load_study"]
