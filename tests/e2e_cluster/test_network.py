import json

from e2e.cluster.config import ClusterConfig
from e2e.cluster.network import Route, collision, own_links, parse_routes


def routes(*entries: tuple[str, str]) -> list[Route]:
    return parse_routes(json.dumps([{"dst": destination, "dev": device} for destination, device in entries]))


def test_a_machine_with_only_a_default_route_and_its_own_network_is_fine() -> None:
    assert collision(ClusterConfig(), routes(("default", "eth0"), ("192.0.2.0/24", "eth0"))) is None


def test_a_route_into_one_of_our_ranges_names_the_range_the_route_and_the_way_out() -> None:
    reason = collision(ClusterConfig(), routes(("10.96.128.0/20", "tun0")))
    assert reason is not None
    assert "10.96.0.0/16" in reason
    assert "10.96.128.0/20 through tun0" in reason
    assert "OCTAVO_SERVICE_NETWORK" in reason


def test_a_wider_route_would_be_cut_by_ours_and_is_a_collision_too() -> None:
    assert collision(ClusterConfig(), routes(("10.0.0.0/8", "wg0"))) is not None


def test_our_own_routes_are_no_collision() -> None:
    assert collision(ClusterConfig(), routes(("10.99.0.0/24", "octavo0"), ("10.88.0.0/17", "octavo0"))) is None


def test_a_single_address_is_a_route_like_any_other() -> None:
    assert routes(("10.1.2.3", "eth0"))[0].destination.prefixlen == 32


def test_cables_are_removed_before_the_bridge_and_strangers_never() -> None:
    links = [{"ifname": name} for name in ("lo", "octavo0", "eth0", "octavo-n1", "docker0", "octavo-n2")]
    assert own_links(ClusterConfig(), links) == ["octavo-n1", "octavo-n2", "octavo0"]
