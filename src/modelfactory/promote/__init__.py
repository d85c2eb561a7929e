"""Promotion: a rule over verdicts, and every reason against."""

from modelfactory.promote.deciding import Contamination, Decision, decide
from modelfactory.promote.rule import NotWorse, Rule

__all__ = ["Contamination", "Decision", "NotWorse", "Rule", "decide"]
