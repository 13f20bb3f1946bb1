"""What is in `deploy/` fits the server.

Alert rules are rules; where `promtool` is installed (Debian: `prometheus`), they also fire when they should. That the
metrics they name exist is tested beside the router, in `router/http/tests/dashboards.rs`. The unit of systemd has flags
that exist, and gives the server the time that they ask for.
"""

from __future__ import annotations

import configparser
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

DEPLOY = Path(__file__).parents[1] / "deploy"
RULES = DEPLOY / "prometheus"


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


def service() -> configparser.SectionProxy:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str
    unit.read_string((DEPLOY / "systemd" / "text-generation.service").read_text())
    return unit["Service"]


def test_the_unit_has_flags_that_exist() -> None:
    command = shlex.split(service()["ExecStart"])
    assert Path(command[0]).name == "text-generation-launcher"
    launcher = Path(sys.executable).with_name("text-generation-launcher")
    help_text = subprocess.run([launcher, "--help"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"--[a-z][a-z-]*", help_text))
    assert {word for word in command if word.startswith("--")} <= known


def test_the_unit_waits_for_the_end_of_requests() -> None:
    command = shlex.split(service()["ExecStart"])
    seconds = {
        flag: int(command[command.index(flag) + 1]) for flag in ("--drain-delay", "--graceful-termination-timeout")
    }
    assert int(service()["TimeoutStopSec"]) >= sum(seconds.values()) + 10
