"""Specs: typed values that can be written, read back, named and compared.

A spec is a frozen keyword-only dataclass whose fields hold booleans, whole numbers, finite real numbers,
strings, tuples of these, other specs, and functions or classes that can be imported by name. Nothing else,
so that a worker on another machine rebuilds exactly the value that was planned. Call `check_types(self)`
first in `__post_init__`; it converts values to their annotated type (`1` becomes `1.0` in a float field).

Identity: `identity_json` leaves out fields declared `not_identity()` (they say *where*, not *what*) and
fields that hold their default, so that a field added later, with the default that means the old behaviour,
keeps every old fingerprint. A default that is *changed* later is caught by the plan, which compares the
full JSON that was stored with the full JSON of today.
"""

from modelfactory.spec.canonical import canonical_json, fingerprint, identity_json
from modelfactory.spec.checking import (
    check_types,
    checked_value,
    collecting,
    field_types,
    not_identity,
    require,
)
from modelfactory.spec.differences import Change, difference, json_difference
from modelfactory.spec.reading import from_json, load_object
from modelfactory.spec.walking import names_in, where_paths
from modelfactory.spec.writing import TYPE, object_name, to_json

__all__ = [
    "TYPE",
    "Change",
    "canonical_json",
    "check_types",
    "checked_value",
    "collecting",
    "difference",
    "field_types",
    "fingerprint",
    "from_json",
    "identity_json",
    "json_difference",
    "load_object",
    "names_in",
    "not_identity",
    "object_name",
    "require",
    "to_json",
    "where_paths",
]
