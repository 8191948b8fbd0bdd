"""Manifests: the YAML files of a folder, every document validated before anything changes.

The files are those for `kubectl apply -f DIR`. Our own kinds are checked against the CRDs, their brokers' and topics'
configuration by the broker itself, and all together for dangling references; Kubernetes' own kinds (a Namespace, the
claim that a BatchLoad writes to) are known and without effect; anything else is an error. All problems are reported at
once, each with file, resource, field, value and the allowed values.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from .. import models
from ..models import API_VERSION, Listener, MirrorMaker, User
from ..models.load import Schedule
from ..models.mirror import MirrorPatterns
from ..models.pods import PodPlacement
from ..reconcile.topic.plan import fewer_partitions
from ..resources.mirror import secret_keys
from ..validation import schema
from . import configs
from .secrets import Secrets, Values, values_of
from .state import Resource, key_of, namespace_of

KINDS = tuple(models.KINDS)
# Kubernetes' own kinds that a folder of examples may hold; they have no effect here.
KUBERNETES_KINDS = {
    "v1": ("ConfigMap", "Namespace", "PersistentVolumeClaim", "Secret", "Service", "ServiceAccount"),
    "apps/v1": ("Deployment", "StatefulSet"),
    "batch/v1": ("CronJob", "Job"),
}
_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
# All fields of a listener but its name and port: they concern only Kubernetes.
OUTSIDE = tuple(
    field.encode_name
    for field in msgspec.structs.fields(Listener)
    if field.name not in ("name", "type", "port", "allow_plaintext", "authentication", "tls")
)
# Fields that concern only Kubernetes. A path names a field; it counts if the manifest has it.
NO_EFFECT = {
    "Cluster": (
        "spec.image",
        "spec.brokers.rack",
        "spec.brokers.storage",
        "spec.brokers.resources",
        "spec.brokers.template",
        *(f"spec.listeners[].{field}" for field in OUTSIDE),
        "spec.networkPolicy",
        "spec.rebalance",
        "spec.zookeeper.storage",
        "spec.zookeeper.resources",
        "spec.zookeeper.template",
        "spec.allowedNamespaces",
    ),
    "ConsumerGroup": (
        "spec.workload.template.metadata",
        *(
            f"spec.workload.template.spec.{field.encode_name}"
            for field in msgspec.structs.fields(PodPlacement)
            if field.name != "termination_grace_period_seconds"
        ),
        *(
            f"spec.workload.template.spec.containers[].{field}"
            for field in ("image", "imagePullPolicy", "resources", "volumeMounts")
        ),
    ),
    "MirrorMaker": ("spec.resources", "spec.template"),
    "BatchLoad": (
        "spec.runner",
        "spec.retries",
        "spec.ttlSecondsAfterFinished",
        "spec.spark.image",
        "spec.spark.executor",
        "spec.spark.driver.cores",
        "spec.spark.driver.resources",
        "spec.spark.driver.template",
        "spec.output.s3.credentialsSecret",
        "spec.output.catalog.credentialsSecret",
    ),
}

# Parts of specs with rules that no schema can express.
PARTS: dict[str, dict[str, type[msgspec.Struct]]] = {
    "MirrorMaker": {"topics": MirrorPatterns, "groups": MirrorPatterns, "configs": MirrorPatterns},
    "BatchLoad": {"schedule": Schedule},
}


@dataclass(frozen=True, slots=True)
class ManifestProblem:
    """One problem in one file."""

    file: Path
    resource: str
    problem: str

    def __str__(self) -> str:
        return ": ".join(part for part in (str(self.file), self.resource, self.problem) if part)


class ManifestError(Exception):
    """The manifests are invalid; nothing was changed."""

    def __init__(self, problems: list[ManifestProblem]) -> None:
        super().__init__("\n".join(map(str, problems)))
        self.problems = problems


@dataclass(frozen=True, slots=True)
class Manifests:
    """The contents of a folder: resources with their defaults, and the fields without effect here."""

    resources: list[Resource]
    without_effect: list[str]
    secrets: Secrets = dataclasses.field(default_factory=dict)
    """Secrets that a MirrorMaker or a User names."""


class _Loader(yaml.SafeLoader):
    """Parses YAML like Kubernetes: a time stays text, and a key is text and occurs once."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.tag == "tag:yaml.org,2002:merge":
                continue
            if not isinstance(key, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be text; is this a template?", key.start_mark
                )
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"{key.value!r} is there twice", key.start_mark
                )
            seen.add(key.value)
        # JSON has only strings as keys.
        return {_key(key): value for key, value in super().construct_mapping(node, deep).items()}


def _key(key: object) -> str:
    return str(key).lower() if isinstance(key, bool) else str(key)


