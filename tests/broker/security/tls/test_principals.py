"""Principals of clients: subjects as Java prints them, and ssl.principal.mapping.rules."""

from __future__ import annotations

import pytest
from cryptography import x509
from cryptography.x509.name import _ASN1Type as Asn1
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

from millstream_broker.config.config_types import ConfigError
from millstream_broker.security.tls.distinguished_name import subject
from millstream_broker.security.tls.principal_mapping import NoRuleError, PrincipalMapping
from millstream_harness.certificates import Authority

AUTHORITY = Authority()
CN, ORGANIZATION = NameOID.COMMON_NAME, NameOID.ORGANIZATION_NAME


def name(*relative: tuple[tuple[x509.ObjectIdentifier, str, Asn1 | None], ...]) -> x509.Name:
    return x509.Name(
        [
            x509.RelativeDistinguishedName(
                [x509.NameAttribute(oid, value, kind) for oid, value, kind in each]
            )
            for each in relative
        ]
    )


@pytest.mark.parametrize(
    ("subject_name", "printed"),
    [
        (
            name(
                ((NameOID.COUNTRY_NAME, "DE", None),),
                ((ORGANIZATION, 'Ex, "ample" <x>;#+=\\ a', None),),
                ((NameOID.EMAIL_ADDRESS, "alice@example.com", None),),
                ((CN, "alice", None),),
            ),
            "CN=alice,1.2.840.113549.1.9.1=#1611616c696365406578616d706c652e636f6d,"
            'O=Ex\\, \\"ample\\" \\<x\\>\\;\\#\\+\\=\\\\ a,C=DE',
        ),
        (name(((CN, "  #lead trail  ", None),)), "CN=\\ \\ \\#lead trail\\ \\ "),
        (name(((CN, "#x", None),), ((CN, "müßig 漢字 😀", None),)), "CN=müßig 漢字 😀,CN=\\#x"),
        (
            name(((CN, "multi", None), (NameOID.USER_ID, "u1", None), (NameOID.SERIAL_NUMBER, "77", None))),
            "2.5.4.5=#13023737+CN=multi+UID=u1",
        ),
        (
            name(
                ((NameOID.DOMAIN_COMPONENT, "com", Asn1.IA5String),),
                ((NameOID.STATE_OR_PROVINCE_NAME, "S", None),),
                ((NameOID.LOCALITY_NAME, "L", None),),
                ((NameOID.STREET_ADDRESS, "st 1", None),),
                ((NameOID.TITLE, "Dr", None),),
            ),
            "2.5.4.12=#0c024472,STREET=st 1,L=L,ST=S,DC=com",
        ),
        (
            name(
                ((CN, "bm", Asn1.BMPString),),
                ((ORGANIZATION, "t61é", Asn1.T61String),),
                ((NameOID.ORGANIZATIONAL_UNIT_NAME, "u", Asn1.UniversalString),),
            ),
            "OU=#1c0400000075,O=t61é,CN=\\00b\\00m",
        ),
        (name(((CN, "tab\tnl\nnul", None),), ((CN, "a\x00b", None),)), "CN=a\\00b,CN=tab\tnl\nnul"),
        (name(((CN, " ", None),)), "CN=\\ "),
        (name(((x509.ObjectIdentifier("2.999.1.70000"), "odd", None),)), "2.999.1.70000=#0c036f6464"),
    ],
)
def test_subjects_are_printed_as_java_prints_them(subject_name: x509.Name, printed: str) -> None:
    """The expected texts are what X500Principal.getName returned for certificates with these subjects."""
    assert subject(AUTHORITY.issue(subject_name).chain[0]) == printed


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=16))
def test_any_name_is_printed_with_escaped_separators(text: str) -> None:
    printed = subject(AUTHORITY.issue(name(((CN, text, None),), ((ORGANIZATION, "x", None),))).chain[0])
    assert printed.startswith("O=x,CN=")
    rest = printed.removeprefix("O=x,CN=").replace("\\\\", "")
    assert all(rest[at - 1] == "\\" for at, char in enumerate(rest) if char in ",+")


SUBJECT = "CN=Alice,OU=ServiceUsers,O=Example,C=DE"


@pytest.mark.parametrize(
    ("rules", "subject_text", "found"),
    [
        ("DEFAULT", SUBJECT, SUBJECT),
        ("", SUBJECT, SUBJECT),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/", SUBJECT, "Alice"),
        ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/L", SUBJECT, "alice"),
        ("RULE:^CN=(.*?),.*$/$1/U , DEFAULT", SUBJECT, "ALICE"),
        (
            "RULE:^CN=(.*?),OU=Admins.*$/$1/,RULE:^CN=(.*?),OU=(.*?),.*$/$2-$1@x/L,DEFAULT",
            SUBJECT,
            "serviceusers-alice@x",
        ),
        ("RULE:^CN=(.*?),OU=Admins.*$/$1/,DEFAULT", SUBJECT, SUBJECT),
        ("RULE:^CN=([^,]*),.*$/a\\/b-$12/", SUBJECT, "a/b-Alice2"),
        ("RULE:CN=Al.*/admin/", "CN=Al", "admin"),
    ],
)
def test_the_first_matching_rule_applies(rules: str, subject_text: str, found: str) -> None:
    assert PrincipalMapping(rules).name(subject_text) == found


def test_a_subject_that_no_rule_matches_has_no_principal() -> None:
    with pytest.raises(NoRuleError, match=r"no rule of ssl\.principal\.mapping\.rules matches CN=x"):
        PrincipalMapping("RULE:^CN=(.*?),.*$/$1/").name("CN=x")


@pytest.mark.parametrize(
    "rules", ["RULE:^CN=(.*$/$1/", "RULE:a/b", "default", "RULE:a/b/X", "DEFAULT,,DEFAULT"]
)
def test_wrong_rules_are_refused(rules: str) -> None:
    with pytest.raises(ConfigError, match=r"for configuration ssl\.principal\.mapping\.rules: "):
        PrincipalMapping(rules)
