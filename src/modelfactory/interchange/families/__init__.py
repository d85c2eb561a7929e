"""The architectures of transformers that can be imported and exported, one file for each group of kin."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelfactory.errors import SourceError, closest
from modelfactory.interchange.families.bamba import BAMBA
from modelfactory.interchange.families.experts import MIXTRAL, QWEN3_MOE
from modelfactory.interchange.families.gemma import GEMMA2
from modelfactory.interchange.families.gpt2 import GPT2_FAMILY
from modelfactory.interchange.families.llama import GRANITE, LLAMA, MISTRAL, OLMO2, QWEN2, QWEN3

if TYPE_CHECKING:
    from modelfactory.interchange.family import Family

FAMILIES = (
    GPT2_FAMILY,
    LLAMA,
    MISTRAL,
    QWEN2,
    QWEN3,
    OLMO2,
    GEMMA2,
    MIXTRAL,
    QWEN3_MOE,
    BAMBA,
    GRANITE,
)
"""A decoder that several of them hold is exported as the first."""


def family_named(architecture: str, place: str) -> Family:
    """Return the family of an architecture of transformers.

    Raises:
        SourceError: it is not known; lists those that are, and the closest.
    """
    known = {family.architecture: family for family in FAMILIES}
    if architecture in known:
        return known[architecture]
    near = closest(architecture, known)
    raise SourceError(
        place=place,
        found=f"the architecture {architecture!r}",
        wanted=f"one that can be imported: {', '.join(known)}",
        remedy=near if near.startswith("Did") else "",
    )
