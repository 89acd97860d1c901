"""Sends numbered datagrams through the bottleneck and compares what arrives with what the bottleneck reports. Each
datagram is counted exactly once: delivered, dropped or lost. Usage: router_check.py BOTTLENECK FAR_PID"""

import collections
import ctypes
import json
import os
import signal
import socket
import struct
import subprocess
import sys
import time

NOT_ECT, ECT1, ECT0, CE = range(4)
CLONE_NEWNET = 0x40000000
LIMIT = 30  # seconds of one case
ADDRESSES = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
HEADERS = {socket.AF_INET: 28, socket.AF_INET6: 48}  # IP and UDP
Arrival = collections.namedtuple("Arrival", "number ecn")


def enter(namespace):
    if ctypes.CDLL(None, use_errno=True).setns(namespace, CLONE_NEWNET) != 0:
        raise OSError(ctypes.get_errno(), "setns")


def socket_in(namespace, family):
    with open("/proc/self/ns/net", encoding="ascii") as own, open(namespace, encoding="ascii") as there:
        enter(there.fileno())
        made = socket.socket(family, socket.SOCK_DGRAM)
        enter(own.fileno())
    return made


class Router:
    """The bottleneck with its statistics, added up."""

    def __init__(self, *options):
        self.child = subprocess.Popen([BOTTLENECK, "--far", FAR, *map(str, options)], stdout=subprocess.PIPE,
                                      encoding="utf-8")
        assert self.child.stdout.readline() == "ready\n"
        self.counted = collections.Counter()
        self.longest_queue = 0

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.child.terminate()
        self.child.wait(LIMIT)
        self.child.stdout.close()

    def update(self):
        self.child.send_signal(signal.SIGUSR1)
        report = json.loads(self.child.stdout.readline())["to_near"]
        self.longest_queue = max(self.longest_queue, report["queue_bytes"]["max"])
        self.counted.update({name: value for name, value in report.items() if isinstance(value, int)})

    def accounts_for(self, sent, received):
        return (self.counted["packets"] == received and
                sum(self.counted[name] for name in ("packets", "dropped", "lost", "unread")) == sent)


def transfer(router, sent, size=1000, family=socket.AF_INET, ecn=lambda number: NOT_ECT):
    """Sends datagrams and receives until the router has accounted for all of them."""
    sender = socket_in(FAR, family)
    receiver = socket.socket(family, socket.SOCK_DGRAM)
    level, send_option, receive_option = ((socket.IPPROTO_IP, socket.IP_TOS, socket.IP_RECVTOS)
                                          if family == socket.AF_INET else
                                          (socket.IPPROTO_IPV6, socket.IPV6_TCLASS, socket.IPV6_RECVTCLASS))
    receiver.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    receiver.setsockopt(level, receive_option, 1)
    receiver.bind((ADDRESSES[family], 0))
    receiver.settimeout(0.05)
    address = receiver.getsockname()
    for number in range(sent):
        sender.setsockopt(level, send_option, ecn(number))
        sender.sendto(struct.pack("!I", number).ljust(size, b"\0"), address)
    arrived = []
    deadline = time.monotonic() + LIMIT
    while not router.accounts_for(sent, len(arrived)):
        assert time.monotonic() < deadline, (sent, len(arrived), router.counted)
        try:
            data, ancillary, _, _ = receiver.recvmsg(size, 64)
            assert len(data) == size
            arrived.append(Arrival(struct.unpack("!I", data[:4])[0], ancillary[0][2][0] & 3))
        except socket.timeout:
            router.update()
    sender.close()
    receiver.close()
    return arrived


def delivers_everything_in_order(family, size, mtu):
    with Router("--mtu", mtu, "--delay-ms", 2, "--queue-bytes", 800 * mtu) as router:
        arrived = transfer(router, 800, size, family)
        assert [each.number for each in arrived] == list(range(800))
        assert router.counted["bytes"] == 800 * (size + HEADERS[family])


def keeps_the_rate():
    """However busy the machine is, no more than the rate is forwarded."""
    with Router("--rate-mbit", 40) as router:
        start = time.monotonic()
        transfer(router, 1000, 972)
        seconds = time.monotonic() - start
        assert router.counted["packets"] == 1000
        assert seconds > 1000 * 1000 * 8 / 40e6, seconds


def drops_what_exceeds_the_queue():
    with Router("--rate-mbit", 5, "--queue-bytes", 20000) as router:
        arrived = transfer(router, 1000, 972)
        assert router.counted["dropped"] > 0 and router.longest_queue <= 20000, (router.counted, router.longest_queue)
        numbers = [each.number for each in arrived]
        assert numbers == sorted(numbers) and len(numbers) >= 20


def marks_only_ect(family):
    with Router("--rate-mbit", 20, "--ecn-bytes", 10000) as router:
        arrived = transfer(router, 400, 972, family, lambda number: number % 4)
        assert len(arrived) == 400
        marked = 0
        for number, ecn in arrived:
            if number % 4 in (NOT_ECT, CE):
                assert ecn == number % 4, (number, ecn)
            else:
                assert ecn in (number % 4, CE), (number, ecn)
                marked += ecn == CE
        assert 0 < marked == router.counted["marked"] < 200, (marked, router.counted)


def loses_by_the_seed():
    def lost(seed):
        with Router("--loss-percent", 5, "--seed", seed) as router:
            arrived = transfer(router, 1000)
            assert router.counted["lost"] == 1000 - len(arrived) > 0 == router.counted["dropped"]
            return sorted(set(range(1000)) - {each.number for each in arrived})
    assert lost(1) == lost(1) != lost(3)


def holds_packets_back():
    with Router("--reorder-percent", 5, "--reorder-ms", 3, "--rate-mbit", 100) as router:
        numbers = [each.number for each in transfer(router, 1000)]
        assert sorted(numbers) == list(range(1000)) != numbers and router.counted["reordered"] > 0


def main():
    delivers_everything_in_order(socket.AF_INET, 1000, 1500)
    delivers_everything_in_order(socket.AF_INET6, 1000, 1500)
    delivers_everything_in_order(socket.AF_INET, 8500, 9000)
    keeps_the_rate()
    drops_what_exceeds_the_queue()
    marks_only_ect(socket.AF_INET)
    marks_only_ect(socket.AF_INET6)
    loses_by_the_seed()
    holds_packets_back()


BOTTLENECK, FAR = sys.argv[1], f"/proc/{sys.argv[2]}/ns/net"
os.environ["LC_ALL"] = "C"
main()
