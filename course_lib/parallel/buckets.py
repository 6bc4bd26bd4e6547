"""When DDP's buckets start and arrive, measured; also behind a wire that is slower than this machine's memory."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel

__all__ = ["Bucket", "Watch", "watch_buckets"]


@dataclass(frozen=True)
class Bucket:
    """One bucket in one backward pass; times in seconds since the `Watch` was cleared."""

    number: int
    """In the order in which DDP sends them."""
    elements: int
    tensors: int
    """Parameters whose gradients it holds."""
    started: float
    """Its last gradient was there, and its all-reduce was started."""
    arrived: float


class Watch:
    """What `watch_buckets` writes down."""

    def __init__(self) -> None:
        self.buckets: list[Bucket] = []
        self.start = time.perf_counter()

    def clear(self) -> None:
        """Forget all buckets; the time is 0 from now on."""
        self.buckets, self.start = [], time.perf_counter()

    def now(self) -> float:
        """Seconds since `clear`."""
        return time.perf_counter() - self.start


@contextmanager
def watch_buckets(model: DistributedDataParallel, bandwidth: float | None = None) -> Iterator[Watch]:
    """Register a communication hook that averages as DDP does and writes down when; DDP takes one hook in its life.

    bandwidth: bytes a second of an imitated wire. What a rank sends of a bucket in a ring then takes at least that long
    after its real all-reduce, one bucket after the other; the processor is free meanwhile, as behind a network card.
    """
    watch, world = Watch(), dist.get_world_size()
    wire: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()

    def hook(_: object, bucket: dist.GradBucket) -> torch.futures.Future[Tensor]:
        buffer, started = bucket.buffer().div_(world), watch.now()
        number, tensors = bucket.index(), len(bucket.parameters())
        work = dist.all_reduce(buffer, async_op=True)
        done: torch.futures.Future[Tensor] = torch.futures.Future()

        def deliver() -> None:
            work.wait()
            if bandwidth is not None:
                time.sleep(2 * (world - 1) / world * buffer.nbytes / bandwidth)
            watch.buckets.append(Bucket(number, buffer.numel(), tensors, started, watch.now()))
            done.set_result(buffer)

        wire.put(deliver)
        return done

    def carry() -> None:
        while (deliver := wire.get()) is not None:
            deliver()

    carrier = threading.Thread(target=carry, daemon=True)
    carrier.start()
    model.register_comm_hook(None, hook)
    try:
        yield watch
    finally:
        wire.put(None)
        carrier.join()
