"""Writes a WireGuard configuration for each of several hosts, which joins all of them.

On each host, make a key, which stays there, and its public key:

    umask 077; wg genkey | tee /etc/wireguard/hvd0.key | wg pubkey > NAME.pub

Collect the public keys in a folder, and run, with the name and the public address of each host:

    python examples/recipes/wireguard.py --keys FOLDER a=203.0.113.1 b=198.51.100.7

Copy FOLDER/NAME.conf to /etc/wireguard/hvd0.conf on that host, and run: wg-quick up hvd0
"""

from __future__ import annotations

import argparse
import ipaddress
import os
from pathlib import Path

INTERFACE = """\
# {name}
[Interface]
Address = {inner}/{bits}
ListenPort = {port}
PostUp = wg set %i private-key /etc/wireguard/%i.key
"""
PEER = """
# {name}
[Peer]
PublicKey = {key}
Endpoint = {endpoint}:{port}
AllowedIPs = {inner}/32
"""

parser = argparse.ArgumentParser(
    description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
)
parser.add_argument("hosts", nargs="+", metavar="NAME=ADDRESS", help="in order of their node ranks")
parser.add_argument("--keys", type=Path, required=True, metavar="FOLDER",
                    help="has NAME.pub of each host, and gets NAME.conf")  # fmt: skip
parser.add_argument("--network", type=ipaddress.IPv4Network, default="10.77.0.0/24",
                    help="inner addresses, in the hosts' order (default: %(default)s)")  # fmt: skip
parser.add_argument("--port", type=int, default=51820, help="UDP (default: %(default)s)")


def main() -> None:
    args = parser.parse_args()
    pairs = [host.partition("=")[::2] for host in args.hosts]
    if len(dict(pairs)) < len(pairs) or not all(name and address for name, address in pairs):
        parser.error("give each host once, as NAME=ADDRESS")
    if len(pairs) > args.network.num_addresses - 2:
        parser.error(f"{args.network} has too few addresses for {len(pairs)} hosts")
    hosts = []
    for (name, address), inner in zip(pairs, args.network.hosts(), strict=False):
        key = args.keys / f"{name}.pub"
        if not key.exists():
            parser.error(f"{key} is missing")
        hosts.append({
            "name": name, "endpoint": address, "inner": inner, "key": key.read_text().strip(),
            "port": args.port, "bits": args.network.prefixlen,
        })  # fmt: skip
    for host in hosts:
        peers = [PEER.format_map(peer) for peer in hosts if peer is not host]
        file = args.keys / f"{host['name']}.conf"
        file.write_text(INTERFACE.format_map(host) + "".join(peers))
        print(f"{os.fspath(file)}: {host['inner']}")


if __name__ == "__main__":
    main()
