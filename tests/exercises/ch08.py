"""Stated answers of chapter 8: each `wrong_*` must fail with its misconception, each `right_*` must pass."""

import importlib
import math
import sys
from fractions import Fraction

import torch
import torch.distributed as dist
from mutants import right, wrong

from course_lib.checks.ch08_floor import floor
from course_lib.checks.ch08_traffic import traffic

# 08.1 bytes on each rank


def _held(parameters, ranks, stage, weights=3, gradients=2, master=1, moments=1):
    firsts = ((2, weights), (2, gradients), (4, master), (8, moments))
    return sum(size * parameters / (ranks if stage >= first else 1) for size, first in firsts) / 1e9


def _bytes(misconception=None, says="", **changes):
    answer = lambda parameters, ranks, stage: _held(parameters, ranks, stage, **changes)
    return wrong("bytes-per-rank", misconception, says=says, answer=answer)


wrong_weights_at_stage_1 = _bytes("two-at-once", weights=1)
wrong_gradients_at_stage_1 = _bytes("two-at-once", gradients=1)
wrong_all_at_stage_1 = _bytes("shards-everything", weights=1, gradients=1)
wrong_whole_master = _bytes("eight-bytes-whole", master=4)
wrong_whole_gradients = _bytes("gradients-stay-whole", gradients=4)
wrong_whole_weights = _bytes("weights-stay-whole", weights=4)


wrong_weights_first = _bytes(says="2 bytes a parameter are in shards", weights=1, master=3, moments=3)


@wrong("bytes-per-rank", "eight-bytes-whole")
def wrong_ledger_in_fp32(parameters, ranks, stage):
    cuts = ((4, 3), (4, 2), (8, 1))
    return sum(size * parameters / (ranks if stage >= first else 1) for size, first in cuts) / 1e9


@wrong("bytes-per-rank", says="only the gradients are in shards")
def wrong_each_stage_alone(parameters, ranks, stage):
    cuts = ((2, 3), (2, 2), (12, 1))
    return sum(size * parameters / (ranks if stage == only else 1) for size, only in cuts) / 1e9


@wrong("bytes-per-rank", says="Stage 0 is plain data parallel: what does each rank hold")
def wrong_shards_at_stage_0_too(parameters, ranks, stage):
    return 16 * parameters / ranks / 1e9


@wrong("bytes-per-rank", says="reaches what this exercise may not call")
def wrong_by_a_text(parameters, ranks, stage):
    module = importlib.import_module("course_lib" + ".planning.communication")
    return sum(module.shard_bytes(f"zero{stage}" if stage else "ddp", parameters, ranks).values()) / 1e9


@wrong("bytes-per-rank", says="reaches what this exercise may not call")
def wrong_by_the_loaded_modules(parameters, ranks, stage):
    module = sys.modules["course_lib.planning.communication"]
    return sum(module.shard_bytes(f"zero{stage}" if stage else "ddp", parameters, ranks).values()) / 1e9


@wrong("bytes-per-rank", "forgets-the-master")
def wrong_no_master(parameters, ranks, stage):
    return _held(parameters, ranks, stage) - 4 * parameters / (ranks if stage else 1) / 1e9


@wrong("bytes-per-rank", "gibibytes")
def wrong_binary(parameters, ranks, stage):
    return _held(parameters, ranks, stage) * 1e9 / 2**30


@wrong("bytes-per-rank", "stages-start-at-one")
def wrong_one_stage_off(parameters, ranks, stage):
    return _held(parameters, ranks, stage + 1)


@wrong("bytes-per-rank", says="those are bytes")
def wrong_in_bytes(parameters, ranks, stage):
    return _held(parameters, ranks, stage) * 1e9


@wrong("bytes-per-rank", says="hold together")
def wrong_of_all_ranks(parameters, ranks, stage):
    return _held(parameters, ranks, stage) * ranks


@wrong("bytes-per-rank", says="nearly right")
def wrong_as_the_paper_prints_it(parameters, ranks, stage):
    return round(_held(parameters, ranks, stage), 1 if stage != 1 else 2)


@wrong("bytes-per-rank", says="nothing came back")
def wrong_forgets_the_return(parameters, ranks, stage):
    _held(parameters, ranks, stage)


@right("bytes-per-rank")
def right_exactly(parameters, ranks, stage):
    whole = Fraction([16, 4, 2, 0][stage] * parameters)
    return (whole + Fraction([0, 12, 14, 16][stage] * parameters, ranks)) / 10**9


# 08.2 a ZeRO-1 step