_SEXAGESIMAL = re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?")


class _Plain:
    """A resolver's pattern without numbers to the base 60, which Kubernetes does not know: 10:30 is a text."""

    def __init__(self, pattern: re.Pattern[str]) -> None:
        self._pattern = pattern

    def match(self, text: str) -> bool:
        return self._pattern.match(text) is not None and _SEXAGESIMAL.fullmatch(text) is None


_Loader.yaml_implicit_resolvers = {
    first: [(tag, _Plain(pattern)) for tag, pattern in resolvers if tag != "tag:yaml.org,2002:timestamp"]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read(folder: Path, known: Mapping[str, Resource], new: Collection[str] = ()) -> Manifests:
    """All manifests of a folder (or of one file), validated.

    ``known`` are those applied before, by key; ``new`` are those of them that rules about changes do not concern yet.
    """
    problems: list[ManifestProblem] = []
    found: dict[str, tuple[Path, Resource]] = {}
    mistaken: dict[str, list[schema.Problem]] = {}
    without_effect: list[str] = []
    secrets: dict[tuple[str, str], Values] = {}
    for file in _files(folder):
        for document in _documents(file, problems):
            where = _title(document)
            wrong = _unknown_kind(document)
            if not wrong and document["apiVersion"] == API_VERSION:
                document = schema.without_nulls(document, _schema(document))
            if wrong:
                problems.append(ManifestProblem(file, where, wrong))
            elif document["kind"] == "Secret":
                problems += [ManifestProblem(file, where, wrong) for wrong in _take_secret(document, secrets)]
            elif document["apiVersion"] != API_VERSION:
                without_effect.append(f"{where}: belongs to Kubernetes")
            elif wrong := _bad_metadata(document):
                problems.append(ManifestProblem(file, where, wrong))
            elif key_of(document) in found:
                other = found[key_of(document)][0]
                problems.append(ManifestProblem(file, where, f"metadata.name: is in {other} already"))
            else:
                resource = _with_defaults(document)
                found[key_of(document)] = (file, resource)
                old = None if key_of(document) in new else known.get(key_of(document))
                wrongs = list(schema.validate(resource, _schema(document), old=old))
                problems += [ManifestProblem(file, where, str(wrong)) for wrong in wrongs]
                mistaken[key_of(document)] = wrongs
                without_effect += _without_effect(where, document)
    # Problems beyond the schemas, even in resources that the schemas refuse: in their valid fields.
    problems += [*_undecodable(found, mistaken), *_dangling(found, {*found, *known})]
    problems += [*_shrinking(found, known), *_misconfigured(found, known)]
    if problems:
        raise ManifestError(sorted(problems, key=lambda problem: str(problem.file)))
    if not found:
        raise ManifestError(
            [ManifestProblem(folder, "", f"has no resource of {API_VERSION} ({', '.join(KINDS)})")]
        )
    order = sorted(found, key=lambda key: KINDS.index(key.split("/")[0]))  # and in the order of the files
    resources = [found[key][1] for key in order]
    named = _named_secrets(resources)
    without_effect += [f"Secret/{name}: belongs to Kubernetes" for _, name in secrets.keys() - named]
    mirrors = {key: values for key, values in secrets.items() if key in named}
    return Manifests(resources, sorted(without_effect), mirrors)


def _take_secret(document: Resource, secrets: dict[tuple[str, str], Values]) -> Iterator[str]:
    if wrong := _bad_metadata(document):
        yield wrong
        return
    key = (namespace_of(document), document["metadata"]["name"])
    if key in secrets:
        yield "metadata.name: is there twice"
    try:
        secrets[key] = values_of(document)
    except ValueError as error:
        yield str(error)


def _named_secrets(resources: Iterable[Resource]) -> set[tuple[str, str]]:
    """The Secrets that Clusters, MirrorMakers and Users name."""
    clusters = [
        models.decode_as(models.Cluster, resource)
        for resource in resources
        if resource["kind"] == models.Cluster.KIND
    ]
    of_clusters = {
        (cluster.namespace, name) for cluster in clusters if (name := cluster.spec.own_authority) is not None
    }
    mirrors = [
        models.decode_as(MirrorMaker, resource)
        for resource in resources
        if resource["kind"] == MirrorMaker.KIND
    ]
    users = [models.decode_as(User, resource) for resource in resources if resource["kind"] == User.KIND]
    of_users = {
        (user.namespace, key.name)
        for user in users
        if (key := user.password_key) is not None and not user.generates_password
    }
    return (
        of_clusters
        | of_users
        | {(mirror.namespace, key.name) for mirror in mirrors for key in secret_keys(mirror)}
    )


def _files(folder: Path) -> list[Path]:
    if folder.is_file():
        return [folder]
    if not folder.is_dir():
        raise ManifestError([ManifestProblem(folder, "", "there is no such folder or file")])
    files = sorted(file for file in folder.iterdir() if file.suffix in (".yaml", ".yml") and file.is_file())
    if not files:
        raise ManifestError([ManifestProblem(folder, "", "has no file *.yaml or *.yml")])
    return files


def _documents(file: Path, problems: list[ManifestProblem]) -> list[Resource]:
    try:
        documents = list(yaml.load_all(file.read_text(), Loader=_Loader))
    except (OSError, UnicodeDecodeError) as error:
        problems.append(ManifestProblem(file, "", f"cannot be read: {error}"))
        return []
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f"line {mark.line + 1}: " if mark else ""
        problems.append(
            ManifestProblem(file, "", f"{line}not YAML: {getattr(error, 'problem', None) or error}")
        )
        return []
    found: list[Resource] = []
    for number, document in enumerate(documents, start=1):
        if isinstance(document, dict) and document.get("kind") == "List":
            for place, item in enumerate(document.get("items") or []):
                if isinstance(item, dict):
                    found.append(item)
                else:
                    wrong = f"document {number}: items[{place}] is no object with apiVersion and kind"
                    problems.append(ManifestProblem(file, "", wrong))
        elif isinstance(document, dict):
            found.append(document)
        elif document is not None:
            problems.append(
                ManifestProblem(file, "", f"document {number} is no object with apiVersion and kind")
            )
    return found


def _title(document: Resource) -> str:
    metadata = document.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    return f"{document.get('kind') or 'no kind'}/{name or 'no name'}"


def _unknown_kind(document: Resource) -> str:
    version, kind = document.get("apiVersion"), document.get("kind")
    kinds = KINDS if version == API_VERSION else KUBERNETES_KINDS.get(str(version))
    if kinds is None:
        allowed = ", ".join([API_VERSION, *KUBERNETES_KINDS])
        return f"apiVersion: {_shown(version)} is unknown; allowed: {allowed}"
    return (
        "" if kind in kinds else f"kind: {_shown(kind)} is unknown; allowed in {version}: {', '.join(kinds)}"
    )


def _shown(value: object) -> str:
    return "(left out)" if value is None else f'"{value}"'


def _bad_metadata(document: Resource) -> str:
    metadata = document.get("metadata")
    if not isinstance(metadata, dict):
        return "metadata: is required, with a name"
    for field in ("name", "namespace"):
        value = metadata.get(field, "default" if field == "namespace" else None)
        if not isinstance(value, str) or not _NAME.fullmatch(value):
            allowed = "lower-case letters, digits, - and ., with a letter or digit at both ends"
            return f"metadata.{field}: {_shown(value)} is not allowed; allowed: {allowed}"
    return ""


def _schema(document: Resource) -> schema.Schema:
    return schema.crd_schemas()[document["kind"]]


def _with_defaults(document: Resource) -> Resource:
    resource: Resource = schema.with_defaults(document, _schema(document))
    resource["metadata"] = {**resource["metadata"], "namespace": namespace_of(document)}
    resource.pop("status", None)
    return resource


def _references(resource: Resource) -> Iterator[tuple[str, str, str]]:
    """(path, namespace, name) of every Cluster that a resource names, in fields of the right type."""
    spec = _mapping(resource.get("spec"))
    sources = spec.get("sources")
    places = [("spec", spec), ("spec.target", spec.get("target"))]
    places += [
        (f"spec.sources[{index}]", source)
        for index, source in enumerate(sources if isinstance(sources, list) else ())
    ]
    for path, place in places:
        reference = _mapping(_mapping(place).get("clusterRef"))
        name, namespace = reference.get("name"), reference.get("namespace") or namespace_of(resource)
        if isinstance(name, str) and isinstance(namespace, str):
            yield f"{path}.clusterRef", namespace, name


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _dangling(found: Mapping[str, tuple[Path, Resource]], there: Iterable[str]) -> Iterator[ManifestProblem]:
    clusters = sorted(key for key in there if key.startswith("Cluster/"))
    known = ", ".join(
        f'"{name}" in namespace {namespace}' for _, namespace, name in (key.split("/") for key in clusters)
    )
    for file, resource in found.values():
        for path, namespace, name in _references(resource):
            if f"Cluster/{namespace}/{name}" not in clusters:
                problem = f'{path}: there is no Cluster "{name}" in namespace {namespace}; there is: {known or "none"}'
                yield ManifestProblem(file, _title(resource), problem)


def _undecodable(
    found: Mapping[str, tuple[Path, Resource]], mistaken: Mapping[str, Sequence[schema.Problem]]
) -> Iterator[ManifestProblem]:
    """Problems that no schema can express, such as an invalid regular expression."""
    for key, (file, resource) in found.items():
        if mistaken[key]:
            wrongs = _undecodable_parts(resource, [wrong.path for wrong in mistaken[key]])
            yield from (ManifestProblem(file, _title(resource), wrong) for wrong in wrongs)
            continue
        try:
            models.decode_as(models.KINDS[resource["kind"]], resource)
        except models.ManifestError as error:
            prefix = f"{resource['kind']} {resource['metadata']['name']}: "
            yield ManifestProblem(file, _title(resource), str(error).removeprefix(prefix))


def _undecodable_parts(resource: Resource, paths: Sequence[str]) -> Iterator[str]:
    """The same problems in a resource with mistakes at these paths: in each part without any of them."""
    spec = _mapping(resource.get("spec"))
    for name, part in PARTS.get(resource["kind"], {}).items():
        path = f"spec.{name}"
        if name in spec and not any(wrong == "spec" or wrong.startswith(path) for wrong in paths):
            try:
                msgspec.convert(spec[name], part)
            except msgspec.ValidationError as error:
                yield f"{path}: {str(error).partition(' - at `$')[0]}"


def _shrinking(
    found: Mapping[str, tuple[Path, Resource]], known: Mapping[str, Resource]
) -> Iterator[ManifestProblem]:
    for key, (file, resource) in found.items():
        there = (known.get(key, {}).get("status") or {}).get("partitions", 0)
        wanted = _mapping(resource.get("spec")).get("partitions")
        if (
            resource["kind"] == "Topic"
            and isinstance(wanted, int)
            and (problem := fewer_partitions(wanted, there))
        ):
            yield ManifestProblem(file, _title(resource), problem.message)


def _misconfigured(
    found: Mapping[str, tuple[Path, Resource]], known: Mapping[str, Resource]
) -> Iterator[ManifestProblem]:
    """Configuration keys that the brokers would refuse, in resources whose configuration has changed."""
    changed = {
        key: {"kind": resource["kind"], "spec": {"config": config}}
        for key, (_, resource) in found.items()
        if (config := _config(resource)) != _config(known.get(key, {}))
    }
    for key, wrongs in configs.problems(changed).items():
        file, resource = found[key]
        yield from (ManifestProblem(file, _title(resource), f"spec.config: {wrong}") for wrong in wrongs)


def _config(resource: Resource) -> dict[str, str]:
    """The resource's configuration, without values other than text: the schema refuses those."""
    config = _mapping(_mapping(resource.get("spec")).get("config"))
    return {key: value for key, value in config.items() if isinstance(value, str)}


def named(folder: Path) -> list[str]:
    """The keys of our resources in a folder's manifests, whatever their specs: in the order of deletion."""
    problems: list[ManifestProblem] = []
    keys: list[str] = []
    for file in _files(folder):
        for document in _documents(file, problems):
            if wrong := _unknown_kind(document) or _bad_metadata(document):
                problems.append(ManifestProblem(file, _title(document), wrong))
            elif document["apiVersion"] == API_VERSION:
                keys.append(key_of(document))
    if problems:
        raise ManifestError(problems)
    return sorted(dict.fromkeys(keys), key=lambda key: -KINDS.index(key.split("/")[0]))


def _without_effect(where: str, document: Resource) -> Iterator[str]:
    for path in NO_EFFECT.get(document["kind"], ()):
        if _has(document, path.split(".")):
            yield f"{where}: {path}"
    if any(kind != "Internal" for kind in _values(document, ["spec", "listeners[]", "type"])):
        yield f"{where}: spec.listeners[].type"
    servers = ["spec", "zookeeper", "replicas"]
    if _has(document, servers) and document["spec"]["zookeeper"]["replicas"] != 1:
        yield f"{where}: {'.'.join(servers)} above 1"
    containers = ["spec", "workload", "template", "spec", "containers"]
    if _has(document, containers) and len(document["spec"]["workload"]["template"]["spec"]["containers"]) > 1:
        yield f"{where}: {'.'.join(containers)} after the first"


def _has(value: Any, path: list[str]) -> bool:
    return any(True for _ in _values(value, path))


def _values(value: Any, path: list[str]) -> Iterator[Any]:
    """Every value of a field; a name that ends in ``[]`` stands for each item of a list."""
    if not path:
        yield value
        return
    name, rest = path[0].removesuffix("[]"), path[1:]
    if not isinstance(value, dict) or name not in value:
        return
    if not path[0].endswith("[]"):
        yield from _values(value[name], rest)
    elif isinstance(value[name], list):
        for item in value[name]:
            yield from _values(item, rest)
