"""`dueline doctor`: what is wrong with this installation, what that endangers, and the command that mends it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import click

from pipeline import tell_dev_store
from pipeline.cli.output import emit, harmless, note
from pipeline.config import Settings, load_settings
from pipeline.doctor import CHECKS, Facts, Finding, Named, Severity, confirmed, examine
from pipeline.follower import shown_instant

AGAIN_S = 3.0
"""What may be a moment of a rebalance, or of a transaction, is looked at again after this."""


@click.command("doctor")
def doctor() -> int:
    """Look for what is wrong: topics, brokers, groups, transactions, clocks, versions, this machine's state.

    Every finding says what it endangers (a promise of the README, or punctuality) and which command mends it.
    Nothing is changed. Exits 1 if a finding is an error: a promise is broken, or will be with the next fault.
    Warnings and notes leave 0. What could not be looked at is a finding too.
    """
    settings = load_settings()
    tell_dev_store(settings)
    facts, findings = _look(settings)
    emit(_view(facts, findings), _text)
    return 1 if any(found.severity is Severity.ERROR for _, found in findings) else 0


def _look(settings: Settings) -> tuple[Facts, Sequence[Named]]:
    from pipeline.adapters.kafka_checkup import Checkup

    with Checkup(settings) as checkup:
        facts = checkup.facts()
        findings = examine(facts)
        if any(CHECKS[name].passing for name, _ in findings):
            note(f"looking again in {AGAIN_S:g} s at what may pass")
            time.sleep(AGAIN_S)
            facts = checkup.again(facts)
            findings = confirmed(findings, examine(facts))
        return facts, findings


def _view(facts: Facts, findings: Sequence[Named]) -> dict[str, Any]:
    counts = Counter(found.severity for _, found in findings)
    return {
        "ok": not counts[Severity.ERROR],
        "prefix": facts.names.prefix,
        "at": shown_instant(facts.now) if facts.now else None,
        "errors": counts[Severity.ERROR],
        "warnings": counts[Severity.WARNING],
        "notes": counts[Severity.NOTE],
        "checks": list(CHECKS),
        "findings": [_finding(name, found) for name, found in findings],
    }


def _finding(check: str, found: Finding) -> dict[str, Any]:
    return {
        "check": check,
        "severity": found.severity.value,
        "subject": found.subject,
        "problem": found.problem,
        "promise": found.danger.promise,
        "endangers": found.danger.words,
        "remedy": found.remedy,
    }


def _text(view: Mapping[str, Any]) -> str:
    blocks = [_block(found) for found in view["findings"]]
    counted = ", ".join(_counted(view[f"{word}s"], word) for word in Severity)
    return "\n".join([*blocks, f"{view['prefix']}: {counted}; {len(view['checks'])} checks"])


def _counted(count: int, word: str) -> str:
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def _block(found: Mapping[str, Any]) -> str:
    promise = f"promise {found['promise']}: " if found["promise"] else ""
    return (
        f"{found['severity']}  {found['check']}: {harmless(found['subject'])}: {harmless(found['problem'])}\n"
        f"    endangers  {promise}{found['endangers']}\n"
        f"    mend       {found['remedy']}\n"
    )
