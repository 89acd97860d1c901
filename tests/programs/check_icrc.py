#!/usr/bin/env python3
"""Checks the ICRC of every RoCEv2 packet of a capture, independently of Verbena's own code.

  check_icrc.py FILE    nanosecond or microsecond pcap of raw IP packets; exit 1 if one is wrong
"""

import struct
import sys
import zlib

ROCE_PORT = 4791
LINKTYPE_RAW = 101


def packets(data):
    magic = struct.unpack_from("<I", data)[0]
    if magic not in (0xA1B2C3D4, 0xA1B23C4D):
        sys.exit("not a little-endian pcap file")
    linktype = struct.unpack_from("<I", data, 20)[0] & 0xFFFF
    if linktype != LINKTYPE_RAW:
        sys.exit(f"link type {linktype} is not raw IP")
    at = 24
    while at + 16 <= len(data):
        captured, original = struct.unpack_from("<II", data, at + 8)
        yield data[at + 16:at + 16 + captured], original
        at += 16 + captured


def masked(packet):
    """The bytes that the ICRC covers, and the ICRC itself; IBA annex A17, 4.5.1."""
    b = bytearray(packet)
    if b[0] >> 4 == 4:
        udp = (b[0] & 15) * 4
        b[1] = 0xFF  # type of service
        b[8] = 0xFF  # time to live
        b[10:12] = b"\xff\xff"  # header checksum
    else:
        udp = 40
        b[0] |= 0x0F  # traffic class, flow label
        b[1] = b[2] = b[3] = 0xFF
        b[7] = 0xFF  # hop limit
    if struct.unpack_from(">H", b, udp + 2)[0] != ROCE_PORT:
        sys.exit("a packet is not for port 4791")
    b[udp + 6:udp + 8] = b"\xff\xff"  # checksum
    b[udp + 8 + 4] = 0xFF  # BTH: reserved 8a (FECN, BECN)
    return b"\xff" * 8 + bytes(b[:-4]), struct.unpack("<I", packet[-4:])[0]


def main():
    with open(sys.argv[1], "rb") as file:
        data = file.read()
    count = wrong = 0
    for packet, original in packets(data):
        if len(packet) != original:
            sys.exit("a packet is truncated")
        count += 1
        covered, icrc = masked(packet)
        wrong += zlib.crc32(covered) != icrc
    print(f"{count} packets, {wrong} with a wrong ICRC")
    return 1 if wrong or not count else 0


if __name__ == "__main__":
    sys.exit(main())
