"""Certificates: an authority for the cluster, one for the aggregation layer, and a leaf for every component.

Elliptic curves (P-256): a whole set takes milliseconds where 2048-bit RSA takes seconds.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from e2e.cluster.config import ClusterConfig

AUTHORITY_DAYS = 3650
LEAF_DAYS = 365
RENEW_BEFORE_DAYS = 30
"""A leaf with less than this to live is made anew the next time the cluster is started."""
CLOCK_SKEW = timedelta(hours=1)


@dataclass(frozen=True)
class Leaf:
    """What one certificate certifies."""

    name: str
    """Its files are NAME.crt and NAME.key."""
    common_name: str
    organisation: str | None = None
    addresses: tuple[IPv4Address, ...] = ()
    host_names: tuple[str, ...] = ()
    authority: str = "ca"

    @property
    def serves(self) -> bool:
        """Whether clients connect to it; every leaf may also be a client."""
        return bool(self.addresses or self.host_names)


def leaves(config: ClusterConfig) -> tuple[Leaf, ...]:
    """Every certificate of the cluster; names and groups are those that Kubernetes' own roles are bound to."""
    loopback = IPv4Address("127.0.0.1")
    return (
        Leaf(
            "apiserver",
            "kube-apiserver",
            addresses=(config.api_address, loopback, config.api_service_address),
            host_names=(
                "kubernetes",
                "kubernetes.default",
                "kubernetes.default.svc",
                "kubernetes.default.svc.cluster.local",
                "localhost",
            ),
        ),
        Leaf("apiserver-kubelet-client", "kube-apiserver-kubelet-client", "system:masters"),
        Leaf("admin", "kubernetes-admin", "system:masters"),
        Leaf("controller-manager", "system:kube-controller-manager"),
        Leaf("scheduler", "system:kube-scheduler"),
        Leaf("proxy", "system:kube-proxy"),
        Leaf("front-proxy-client", "front-proxy-client", authority="front-proxy-ca"),
        *(
            Leaf(node.name, f"system:node:{node.name}", "system:nodes", (node.address,), (node.name,))
            for node in config.nodes
        ),
    )


def ensure_pki(folder: Path, wanted: Sequence[Leaf], now: datetime | None = None) -> list[str]:
    """Make what is missing, unreadable, about to expire or certifies something else; the names of what was made."""
    moment = now if now is not None else datetime.now(UTC)
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    made: list[str] = []
    authorities = {name: _ensure_authority(folder, name, moment, made) for name in ("ca", "front-proxy-ca")}
    for leaf in wanted:
        if not _still_good(folder, leaf, authorities[leaf.authority], moment):
            _issue(folder, leaf, authorities[leaf.authority], moment)
            made.append(leaf.name)
    _ensure_token_keys(folder, made)
    return made


@dataclass(frozen=True)
class _Authority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey


def _ensure_authority(folder: Path, name: str, now: datetime, made: list[str]) -> _Authority:
    certificate, key = _load(folder, name)
    if certificate is not None and key is not None and _outlives(certificate, now):
        return _Authority(certificate, key)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"octavo {name}")])
    builder = _builder(subject, subject, key, now, AUTHORITY_DAYS).add_extension(
        x509.BasicConstraints(ca=True, path_length=None), critical=True
    )
    certificate = builder.add_extension(_key_usage(authority=True), critical=True).sign(key, hashes.SHA256())
    _write_pair(folder, name, certificate, key)
    made.append(name)
    return _Authority(certificate, key)


def _issue(folder: Path, leaf: Leaf, authority: _Authority, now: datetime) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    usages = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if leaf.serves else [])]
    builder = (
        _builder(_subject(leaf), authority.certificate.subject, key, now, LEAF_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_key_usage(authority=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.key.public_key()),
            critical=False,
        )
    )
    if leaf.serves:
        builder = builder.add_extension(x509.SubjectAlternativeName(_alternative_names(leaf)), critical=False)
    _write_pair(folder, leaf.name, builder.sign(authority.key, hashes.SHA256()), key)


def _still_good(folder: Path, leaf: Leaf, authority: _Authority, now: datetime) -> bool:
    certificate, key = _load(folder, leaf.name)
    if certificate is None or key is None or not _outlives(certificate, now):
        return False
    try:
        certificate.verify_directly_issued_by(authority.certificate)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return certificate.subject == _subject(leaf) and _names_of(certificate) == set(_alternative_names(leaf))


def _names_of(certificate: x509.Certificate) -> set[x509.GeneralName]:
    try:
        return set(certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value)
    except x509.ExtensionNotFound:
        return set()


def _outlives(certificate: x509.Certificate, now: datetime) -> bool:
    return certificate.not_valid_after_utc - now > timedelta(days=RENEW_BEFORE_DAYS)


def _subject(leaf: Leaf) -> x509.Name:
    organisation = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, leaf.organisation)] if leaf.organisation else []
    return x509.Name([*organisation, x509.NameAttribute(NameOID.COMMON_NAME, leaf.common_name)])


def _alternative_names(leaf: Leaf) -> list[x509.GeneralName]:
    return [*(x509.IPAddress(address) for address in leaf.addresses), *(x509.DNSName(name) for name in leaf.host_names)]


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: datetime, days: int
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _key_usage(authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _load(folder: Path, name: str) -> tuple[x509.Certificate | None, ec.EllipticCurvePrivateKey | None]:
    try:
        certificate = x509.load_pem_x509_certificate((folder / f"{name}.crt").read_bytes())
        key = serialization.load_pem_private_key((folder / f"{name}.key").read_bytes(), password=None)
    except (OSError, ValueError):
        return None, None
    return certificate, key if isinstance(key, ec.EllipticCurvePrivateKey) else None


def _ensure_token_keys(folder: Path, made: list[str]) -> None:
    """The pair that signs and checks service account tokens."""
    private, public = folder / "service-account.key", folder / "service-account.pub"
    if private.exists() and public.exists():
        return
    key = ec.generate_private_key(ec.SECP256R1())
    write_private(private, _private_pem(key))
    encoding, form = serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    write_private(public, key.public_key().public_bytes(encoding, form))
    made.append("service-account")


def _write_pair(folder: Path, name: str, certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> None:
    write_private(folder / f"{name}.key", _private_pem(key))
    write_private(folder / f"{name}.crt", certificate.public_bytes(serialization.Encoding.PEM))


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def write_private(path: Path, content: bytes) -> None:
    """Readable by its owner alone from the first byte on."""
    fresh = path.with_suffix(f"{path.suffix}.new")
    fresh.unlink(missing_ok=True)
    with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as handle:
        handle.write(content)
    fresh.replace(path)
