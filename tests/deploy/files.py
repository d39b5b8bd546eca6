"""The files below `deploy/`, parsed; and the commands of brokers and gateways that they run."""

import re
import shlex
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
COMPOSE = DEPLOY / "compose" / "compose.yaml"
KUBERNETES = DEPLOY / "kubernetes"
UNIT = DEPLOY / "systemd" / "quiver.service"
DOCKERFILE = DEPLOY / "Dockerfile"
PORTS = {"listen": 7600, "grpc": 7650, "peer_listen": 7700, "http": 9600}


@dataclass(frozen=True)
class Started:
    """A command that runs a broker or a gateway, with the variables and the file that it gets."""

    name: str
    arguments: tuple[str, ...]
    variables: dict[str, str]
    config: Path | None = None
    """The file in the repository that stands where the command looks for one."""

    @property
    def is_gateway(self) -> bool:
        return "--gateway" in self.arguments


def load(file: Path) -> Any:
    return yaml.safe_load(file.read_text())


def objects() -> list[dict[str, Any]]:
    """Everything that Kubernetes is given, except what kustomize makes."""
    named = load(KUBERNETES / "kustomization.yaml")["resources"]
    return [one for file in named for one in yaml.safe_load_all((KUBERNETES / file).read_text())]


def objects_of(kind: str) -> dict[str, Any]:
    return {one["metadata"]["name"]: one for one in objects() if one["kind"] == kind}


def container(workload: dict[str, Any]) -> dict[str, Any]:
    (found,) = workload["spec"]["template"]["spec"]["containers"]
    return found


def unit() -> dict[str, list[str]]:
    """The lines of the systemd unit, by key."""
    found: dict[str, list[str]] = {}
    for line in UNIT.read_text().splitlines():
        if "=" in line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.setdefault(key, []).append(value)
    return found


def instructions() -> list[tuple[str, str]]:
    """Of the Dockerfile: the keyword and the rest, lines joined."""
    text = re.sub(r"^#.*\n", "", DOCKERFILE.read_text(), flags=re.MULTILINE)
    lines = text.replace("\\\n", " ").splitlines()
    return [(line.split()[0], line.split(maxsplit=1)[1]) for line in lines if line.strip()]


def _of_compose() -> Iterator[Started]:
    for name, service in load(COMPOSE)["services"].items():
        if service["image"] == "quivermq":
            yield Started(name, tuple(service["command"]), dict(service["environment"]))


def _of_kubernetes() -> Iterator[Started]:
    brokers, gateway = objects_of("StatefulSet")["quiver"], objects_of("Deployment")
    first = brokers["spec"]["ordinals"]["start"]
    for number in range(first, first + brokers["spec"]["replicas"]):
        yield _of_pod(container(brokers), f"quiver-{number}")
    yield _of_pod(container(gateway["quiver-gateway"]), "quiver-gateway")


def _of_pod(found: dict[str, Any], pod: str) -> Started:
    arguments = tuple(one.replace("$(POD_NAME)", pod) for one in found["args"])
    variables = {one["name"]: one["value"] for one in found["env"] if "value" in one}
    config = None
    if "--config" in arguments:
        name = Path(arguments[arguments.index("--config") + 1]).name
        config = KUBERNETES / "config" / name
    return Started(f"pod {pod}", arguments, variables, config)


def _of_systemd() -> Iterator[Started]:
    (line,) = unit()["ExecStart"]
    program, *arguments = shlex.split(line)
    assert Path(program).name == "quiver"
    yield Started("systemd", tuple(arguments), {}, DEPLOY / "systemd" / "quiver.toml")


def started() -> list[Started]:
    """Every command of a broker or a gateway below `deploy/`."""
    return [*_of_compose(), *_of_kubernetes(), *_of_systemd()]


def settings_of(one: Started) -> dict[str, Any]:
    """The settings that it names, wherever."""
    found = tomllib.loads(one.config.read_text()) if one.config else {}
    found |= {name.removeprefix("QUIVER_").lower(): each for name, each in one.variables.items()}
    return found
