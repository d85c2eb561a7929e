"""Models from and for other libraries.

`import_model` reads a folder in Hugging Face format, a GGUF file, or a checkpoint of llama2.c;
`export_hugging_face` and `export_gguf` write. Weights cross unchanged, bit by bit; a field, tensor or token
that has no counterpart is refused by name, never dropped.
"""

from modelfactory.interchange.export_stage import export_stage
from modelfactory.interchange.exporting import export_hugging_face
from modelfactory.interchange.families import FAMILIES
from modelfactory.interchange.gguf_writing import export_gguf
from modelfactory.interchange.imported import Imported
from modelfactory.interchange.importing import import_model, tokenizer_of
from modelfactory.interchange.stage import ImportedModel
from modelfactory.interchange.starting import architecture_of

__all__ = [
    "FAMILIES",
    "Imported",
    "ImportedModel",
    "architecture_of",
    "export_gguf",
    "export_hugging_face",
    "export_stage",
    "import_model",
    "tokenizer_of",
]
