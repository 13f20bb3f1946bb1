"""Alert rules are rules; where `promtool` is installed (Debian: `prometheus`), they also fire when they should.

That the metrics they name exist is tested beside the router, in `router/http/tests/dashboards.rs`.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

RULES = Path(__file__).parents[1] / "deploy" / "prometheus"


def rules() -> list[dict]:
    (group,) = yaml.safe_load((RULES / "alerts.yaml").read_text())["groups"]
    return group["rules"]


def test_every_rule_says_what_is_wrong_and_how_bad_it_is() -> None:
    for rule in rules():
        assert rule["expr"].count("(") == rule["expr"].count(")"), rule
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}, rule
        assert rule["annotations"]["summary"].startswith("{{ $labels.instance }}: "), rule


def test_every_rule_is_tested() -> None:
    scenarios = yaml.safe_load((RULES / "alerts_test.yaml").read_text())["tests"]
    fired = {case["alertname"] for one in scenarios for case in one["alert_rule_test"] if case.get("exp_alerts")}
    assert fired == {rule["alert"] for rule in rules()}


def test_rules_fire_as_they_should() -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not installed; Debian's package `prometheus` has it")
    run = subprocess.run([promtool, "test", "rules", "alerts_test.yaml"], cwd=RULES, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout + run.stderr
