"""Stated answers of chapter 7: each `wrong_*` must fail with its misconception, each `right_*` must pass."""

import itertools
from dataclasses import replace
from typing import Any

import mutants
import numpy as np
import torch
import torch.distributed as dist

from course_lib.checks.ch07_traffic import traffic

ON_RANKS = ("ring-all-reduce", "data-parallel")
"""Starting ranks takes time, and what is tried there is fixed but for the numbers: one seed is enough."""


def wrong(exercise: str, *args: Any, **kwargs: Any) -> Any:
    return mutants.wrong(exercise, *args, once=exercise in ON_RANKS or "answer" in kwargs, **kwargs)


def right(exercise: str, **kwargs: Any) -> Any:
    if exercise not in ON_RANKS:
        return mutants.right(exercise, **kwargs)
    return lambda value: replace(mutants.right(exercise, **kwargs)(value), once=True)


# 07.1 which chunk


@wrong("which-chunk", "always-the-same-chunk")
def wrong_own_chunk_for_ever(rank, step, ranks):
    return rank, step < ranks - 1


@wrong("which-chunk", "turns-the-other-way")
def wrong_downwards(rank, step, ranks):
    return (rank - step) % ranks, step < ranks - 1


@wrong("which-chunk", "turns-the-other-way", says="the chapter's ring")
def wrong_as_in_the_chapter(rank, step, ranks):
    return (rank - step - 1) % ranks, step < ranks - 1


@wrong("which-chunk", "starts-with-any-chunk")
def wrong_starts_before_its_own(rank, step, ranks):
    return (rank - 1 + step) % ranks, step < ranks - 1


@wrong("which-chunk", "one-chunk-at-a-time")
def wrong_step_is_the_chunk(rank, step, ranks):
    return step % ranks, step < ranks - 1


@wrong("which-chunk", "starts-over")
def wrong_second_half_from_the_start(rank, step, ranks):
    return (rank + step % (ranks - 1)) % ranks, step < ranks - 1


@wrong("which-chunk", "names-what-arrives")
def wrong_received_chunk(rank, step, ranks):
    return (rank + 1 + step) % ranks, step < ranks - 1


@wrong("which-chunk", "adds-to-the-end")
def wrong_always_adds(rank, step, ranks):
    return (rank + step) % ranks, True


@wrong("which-chunk", "adds-once-too-often")
def wrong_adds_n_times(rank, step, ranks):
    return (rank + step) % ranks, step < ranks


@wrong("which-chunk", says="How many steps does a chunk take")
def wrong_adds_less(rank, step, ranks):
    return (rank + step) % ranks, step < ranks - 2


@wrong("which-chunk", "adding-comes-last")
def wrong_gathers_first(rank, step, ranks):
    return (rank + step) % ranks, step >= ranks - 1


@wrong("which-chunk", says="chunks 0 to 2; yours is 3")
def wrong_no_modulo(rank, step, ranks):
    return rank + step, step < ranks - 1


@wrong("which-chunk", says="two values are wanted")
def wrong_chunk_alone(rank, step, ranks):
    return (rank + step) % ranks


@wrong("which-chunk", says="True or False")
def wrong_says_add(rank, step, ranks):
    return (rank + step) % ranks, "add" if step < ranks - 1 else "copy"


@wrong("which-chunk", says="in step 0. With which chunk does each rank begin?")
def wrong_multiplies(rank, step, ranks):
    return rank * (step + 2) % ranks, step < ranks - 1


@right("which-chunk")
def right_torch(rank, step, ranks):
    return torch.tensor((rank + step) % ranks), torch.tensor(step) < ranks - 1


@right("which-chunk")
def right_hands_on(rank, step, ranks):
    chunk = rank if step == 0 else right_hands_on.value((rank + 1) % ranks, step - 1, ranks)[0]
    return chunk, step + 1 < ranks


@right("which-chunk")
def right_two_phases(rank, step, ranks):
    if step < ranks - 1:
        return (rank + step) % ranks, True
    return np.int64((rank - 1 + (step - ranks + 1)) % ranks), np.False_


# 07.2 ring all-reduce


def _both(out, into):
    """Send and receive at once."""
    n, r = dist.get_world_size(), dist.get_rank()
    work = dist.isend(out, (r - 1) % n)
    dist.recv(into, (r + 1) % n)
    work.wait()


def _ring(buffer, *, add=True, gather=True, late=0, copy=True, start=0, short=0):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = buffer.tensor_split(n)
    for s in range(n - 1 - short):
        out, into = parts[(r + start + s) % n], parts[(r + start + 1 + s) % n]
        came = torch.empty_like(into)
        _both(out, came)
        if add:
            into += came
        else:
            into.copy_(came)
    for s in range(n - 1 - short if gather else 0):
        begin = start + n - 1 + late
        out, into = parts[(r + begin + s) % n], parts[(r + begin + 1 + s) % n]
        came = torch.empty_like(into)
        _both(out, came)
        if copy:
            into.copy_(came)
        else:
            into += came


@wrong("ring-all-reduce", "a-sum-is-a-mean")
def wrong_mean(buffer):
    _ring(buffer)
    buffer /= dist.get_world_size()


@wrong("ring-all-reduce", "forgets-the-second-half")
def wrong_reduce_scatter_only(buffer):
    _ring(buffer, gather=False)


@wrong("ring-all-reduce", "forgets-the-second-half")
def wrong_reduce_scatter_only_from_another(buffer):
    _ring(buffer, gather=False, start=-1)


@wrong("ring-all-reduce", "nothing-is-added")
def wrong_overwrites(buffer):
    _ring(buffer, add=False)


@wrong("ring-all-reduce", "adds-in-both-halves")
def wrong_adds_twice(buffer):
    _ring(buffer, copy=False)


@wrong("ring-all-reduce", "nothing-is-added")
def wrong_second_half_starts_over(buffer):
    _ring(buffer, late=1 - dist.get_world_size())


@wrong("ring-all-reduce", "starts-with-an-incomplete-chunk")
def wrong_second_half_off_by_one(buffer):
    _ring(buffer, late=-1)


