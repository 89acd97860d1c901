"""Two or more ranks train one model by DistributedDataParallel over NCCL; the weights must be what one process
that sees all the data computes."""
import os

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

RANK, RANKS = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
STEPS, BATCH = 10, 64


def model():
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(256, 1024), torch.nn.Tanh(), torch.nn.Linear(1024, 256)).double().cuda()


def train(network, share):
    optimizer = torch.optim.SGD(network.parameters(), lr=0.05)
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        data = torch.randn(BATCH, 256, generator=generator, dtype=torch.float64)[share].cuda()
        optimizer.zero_grad()
        (network(data) - data).square().mean().backward()
        optimizer.step()
    return list(network.parameters())


dist.init_process_group("nccl")
size = BATCH // RANKS
ours = train(DistributedDataParallel(model()), slice(RANK * size, (RANK + 1) * size))
alone = train(model(), slice(None))
for one, other in zip(ours, alone):
    torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-12)
dist.destroy_process_group()
print("ok")
