"""Tasks that ask a checkpoint questions about held-out documents, and keep the outcome of every item.

A task is a spec that follows `Task`: `prepare` makes its items from documents or from item files (the same
for every checkpoint), `answer` asks a `generate.LanguageModel`. A task of your own needs no registration.
`stage.run` is the stage of one checkpoint x task. Nothing here imports torch before a model is asked.
"""

from modelfactory.evaluate.answer_loss import AnswerLoss
from modelfactory.evaluate.bits_per_byte import BitsPerByte
from modelfactory.evaluate.cloze import Cloze
from modelfactory.evaluate.code_execution import CodeExecution
from modelfactory.evaluate.complete_function import CompleteFunction
from modelfactory.evaluate.documents import Document
from modelfactory.evaluate.estimate import Estimate, estimate, group_mean
from modelfactory.evaluate.exact_match import ExactMatch
from modelfactory.evaluate.harness import Harness
from modelfactory.evaluate.item_files import ItemFile, Row
from modelfactory.evaluate.minimal_pairs import MinimalPairs
from modelfactory.evaluate.multiple_choice import MultipleChoice
from modelfactory.evaluate.next_line import NextLine
from modelfactory.evaluate.perplexity import Perplexity
from modelfactory.evaluate.task import Answers, Evaluate, ItemOutcome, Prepared, Task

__all__ = [
    "AnswerLoss",
    "Answers",
    "BitsPerByte",
    "Cloze",
    "CodeExecution",
    "CompleteFunction",
    "Document",
    "Estimate",
    "Evaluate",
    "ExactMatch",
    "Harness",
    "ItemFile",
    "ItemOutcome",
    "MinimalPairs",
    "MultipleChoice",
    "NextLine",
    "Perplexity",
    "Prepared",
    "Row",
    "Task",
    "estimate",
    "group_mean",
]