@wrong("ring-all-reduce", "one-step-too-few")
def wrong_a_step_less(buffer):
    _ring(buffer, short=1 if dist.get_world_size() > 2 else 0)


@wrong("ring-all-reduce", "send-returns-at-once", says="waits in send to rank 3")
def wrong_all_send_first(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = buffer.tensor_split(n)
    for s in range(2 * n - 2):
        out, into = parts[(r + s) % n], parts[(r + 1 + s) % n]
        came = torch.empty_like(into)
        dist.send(out, (r - 1) % n)
        dist.recv(came, (r + 1) % n)
        into.copy_(into + came if s < n - 1 else came)


@wrong("ring-all-reduce", "a-message-is-there-already", says="waits in recv")
def wrong_all_receive_first(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    came = torch.empty_like(buffer)
    dist.recv(came, (r + 1) % n)
    dist.send(buffer, (r - 1) % n)


@wrong("ring-all-reduce", "irecv-has-received")
def wrong_reads_too_early(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = buffer.tensor_split(n)
    for s in range(2 * n - 2):
        came = torch.empty_like(parts[(r + 1 + s) % n])
        work = dist.irecv(came, (r + 1) % n)
        dist.send(parts[(r + s) % n], (r - 1) % n)
        parts[(r + 1 + s) % n].copy_(parts[(r + 1 + s) % n] + came if s < n - 1 else came)
        work.wait()


@wrong("ring-all-reduce", says="No number has changed".lower())
def wrong_cats_a_new_buffer(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = list(buffer.tensor_split(n))
    for s in range(2 * n - 2):
        came = torch.empty_like(parts[(r + 1 + s) % n])
        _both(parts[(r + s) % n], came)
        parts[(r + 1 + s) % n] = parts[(r + 1 + s) % n] + came if s < n - 1 else came
    buffer = torch.cat(parts)


@wrong("ring-all-reduce", "hands-on-what-came")
def wrong_hands_on(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = buffer.tensor_split(n)
    out = parts[r]
    for s in range(n - 1):
        came = torch.empty_like(parts[(r + 1 + s) % n])
        _both(out, came)
        parts[(r + 1 + s) % n].add_(came)
        out = came
    for s in range(n - 1):
        _both(parts[(r - 1 + s) % n], parts[(r + s) % n])


@wrong("ring-all-reduce", "ranks-divide-the-buffer")
def wrong_drops_the_rest(buffer):
    n = dist.get_world_size()
    _ring(buffer[: len(buffer) // n * n])


@wrong("ring-all-reduce", says="line")
def wrong_reshapes(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = buffer.view(n, -1)
    for s in range(2 * n - 2):
        came = torch.empty_like(parts[0])
        _both(parts[(r + s) % n].contiguous(), came)
        parts[(r + 1 + s) % n] = parts[(r + 1 + s) % n] + came if s < n - 1 else came


@wrong("ring-all-reduce", says="IndexError")
def wrong_chunk_gives_fewer(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = buffer.chunk(n)
    for s in range(2 * n - 2):
        came = torch.empty_like(parts[(r + 1 + s) % n])
        _both(parts[(r + s) % n], came)
        parts[(r + 1 + s) % n].copy_(parts[(r + 1 + s) % n] + came if s < n - 1 else came)


@wrong("ring-all-reduce", "one-neighbour-is-enough")
def wrong_one_neighbour(buffer):
    if dist.get_world_size() > 1:
        came = torch.empty_like(buffer)
        _both(buffer.clone(), came)
        buffer += came


@wrong("ring-all-reduce", "whole-buffers-go-round")
def wrong_whole_buffers(buffer):
    out = buffer.clone()
    for _ in range(dist.get_world_size() - 1):
        came = torch.empty_like(out)
        _both(out, came)
        buffer += came
        out = came


@wrong("ring-all-reduce", "one-rank-adds")
def wrong_rank_zero_adds(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    if r:
        dist.send(buffer, 0)
        dist.recv(buffer, 0)
        return
    for other in range(1, n):
        came = torch.empty_like(buffer)
        dist.recv(came, other)
        buffer += came
    for other in range(1, n):
        dist.send(buffer, other)


@wrong("ring-all-reduce", says="write it yourself")
def wrong_calls_all_reduce(buffer):
    dist.all_reduce(buffer)


@wrong("ring-all-reduce", says="another tensor")
def wrong_returns_a_new_tensor(buffer):
    summed = buffer.clone()
    _ring(summed)
    return summed


@wrong("ring-all-reduce", says="No number has changed".lower())
def wrong_sums_a_copy(buffer):
    _ring(buffer.clone())


@wrong("ring-all-reduce", says="one rank")
def wrong_sends_to_itself(buffer):
    _ring(buffer)
    if dist.get_world_size() == 1:
        dist.send(buffer, 0)


@wrong("ring-all-reduce", says="the other way")
def wrong_other_direction(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = buffer.tensor_split(n)
    for s in range(2 * n - 2):
        out, into = parts[(r - 1 - s) % n], parts[(r - 2 - s) % n]
        came = torch.empty_like(into)
        work = dist.isend(out, (r + 1) % n)
        dist.recv(came, (r - 1) % n)
        work.wait()
        into.copy_(into + came if s < n - 1 else came)


def _turn(parts, *, to=None, source=None, keep=True, again=False, skip=0):
    """A right ring with one thing changed in how it sends."""
    n, r = dist.get_world_size(), dist.get_rank()
    to, source = (r - 1) % n if to is None else to, (r + 1) % n if source is None else source
    for s in range(2 * n - 2):
        out, into = parts[(r + s) % n], parts[(r + 1 + s) % n]
        came, work = torch.empty_like(into), None
        if len(out) or not skip:
            work = dist.isend(out, to)
        if not keep:
            work = None
        dist.recv(came, source)
        if work is not None and keep != "never":
            work.wait()
            if again:
                work.wait()
        into.copy_(into + came if s < n - 1 else came)


@wrong("ring-all-reduce", "the-last-chunk-takes-the-rest", says="a message of 4 numbers")
def wrong_last_chunk_takes_the_rest(buffer):
    n = dist.get_world_size()
    size = len(buffer) // n
    _turn([buffer[i * size : (i + 1) * size if i < n - 1 else len(buffer)] for i in range(n)])


@wrong("ring-all-reduce", "the-last-chunk-takes-the-rest", says="a message of 2 numbers")
def wrong_short_buffers_are_one_chunk(buffer):
    n = dist.get_world_size()
    _turn(buffer.tensor_split(n) if len(buffer) >= n else [buffer, *[buffer[:0]] * (n - 1)])


@wrong("ring-all-reduce", "a-ring-has-ends", says="there are ranks 0 to 3")
def wrong_no_modulo_anywhere(buffer):
    _turn(buffer.tensor_split(dist.get_world_size()), to=dist.get_rank() - 1, source=dist.get_rank() + 1)


@wrong("ring-all-reduce", "a-ring-has-ends", says="receives from rank 4")
def wrong_no_modulo_in_recv(buffer):
    _turn(buffer.tensor_split(dist.get_world_size()), source=dist.get_rank() + 1)


@wrong("ring-all-reduce", "a-ring-has-ends", says="sends to rank -1")
def wrong_no_modulo_in_send(buffer):
    _turn(buffer.tensor_split(dist.get_world_size()), to=dist.get_rank() - 1)


@wrong("ring-all-reduce", says="receives 0 numbers")
def wrong_leaves_empty_chunks_out_on_one_side(buffer):
    _turn(buffer.tensor_split(dist.get_world_size()), skip=1)


@wrong("ring-all-reduce", "chunks-meet-by-themselves", says="rank 1 sends its chunk 1 to rank 0, which adds it to")
def wrong_numbers_as_in_the_chapter(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = buffer.tensor_split(n)
    for s in range(2 * n - 2):
        into = parts[(r - s - 1) % n]
        came = torch.empty_like(into)
        _both(parts[(r - s) % n], came)
        into.copy_(into + came if s < n - 1 else came)


@wrong("ring-all-reduce", "isend-has-sent", says="keep what it returns")
def wrong_drops_the_handle(buffer):
    _turn(buffer.tensor_split(dist.get_world_size()), keep=False)


@wrong("ring-all-reduce", "isend-has-sent", says="wait for it")
def wrong_keeps_and_never_waits(buffer):
    _turn(buffer.tensor_split(dist.get_world_size()), keep="never")


@wrong("ring-all-reduce", says="Which are its neighbours, of 4 ranks?")
def wrong_receives_from_the_rank_before(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    _turn(buffer.tensor_split(n), source=(r - 1) % n)


@wrong("ring-all-reduce", says="which rank is to do it")
def wrong_three_ranks_for_ever(buffer):
    if dist.get_rank() < 3:
        n, r = 3, dist.get_rank()
        parts = buffer.tensor_split(n)
        for s in range(2 * n - 2):
            came = torch.empty_like(parts[(r + 1 + s) % n])
            work = dist.isend(parts[(r + s) % n], (r - 1) % n)
            dist.recv(came, (r + 1) % n if r < 2 else 3)
            work.wait()


@wrong("ring-all-reduce", says="Does your loop end?")
def wrong_turns_for_ever(buffer):
    while len(buffer):
        pass


@right("ring-all-reduce")
def right_waits_twice(buffer):
    _turn(buffer.tensor_split(dist.get_world_size()), again=True)


@right("ring-all-reduce")
def right_waits_at_the_end(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    parts, works = buffer.tensor_split(n), []
    for s in range(2 * n - 2):
        into = parts[(r + 1 + s) % n]
        came = torch.empty_like(into)
        if len(parts[(r + s) % n]):
            works.append(dist.isend(parts[(r + s) % n].clone(), (r - 1) % n))
        if len(came):
            dist.recv(came, (r + 1) % n)
        into.copy_(into + came if s < n - 1 else came)
    for work in works:
        work.wait()


@right("ring-all-reduce")
def right_from_another_chunk(buffer):
    _ring(buffer, start=1)


@right("ring-all-reduce")
def right_batched(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    if n == 1:
        return buffer
    size = -(-len(buffer) // n)
    padded = torch.cat([buffer, buffer.new_zeros(size * n - len(buffer))]).view(n, size)
    for s in range(2 * n - 2):
        came = buffer.new_empty(size)
        ops = [
            dist.P2POp(dist.isend, padded[(r + s) % n], (r - 1) % n),
            dist.P2POp(dist.irecv, came, (r + 1) % n),
        ]
        for work in dist.batch_isend_irecv(ops):
            work.wait()
        padded[(r + 1 + s) % n] = came + padded[(r + 1 + s) % n] if s < n - 1 else came
    buffer.copy_(padded.view(-1)[: len(buffer)])
    return buffer


@right("ring-all-reduce")
def right_receives_in_place(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = buffer.tensor_split(n)
    for s in range(2 * n - 2):
        into = parts[(r + 1 + s) % n]
        came = torch.empty_like(into) if s < n - 1 else into
        receiving = dist.irecv(came, (r + 1) % n)
        sending = dist.isend(parts[(r + s) % n], (r - 1) % n)
        for work in (receiving, sending):
            work.wait()
        if s < n - 1:
            torch.add(into, came, out=into)


@right("ring-all-reduce")
def right_even_ranks_receive_first(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    parts = buffer.tensor_split(n)
    for s in range(2 * n - 2):
        into = parts[(r + 1 + s) % n]
        came = torch.empty_like(into)
        if r % 2:
            dist.send(parts[(r + s) % n], (r - 1) % n)
        dist.recv(came, (r + 1) % n)
        if r % 2 == 0:
            dist.send(parts[(r + s) % n], (r - 1) % n)
        into.copy_(into + came if s < n - 1 else came)


@right("ring-all-reduce")
def right_rank_zero_receives_first(buffer):
    n, r = dist.get_world_size(), dist.get_rank()
    edges = [len(buffer) * i // n for i in range(n + 1)]
    parts = [buffer[a:b] for a, b in itertools.pairwise(edges)]
    for s in range(2 * (n - 1)):
        out, into = parts[(r + 2 + s) % n].clone(), parts[(r + 3 + s) % n]
        came = torch.zeros_like(into)
        if r == 0:
            dist.recv(came, 1)
        dist.send(out, (r - 1) % n)
        if r:
            dist.recv(came, (r + 1) % n)
        into.copy_(into + came if s < n - 1 else came)


# 07.3 data parallel with accumulation


def _count(micro_batches):
    return torch.tensor(float(sum((targets != -100).sum() for _, targets in micro_batches)))


def _loss_sum(model, tokens, targets):
    logits = model(tokens)
    return torch.nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")


def _update(model, optimizer, micro_batches, *, count=None, op="sum", sync="end", keep=True, zero=True, own_loss=False):
    """A step with one thing changed."""
    total = _count(micro_batches)
    if count is None:
        dist.all_reduce(total)
    else:
        total = torch.tensor(float(count))
    loss_sum = torch.zeros(1, dtype=torch.float64)
    for tokens, targets in micro_batches:
        loss = _loss_sum(model, tokens, targets) / total
        if not keep:
            optimizer.zero_grad()
        loss.backward()
        loss_sum += loss.detach()
        if sync == "every":
            _reduce(model, op)
    if sync == "end":
        _reduce(model, op)
    optimizer.step()
    if zero:
        optimizer.zero_grad()
    if not own_loss:
        dist.all_reduce(loss_sum)
    return loss_sum.item()


def _reduce(model, op="sum"):
    for p in model.parameters():
        dist.all_reduce(p.grad)
        if op == "mean":
            p.grad /= dist.get_world_size()


@wrong("data-parallel", "mean-of-ranks", says="With equal counts you are right")
def wrong_mean_of_ranks(model, optimizer, micro_batches):
    own = _update(model, optimizer, micro_batches, count=max(_count(micro_batches), 1), op="mean", own_loss=True)
    return _mean_over_ranks(own)


def _mean_over_ranks(value):
    mean = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(mean)
    return mean / dist.get_world_size()


@wrong("data-parallel", "mean-of-means-is-fine")
def wrong_mean_of_means(model, optimizer, micro_batches):
    logged = 0.0
    for tokens, targets in micro_batches:
        loss = _loss_sum(model, tokens, targets) / max((targets >= 0).sum(), 1) / len(micro_batches)
        loss.backward()
        logged += loss.item()
    _reduce(model, "mean")
    optimizer.step()
    optimizer.zero_grad()
    return _mean_over_ranks(logged)


@wrong("data-parallel", "adds-up-means")
def wrong_sum_of_ranks(model, optimizer, micro_batches):
    return _update(model, optimizer, micro_batches, count=max(_count(micro_batches), 1))


@wrong("data-parallel", "divides-twice")
def wrong_global_count_and_mean(model, optimizer, micro_batches):
    return _update(model, optimizer, micro_batches, op="mean")


@wrong("data-parallel", "sums-need-no-divisor")
def wrong_no_divisor(model, optimizer, micro_batches):
    return _update(model, optimizer, micro_batches, count=1)


@wrong("data-parallel", "padding-counts")
def wrong_counts_positions(model, optimizer, micro_batches):
    slots = torch.tensor(sum(targets.numel() for _, targets in micro_batches))
    dist.all_reduce(slots)
    return _update(model, optimizer, micro_batches, count=slots)


@wrong("data-parallel", "never-synchronises")
def wrong_own_gradients(model, optimizer, micro_batches):
    return _update(model, optimizer, micro_batches, sync="never")


@wrong("data-parallel", "reduces-the-running-sum")
def wrong_reduces_each_time(model, optimizer, micro_batches):
    return _update(model, optimizer, micro_batches, sync="every")


@wrong("data-parallel", "keeps-the-last-micro-batch")
def wrong_clears_between(model, optimizer, micro_batches):
    return _update(model, optimizer, micro_batches, keep=False)


@wrong("data-parallel", "old-gradients-stay")
def wrong_never_clears(model, optimizer, micro_batches):
    return _update(model, optimizer, micro_batches, zero=False)


@wrong("data-parallel", "logs-its-own-rank")
def wrong_own_loss(model, optimizer, micro_batches):
    return _update(model, optimizer, micro_batches, own_loss=True)


@wrong("data-parallel", "one-micro-batch")
def wrong_tensor_hook(model, optimizer, micro_batches):
    total = _count(micro_batches)
    dist.all_reduce(total)
    last = False
    hooks = [p.register_hook(lambda g: dist.all_reduce(g) or g if last else g) for p in model.parameters()]
    for i, (tokens, targets) in enumerate(micro_batches):
        last = i == len(micro_batches) - 1
        (_loss_sum(model, tokens, targets) / total).backward()
    for hook in hooks:
        hook.remove()
    optimizer.step()
    optimizer.zero_grad()
    return 0.0


@wrong("data-parallel", "reduces-the-weights")
def wrong_parameter_hook(model, optimizer, micro_batches):
    total = _count(micro_batches)
    dist.all_reduce(total)
    for tokens, targets in micro_batches:
        (_loss_sum(model, tokens, targets) / total).backward()
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()
    optimizer.step()
    optimizer.zero_grad()
    return 0.0


@wrong("data-parallel", "reduces-the-weights")
def wrong_averages_moved_weights(model, optimizer, micro_batches):
    total = _count(micro_batches)
    dist.all_reduce(total)
    for tokens, targets in micro_batches:
        (_loss_sum(model, tokens, targets) / total).backward()
    optimizer.step()
    optimizer.zero_grad()
    for p in model.parameters():
        dist.all_reduce(p.data)
        p.data /= dist.get_world_size()
    return 0.0


@wrong("data-parallel", "synchronises-every-micro-batch")
def wrong_correct_but_each_time(model, optimizer, micro_batches):
    total = _count(micro_batches)
    dist.all_reduce(total)
    loss_sum = torch.zeros(1, dtype=torch.float64)
    grads = [torch.zeros_like(p) for p in model.parameters()]
    for tokens, targets in micro_batches:
        loss = _loss_sum(model, tokens, targets) / total
        loss_sum += loss.detach()
        for g, new in zip(grads, torch.autograd.grad(loss, list(model.parameters())), strict=True):
            dist.all_reduce(new)
            g += new
    for p, g in zip(model.parameters(), grads, strict=True):
        p.grad = g
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(loss_sum)
    return float(loss_sum)


@wrong("data-parallel", "an-empty-mean-is-zero")
def wrong_nan(model, optimizer, micro_batches):
    total = _count(micro_batches)
    every = total.clone()
    dist.all_reduce(every)
    loss_sum = 0.0
    for tokens, targets in micro_batches:
        n = (targets >= 0).sum()
        loss = _loss_sum(model, tokens, targets) / n * (n / every)
        loss.backward()
        loss_sum += loss.item()
    _reduce(model)
    optimizer.step()
    optimizer.zero_grad()
    back = torch.tensor(loss_sum, dtype=torch.float64)
    dist.all_reduce(back)
    return back


@wrong("data-parallel", "joins-the-micro-batches")
def wrong_joins(model, optimizer, micro_batches):
    tokens, targets = (torch.cat(parts) for parts in zip(*micro_batches, strict=True))
    return _update(model, optimizer, [(tokens, targets)])


@wrong("data-parallel", "ranks-need-not-agree", says="all_reduce")
def wrong_skips_empty_micro_batches(model, optimizer, micro_batches):
    if not any((targets >= 0).any() for _, targets in micro_batches):
        return 0.0
    return _update(model, optimizer, micro_batches)


@wrong("data-parallel", says="write it yourself")
def wrong_uses_ddp(model, optimizer, micro_batches):
    ddp = torch.nn.parallel.DistributedDataParallel(model)
    return _update(ddp, optimizer, micro_batches, sync="never")


@wrong("data-parallel", says="nothing came back")
def wrong_returns_nothing(model, optimizer, micro_batches):
    _update(model, optimizer, micro_batches)


def _accumulate(model, micro_batches):
    """Everything before the gradients' reduction: the loss's sum of this rank, divided by the global count."""
    total = _count(micro_batches)
    dist.all_reduce(total)
    logged = torch.zeros(1, dtype=torch.float64)
    for tokens, targets in micro_batches:
        loss = _loss_sum(model, tokens, targets) / total
        loss.backward()
        logged += loss.detach()
    return logged


def _finish(optimizer, logged):
    optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(logged)
    return logged


@wrong("data-parallel", "async-is-done")
def wrong_waits_for_the_last_handle(model, optimizer, micro_batches):
    logged = _accumulate(model, micro_batches)
    for p in model.parameters():
        work = dist.all_reduce(p.grad, async_op=True)
    work.wait()
    return _finish(optimizer, logged)


@wrong("data-parallel", "async-is-done", says="async_op=True")
def wrong_waits_for_none(model, optimizer, micro_batches):
    logged = _accumulate(model, micro_batches)
    works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
    return _finish(optimizer, logged) if works else None


@wrong("data-parallel", says="did not use the sums")
def wrong_waits_after_the_step(model, optimizer, micro_batches):
    logged = _accumulate(model, micro_batches)
    works = [dist.all_reduce(p.grad, async_op=True) for p in model.parameters()]
    optimizer.step()
    for work in works:
        work.wait()
    optimizer.zero_grad()
    dist.all_reduce(logged)
    return logged


@wrong("data-parallel", says="did not use the sums")
def wrong_sums_a_clone(model, optimizer, micro_batches):
    logged = _accumulate(model, micro_batches)
    for p in model.parameters():
        dist.all_reduce(p.grad.clone())
    return _finish(optimizer, logged)


@wrong("data-parallel", says="did not use the sums")
def wrong_sums_after_the_step(model, optimizer, micro_batches):
    logged = _accumulate(model, micro_batches)
    optimizer.step()
    _reduce(model)
    optimizer.zero_grad()
    dist.all_reduce(logged)
    return logged


@wrong("data-parallel", "ranks-need-not-agree", says="rank 1 calls all_reduce of 1 number")
def wrong_only_ranks_with_tokens(model, optimizer, micro_batches):
    total = _count(micro_batches)
    mine = float(total)
    dist.all_reduce(total)
    logged = torch.zeros(1, dtype=torch.float64)
    if mine:
        for tokens, targets in micro_batches:
            loss = _loss_sum(model, tokens, targets) / total
            loss.backward()
            logged += loss.detach()
        _reduce(model)
    return _finish(optimizer, logged)


@wrong("data-parallel", "ranks-need-not-agree", says="in update 2")
def wrong_returns_without_tokens(model, optimizer, micro_batches):
    total = _count(micro_batches)
    mine = float(total)
    dist.all_reduce(total)
    if mine == 0:
        return 0.0
    logged = torch.zeros(1, dtype=torch.float64)
    for tokens, targets in micro_batches:
        loss = _loss_sum(model, tokens, targets) / total
        loss.backward()
        logged += loss.detach()
    _reduce(model)
    return _finish(optimizer, logged)


@wrong("data-parallel", says="Does your loop end?")
def wrong_turns_for_ever_too(model, optimizer, micro_batches):
    while len(micro_batches):
        pass


@wrong("data-parallel", says="changed what it was given")
def wrong_takes_the_micro_batches_away(model, optimizer, micro_batches):
    loss = _finish(optimizer, _finish_gradients(model, micro_batches))
    micro_batches.clear()
    return loss


def _finish_gradients(model, micro_batches):
    logged = _accumulate(model, micro_batches)
    _reduce(model)
    return logged


@wrong("data-parallel", says="changed what it was given")
def wrong_masks_in_place(model, optimizer, micro_batches):
    loss = _finish(optimizer, _finish_gradients(model, micro_batches))
    for _, targets in micro_batches:
        targets[targets == -100] = -1
    return loss


@wrong("data-parallel", says="What keeps them equal without that?")
def wrong_sends_the_weights_too(model, optimizer, micro_batches):
    loss = _finish(optimizer, _finish_gradients(model, micro_batches))
    for p in model.parameters():
        dist.broadcast(p.data, 0)
    return loss


@wrong("data-parallel", says="sums, and sends least")
def wrong_gathers_all(model, optimizer, micro_batches):
    logged = _accumulate(model, micro_batches)
    for p in model.parameters():
        parts = [torch.empty_like(p.grad) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, p.grad)
        p.grad = sum(parts)
    return _finish(optimizer, logged)


@wrong("data-parallel", "mean-of-means-is-fine", says="a token or a micro-batch")
def wrong_count_of_each_micro_batch(model, optimizer, micro_batches):
    counts = torch.stack([(targets != -100).sum() for _, targets in micro_batches])
    dist.all_reduce(counts)
    logged = torch.zeros(1, dtype=torch.float64)
    for (tokens, targets), count in zip(micro_batches, counts, strict=True):
        loss = _loss_sum(model, tokens, targets) / count / len(micro_batches)
        loss.backward()
        logged += loss.detach()
    _reduce(model)
    return _finish(optimizer, logged)


@wrong("data-parallel", says="the weights of rank 1 have not moved")
def wrong_rank_zero_steps(model, optimizer, micro_batches):
    logged = _finish_gradients(model, micro_batches)
    if dist.get_rank() == 0:
        optimizer.step()
    optimizer.zero_grad()
    dist.all_reduce(logged)
    return logged


@wrong("data-parallel", says="a Tensor of shape (2,) came back")
def wrong_returns_two_numbers(model, optimizer, micro_batches):
    return torch.cat([_finish(optimizer, _finish_gradients(model, micro_batches))] * 2)


@right("data-parallel")
def right_tensor_of_one_number(model, optimizer, micro_batches):
    return _finish(optimizer, _finish_gradients(model, micro_batches))[None]


@right("data-parallel")
def right_reduce_and_broadcast(model, optimizer, micro_batches):
    logged = _accumulate(model, micro_batches)
    dist.barrier()
    for p in model.parameters():
        dist.reduce(p.grad, 0, async_op=True).wait()
        dist.broadcast(p.grad, 0)
    return _finish(optimizer, logged)


@right("data-parallel")
def right_one_long_gradient(model, optimizer, micro_batches):
    optimizer.zero_grad()
    mine = sum(int((targets >= 0).sum()) for _, targets in micro_batches)
    loss_sum = 0.0
    for tokens, targets in micro_batches:
        loss = _loss_sum(model, tokens, targets)
        loss.backward()
        loss_sum += loss.item()
    long = torch.cat([p.grad.flatten() for p in model.parameters()] + [torch.tensor([loss_sum, mine]).double()])
    dist.all_reduce(long)
    at = 0
    for p in model.parameters():
        p.grad = (long[at : at + p.numel()] / long[-1]).view_as(p)
        at += p.numel()
    optimizer.step()
    model.zero_grad()
    return long[-2] / long[-1]


@right("data-parallel")
def right_hook_in_the_last_backward(model, optimizer, micro_batches):
    n, pending, last = _count(micro_batches), [], False
    dist.all_reduce(n)

    def hook(p):
        if last:
            pending.append(dist.all_reduce(p.grad, async_op=True))

    hooks = [p.register_post_accumulate_grad_hook(hook) for p in model.parameters()]
    loss_sum = torch.zeros((), dtype=torch.float64)
    for i, (tokens, targets) in enumerate(micro_batches):
        last = i + 1 == len(micro_batches)
        loss = -model(tokens).log_softmax(-1).flatten(0, 1)[range(targets.numel()), targets.flatten().clamp(min=0)]
        loss = (loss * (targets.flatten() != -100)).sum() / n
        loss.backward()
        loss_sum += loss.detach()
    for work in pending:
        work.wait()
    for handle in hooks:
        handle.remove()
    optimizer.step()
    for p in model.parameters():
        p.grad = None
    dist.all_reduce(loss_sum)
    return loss_sum.item()


# 07.4 count the traffic


def _traffic(variant, elements, evidence=None):
    return {"variant": variant, "elements": elements, "evidence": evidence}


_run = {variant: traffic(variant) for variant in range(5)}
_ring_of = {v: 2 * (run["ranks"] - 1) / run["ranks"] * run["parameters"] for v, run in _run.items()}

wrong_once_through = wrong("count-the-traffic", "all-reduce-passes-once", answer=_traffic(0, _ring_of[0] / 2))
wrong_whole_twice = wrong("count-the-traffic", "whole-buffers", answer=_traffic(0, 2 * _run[0]["parameters"]))
wrong_one_buffer = wrong("count-the-traffic", "one-buffer", answer=_traffic(0, _run[0]["parameters"]))
wrong_to_everyone = wrong(
    "count-the-traffic", "sends-to-everyone", answer=_traffic(0, (_run[0]["ranks"] - 1) * _run[0]["parameters"])
)
wrong_in_total = wrong("count-the-traffic", "all-ranks-together", answer=_traffic(0, _run[0]["ranks"] * _ring_of[0]))
wrong_each_backward = wrong(
    "count-the-traffic", "every-backward-sends", answer=_traffic(0, _run[0]["micro_batches"] * _ring_of[0])
)
wrong_late_flag = wrong("count-the-traffic", "no-sync-around-backward", answer=_traffic(1, _ring_of[1]))
wrong_window_of_two = wrong("count-the-traffic", "an-update-sends-once", answer=_traffic(2, _ring_of[2]))
wrong_plain_loop = wrong("count-the-traffic", "an-update-sends-once", answer=_traffic(3, _ring_of[3]))
wrong_one_less = wrong(
    "count-the-traffic", says="one by one", answer=_traffic(0, (_run[0]["micro_batches"] - 1) * _ring_of[0])
)
wrong_one_step = wrong(
    "count-the-traffic", says="one step", answer=_traffic(0, _run[0]["parameters"] / _run[0]["ranks"])
)
wrong_width = wrong(
    "count-the-traffic", "a-number-has-four-bytes", answer=_traffic(0, _ring_of[0], _ring_of[0] * 4 / 1e9)
)
wrong_width_of_fp32 = wrong(
    "count-the-traffic",
    "a-number-has-four-bytes",
    answer=_traffic(2, _run[2]["elements"], _run[2]["elements"] * 2 / 1e9),
)
wrong_gib = wrong("count-the-traffic", says="GiB", answer=_traffic(0, _ring_of[0], _ring_of[0] * 2 / 2**30))
wrong_in_bytes = wrong("count-the-traffic", says="in GB", answer=_traffic(0, _ring_of[0], _ring_of[0] * 2))
wrong_three_digits = wrong(
    "count-the-traffic", says="nearly right: to four", answer=_traffic(0, _ring_of[0] * 1.003, 1)
)
wrong_evidence_digits = wrong(
    "count-the-traffic", says="`evidence` nearly", answer=_traffic(0, _ring_of[0], _run[0]["evidence"] * 1.002)
)
wrong_half_the_elements = wrong(
    "count-the-traffic", says="`evidence` is right", answer=_traffic(0, _ring_of[0] / 2, _run[0]["evidence"])
)
wrong_swapped = wrong("count-the-traffic", says="swapped?", answer=_traffic(0, _run[0]["evidence"], _ring_of[0]))
wrong_text_for_elements = wrong("count-the-traffic", says="without quotes", answer=_traffic(0, "2.856e9", 5.711))
wrong_no_elements = wrong("count-the-traffic", says="still empty", answer=_traffic(0, None, 5.711))
wrong_key = wrong("count-the-traffic", says="the answer has the keys", answer={"variant": 0, "elements": 1, "gb": 2})

right_rounded = right(
    "count-the-traffic", answer=_traffic(0, float(f"{_ring_of[0]:.4g}"), float(f"{_ring_of[0] * 2 / 1e9:.4g}"))
)
right_with_formula = right(
    "count-the-traffic",
    answer=_traffic(
        1, _run[1]["micro_batches"] * _ring_of[1], np.float64(_run[1]["micro_batches"] * _ring_of[1] / 5e8)
    ),
)
right_half_of_them = right(
    "count-the-traffic",
    answer=_traffic(2, torch.tensor(_run[2]["micro_batches"] / 2 * _ring_of[2]), _run[2]["evidence"]),
)
right_every_time = right(
    "count-the-traffic", answer=_traffic(3, _run[3]["micro_batches"] * _ring_of[3], _run[3]["evidence"])
)

# 07.5 find the silent bug

TOLERANCE = 1e-5


def _close(a, b, tolerance=TOLERANCE):
    return torch.linalg.vector_norm(a - b) <= tolerance * torch.linalg.vector_norm(b)


def _diagnose(ranks, *, steps=None, among=None, close=_close, start=True, moved=True, whose=1.0, swap=False):
    watched = ranks if among is None else ranks[:among]
    if start and len({rank["before"][0] for rank in watched}) > 1:
        return "apart"
    for step in range(len(ranks[0]["loss"])) if steps is None else steps:
        own = [sum(rank["own"][step]) for rank in ranks]
        first = sum(rank["own"][step][0] for rank in ranks)
        for rank, mine in zip(watched, own, strict=False):
            used = rank["used"][step]
            if close(used, sum(own)):
                continue
            if close(used, sum(own) / len(ranks)):
                return "averaged"
            if close(used, mine):
                return "weights" if moved and any(one["before"] != one["after"] for one in ranks) else "never"
            found = "first" if close(used, mine - rank["own"][step][0] + first) else "last"
            return {"first": "last", "last": "first"}[found] if swap else found
    return "healthy"


@wrong("silent-bug", "a-falling-loss-is-healthy")
def wrong_looks_at_the_loss(ranks):
    return "healthy" if all(rank["loss"][-1] < 10 for rank in ranks) else "never"


@wrong("silent-bug", "equal-checksums-are-healthy")
def wrong_trusts_checksums(ranks):
    return "healthy" if all(rank["before"] == ranks[0]["before"] for rank in ranks) else _diagnose(ranks)


@wrong("silent-bug", "the-first-step-tells")
def wrong_first_step(ranks):
    return _diagnose(ranks, steps=[0]) if len({rank["before"][1] for rank in ranks}) == 1 else _diagnose(ranks)


@wrong("silent-bug", "two-ranks-tell")
def wrong_two_ranks(ranks):
    return _diagnose(ranks, among=2)


@wrong("silent-bug", "healthy-ranks-are-equal-in-all")
def wrong_to_the_bit(ranks):
    return _diagnose(ranks, close=torch.equal)


@wrong("silent-bug", "healthy-ranks-are-equal-in-all")
def wrong_losses_must_agree(ranks):
    return "never" if len({rank["loss"][0] for rank in ranks}) > 1 else _diagnose(ranks)


@wrong("silent-bug", "different-weights-started-so")
def wrong_any_difference_is_apart(ranks):
    apart = any(len({rank["before"][step] for rank in ranks}) > 1 for step in range(len(ranks[0]["loss"])))
    return "apart" if apart else _diagnose(ranks)


@wrong("silent-bug", "own-gradients-tell-all")
def wrong_never_looks_at_after(ranks):
    return _diagnose(ranks, moved=False)


@wrong("silent-bug", "weights-changed-so-they-were-sent")
def wrong_weights_move_over_a_step(ranks):
    found = _diagnose(ranks)
    return "weights" if found == "never" and ranks[0]["before"][0] != ranks[0]["before"][1] else found


@wrong("silent-bug", "unequal-ranks-sent-nothing")
def wrong_different_is_never(ranks):
    found = _diagnose(ranks)
    return "never" if found in ("first", "last") else found


@wrong("silent-bug", "which-micro-batch")
def wrong_the_other_one(ranks):
    return _diagnose(ranks, swap=True)


@wrong("silent-bug", says="does not fit")
def wrong_averaged_for_first(ranks):
    found = _diagnose(ranks)
    return "averaged" if found == "first" else found


@wrong("silent-bug", "own-gradients-tell-all")
def wrong_weights_in_the_first_step_alone(ranks):
    found = _diagnose(ranks)
    return "never" if found == "weights" and ranks[0]["before"][0] == ranks[0]["after"][0] else found


@wrong("silent-bug", "right-gradients-are-enough")
def wrong_no_start(ranks):
    return _diagnose(ranks, start=False)


@wrong("silent-bug", says="seven words")
def wrong_a_word_of_its_own(ranks):
    return "fine" if _diagnose(ranks) == "healthy" else "broken"


@wrong("silent-bug", says="a bool came back")
def wrong_a_bool(ranks):
    return _diagnose(ranks) == "healthy"


@wrong("silent-bug", says="of its length away from the whole sum. Which of your predictions comes nearest")
def wrong_knows_three_words(ranks):
    found = _diagnose(ranks)
    return found if found in ("apart", "averaged", "never") else "healthy"


@wrong("silent-bug", says="of its length away from the whole sum. Which of your predictions comes nearest")
def wrong_divides_by_two(ranks):
    found = _diagnose(ranks)
    return "healthy" if found == "averaged" and len(ranks) != 2 else found


@wrong("silent-bug", says="does not occur with one micro-batch")
def wrong_first_before_healthy(ranks):
    steps = range(len(ranks[0]["loss"]))
    sums = [sum(rank["own"][step][0] for rank in ranks) for step in steps]
    alone = all(
        _close(rank["used"][step], sum(rank["own"][step]) - rank["own"][step][0] + sums[step])
        for rank in ranks
        for step in steps
    )
    return "first" if alone and _diagnose(ranks) != "apart" else _diagnose(ranks)


@right("silent-bug")
def right_by_prediction(ranks):
    n, m = len(ranks), len(ranks[0]["own"][0])
    if any(rank["before"][0] != ranks[-1]["before"][0] for rank in ranks):
        return "apart"
    for step in range(len(ranks[0]["used"])):
        own = torch.stack([torch.stack(rank["own"][step]) for rank in ranks]).double()  # (rank, micro-batch, P)
        used = torch.stack([rank["used"][step] for rank in ranks]).double()
        whole, mine = own.sum((0, 1)).expand(n, -1), own.sum(1)
        if torch.allclose(used, whole, rtol=1e-4, atol=1e-6):
            continue
        moved = any(
            before != after for rank in ranks for before, after in zip(rank["before"], rank["after"], strict=True)
        )
        predictions = {"averaged": whole / n, "weights" if moved else "never": mine}
        if m > 1:
            predictions["first"] = mine + own[:, 0].sum(0) - own[:, 0]
            predictions["last"] = mine + own[:, -1].sum(0) - own[:, -1]
        return min(predictions, key=lambda word: float((predictions[word] - used).norm()))
    return "healthy"


# 07.6 one device is not enough


def _devices(variant, number, choice, evidence):
    return {"variant": variant, "devices": number, "choice": choice, "evidence": evidence}


wrong_floor = wrong("one-device-is-not-enough", "rounds-down", answer=_devices(0, 56, "B", 85.4))
wrong_peak = wrong("one-device-is-not-enough", "runs-at-its-peak", answer=_devices(0, 23, "C", 1))
wrong_2nd = wrong("one-device-is-not-enough", "forward-only", answer=_devices(0, 19, "A", 85.4))
wrong_4nd = wrong("one-device-is-not-enough", "backward-costs-one-forward", answer=_devices(0, 38, "A", 85.4))
wrong_by_memory = wrong("one-device-is-not-enough", "enough-memory-is-enough", answer=_devices(1, 3, "C", 203.8))
wrong_fraction = wrong("one-device-is-not-enough", says="a whole number", answer=_devices(0, 56.49, "B", 85.4))
wrong_bytes = wrong("one-device-is-not-enough", says="in GB, 1e9 bytes", answer=_devices(0, 57, "B", 85.4e9))
wrong_gibibytes = wrong("one-device-is-not-enough", says="GiB", answer=_devices(0, 57, "B", 85.4e9 / 2**30))
wrong_buckets = wrong("one-device-is-not-enough", says="buckets", answer=_devices(0, 57, "C", 97.0))
wrong_half_buckets = wrong("one-device-is-not-enough", says="buckets", answer=_devices(0, 57, "C", 91.2))
wrong_shared_state = wrong("one-device-is-not-enough", "replicas-share", answer=_devices(1, 13, "A", 29.52))
wrong_shared_all = wrong("one-device-is-not-enough", "all-is-shared", answer=_devices(1, 13, "A", 15.68))
wrong_weights = wrong("one-device-is-not-enough", "weights-are-all", answer=_devices(1, 13, "C", 38.6))
wrong_no_masters = wrong("one-device-is-not-enough", "no-master-weights", answer=_devices(1, 13, "C", 156.6))
wrong_state_only = wrong("one-device-is-not-enough", "activations-left-out", answer=_devices(0, 57, "A", 46.4))
wrong_activations = wrong("one-device-is-not-enough", "state-left-out", answer=_devices(0, 57, "A", 39))
wrong_grows = wrong("one-device-is-not-enough", "more-devices-hold-more", answer=_devices(1, 13, "A", 203.8))
wrong_fits_the_state = wrong("one-device-is-not-enough", "state-is-all", answer=_devices(0, 57, "A", 85.4))
wrong_activations_alone = wrong(
    "one-device-is-not-enough", "only-activations-count", answer=_devices(1, 13, "B", 203.8)
)
wrong_never_fits = wrong("one-device-is-not-enough", "large-models-never-fit", answer=_devices(2, 25, "B", 26.6))
wrong_letter = wrong("one-device-is-not-enough", says="one letter", answer=_devices(0, 57, "no", 85.4))
wrong_missing = wrong("one-device-is-not-enough", says="still empty", answer=_devices(0, 57, "B", None))

right_letter = right("one-device-is-not-enough", answer=_devices(0, 57, "b", 85.4))
right_variant = right("one-device-is-not-enough", answer=_devices(2, 25.0, "A", np.float64(26.6)))
right_last = right("one-device-is-not-enough", answer=_devices(1, torch.tensor(13), " c ", 203.8))
