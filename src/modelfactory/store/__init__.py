"""Fingerprint -> directory: publication, records and lineage, claims, verification, garbage."""

from modelfactory.store.caches import PinCache
from modelfactory.store.claims import Claim, Running
from modelfactory.store.garbage import Garbage
from modelfactory.store.holder import Holder, this_process
from modelfactory.store.manifest import FileEntry, Manifest, seal
from modelfactory.store.names import Promotion, check_name
from modelfactory.store.record import Edge, NamedExperiment, Record
from modelfactory.store.store import Store
from modelfactory.store.verify import Damage

__all__ = [
    "Claim",
    "Damage",
    "Edge",
    "FileEntry",
    "Garbage",
    "Holder",
    "Manifest",
    "NamedExperiment",
    "PinCache",
    "Promotion",
    "Record",
    "Running",
    "Store",
    "check_name",
    "seal",
    "this_process",
]
