"""docs/how-to/connect-securely.md shows the configurations with which test_logins and test_logins_of_frameworks run."""

from __future__ import annotations

import importlib.util
import re
import shlex
import ssl
from itertools import pairwise
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from millstream.client_properties import translated
from millstream_harness.certificates import Authority
from millstream_harness.java import ROOT
from millstream_harness.logins import Step, java_properties, mirror_properties, spark_options

PROGRAMS = Path(__file__).parent / "logins"
PAGE = (ROOT / "docs/how-to/connect-securely.md").read_text()
BLOCKS = dict(re.findall(r'^```\w+ title="(.+?)"\n(.*?)^```$', PAGE, re.DOTALL | re.MULTILINE))
LOGINS = {"a password": "SCRAM-SHA-512", "a certificate": ""}


def step(mechanism: str, bootstrap: str = "kafka.example.com:9094") -> Step:
    return Step(
        name="",
        action="",
        bootstrap=bootstrap,
        mechanism=mechanism,
        ca="ca.crt",
        user="app",
        password="secret",
        token="",
        certificate="user.pem",
        topic="orders",
        group="app",
        values=(),
    )


def properties(title: str) -> dict[str, str]:
    pairs = (line.partition("=") for line in BLOCKS[title].splitlines())
    return {key: value for key, _, value in pairs}


