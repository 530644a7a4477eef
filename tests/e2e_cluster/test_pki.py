import stat
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from pathlib import Path

from cryptography import x509

from e2e.cluster.config import ClusterConfig
from e2e.cluster.pki import LEAF_DAYS, RENEW_BEFORE_DAYS, ensure_pki, leaves

NOW = datetime(2026, 6, 1, tzinfo=UTC)


def certificate(folder: Path, name: str) -> x509.Certificate:
    return x509.load_pem_x509_certificate((folder / f"{name}.crt").read_bytes())


def test_a_second_call_makes_nothing(tmp_path: Path) -> None:
    wanted = leaves(ClusterConfig())
    assert {"ca", "apiserver", "node1", "service-account"} <= set(ensure_pki(tmp_path, wanted, NOW))
    assert ensure_pki(tmp_path, wanted, NOW) == []


def test_a_second_node_is_certified_without_touching_the_rest(tmp_path: Path) -> None:
    ensure_pki(tmp_path, leaves(ClusterConfig(node_count=1)), NOW)
    assert ensure_pki(tmp_path, leaves(ClusterConfig(node_count=2)), NOW) == ["node2"]


def test_certificates_about_to_expire_are_renewed_by_the_same_authority(tmp_path: Path) -> None:
    wanted = leaves(ClusterConfig())
    ensure_pki(tmp_path, wanted, NOW)
    authority = (tmp_path / "ca.crt").read_bytes()
    late = NOW + timedelta(days=LEAF_DAYS - RENEW_BEFORE_DAYS + 1)
    assert set(ensure_pki(tmp_path, wanted, late)) == {leaf.name for leaf in wanted}
    assert (tmp_path / "ca.crt").read_bytes() == authority


def test_a_corrupt_certificate_is_made_anew(tmp_path: Path) -> None:
    wanted = leaves(ClusterConfig())
    ensure_pki(tmp_path, wanted, NOW)
    (tmp_path / "admin.crt").write_text("not a certificate")
    assert ensure_pki(tmp_path, wanted, NOW) == ["admin"]


def test_a_leaf_of_another_authority_is_made_anew(tmp_path: Path) -> None:
    wanted = leaves(ClusterConfig())
    ensure_pki(tmp_path, wanted, NOW)
    (tmp_path / "ca.key").unlink()
    remade = ensure_pki(tmp_path, wanted, NOW)
    assert "ca" in remade
    assert "apiserver" in remade
    assert "front-proxy-client" not in remade


def test_nothing_is_readable_by_others(tmp_path: Path) -> None:
    ensure_pki(tmp_path, leaves(ClusterConfig()), NOW)
    assert {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()} == {0o600}


def test_the_api_server_is_certified_for_every_name_it_is_called_by(tmp_path: Path) -> None:
    ensure_pki(tmp_path, leaves(ClusterConfig()), NOW)
    names = certificate(tmp_path, "apiserver").extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    addresses = names.get_values_for_type(x509.IPAddress)
    assert {IPv4Address("10.99.0.2"), IPv4Address("10.96.0.1"), IPv4Address("127.0.0.1")} == set(addresses)
    assert "kubernetes.default.svc" in names.get_values_for_type(x509.DNSName)


def test_a_node_is_who_the_node_authorizer_expects(tmp_path: Path) -> None:
    ensure_pki(tmp_path, leaves(ClusterConfig()), NOW)
    assert certificate(tmp_path, "node1").subject.rfc4514_string() == "CN=system:node:node1,O=system:nodes"
