"""The files for clusters are what Ray and KubeRay take, though nothing here carries them out."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from tests.support.call_check import check_raysim

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "configs" / "cluster"

TEXTS = {str: str}
"""A mapping of texts to texts."""

POD_TEMPLATE = {
    "spec": {
        "containers": [
            {
                "name": str,
                "image": str,
                "resources": {"requests": TEXTS, "limits": TEXTS},
                "volumeMounts": [{"name": str, "mountPath": str}],
            }
        ],
        "volumes": [{"name": str, "persistentVolumeClaim": {"claimName": str}}],
    }
}
"""Of Kubernetes' PodTemplateSpec, from https://kubernetes.io/docs/reference/kubernetes-api/workload-resources/."""

RAY_JOB = {
    "apiVersion": str,
    "kind": str,
    "metadata": {"name": str},
    "spec": {
        "activeDeadlineSeconds": int,
        "backoffLimit": int,
        "entrypoint": str,
        "entrypointNumCpus": float,
        "metadata": TEXTS,
        "runtimeEnvYAML": str,
        "shutdownAfterJobFinishes": bool,
        "submissionMode": str,
        "suspend": bool,
        "ttlSecondsAfterFinished": int,
        "rayClusterSpec": {
            "authOptions": {"mode": str, "secretName": str},
            "enableInTreeAutoscaling": bool,
            "rayVersion": str,
            "headGroupSpec": {"rayStartParams": TEXTS, "serviceType": str, "template": POD_TEMPLATE},
            "workerGroupSpecs": [
                {
                    "groupName": str,
                    "replicas": int,
                    "minReplicas": int,
                    "maxReplicas": int,
                    "numOfHosts": int,
                    "rayStartParams": TEXTS,
                    "template": POD_TEMPLATE,
                }
            ],
        },
    },
}
"""Fields and types, from KubeRay's reference of ray.io/v1: https://docs.ray.io/en/master/kuberay/references/api.html."""

REQUIRED = {"containers", "headGroupSpec", "template", "groupName", "minReplicas", "maxReplicas", "name", "mountPath"}
"""Fields without which their record is refused, wherever they are listed above."""


def read(name: str) -> Any:
    return yaml.safe_load((FOLDER / name).read_text(encoding="utf-8"))


def check_fields(value: Any, kind: Any, at: str) -> None:
    """Every field is one of the kind's, of its type; those that are required are there."""
    if isinstance(kind, type):
        # bool is an int, but not to Kubernetes.
        assert type(value) is kind, f"{at} must be {kind.__name__}, but is {value!r}"
    elif isinstance(kind, list):
        assert isinstance(value, list), f"{at} must be a list"
        for index, item in enumerate(value):
            check_fields(item, kind[0], f"{at}[{index}]")
    elif kind is TEXTS:
        assert all(isinstance(text, str) for pair in value.items() for text in pair), f"{at} must hold texts: {value}"
    else:
        assert value.keys() <= kind.keys(), f"{at} has no field {sorted(value.keys() - kind.keys())}"
        assert kind.keys() & REQUIRED <= value.keys(), f"{at} lacks {sorted(kind.keys() & REQUIRED - value.keys())}"
        for name, item in value.items():
            check_fields(item, kind[name], f"{at}.{name}")


@pytest.mark.parametrize("name", ["ray_up.yaml", "rayjob.yaml"])
def test_what_was_not_run_says_so(name: str) -> None:
    head = (FOLDER / name).read_text(encoding="utf-8").splitlines()[0]
    assert head.startswith("# ")
    assert head.endswith(", not run here.")


def test_the_cluster_of_ones_own_machines_is_what_ray_up_takes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from ray import autoscaler
    from ray.autoscaler._private.util import prepare_config, validate_config

    config = read("ray_up.yaml")
    schema = json.loads((Path(autoscaler.__file__).parent / "ray-schema.json").read_text(encoding="utf-8"))
    jsonschema.validate(config, schema)
    prepared = prepare_config(config)
    validate_config(prepared)
    assert prepared["max_workers"] == len(config["provider"]["worker_ips"])
    with pytest.raises(jsonschema.ValidationError, match="setup_comands"):
        jsonschema.validate({**config, "setup_comands": []}, schema)


def test_both_start_commands_keep_authentication_on() -> None:
    config = read("ray_up.yaml")
    for commands in (config["head_start_ray_commands"], config["worker_start_ray_commands"]):
        assert commands[-1].startswith("RAY_AUTH_MODE=token ")
    assert "~/.ray/auth_token" in config["file_mounts"]
    assert read("rayjob.yaml")["spec"]["rayClusterSpec"]["authOptions"]["mode"] == "token"


def test_the_ray_job_has_fields_that_kuberay_documents() -> None:
    job = read("rayjob.yaml")
    check_fields(job, RAY_JOB, "rayjob.yaml")
    assert (job["apiVersion"], job["kind"]) == ("ray.io/v1", "RayJob")
    for wrong, message in (
        ({"entrypont": "raysim"}, "has no field"),
        ({"ttlSecondsAfterFinished": "600"}, "must be int"),
        ({"rayClusterSpec": {}}, "lacks"),
    ):
        with pytest.raises(AssertionError, match=message):
            check_fields({**job, "spec": {**job["spec"], **wrong}}, RAY_JOB, "rayjob.yaml")


def test_the_ray_jobs_entrypoint_is_a_command_of_ours() -> None:
    program, *arguments = shlex.split(read("rayjob.yaml")["spec"]["entrypoint"])
    assert program == "raysim"
    check_raysim([argument.removeprefix("/home/ray/raysim/") for argument in arguments])


@pytest.mark.parametrize(
    "content", [read("runtime_env.yaml"), yaml.safe_load(read("rayjob.yaml")["spec"]["runtimeEnvYAML"])]
)
def test_the_runtime_environments_are_what_ray_takes(content: dict[str, Any]) -> None:
    from ray.runtime_env import RuntimeEnv

    assert content.keys() <= RuntimeEnv.known_fields
    assert dict(RuntimeEnv(**content))["env_vars"] == content["env_vars"]
