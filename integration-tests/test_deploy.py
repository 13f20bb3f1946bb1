"""What is in `deploy/` fits the server.

Alert rules are rules; where `promtool` is installed (Debian: `prometheus`), they also fire when they should. That the
metrics they name exist is tested beside the router, in `router/http/tests/dashboards.rs`. The unit of systemd, the
compose file and the chart have flags that exist, and the first two give the server the time that they ask for. What the
chart renders is tested in `deploy/kubernetes/tests`.
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


def compose() -> dict:
    return yaml.safe_load((DEPLOY / "compose" / "compose.yaml").read_text())["services"]["server"]


def seconds_to_stop(command: list[str]) -> int:
    """What the flags of a command line ask for, and 10 s for the shards."""
    flags = ("--drain-delay", "--graceful-termination-timeout")
    return sum(int(command[command.index(flag) + 1]) for flag in flags) + 10


def flags_of_the_chart() -> list[str]:
    template = (DEPLOY / "kubernetes" / "text-generation" / "templates" / "_helpers.tpl").read_text()
    return re.findall(r"^- (--[a-z-]+)$", template, re.MULTILINE)


def test_all_have_flags_that_exist() -> None:
    command = shlex.split(service()["ExecStart"])
    assert Path(command[0]).name == "text-generation-launcher"
    assert len(flags_of_the_chart()) > 5
    launcher = Path(sys.executable).with_name("text-generation-launcher")
    help_text = subprocess.run([launcher, "--help"], capture_output=True, text=True, check=True).stdout
    known = set(re.findall(r"--[a-z][a-z-]*", help_text))
    words = [*command, *compose()["command"], *flags_of_the_chart()]
    assert {word for word in words if word.startswith("--")} <= known


def test_the_unit_waits_for_the_end_of_requests() -> None:
    assert int(service()["TimeoutStopSec"]) >= seconds_to_stop(shlex.split(service()["ExecStart"]))


def test_systemd_knows_all_of_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    # It looks for the program, too.
    text = (DEPLOY / "systemd" / "text-generation.service").read_text()
    unit = tmp_path / "text-generation.service"
    unit.write_text(text.replace(shlex.split(service()["ExecStart"])[0], sys.executable))
    run = subprocess.run(["systemd-analyze", "verify", str(unit)], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (0, "")


def test_compose_waits_for_the_end_of_requests() -> None:
    assert int(compose()["stop_grace_period"].removesuffix("s")) >= seconds_to_stop(compose()["command"])


def test_compose_asks_for_what_its_own_server_offers() -> None:
    command = compose()["command"]
    port = command[command.index("--prometheus-port") + 1]
    assert f"127.0.0.1:{port}/ready" in compose()["healthcheck"]["test"][-1]
    scraped = yaml.safe_load((DEPLOY / "compose" / "prometheus.yaml").read_text())["scrape_configs"][0]
    assert scraped["static_configs"][0]["targets"] == [f"server:{port}"]
