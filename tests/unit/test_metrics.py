"""The metrics and the dashboard that shows them agree."""

from __future__ import annotations

import json
import re
from pathlib import Path

from app.observability import metrics

DASHBOARD = Path(__file__).parent.parent.parent / "deploy" / "grafana" / "earlybyte.json"


def names() -> set[str]:
    text = metrics.render().decode()
    return {match[1] for match in re.finditer(r"^# TYPE (\S+) ", text, re.MULTILINE) if not match[1].endswith("_created")}


def asked() -> set[str]:
    text = json.dumps(
        [target["expr"] for panel in json.loads(DASHBOARD.read_text())["panels"] for target in panel["targets"]]
    )
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in re.findall(r"earlybyte_\w+", text)}


def test_the_dashboard_asks_only_for_metrics_that_exist() -> None:
    """Each name in a panel's query is one that the service gives."""
    known = names()
    assert {name for name in asked() if name not in known and name.removesuffix("_total") not in known} == set()


def test_every_metric_is_on_the_dashboard() -> None:
    """What is worth counting is worth a line on the dashboard."""
    shown = asked()
    assert {name for name in names() if name not in shown and f"{name}_total" not in shown} == set()


def test_no_label_holds_what_belongs_to_a_person() -> None:
    """A4: labels are states, statuses, reasons, codes, kinds and rungs, and nothing else."""
    text = metrics.render().decode()
    labels = set(re.findall(r"[{,](\w+)=", text))
    assert labels <= {"le", "state", "status", "reason", "code", "kind", "rung"}