def program(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_of_logins", PROGRAMS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def as_json(each: Step) -> dict[str, Any]:
    """As a program reads it."""
    return {name: getattr(each, name) for name in Step.__slots__}


def run(title: str) -> dict[str, Any]:
    """The names that a block in Python gives."""
    names: dict[str, Any] = {}
    exec(BLOCKS[title], names)
    return names


@pytest.mark.parametrize("login", LOGINS)
def test_java_has_the_properties_of_the_tests(login: str) -> None:
    tested = step(LOGINS[login])
    shown = properties(f"client.properties, with {login}")
    assert shown == {"bootstrap.servers": tested.bootstrap, **java_properties(tested)}


@pytest.mark.parametrize("login", LOGINS)
def test_the_command_takes_javas_properties_as_librdkafkas(
    login: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_certificates(tmp_path)
    found = translated(properties(f"client.properties, with {login}"))
    expected = run(f"confluent-kafka, with {login}")["config"]
    assert found == expected


@pytest.mark.parametrize("login", LOGINS)
def test_spark_has_the_options_of_the_tests(login: str) -> None:
    assert run(f"Spark, with {login}")["options"] == spark_options(step(LOGINS[login]))


def test_mirrormaker_2_has_the_properties_of_the_tests() -> None:
    shown = properties("mm2.properties, with a password at the source and a certificate at the target")
    assert shown == mirror_properties(step("SCRAM-SHA-512"), step("", "other.example.com:9094"))


@pytest.mark.parametrize("login", LOGINS)
def test_confluent_kafka_has_the_settings_of_the_tests(login: str) -> None:
    tested = program("clients").ConfluentKafka(as_json(step(LOGINS[login]))).config
    of_tests = {"error_cb", "log_level"}
    expected = {key: value for key, value in tested.items() if key not in of_tests}
    assert run(f"confluent-kafka, with {login}")["config"] == expected


@pytest.mark.parametrize("login", LOGINS)
def test_kafka_python_and_aiokafka_have_the_arguments_of_the_tests(
    login: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write_certificates(tmp_path)
    shown = run(f"kafka-python and aiokafka, with {login}")["config"]
    tested = program("clients").python_config(as_json(step(LOGINS[login])))
    for config in (shown, tested):
        context = config.pop("ssl_context")
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
    assert shown == tested


def write_certificates(folder: Path) -> None:
    authority = Authority()
    (folder / "ca.crt").write_text(authority.pem)
    authority.issue("app", ()).write(folder / "user.pem")


@pytest.mark.parametrize(("login", "mechanism"), [("a password", "PLAIN"), ("a certificate", "")])
def test_kcat_has_the_options_of_the_tests(login: str, mechanism: str) -> None:
    tested = program("commands").kcat(as_json(step(mechanism)))
    shown = shlex.split(BLOCKS[f"kcat, with {login}"].replace("\\\n", ""))
    assert settings(shown) == settings(tested)
    assert shown[:3] == tested[:3]


def settings(command: list[str]) -> set[str]:
    return {value for option, value in pairwise(command) if option == "-X"}


MADE = {
    "of.Bootstrap": '"kafka.example.com:9094"',
    "of.CA": '"ca.crt"',
    "of.Certificate": '"user.pem"',
    "of.User": '"app"',
    "of.Password": '"secret"',
    "of.Topic": '"orders"',
    "of.Group": '"app"',
    "of.tls()": "config",
    "of.mechanism()": "mechanism",
    "step.bootstrap": '"kafka.example.com:9094"',
    "step.ca": '"ca.crt"',
    "step.certificate": '"user.pem"',
    "step.user": '"app"',
    "step.password": '"secret"',
}
"""Expressions of the programs in Go and JavaScript, and the values that the page has for them."""
SAME = [
    ("Go, authorities to trust", "go/main.go", "authority, err := os.ReadFile(of.CA)"),
    ("Go, authorities to trust", "go/main.go", "config := &tls.Config{RootCAs: x509.NewCertPool()}"),
    ("Go, authorities to trust", "go/main.go", "config.RootCAs.AppendCertsFromPEM(authority)"),
    (
        "Go, with a certificate",
        "go/main.go",
        "own, err := tls.LoadX509KeyPair(of.Certificate, of.Certificate)",
    ),
    ("Go, with a certificate", "go/main.go", "config.Certificates = []tls.Certificate{own}"),
    ("franz-go", "go/franz_go.go", "kgo.SeedBrokers(of.Bootstrap), kgo.DialTLSConfig(of.tls())"),
    ("franz-go", "go/franz_go.go", "scram.Auth{User: of.User, Pass: of.Password}.AsSha512Mechanism()"),
    ("franz-go", "go/franz_go.go", "kgo.SASL("),
    ("kafka-go", "go/kafka_go.go", "of.User, of.Password)"),
    ("kafka-go", "go/kafka_go.go", "Transport: &kafka.Transport{TLS: of.tls(), SASL: of.mechanism()}"),
    ("kafka-go", "go/kafka_go.go", "Addr: kafka.TCP(of.Bootstrap), Topic: of.Topic"),
    ("kafka-go", "go/kafka_go.go", "Brokers: []string{of.Bootstrap}, Topic: of.Topic, GroupID: of.Group"),
    (
        "kafka-go",
        "go/kafka_go.go",
        "&kafka.Dialer{TLS: of.tls(), SASLMechanism: of.mechanism(), Timeout: 10 * time.Second}",
    ),
    ("sarama", "go/sarama.go", "config.Version = sarama.V4_0_0_0"),
    ("sarama", "go/sarama.go", "config.Net.TLS.Enable = true"),
    ("sarama", "go/sarama.go", "config.Net.TLS.Config = "),
    ("sarama", "go/sarama.go", "config.Net.SASL.Mechanism = sarama.SASLMechanism("),
    ("sarama", "go/sarama.go", "config.Net.SASL.User, config.Net.SASL.Password = of.User, of.Password"),
    (
        "sarama",
        "go/sarama.go",
        "SCRAMClientGeneratorFunc = func() sarama.SCRAMClient { return &exchange{hash: ",
    ),
    ("kafkajs, with a password", "../node/logins.js", "const ssl = { ca: [fs.readFileSync(step.ca)] }"),
    ("kafkajs, with a password", "../node/logins.js", "brokers: [step.bootstrap],"),
    ("kafkajs, with a password", "../node/logins.js", "username: step.user, password: step.password }"),
    ("kafkajs, with a password", "../node/logins.js", "reauthenticationThreshold: 1000,"),
    ("kafkajs, with a certificate", "../node/logins.js", "const own = fs.readFileSync(step.certificate)"),
    ("kafkajs, with a certificate", "../node/logins.js", "Object.assign(ssl, { key: own, cert: own })"),
]


@pytest.mark.parametrize(("title", "file", "code"), SAME)
def test_the_page_has_the_code_of_the_tests(title: str, file: str, code: str) -> None:
    assert code in (PROGRAMS / file).read_text()
    for expression, value in MADE.items():
        code = code.replace(expression, value)
    assert code in BLOCKS[title]


def test_sarama_joins_scram_as_in_the_tests() -> None:
    assert BLOCKS["sarama, SCRAM"] in (PROGRAMS / "go/sarama.go").read_text()


def test_each_block_with_a_title_is_held_to_a_test() -> None:
    code = {title for title, _, _ in SAME}
    with_logins = {
        f"{name}, with {login}"
        for name in ("client.properties", "Spark", "confluent-kafka", "kafka-python and aiokafka", "kcat")
        for login in LOGINS
    }
    mirror = "mm2.properties, with a password at the source and a certificate at the target"
    assert set(BLOCKS) == code | with_logins | {mirror, "sarama, SCRAM"}
