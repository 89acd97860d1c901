"""NCCL's all-reduce between two ranks on one GPU: over NCCL's own sockets, over Verbena's wire and through Verbena's
shared memory, in turn.

  python3 bench/programs/nccl_all_reduce.py --build build [--mib 256] [--rounds 3]

Needs PyTorch with NCCL, a GPU and, so that both ranks use the GPU at the same time, nvidia-cuda-mps-control. The two
ranks have different NCCL_HOSTIDs: NCCL then takes them for two hosts and uses its network transport. Prints the bytes
of the buffer per second, as nccl-tests' "algbw" does.
"""

import argparse
import itertools
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

WARM_UP, REPEATS = 3, 8
LIMIT = 120  # seconds for one run
SOCKETS, WIRE, MEMORY = "NCCL's sockets", "Verbena, wire", "Verbena, memory"
SETTINGS = {
    SOCKETS: {"NCCL_NET": "Socket", "NCCL_IB_DISABLE": "1"},
    WIRE: {"NCCL_NET": "IB", "NCCL_IB_HCA": "verbena_lo", "VERBENA_DATAPATH": "udp"},
    MEMORY: {"NCCL_NET": "IB", "NCCL_IB_HCA": "verbena_lo", "VERBENA_DATAPATH": "shm"},
}


def run_rank(mib):
    """One rank, in a process of its own. Rank 0 prints Gb/s."""
    import torch  # pylint: disable=import-outside-toplevel  # only the ranks need it
    import torch.distributed as dist  # pylint: disable=import-outside-toplevel
    dist.init_process_group("nccl", device_id=torch.device("cuda:0"))
    buffer = torch.ones(mib * 1024 * 1024 // 4, device="cuda")
    for _ in range(WARM_UP):
        dist.all_reduce(buffer)
    torch.cuda.synchronize()
    begin = time.monotonic()
    for _ in range(REPEATS):
        dist.all_reduce(buffer)
    torch.cuda.synchronize()
    seconds = (time.monotonic() - begin) / REPEATS
    expected = 2.0 ** (WARM_UP + REPEATS)
    if not bool((buffer == expected).all()):
        sys.exit(f"the sum is wrong: {buffer[0].item()} instead of {expected}")
    if dist.get_rank() == 0:
        print(f"gbps {mib * 1024 * 1024 * 8 / seconds / 1e9}")
    dist.destroy_process_group()


def measure(tool, way, mib, port):
    """Gb/s of one run of both ranks."""
    common = {**os.environ, **SETTINGS[way], "NCCL_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1",
              "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    words = [sys.executable, __file__, "--rank", "--mib", str(mib)]
    if way != SOCKETS:
        words = [str(tool), "run", "--", *words]
    files = [tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") for _ in range(2)]
    ranks = [subprocess.Popen(words, env={**common, "RANK": str(rank), "NCCL_HOSTID": f"host{rank}"},
                              stdout=file, stderr=subprocess.STDOUT) for rank, file in enumerate(files)]
    try:
        failed = any(rank.wait(LIMIT) != 0 for rank in ranks)
    except subprocess.TimeoutExpired:
        failed = True
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    outputs = []
    for file in files:
        file.seek(0)
        outputs.append(file.read())
        file.close()
    if failed:
        raise SystemExit(f"{way}: a rank failed, or both took more than {LIMIT} s:\n" + "\n".join(outputs))
    return next(float(line.split()[1]) for line in outputs[0].splitlines() if line.startswith("gbps "))


class Mps:
    """NVIDIA's multi-process service, for the time of a with block."""

    def __init__(self):
        self.folder = tempfile.TemporaryDirectory()
        os.environ["CUDA_MPS_PIPE_DIRECTORY"] = os.environ["CUDA_MPS_LOG_DIRECTORY"] = self.folder.name

    def __enter__(self):
        subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True)
        return self

    def __exit__(self, *_):
        subprocess.run(["nvidia-cuda-mps-control"], input="quit\n", text=True, check=False, stdout=subprocess.DEVNULL)
        self.folder.cleanup()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", type=pathlib.Path, default=pathlib.Path("build"), help="the build folder")
    parser.add_argument("--mib", type=int, default=256, help="size of the buffer")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--rank", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.rank:
        return run_rank(options.mib)
    found = {way: [] for way in SETTINGS}
    ports = itertools.count(29500)
    with Mps():
        for number in range(options.rounds):
            for way, values in found.items():
                values.append(measure(options.build / "verbena", way, options.mib, next(ports)))
                print(f"round {number + 1}, {way}: {values[-1]:.1f} Gb/s", flush=True)
    sockets = statistics.median(found[SOCKETS])
    for way, values in found.items():
        median = statistics.median(values)
        print(f"{way}: {median:.1f} Gb/s, {median / sockets:.2f}x of NCCL's sockets (median of {len(values)})")
    return None


if __name__ == "__main__":
    main()
