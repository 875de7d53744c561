"""examples/recipes/wireguard.py writes configurations that join all hosts; no tunnel is opened."""

from __future__ import annotations

import subprocess
import sys
from ipaddress import ip_interface, ip_network
from pathlib import Path

import pytest

pytestmark = pytest.mark.long  # it looks at recipes and their page alone

ROOT = Path(__file__).resolve().parents[2]
RECIPES = ROOT / "examples" / "recipes"


def wireguard(folder, *hosts, options=()):
    command = [sys.executable, RECIPES / "wireguard.py", "--keys", folder, *options, *hosts]
    return subprocess.run(command, capture_output=True, text=True)


def sections(file):
    """Returns the sections of a configuration, each as (title, keys and values)."""
    found = []
    for line in file.read_text().splitlines():
        if line.startswith("["):
            found.append((line.strip("[]"), {}))
        elif line and not line.startswith("#"):
            key, _, value = line.partition(" = ")
            assert key not in found[-1][1]
            found[-1][1][key] = value
    return found


def test_every_host_is_joined_with_every_other_one(tmp_path):
    public = {"a": "203.0.113.1", "b": "198.51.100.7", "c": "c.example.com"}
    for name in public:
        (tmp_path / f"{name}.pub").write_text(f"public+{name}=\n")
    done = wireguard(tmp_path, *(f"{name}={address}" for name, address in public.items()))
    assert done.returncode == 0, done.stderr
    inner, peers = {}, {}
    for name in public:
        assert "PrivateKey" not in (tmp_path / f"{name}.conf").read_text()
        (title, interface), *others = sections(tmp_path / f"{name}.conf")
        assert title == "Interface"
        assert interface["ListenPort"] == "51820"
        assert "private-key /etc/wireguard/%i.key" in interface["PostUp"]
        inner[name] = ip_interface(interface["Address"])
        assert {title for title, _ in others} == {"Peer"}
        peers[name] = {peer.pop("PublicKey"): peer for _, peer in others}
    assert [str(one.ip) for one in inner.values()] == ["10.77.0.1", "10.77.0.2", "10.77.0.3"]
    assert len({one.network for one in inner.values()}) == 1
    for name, found in peers.items():
        assert found == {
            f"public+{other}=": {
                "Endpoint": f"{public[other]}:51820",
                "AllowedIPs": str(ip_network(inner[other].ip)),
            }
            for other in public
            if other != name
        }


@pytest.mark.parametrize(
    ("hosts", "options", "message"),
    [
        (["a=192.0.2.1", "b=192.0.2.2"], [], "b.pub is missing"),
        (["a=192.0.2.1", "a=192.0.2.2"], [], "each host once"),
        (["a"], [], "each host once, as NAME=ADDRESS"),
        (["a=x", "b=x", "c=x"], ["--network", "10.0.0.0/30"], "too few addresses for 3 hosts"),
        (["a=x"], ["--network", "lan"], "invalid IPv4Network value: 'lan'"),
    ],
)
def test_hosts_that_cannot_be_joined_are_refused(hosts, options, message, tmp_path):
    (tmp_path / "a.pub").write_text("key")
    done = wireguard(tmp_path, *hosts, options=options)
    assert done.returncode == 2
    assert message in done.stderr
    assert not list(tmp_path.glob("*.conf"))