class _Zero:
    """The reference, in parts that a wrong answer replaces."""

    def __init__(self, parameters, make_optimizer):
        self.parameters, self.make_optimizer = parameters, make_optimizer
        self.rank, self.ranks = dist.get_rank(), dist.get_world_size()
        self.size = sum(p.numel() for p in parameters)
        self.share = -(-self.size // self.ranks)
        self.shard = self.part(self.flat(parameters)).clone()
        self.optimizer = make_optimizer([self.shard])

    def part(self, vector):
        return vector[self.rank * self.share : (self.rank + 1) * self.share]

    def flat(self, tensors):
        vector = torch.zeros(self.share * self.ranks)
        vector[: self.size] = torch.cat([t.reshape(-1) for t in tensors])
        return vector

    def reduce(self, gradients):
        mine = torch.empty(self.share)
        dist.reduce_scatter_single(mine, self.flat(gradients))
        return mine

    def gather(self):
        whole = torch.empty(self.share * self.ranks)
        dist.all_gather_single(whole, self.shard)
        return whole

    def write(self, whole):
        parts = whole[: self.size].split([p.numel() for p in self.parameters])
        for p, part in zip(self.parameters, parts, strict=True):
            p.copy_(part.view_as(p))

    def step(self, gradients):
        self.shard.grad = self.reduce(gradients)
        self.optimizer.step()
        self.write(self.gather())


@wrong("zero-1-step", "averages-the-sum")
class wrong_averages(_Zero):
    def reduce(self, gradients):
        return super().reduce(gradients) / self.ranks


@wrong("zero-1-step", "only-my-gradient")
class wrong_own_gradient(_Zero):
    def reduce(self, gradients):
        return self.part(self.flat(gradients)).clone()


@wrong("zero-1-step", "forgets-the-all-gather")
class wrong_no_gather(_Zero):
    def gather(self):
        whole = self.flat(self.parameters)
        self.part(whole).copy_(self.shard)
        return whole


@wrong("zero-1-step", "starts-anew-every-step")
class wrong_new_optimizer(_Zero):
    def step(self, gradients):
        self.optimizer = self.make_optimizer([self.shard])
        super().step(gradients)


@wrong("zero-1-step", "the-ranks-divide-the-size")
class wrong_drops_the_rest(_Zero):
    def __init__(self, parameters, make_optimizer):
        super().__init__(parameters, make_optimizer)
        self.share = self.size // self.ranks
        self.shard = self.part(self.flat(parameters)).clone()
        self.optimizer = make_optimizer([self.shard])

    def flat(self, tensors):
        return torch.cat([t.reshape(-1) for t in tensors])[: self.share * self.ranks]

    def write(self, whole):
        everything = torch.cat([p.reshape(-1) for p in self.parameters])
        everything[: len(whole)] = whole
        super().write(everything)


@wrong("zero-1-step", "the-ranks-divide-the-size", says="parts of one size")
class wrong_parts_of_two_sizes(_Zero):
    def __init__(self, parameters, make_optimizer):
        super().__init__(parameters, make_optimizer)
        self.shard = self.part(self.flat(parameters)).clone()
        self.optimizer = make_optimizer([self.shard])

    def flat(self, tensors):
        return torch.cat([t.reshape(-1) for t in tensors])

    def part(self, vector):
        return vector.tensor_split(self.ranks)[self.rank]

    def reduce(self, gradients):
        mine = torch.empty_like(self.shard)
        dist.reduce_scatter_single(mine, self.flat(gradients))
        return mine


@wrong("zero-1-step", "gathers-too-early")
class wrong_gathers_before_the_update(_Zero):
    def step(self, gradients):
        self.shard.grad = self.reduce(gradients)
        whole = self.gather()
        self.optimizer.step()
        self.write(whole)


@wrong("zero-1-step", "the-ranks-divide-the-size", says="size 26 is less than the 27 numbers")
class wrong_size_rounded_down(_Zero):
    """With the notebook's `joined`, which refuses."""

    def flat(self, tensors):
        size = self.size // self.ranks * self.ranks
        if size < self.size:
            raise ValueError(f"size {size} is less than the {self.size} numbers")
        return super().flat(tensors)


@wrong("zero-1-step", "all-reduces-the-shards")
class wrong_all_reduces_the_shards(_Zero):
    def gather(self):
        whole = torch.zeros(self.share * self.ranks)
        self.part(whole).copy_(self.shard)
        dist.all_reduce(whole)
        return whole


@wrong("zero-1-step", says="Does your loop end", once=True)
class wrong_loop_without_end(_Zero):
    def step(self, gradients):
        done = 0
        while done < 1:
            done *= 2


@wrong("zero-1-step", "nobody-talks")
class wrong_does_nothing(_Zero):
    def step(self, gradients):
        pass


@wrong("zero-1-step", "works-on-a-copy", says="or nowhere")
class wrong_writes_nowhere(_Zero):
    def write(self, whole):
        pass


@wrong("zero-1-step", says="`make_optimizer` was not called")
class wrong_own_adamw(_Zero):
    def __init__(self, parameters, make_optimizer):
        super().__init__(parameters, lambda tensors: torch.optim.AdamW(tensors, lr=1e-3))


@wrong("zero-1-step", says="twice with the same gradient")
class wrong_updates_twice(_Zero):
    def step(self, gradients):
        self.shard.grad = self.reduce(gradients)
        self.optimizer.step()
        self.optimizer.step()
        self.write(self.gather())


@wrong("zero-1-step", "a-step-empties-grad")
class wrong_adds_to_the_gradient(_Zero):
    def reduce(self, gradients):
        before = 0 if self.shard.grad is None else self.shard.grad
        return before + super().reduce(gradients)


@wrong("zero-1-step", "all-gathers-gradients", says="or what twice")
class wrong_gathers_twice(_Zero):
    def step(self, gradients):
        super().step(gradients)
        self.write(self.gather())


@wrong("zero-1-step", says="what is that tensor's `.grad`")
class wrong_sum_not_handed_on(_Zero):
    def step(self, gradients):
        self.reduce(gradients)
        self.optimizer.step()
        self.write(self.gather())


@wrong("zero-1-step", "works-on-a-copy")
class wrong_new_tensors(_Zero):
    def write(self, whole):
        parts = whole[: self.size].split([p.numel() for p in self.parameters])
        self.parameters = [part.view_as(p) for p, part in zip(self.parameters, parts, strict=True)]


class _Whole:
    """Plain data parallel, with the state of everything."""

    def __init__(self, parameters, make_optimizer):
        self.parameters, self.optimizer = parameters, make_optimizer(parameters)

    def step(self, gradients):
        for p, g in zip(self.parameters, gradients, strict=True):
            dist.all_reduce(g)
            p.grad = g
        self.optimizer.step()


@wrong("zero-1-step", "all-reduces")
class wrong_data_parallel(_Whole):
    pass


@wrong("zero-1-step", "all-reduces")
class wrong_all_reduce_and_cut(_Zero):
    def reduce(self, gradients):
        whole = self.flat(gradients)
        dist.all_reduce(whole)
        return self.part(whole).clone()


@wrong("zero-1-step", "all-gathers-gradients")
class wrong_gathers_gradients(_Whole):
    def step(self, gradients):
        for p, g in zip(self.parameters, gradients, strict=True):
            everyone = [torch.empty_like(g) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, g)
            p.grad = sum(everyone)
        self.optimizer.step()


@wrong("zero-1-step", "all-gathers-gradients")
class wrong_gathers_the_sums(_Zero):
    """Reduce-scatters, gathers the sums, updates everything everywhere."""

    def __init__(self, parameters, make_optimizer):
        super().__init__(parameters, make_optimizer)
        self.shard = self.flat(parameters)
        self.optimizer = make_optimizer([self.shard])

    def step(self, gradients):
        mine = self.reduce(gradients)
        self.shard.grad = torch.empty(self.share * self.ranks)
        dist.all_gather_single(self.shard.grad, mine)
        self.optimizer.step()
        whole = torch.empty(self.share * self.ranks)
        dist.all_gather_single(whole, self.part(self.shard).clone())
        self.write(whole)


@wrong("zero-1-step", "keeps-the-full-state")
class wrong_full_state(_Zero):
    def __init__(self, parameters, make_optimizer):
        super().__init__(parameters, make_optimizer)
        self.whole = self.flat(parameters)
        self.optimizer = make_optimizer([self.whole])

    def step(self, gradients):
        self.whole.grad = torch.zeros_like(self.whole)
        self.part(self.whole.grad).copy_(self.reduce(gradients))
        self.optimizer.step()
        self.shard = self.part(self.whole).clone()
        self.whole.copy_(self.gather())
        self.write(self.whole)


@wrong("zero-1-step", "keeps-the-full-state", says="called more than once")
class wrong_state_beside(_Zero):
    def __init__(self, parameters, make_optimizer):
        super().__init__(parameters, make_optimizer)
        copies = [p.clone() for p in parameters]
        self.unused = make_optimizer(copies)
        for copy in copies:
            copy.grad = torch.zeros_like(copy)
        self.unused.step()


@wrong("zero-1-step", "nobody-talks")
class wrong_every_rank_alone(_Whole):
    def step(self, gradients):
        for p, g in zip(self.parameters, gradients, strict=True):
            p.grad = g
        self.optimizer.step()


@wrong("zero-1-step", "a-collective-is-for-some", says="rank 1: reduce_scatter of float32 (12,)", once=True)
class wrong_rank_0_gathers_first(_Zero):
    def reduce(self, gradients):
        if self.rank == 0:
            self.gather()
        return super().reduce(gradients)


@wrong("zero-1-step", "a-collective-is-for-some", once=True)
class wrong_rank_0_gathers(_Zero):
    def gather(self):
        return super().gather() if self.rank == 0 else self.flat(self.parameters)


@wrong("zero-1-step", says="ZeroDivisionError")
class wrong_fails_on_one_rank(_Zero):
    def reduce(self, gradients):
        return super().reduce(gradients) / (1 if self.rank else 0.0 // self.rank)


@wrong("zero-1-step", says="hand in the class itself")
def wrong_a_function(parameters, make_optimizer):
    return _Zero(parameters, make_optimizer)


@wrong("zero-1-step", says="write it yourself")
class wrong_calls_ours(_Zero):
    def step(self, gradients):
        from course_lib.parallel.zero import Flat

        Flat(self.parameters).scatter(self.flat(gradients))


@right("zero-1-step")
class right_in_parts(_Zero):
    pass


@right("zero-1-step")
class right_tensor_by_tensor:
    """A shard of every tensor, and the older names of the collectives."""

    def __init__(self, parameters, make_optimizer):
        self.parameters, self.rank, self.ranks = parameters, dist.get_rank(), dist.get_world_size()
        self.shards = [self.rows(p)[self.rank].clone() for p in parameters]
        self.optimizer = make_optimizer(self.shards)

    def rows(self, tensor):
        width = math.ceil(tensor.numel() / self.ranks)
        rows = torch.zeros(self.ranks, width)
        rows.view(-1)[: tensor.numel()] = tensor.flatten()
        return rows

    def step(self, gradients):
        for shard, gradient in zip(self.shards, gradients, strict=True):
            shard.grad = torch.empty_like(shard)
            dist.reduce_scatter(shard.grad, list(self.rows(gradient)))
        self.optimizer.step()
        for p, shard in zip(self.parameters, self.shards, strict=True):
            rows = [torch.empty_like(shard) for _ in range(self.ranks)]
            dist.all_gather(rows, shard)
            p[...] = torch.cat(rows)[: p.numel()].view(p.shape)


# 08.3 what FSDP adds in communication


def _form(variant, choice, evidence):
    return {"variant": variant, "choice": choice, "evidence": evidence}


def _gb(variant, numbers):
    """GB of `numbers(P, n)` bytes, for a variant's parameters and devices."""
    run = traffic(variant)
    return numbers(run["parameters"], run["ranks"]) / 1e9


def _added(variant, choice, numbers, misconception=None, says=""):
    answer = _form(variant, choice, _gb(variant, numbers))
    return wrong("added-traffic", misconception, says=says, answer=answer)


wrong_one_gather = _added(0, "B", lambda p, n: 4 * p * (n - 1) / n, "gathers-once")
wrong_no_share = _added(0, "B", lambda p, n: 6 * p, "everything-travels")
wrong_all_reduce = _added(0, "B", lambda p, n: 8 * p * (n - 1) / n, "all-reduces-too")
wrong_equal = wrong("added-traffic", "shards-cost-nothing", answer=_form(0, "A", None))
wrong_equal_and_once = _added(0, "A", lambda p, n: 4 * p * (n - 1) / n, "gathers-once")
wrong_elements = _added(0, "B", lambda p, n: 3 * p * (n - 1) / n, says="A BF16 number has two")
wrong_gib = _added(0, "B", lambda p, n: 6 * p * (n - 1) / n * 1e9 / 2**30, says="those are GiB".replace("t", "T", 1))
wrong_bytes = _added(0, "B", lambda p, n: 6e9 * p * (n - 1) / n, says="the evidence is in bytes")
wrong_bytes_and_letter = _added(0, "A", lambda p, n: 6e9 * p * (n - 1) / n, says="the evidence is in bytes")
wrong_half_more_anyway = wrong("added-traffic", "half-as-much-again-always", answer=_form(1, "B", None))
wrong_one_format_or_gather = _added(1, "A", lambda p, n: 6 * p * (n - 1) / n, says="Or: In which format")
wrong_one_micro_batch = _added(2, "C", lambda p, n: 6 * p * (n - 1) / n, "once-a-step")
wrong_one_micro_batch_too = _added(2, "B", lambda p, n: 6 * p * (n - 1) / n, "once-a-step")
wrong_reduces_each_time = _added(2, "C", lambda p, n: 4 * 6 * p * (n - 1) / n, "reduces-every-time")
wrong_one_ring = _added(3, "B", lambda p, n: 6 * p * (n - 1) / n, "nodes-are-one-ring", says="Among how many")
wrong_no_replicas = _added(3, "B", lambda p, n: 6 * p * 7 / 8, "replicas-cost-nothing")
wrong_gathers_again = _added(4, "B", lambda p, n: 10 * p * (n - 1) / n, "gathers-twice-always")
wrong_reduces_once = _added(5, "C", lambda p, n: 10 * p * (n - 1) / n, "reduces-at-the-end")
wrong_letter_only = wrong("added-traffic", says="`evidence` is still empty", answer=_form(0, "B", None))
wrong_other_letter = wrong(
    "added-traffic", says="the evidence is right, the choice is not", answer=_form(0, "C", traffic(0)["evidence"])
)
wrong_nearly = wrong("added-traffic", says="nearly right", answer=_form(0, "B", traffic(0)["evidence"] * 1.0009))
right_by_hand_1 = right("added-traffic", answer=_form(1, "a", _gb(1, lambda p, n: (2 * 2 + 4) * p * (n - 1) / n)))
right_by_hand_2 = right("added-traffic", answer=_form(2, "C", _gb(2, lambda p, n: (8 + 1) * 2 * p * (n - 1) / n)))
right_by_hand_3 = right(
    "added-traffic", answer=_form(3, "B", _gb(3, lambda p, n: 6 * p * 7 / 8 + 4 * p / 8 * (n // 8 - 1) / (n // 8)))
)
right_by_hand_4 = right("added-traffic", answer=_form(4, "B", _gb(4, lambda p, n: 6 * p * (n - 1) / n)))
right_by_hand_5 = right("added-traffic", answer=_form(5, "C", _gb(5, lambda p, n: 16 * p * (n - 1) / n)))

# 08.4 just in time


def _walk(reshard, micro_batches, deferred, rule=""):
    order, layers = [], range(len(reshard))
    if rule == "gathers first":
        order += [("gather", n) for n in layers]
    for number in range(micro_batches):
        for n in layers:
            if rule not in ("no gathers", "gathers first") and not (rule == "gathers once" and number):
                order.append(("gather", n))
            order.append(("forward", n))
            if (reshard[n] or rule == "all drop") and rule not in ("keeps", "gathers once"):
                order.append(("drop", n))
        for n in layers if rule == "forwards" else reversed(layers):
            if (reshard[n] or rule in ("all drop", "always gathers")) and rule not in ("no second gather", "keeps"):
                order.append(("gather", n))
            order.append(("backward", n))
            if rule not in ("keeps after", "gathers once"):
                order.append(("drop", n))
            last = number == micro_batches - 1
            if rule == "reduces always" or ((last or not deferred) and rule not in ("at the end", "never reduces")):
                order.append(("reduce", n))
        if rule == "at the end":
            order += [("reduce", n) for n in layers]
    return order


def _order(rule, misconception=None, says=""):
    answer = lambda reshard, micro_batches, deferred: _walk(reshard, micro_batches, deferred, rule)
    return wrong("just-in-time", misconception, says=says, answer=answer)


wrong_keeps_for_backward = _order("keeps", "keeps-after-forward")
wrong_no_second_gather = _order("no second gather", "backward-needs-no-weights")
wrong_shards_compute = _order("no gathers", "a-shard-computes")
wrong_gathers_first = _order("gathers first", "gathers-ahead")
wrong_backward_from_0 = _order("forwards", "backward-walks-forward")
wrong_always_gathers = _order("always gathers", "gathers-what-it-holds")
wrong_all_drop = _order("all drop", "everything-reshards")
wrong_never_drops = _order("keeps after", "keeps-after-backward")
wrong_reduces_always = _order("reduces always", "reduces-every-micro-batch")
wrong_reduces_at_the_end = _order("at the end", "reduces-at-the-end")
wrong_never_reduces = _order("never reduces", "no-reduction")
wrong_holds_for_the_step = _order("gathers once", "gathers-what-it-holds")


@wrong("just-in-time", "micro-batches-side-by-side")
def wrong_layer_by_layer(reshard, micro_batches, deferred):
    if micro_batches == 1:
        return _walk(reshard, 1, deferred)
    order = []
    for n in range(len(reshard)):
        order += [("gather", n), *[("forward", n)] * micro_batches, ("drop", n)]
    return order


@wrong("just-in-time", "micro-batches-side-by-side")
def wrong_all_forwards_first(reshard, micro_batches, deferred):
    once = _walk(reshard, 1, False)
    turn = next(n for n, (action, _) in enumerate(once) if action == "backward")
    turn -= once[turn - 1][0] == "gather"
    return once[:turn] * micro_batches + once[turn:] * micro_batches


@wrong("just-in-time", "always-deferred")
def wrong_always_defers(reshard, micro_batches, deferred):
    return _walk(reshard, micro_batches, True)


@wrong("just-in-time", "always-deferred")
def wrong_defers_the_other_way_round(reshard, micro_batches, deferred):
    return _walk(reshard, micro_batches, not deferred)


@wrong("just-in-time", says="changed what it was given")
def wrong_uses_up_the_flags(reshard, micro_batches, deferred):
    order = _walk(reshard, micro_batches, deferred)
    reshard.clear()
    return order


@wrong("just-in-time", "keeps-after-forward")
def wrong_last_layer_stays(reshard, micro_batches, deferred):
    return _walk([*reshard[:-1], False], micro_batches, deferred)


@wrong("just-in-time", says="the order ends before forward of layer 0 of micro-batch 2")
def wrong_one_micro_batch_of_three(reshard, micro_batches, deferred):
    return _walk(reshard, 1, deferred and micro_batches > 1 and False)


@wrong("just-in-time", says="the order ends before backward")
def wrong_stops_half_way(reshard, micro_batches, deferred):
    order = _walk(reshard, micro_batches, deferred)
    return order[: order.index(("backward", 0))]


@wrong("just-in-time", says="each entry is a pair")
def wrong_texts(reshard, micro_batches, deferred):
    return [f"{action} {n}" for action, n in _walk(reshard, micro_batches, deferred)]


@wrong("just-in-time", says="nothing came back")
def wrong_order_forgets_return(reshard, micro_batches, deferred):
    _walk(reshard, micro_batches, deferred)


@wrong("just-in-time", says="there is no action 'free'")
def wrong_own_words(reshard, micro_batches, deferred):
    return [("free" if action == "drop" else action, n) for action, n in _walk(reshard, micro_batches, deferred)]


@wrong("just-in-time", says="layers are numbered from 0")
def wrong_from_1(reshard, micro_batches, deferred):
    return [(action, n + 1) for action, n in _walk(reshard, micro_batches, deferred)]


@right("just-in-time")
def right_reduces_before_it_drops(reshard, micro_batches, deferred):
    out, held = [], set()
    layers = list(range(len(reshard)))
    for left in reversed(range(micro_batches)):
        for action, walk in (("forward", layers), ("backward", layers[::-1])):
            for n in walk:
                if n not in held:
                    out.append(["gather", torch.tensor(n)])
                    held.add(n)
                out.append([action, n])
                if action == "backward" and not (deferred and left):
                    out.append(["reduce", n])
                if action == "backward" or reshard[n]:
                    out.append(["drop", n])
                    held.discard(n)
    return tuple(out)


# 08.5 which gather can start when


def _starts(compute, gather, rooms, *, queue=True, wait=True, back="end", one=False):
    asked, begun, wire, core = [], [], 0, 0
    for n in range(len(compute)):
        leaves = begun[n - rooms] + (compute[n - rooms] if back == "end" else 0) if n >= rooms else 0
        start = max(leaves, wire if queue else 0, core if one else 0)
        wire = start + gather[n]
        forward = max(core, wire if wait else start)
        core = forward + compute[n]
        asked.append(start)
        begun.append(forward)
    return list(zip(asked, begun, strict=True))


def _ahead(misconception=None, says="", rooms=lambda ahead, layers: ahead + 1, **rule):
    answer = lambda compute, gather, ahead: _starts(compute, gather, rooms(ahead, len(compute)), **rule)
    return wrong("gather-ahead", misconception, says=says, answer=answer)


wrong_always_room = _ahead("there-is-always-room", rooms=lambda ahead, layers: layers)
wrong_side_by_side = _ahead("two-gathers-at-once", queue=False)
wrong_nothing_ahead = _ahead("nothing-ahead", rooms=lambda ahead, layers: 1)
wrong_no_weights = _ahead("computes-without-weights", wait=False)
wrong_room_too_soon = _ahead("one-room-too-many", back="start")
wrong_one_too_many = _ahead("one-room-too-many", rooms=lambda ahead, layers: ahead + 2)
wrong_one_too_few = _ahead("one-room-too-few", rooms=lambda ahead, layers: max(1, ahead))
wrong_one_stream = _ahead("nothing-ahead", rooms=lambda ahead, layers: layers + 1, one=True)


@wrong("gather-ahead", says="the wrong way round")
def wrong_turned(compute, gather, ahead):
    return [(forward, start) for start, forward in _starts(compute, gather, ahead + 1)]


@wrong("gather-ahead", says="times are in ms")
def wrong_in_seconds(compute, gather, ahead):
    return [(start / 1000, forward / 1000) for start, forward in _starts(compute, gather, ahead + 1)]


@wrong("gather-ahead", says="their starts are asked for")
def wrong_ends(compute, gather, ahead):
    starts = _starts(compute, gather, ahead + 1)
    return [(a + g, b + c) for (a, b), g, c in zip(starts, gather, compute, strict=True)]


@wrong("gather-ahead", says="changed what it was given")
def wrong_changes_the_times(compute, gather, ahead):
    starts = _starts(compute, gather, ahead + 1)
    compute[0] += 1
    return starts


@wrong("gather-ahead", "waits-too-long")
def wrong_starts_at_one(compute, gather, ahead):
    return [(start + 1, forward + 1) for start, forward in _starts(compute, gather, ahead + 1)]


@wrong("gather-ahead", says="need 4 pairs")
def wrong_one_pair_short(compute, gather, ahead):
    return _starts(compute, gather, ahead + 1)[1:]


@wrong("gather-ahead", says="nothing came back")
def wrong_starts_forgets_return(compute, gather, ahead):
    _starts(compute, gather, ahead + 1)


@wrong("gather-ahead", says="each layer has a pair")
def wrong_gathers_only(compute, gather, ahead):
    return [start for start, _ in _starts(compute, gather, ahead + 1)]


def _busy(now, started, lasts):
    return any(t <= now < t + lasts[n] for n, t in started.items())


@right("gather-ahead")
def right_by_events(compute, gather, ahead):
    gathers, forwards = {}, {}
    moments = {0.0}
    while len(forwards) < len(compute):
        now = min(moments)
        moments.discard(now)
        for _ in range(2):
            n = len(forwards)
            if n in gathers and gathers[n] + gather[n] <= now and not _busy(now, forwards, compute):
                forwards[n] = now
                moments.add(now + compute[n])
            gone = sum(t + compute[k] <= now for k, t in forwards.items())
            n = len(gathers)
            if n < len(gather) and n - gone <= ahead and not _busy(now, gathers, gather):
                gathers[n] = now
                moments.add(now + gather[n])
    return [[float(gathers[n]), torch.tensor(forwards[n])] for n in range(len(compute))]


# 08.6 where communication takes over


def _share(job, devices, *, flops=6, width=2, passes=None, part=lambda n: (n - 1) / n, split=True):
    compute = flops * job["parameters"] * job["tokens"] / (devices if split else 1) / job["flops"]
    sent = (passes or job["passes"]) * width * job["parameters"] * part(devices)
    return compute, sent / job["bandwidth"]


def _part(job, devices, **rule):
    compute, communicate = _share(job, devices, **rule)
    return compute / max(compute, communicate)


def _search(job, counts=None, **rule):
    for devices in counts or range(1, job["tokens"] // job["sequence"] + 1):
        if _part(job, devices, **rule) < 1:
            return devices
    return None


def _shares(misconception=None, says="", **rule):
    answer = {"share": lambda job, n: _part(job, n, **rule), "crossover": lambda job: _search(job, **rule)}
    return wrong("crossover", misconception, says=says, answer=answer)


def _crossed(crossover, misconception=None, says=""):
    return wrong("crossover", misconception, says=says, answer={"share": _part, "crossover": crossover})


wrong_forward_only = _shares("forward-is-the-step", flops=2)
wrong_four_bytes = _shares("numbers-travel-in-fp32", width=4)
wrong_gradients_of_four_bytes = wrong(
    "crossover",
    "gradients-travel-in-fp32",
    answer={"share": lambda job, n: _part(job, n, passes=job["passes"] + 1), "crossover": _search},
)
wrong_one_byte = _shares("a-number-is-a-byte", width=1)
wrong_three_passes = _shares("always-three-passes", passes=3)
wrong_whole_model = _shares("everything-travels", part=lambda n: 1)
wrong_grows = _shares("more-devices-more-to-send", part=lambda n: n - 1)
wrong_a_shard = _shares("only-a-shard-travels", part=lambda n: 1 / n)
wrong_undivided = _shares("the-work-is-not-divided", split=False)
wrong_floor_forgotten = _crossed(lambda job: _search(job, range(1, 10**5)), "forgets-the-floor")
wrong_ceil = _crossed(
    lambda job: _search(job, range(1, -(-job["tokens"] // job["sequence"]) + 1)),
    "forgets-the-floor",
    "Is the last one of this batch whole",
)
wrong_round = _crossed(
    lambda job: _search(job, range(1, round(job["tokens"] / job["sequence"]) + 1)), "forgets-the-floor"
)
wrong_doubles = _crossed(lambda job: _search(job, [2**n for n in range(15)]), "powers-of-two")
wrong_never = _crossed(lambda job: None, "there-is-no-crossing")
wrong_floor_itself = _crossed(lambda job: job["tokens"] // job["sequence"], "the-floor-is-the-crossing")
wrong_last_before = _crossed(lambda job: (_search(job) or 1) - 1, says="one more is the first that is")
wrong_one_later = _crossed(lambda job: _search(job) and _search(job) + 1, says="and not the first")
wrong_half_a_device = _crossed(
    lambda job: 1 + 3 * job["tokens"] * job["bandwidth"] / job["passes"] / job["flops"], says="a whole number"
)
wrong_only_one = wrong("crossover", says="two functions", answer=lambda job: _search(job))


def _equal_is_enough(job):
    for devices in range(1, job["tokens"] // job["sequence"] + 1):
        compute, communicate = _share(job, devices)
        if communicate >= compute:
            return devices
    return None


wrong_equal_is_past = _crossed(_equal_is_enough, "as-long-is-longer")


def _other_share(misconception=None, says="", *, share):
    answer = {"share": lambda job, n: share(*_share(job, n)), "crossover": _search}
    return wrong("crossover", misconception, says=says, answer=answer)


wrong_in_turn = _other_share("one-after-the-other", share=lambda a, b: a / (a + b))
wrong_over_one = _other_share("more-than-all", share=lambda a, b: a / b if b else 1.0)
wrong_other_stream = _other_share(says="in which it communicates", share=lambda a, b: b / max(a, b) if b else 1.0)
wrong_share_forgets = _other_share(says="nothing came back", share=lambda a, b: None)


wrong_turned_share = _other_share(says="a share is at most 1", share=lambda a, b: max(a, b) / a)
wrong_both_forget = wrong(
    "crossover",
    says="share(job, 1): nothing came back",
    answer={"share": lambda job, n: None, "crossover": lambda job: next(n for n in range(1, 9) if None < 1)},
)


def _whole_sequences(job, devices):
    compute, communicate = _share(job, devices)
    compute *= math.ceil(job["tokens"] / job["sequence"] / devices) * devices * job["sequence"] / job["tokens"]
    return compute / max(compute, communicate)


wrong_whole_sequences = wrong(
    "crossover", "whole-sequences-only", answer={"share": _whole_sequences, "crossover": _search}
)


def _exactly(job, devices):
    compute = Fraction(6 * job["parameters"] * job["tokens"], devices * job["flops"])
    wire = Fraction(2 * job["passes"] * job["parameters"] * (devices - 1), devices * job["bandwidth"])
    return compute / wire if wire > compute else 1


def _solved(job):
    devices = 3 * job["tokens"] * job["bandwidth"] // (job["passes"] * job["flops"]) + 2
    return devices if devices * job["sequence"] <= job["tokens"] else None


right_solved_for_devices = right("crossover", answer={"share": _exactly, "crossover": _solved})

# 08.7 more devices than sequences

_FLOOR = floor(0)


def _work(misconception=None, choice=_FLOOR["choice"], evidence=_FLOOR["evidence"], says="", variant=0):
    return wrong("batch-floor", misconception, says=says, answer=_form(variant, choice, evidence))


wrong_no_limit = _work("fsdp-scales-without-end", "A", _FLOOR["devices"])
wrong_more_micro_batches = _work("accumulation-makes-work", "B", None)
wrong_hybrid = _work("hybrid-sharding-breaks-the-floor", "C", _FLOOR["evidence"] * 8)
wrong_some_context = _work("any-context-parallel-will-do", "D", None)
wrong_largest = _work("tensor-first", "E", None, variant=1)
wrong_always_more = _work("always-another-dimension", "D", None, variant=2)
wrong_whole_step = _work("the-step-is-one-pass", evidence=_FLOOR["batch"] / _FLOOR["sequence"])
wrong_tokens = _work("a-token-is-enough", evidence=_FLOOR["batch"] / _FLOOR["micro_batches"])
wrong_tokens_of_the_step = _work(says="of the whole step", evidence=_FLOOR["batch"])
wrong_every_device = _work("all-of-them", evidence=_FLOOR["devices"])
wrong_every_device_of_a_few = _work(
    choice="A", evidence=floor(2)["devices"], variant=2, says="With more devices, how many could have it"
)
wrong_letter_with_right_number = _work("any-context-parallel-will-do", "D", says="the evidence is right")
wrong_no_number = _work(evidence=None, says="`evidence` is still empty")
wrong_two_letters = _work(choice="DE", says="one letter in quotes")
right_lower_case = right("batch-floor", answer=_form(0, "e", float(_FLOOR["evidence"])))
right_first_line = right("batch-floor", answer=_form(2, "A", floor(2)["evidence"]))
right_context = right("batch-floor", answer=_form(1, "D", floor(1)["evidence"]))
