"""Every code that the rules can give has its sentence, and its line in docs/guarantee.md."""

import ast
from pathlib import Path

from yoco.contracts.models import ExclusionReason
from yoco.guarantee import evidence, rules
from yoco.guarantee.labels import CONDITIONS, REASONS, RULES, VERDICT_RULES

DOCS = Path(__file__).resolve().parents[2] / "docs" / "guarantee.md"


def texts(module: object) -> set[str]:
    """Every text constant of a module's source."""
    tree = ast.parse(Path(module.__file__).read_text())  # type: ignore[attr-defined]
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}


def test_every_rule_has_a_sentence_and_a_line() -> None:
    computed = {f"excluded_{reason}" for reason in ExclusionReason.values}
    assert set(RULES) - computed <= texts(rules)
    assert computed <= set(RULES)
    named = DOCS.read_text()
    assert [rule for rule in RULES if f"`{rule}`" not in named] == []


def test_every_reason_has_a_sentence_and_a_line() -> None:
    reported = {f"reported_{how}" for how in ("checkpoint_restart", "abandoned", "path_failover")}
    assert set(REASONS) - reported <= texts(evidence)
    assert reported <= set(REASONS)
    named = DOCS.read_text()
    assert [code for code in REASONS if f"`{code}`" not in named and not code.startswith("ok_")] == []


def test_every_verdict_and_condition_has_its_words() -> None:
    assert set(CONDITIONS) == set(rules.FAILED_RULE)
    assert set(VERDICT_RULES) - {"no_guarantee"} <= texts(rules)
