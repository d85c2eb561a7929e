"""Whether a rule is met, and every reason why not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from modelfactory.verdict import Finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from modelfactory.promote.rule import NotWorse, Rule


@dataclass(frozen=True, kw_only=True)
class Contamination:
    """How many documents of a task stand in the training documents of the candidate."""

    n_documents: int
    """Of the task."""
    n_contaminated: int
    """Of these, found in training."""

    @property
    def share(self) -> float:
        """Return the share found; 0 of none."""
        return self.n_contaminated / self.n_documents if self.n_documents else 0.0


@dataclass(frozen=True, kw_only=True)
class Decision:
    """Whether a rule is met, on what evidence."""

    reasons: tuple[str, ...]
    """Against; the rule is met where there is none."""
    findings: tuple[Finding, ...]
    """None where there is no current best."""
    contamination: Mapping[str, Contamination]
    """By task."""

    @property
    def is_met(self) -> bool:
        """Return whether nothing speaks against."""
        return not self.reasons

    def to_json(self) -> dict[str, Any]:
        """Return JSON values."""
        return {
            "reasons": list(self.reasons),
            "findings": [finding.to_json() for finding in self.findings],
            "contamination": {task: asdict(found) for task, found in self.contamination.items()},
        }


def decide(
    rule: Rule,
    findings: Sequence[Finding],
    contamination: Mapping[str, Contamination],
    *,
    is_first: bool,
    missing: Sequence[str] = (),
) -> Decision:
    """Judge a candidate by a rule.

    Args:
        rule: what it must show.
        findings: of the candidate against the current best, corrected together.
        contamination: by task; a task of the rule that is not here speaks against.
        is_first: there is no current best, so nothing is compared.
        missing: what could not be looked at; each speaks against.
    """
    by_task = {finding.measure.task: finding for finding in findings}
    compared = () if is_first else (*_not_better(rule, by_task), *_worse(rule, by_task))
    reasons = (*missing, *compared, *_contaminated(rule, contamination))
    return Decision(reasons=reasons, findings=tuple(findings), contamination=dict(contamination))


def _not_better(rule: Rule, findings: Mapping[str, Finding]) -> Iterator[str]:
    for task in rule.better_on:
        finding = findings.get(task)
        if finding is None:
            yield f"{task}: not compared with the current best, wanted better"
        elif finding.conclusion != "better":
            yield f"{task}: {finding.verdict}, wanted better. {finding.sentence}"


def _worse(rule: Rule, findings: Mapping[str, Finding]) -> Iterator[str]:
    for wanted in rule.not_worse_on:
        finding = findings.get(wanted.task)
        if finding is None:
            yield f"{wanted.task}: not compared with the current best, wanted not worse"
        elif (reason := _within(finding, wanted)) is not None:
            yield f"{wanted.task}: not shown to be worse by less than {wanted.margin:g}: {reason}"


def _within(finding: Finding, wanted: NotWorse) -> str | None:
    """Return why the worse end of the corrected interval is not known to lie within the margin."""
    interval = finding.interval_corrected
    if interval is None or finding.covers != "seeds and items":
        return "seed noise is not known; add seeds"
    worst = -interval[0] if finding.measure.higher_is_better else interval[1]
    if worst < wanted.margin:
        return None
    return (
        f"the difference is {finding.difference:+.4g}, its corrected interval "
        f"{interval[0]:+.4g} to {interval[1]:+.4g}"
    )


def _contaminated(rule: Rule, contamination: Mapping[str, Contamination]) -> Iterator[str]:
    for task in rule.tasks:
        found = contamination.get(task)
        if found is None:
            yield f"{task}: contamination is not known"
        elif found.share > rule.max_contaminated:
            yield (
                f"{task}: {found.n_contaminated:,} of {found.n_documents:,} documents stand in training "
                f"(13 words in a row), wanted at most {100 * rule.max_contaminated:g} %"
            )
