"""Stated answers of chapter 10: each `wrong_*` must fail with its misconception, each `right_*` must pass."""

import torch
from mutants import right, wrong

from course_lib.checks.ch10_traffic import sent, tensor_traffic

# 10.1 a column-parallel layer


class _Column:
    """The reference, in parts that a wrong answer replaces."""

    def __init__(self, weight, bias, group):
        self.group = group
        self.weight, self.bias = self.part(weight), self.part(bias)

    def part(self, whole):
        return whole.chunk(self.group.size)[self.group.rank]

    def forward(self, x):
        self.x = x
        return x @ self.weight.T + self.bias

    def backward(self, grad):
        self.weight_grad = grad.flatten(0, 1).T @ self.x.flatten(0, 1)
        self.bias_grad = grad.sum((0, 1))
        return self.x_grad(grad @ self.weight)

    def x_grad(self, own):
        return self.group.all_reduce(own)


@wrong("column-parallel", "cuts-the-inputs")
class wrong_cuts_the_inputs(_Column):
    def part(self, whole):
        return whole.chunk(self.group.size, 1)[self.group.rank] if whole.dim() == 2 else super().part(whole)


@wrong("column-parallel", "keeps-the-whole")
class wrong_keeps_the_whole(_Column):
    def part(self, whole):
        return whole


@wrong("column-parallel", "whole-bias")
class wrong_whole_bias(_Column):
    def part(self, whole):
        return super().part(whole) if whole.dim() == 2 else whole


@wrong("column-parallel", "every-nth")
class wrong_every_nth(_Column):
    def part(self, whole):
        return whole[self.group.rank :: self.group.size]


@wrong("column-parallel", "the-same-everywhere")
class wrong_same_part(_Column):
    def part(self, whole):
        return whole.chunk(self.group.size)[0]


@wrong("column-parallel", "my-outputs-are-all")
class wrong_no_reduction(_Column):
    def x_grad(self, own):
        return own


@wrong("column-parallel", "averages")
class wrong_averages(_Column):
    def x_grad(self, own):
        return super().x_grad(own) / self.group.size


@wrong("column-parallel", "adds-up-twice")
class wrong_reduces_twice(_Column):
    def x_grad(self, own):
        return super().x_grad(super().x_grad(own))


@wrong("column-parallel", "gathers-forward")
class wrong_gathers_the_output(_Column):
    def forward(self, x):
        mine = super().forward(x)
        return self.group.all_gather(mine).chunk(self.group.size, -1)[self.group.rank]


@wrong("column-parallel", "every-gradient-is-reduced")
class wrong_reduces_everything(_Column):
    def backward(self, grad):
        x_grad = super().backward(grad)
        self.group.all_reduce(self.weight_grad)
        self.group.all_reduce(self.bias_grad)
        return x_grad


@wrong("column-parallel", "gathers-what-adds-up")
class wrong_side_by_side(_Column):
    def x_grad(self, own):
        return self.group.all_gather(own)


@wrong("column-parallel", "a-part-will-do")
class wrong_part_of_x(_Column):
    def x_grad(self, own):
        return self.group.reduce_scatter(own)


@wrong("column-parallel", "adds-before-it-multiplies")
class wrong_adds_first(_Column):
    def backward(self, grad):
        super().backward(grad)
        return self.group.all_reduce(grad) @ self.weight


@wrong("column-parallel", says="the same gradient of x, but not")
class wrong_first_outputs_twice(_Column):
    def x_grad(self, own):
        return self.group.all_reduce(own if self.group.rank else 2 * own)


@wrong("column-parallel", "travels-too-much")
class wrong_gathers_to_add(_Column):
    def x_grad(self, own):
        return self.group.all_gather(own[None], 0).sum(0)


@wrong("column-parallel", "travels-too-much")
class wrong_gathers_the_layer(_Column):
    def backward(self, grad):
        super().backward(grad)
        return self.group.all_gather(grad) @ self.group.all_gather(self.weight, 0)


@wrong("column-parallel", "a-collective-is-for-some", says="has ended without such a call")
class wrong_rank_0_alone(_Column):
    def x_grad(self, own):
        return self.group.all_reduce(own) if self.group.rank == 0 else own


@wrong("column-parallel", says="nothing came back")
class wrong_no_return(_Column):
    def x_grad(self, own):
        super().x_grad(own)


@wrong("column-parallel", says="a tensor is wanted, on rank 0 a list of")
class wrong_lists(_Column):
    def x_grad(self, own):
        return super().x_grad(own).tolist()


@wrong("column-parallel", "keeps-the-whole", says="`grad` alone was gathered")
class wrong_whole_weight_aside(_Column):
    def __init__(self, weight, bias, group):
        super().__init__(weight, bias, group)
        self.full = weight

    def backward(self, grad):
        self.weight_grad = grad.flatten(0, 1).T @ self.x.flatten(0, 1)
        self.bias_grad = grad.sum((0, 1))
        return self.group.all_gather(grad) @ self.full


@wrong("column-parallel", says="is to be a tensor")
class wrong_no_bias(_Column):
    def __init__(self, weight, bias, group):
        super().__init__(weight, bias, group)
        del self.bias


@wrong("column-parallel", says="hand in the class itself")
def wrong_a_function(weight, bias, group):
    return _Column(weight, bias, group)


@wrong("column-parallel", says="your code changed what it was given")
class wrong_uses_up_the_gradient(_Column):
    def backward(self, grad):
        x_grad = super().backward(grad)
        grad.zero_()
        return x_grad


@wrong("column-parallel", "adds-to-the-last-call", says="`self.bias_grad`")
class wrong_adds_to_the_bias_gradient(_Column):
    bias_grad = 0

    def backward(self, grad):
        before = self.bias_grad
        x_grad = super().backward(grad)
        self.bias_grad = self.bias_grad + before
        return x_grad


@right("column-parallel")
class right_in_two_calls(_Column):
    """An all-reduce in its two halves."""

    def x_grad(self, own):
        rows = own.flatten()
        if rows.numel() % self.group.size:
            return self.group.all_reduce(own)
        return self.group.all_gather(self.group.reduce_scatter(rows, 0), 0).view_as(own)


@right("column-parallel")
class right_with_copies(_Column):
    def part(self, whole):
        return whole.tensor_split(self.group.size)[self.group.rank].clone()

    def x_grad(self, own):
        self.group.all_reduce(own)
        return own


# 10.2 a row-parallel layer


class _Row:
    def __init__(self, weight, bias, group):
        self.group = group
        self.weight, self.bias = self.part(weight), bias

    def part(self, weight):
        return weight.chunk(self.group.size, 1)[self.group.rank]

    def forward(self, x):
        self.x = x
        return self.reduce(x @ self.weight.T) + self.bias

    def reduce(self, own):
        return self.group.all_reduce(own)

    def backward(self, grad):
        self.weight_grad = grad.flatten(0, 1).T @ self.x.flatten(0, 1)
        self.bias_grad = grad.sum((0, 1))
        return grad @ self.weight


@wrong("row-parallel", "cuts-the-outputs")
class wrong_cuts_the_outputs(_Row):
    def part(self, weight):
        return weight.chunk(self.group.size, 0)[self.group.rank]


@wrong("row-parallel", "cuts-the-outputs", says="and turned")
class wrong_cuts_and_turns(_Row):
    def part(self, weight):
        return weight.chunk(self.group.size, 0)[self.group.rank].T


@wrong("row-parallel", "keeps-the-whole")
class wrong_keeps_the_whole_row(_Row):
    def part(self, weight):
        return weight


@wrong("row-parallel", "every-nth")
class wrong_every_nth_input(_Row):
    def part(self, weight):
        return weight[:, self.group.rank :: self.group.size]


@wrong("row-parallel", "cuts-the-bias")
class wrong_cuts_the_bias(_Row):
    def __init__(self, weight, bias, group):
        super().__init__(weight, bias, group)
        self.bias = bias.chunk(group.size)[group.rank]


@wrong("row-parallel", "every-rank-adds-it")
class wrong_bias_n_times(_Row):
    def forward(self, x):
        self.x = x
        return self.reduce(x @ self.weight.T + self.bias)


@wrong("row-parallel", "a-part-is-the-sum")
class wrong_no_sum(_Row):
    def reduce(self, own):
        return own


@wrong("row-parallel", "a-part-is-the-sum")
class wrong_no_sum_no_bias(_Row):
    def forward(self, x):
        self.x = x
        return x @ self.weight.T


@wrong("row-parallel", "averages")
class wrong_mean_of_parts(_Row):
    def reduce(self, own):
        return super().reduce(own) / self.group.size


@wrong("row-parallel", "averages")
class wrong_mean_with_bias(_Row):
    def forward(self, x):
        self.x = x
        return self.group.all_reduce(x @ self.weight.T + self.bias) / self.group.size


@wrong("row-parallel", "forgets-the-bias")
class wrong_without_bias(_Row):
    def forward(self, x):
        return super().forward(x) - self.bias


@wrong("row-parallel", "rank-0-adds-it-for-itself")
class wrong_bias_on_rank_0_after(_Row):
    def forward(self, x):
        y = super().forward(x)
        return y if self.group.rank == 0 else y - self.bias


@wrong("row-parallel", "rank-0-adds-it-for-itself", says="on rank 0 alone")
class wrong_bias_gradient_on_rank_0(_Row):
    def backward(self, grad):
        x_grad = super().backward(grad)
        if self.group.rank:
            self.bias_grad = torch.zeros_like(self.bias)
        return x_grad


@wrong("row-parallel", "gathers-to-add")
class wrong_gathers_parts(_Row):
    def reduce(self, own):
        return self.group.all_gather(own[None], 0).sum(0)


@wrong("row-parallel", "gathers-the-inputs")
class wrong_gathers_inputs(_Row):
    def forward(self, x):
        self.x = x
        return self.group.all_gather(x) @ self.group.all_gather(self.weight).T + self.bias


@wrong("row-parallel", "a-sum-backward-is-a-sum")
class wrong_all_reduce_of_the_gradient(_Row):
    def backward(self, grad):
        return super().backward(self.group.all_reduce(grad))


@wrong("row-parallel", "every-gradient-is-reduced", says="the same on every rank before")
class wrong_bias_gradient_summed(_Row):
    def backward(self, grad):
        x_grad = super().backward(grad)
        self.group.all_reduce(self.bias_grad)
        return x_grad


@wrong("row-parallel", "every-gradient-is-reduced")
class wrong_weight_gradient_summed(_Row):
    def backward(self, grad):
        x_grad = super().backward(grad)
        self.group.all_reduce(self.weight_grad)
        return x_grad


@wrong("row-parallel", "every-gradient-is-reduced", says="the gradient of x is summed")
class wrong_x_gradient_summed(_Row):
    def backward(self, grad):
        return self.group.all_reduce(super().backward(grad))


@wrong("row-parallel", "averages", says="`self.bias_grad` is 2 times too small")
class wrong_bias_gradient_shared(_Row):
    def backward(self, grad):
        x_grad = super().backward(grad)
        self.bias_grad /= self.group.size
        return x_grad


@wrong("row-parallel", "averages", says="averaged over the ranks")
class wrong_weight_gradient_averaged(_Row):
    def backward(self, grad):
        x_grad = super().backward(grad)
        self.weight_grad = self.group.all_reduce(self.weight_grad) / self.group.size
        return x_grad


@wrong("row-parallel", says="the bias is 2 times too small")
class wrong_part_of_the_bias(_Row):
    def forward(self, x):
        return super().forward(x) - self.bias + self.bias / self.group.size


@wrong("row-parallel", says="`self.weight_grad` is not that of the whole layer")
class wrong_mean_over_sequences(_Row):
    def backward(self, grad):
        x_grad = super().backward(grad)
        self.weight_grad /= len(grad)
        return x_grad


@wrong("row-parallel", "every-pass-talks", says="came back whole")
class wrong_x_gradient_gathered(_Row):
    def backward(self, grad):
        return self.group.all_gather(super().backward(grad))


@wrong("row-parallel", "every-pass-talks", says="the gradients are right")
class wrong_bias_gradient_averaged(_Row):
    def backward(self, grad):
        x_grad = super().backward(grad)
        self.bias_grad = self.group.all_reduce(self.bias_grad) / self.group.size
        return x_grad


@wrong("row-parallel", "a-collective-is-for-some")
class wrong_every_rank_but_one(_Row):
    def reduce(self, own):
        return own if self.group.rank == 1 else super().reduce(own)


@wrong("row-parallel", says="`requires_grad_` does this exercise's work")
class wrong_by_autograd(_Row):
    def backward(self, grad):
        weight = self.weight.detach().requires_grad_()
        (self.x @ weight.T).backward(grad)
        self.weight_grad, self.bias_grad = weight.grad, grad.sum((0, 1))
        return grad @ self.weight


@wrong("row-parallel", says="Over which of B and T is it a sum?")
class wrong_first_sequence_alone(_Row):
    def backward(self, grad):
        x_grad = super().backward(grad)
        self.weight_grad = grad[0].T @ self.x[0]
        return x_grad


@wrong("row-parallel", says="your code changed what it was given")
class wrong_uses_x_as_scratch(_Row):
    def forward(self, x):
        y = super().forward(x)
        self.x = x.clone()
        x.mul_(2)
        return y


@wrong("row-parallel", "adds-to-the-last-call", says="`self.weight_grad`")
class wrong_adds_up_weight_gradients(_Row):
    def __init__(self, weight, bias, group):
        super().__init__(weight, bias, group)
        self.weight_grad = torch.zeros_like(self.weight)

    def backward(self, grad):
        before = self.weight_grad
        x_grad = super().backward(grad)
        self.weight_grad = before + self.weight_grad
        return x_grad


@wrong("row-parallel", says="`self.weight_grad` is not there after backward on rank 0")
class wrong_no_weight_gradient(_Row):
    def backward(self, grad):
        self.bias_grad = grad.sum((0, 1))
        return grad @ self.weight


@wrong("row-parallel", says="`self.bias_grad` is not that of the whole layer. Over which")
class wrong_mean_over_the_batch(_Row):
    def backward(self, grad):
        x_grad = super().backward(grad)
        self.bias_grad = grad.mean((0, 1))
        return x_grad


@right("row-parallel")
class right_bias_on_rank_0_before(_Row):
    def forward(self, x):
        self.x = x
        own = torch.einsum("bti,oi->bto", x, self.weight)
        return self.reduce(own + self.bias if self.group.rank == 0 else own)

    def backward(self, grad):
        self.weight_grad = torch.einsum("bto,bti->oi", grad, self.x)
        self.bias_grad = torch.einsum("bto->o", grad)
        return torch.einsum("bto,oi->bti", grad, self.weight)


@right("row-parallel")
class right_shared_bias(_Row):
    def forward(self, x):
        self.x = x
        return self.reduce(x @ self.weight.T + self.bias / self.group.size)


# 10.3 what tensor parallel sends


def _sent(variant, choice="right", collectives="right", evidence="right"):
    run = tensor_traffic(variant)
    given = {"choice": choice, "collectives": collectives, "evidence": evidence}
    return {"variant": variant} | {key: run[key] if value == "right" else value for key, value in given.items()}


_runs = {variant: tensor_traffic(variant) for variant in range(5)}
_gb = {variant: run["evidence"] for variant, run in _runs.items()}

wrong_forward_alone = wrong("tensor-traffic", "forward-only", answer=_sent(0, "B", 4, 1))
wrong_gathers_again = wrong("tensor-traffic", "gathers-again-always", answer=_sent(2, "C", 10, 1))
wrong_keeps = wrong("tensor-traffic", "keeps-always", answer=_sent(1, "B", 8, 1))
wrong_no_recomputation = wrong("tensor-traffic", says="Or: forward runs more often", answer=_sent(4, "B", 8, 1))
wrong_one_pair = wrong("tensor-traffic", "a-pair-is-a-block", answer=_sent(0, "B", 5, 1))
wrong_two_pairs = wrong("tensor-traffic", "two-pairs-always", answer=_sent(3, "C", 10, 1))
wrong_recomputes = wrong("tensor-traffic", "runs-forward-again", answer=_sent(0, "B", 14, 1))
wrong_all_reduces = wrong("tensor-traffic", "still-all-reduces", answer=_sent(0, "B", 6, 1))
wrong_seven = wrong("tensor-traffic", says="walk through one pair", answer=_sent(0, "B", 7, 1))
wrong_everything = wrong(
    "tensor-traffic",
    "everything-travels",
    answer=_sent(1, "B", evidence=_gb[1] * _runs[1]["ranks"] / (_runs[1]["ranks"] - 1)),
)
wrong_one_part = wrong(
    "tensor-traffic", "parts-are-smaller", answer=_sent(1, "B", evidence=_gb[1] / (_runs[1]["ranks"] - 1))
)
wrong_twice = wrong("tensor-traffic", "each-call-is-an-all-reduce", answer=_sent(2, "C", evidence=2 * _gb[2]))
wrong_other_side = wrong(
    "tensor-traffic", "the-other-side", answer=_sent(1, "B", evidence=sent(_runs[1], sequence=False) / 1e9)
)
wrong_gib = wrong("tensor-traffic", "gibibytes", answer=_sent(1, evidence=_gb[1] * 1e9 / 2**30))
wrong_one_block = wrong(
    "tensor-traffic", says="that is of one block", answer=_sent(1, evidence=_gb[1] / _runs[1]["blocks"])
)
wrong_in_bytes = wrong("tensor-traffic", says="1 GB is 1e9 bytes", answer=_sent(1, evidence=_gb[1] * 1e9))
wrong_in_megabytes = wrong("tensor-traffic", says="is in MB", answer=_sent(0, "A", evidence=_gb[0] * 1e3))
wrong_three_digits = wrong("tensor-traffic", says="nearly right", answer=_sent(1, evidence=_gb[1] * 1.0008))
wrong_odd_number = wrong("tensor-traffic", says="one line for each collective", answer=_sent(1, evidence=_gb[1] * 1.3))
wrong_less = wrong("tensor-traffic", "less-memory-is-less-traffic", answer=_sent(2, "A"))
wrong_more = wrong("tensor-traffic", "more-calls-are-more-bytes", answer=_sent(2, "C"))
wrong_more_though_fewer = wrong("tensor-traffic", "more-calls-are-more-bytes", answer=_sent(0, "C"))
wrong_always_equal = wrong("tensor-traffic", "equal-bytes-always", answer=_sent(0, "B"))
wrong_always_equal_too = wrong("tensor-traffic", "equal-bytes-always", answer=_sent(1, "B"))
wrong_letter = wrong("tensor-traffic", says="one letter in quotes", answer=_sent(0, "more"))
wrong_text_for_count = wrong("tensor-traffic", says="without quotes", answer=_sent(0, collectives="ten"))
wrong_empty = wrong("tensor-traffic", says="`evidence` is still empty", answer=_sent(0, evidence=None))
wrong_key = wrong("tensor-traffic", says="the answer has the keys", answer={"variant": 0, "choice": "A", "evidence": 1})

right_rounded = right("tensor-traffic", answer=_sent(1, "c", 10.0, float(f"{_gb[1]:.4g}")))
right_equal = right("tensor-traffic", answer=_sent(2, " B ", torch.tensor(8)))
right_side_by_side = right("tensor-traffic", answer=_sent(3, "C", 5))
right_recomputed = right("tensor-traffic", answer=_sent(4, "B", 12))

# 10.4 online softmax

_INF = float("inf")


def _col(t):
    return t.unsqueeze(-1)


def _factor(old, new):
    return torch.where(torch.isneginf(old), torch.zeros_like(old), (old - new).exp())


def _merge(factors=None, top=torch.maximum, sums=None):
    """The reference with one thing changed. factors(ma, mb, m) -> what each side's l and o are multiplied by."""

    def merge(first, second):
        (ma, la, oa), (mb, lb, ob) = first, second
        m = top(ma, mb)
        a, b, c, d = (factors or (lambda ma, mb, m: (_factor(ma, m), _factor(mb, m)) * 2))(ma, mb, m)
        return (m, a * la + b * lb, _col(c) * oa + _col(d) * ob) if sums is None else sums(m, first, second)

    return merge


def _finish(result):
    return result[2] / _col(result[1])


def _softmax(misconception=None, says="", merge=None, finish=_finish):
    answer = {"merge": merge or _merge(), "finish": finish}
    return wrong("online-softmax", misconception, says=says, answer=answer)


def _softmax_of(merge):
    return _softmax(says="write it yourself", merge=merge)


_one = torch.ones_like
wrong_no_factor = _softmax("nothing-is-rescaled", merge=_merge(lambda ma, mb, m: (_one(m),) * 4))
wrong_l_alone = _softmax(
    "only-the-sum-is-rescaled", merge=_merge(lambda ma, mb, m: (_factor(ma, m), _factor(mb, m), _one(m), _one(m)))
)
wrong_o_alone = _softmax(
    "only-the-output-is-rescaled", merge=_merge(lambda ma, mb, m: (_one(m), _one(m), _factor(ma, m), _factor(mb, m)))
)
wrong_old_side_alone = _softmax(
    "the-new-one-is-the-larger", merge=_merge(lambda ma, mb, m: (_factor(ma, m), _one(m)) * 2)
)
wrong_new_side_alone = _softmax(
    "the-old-one-is-the-larger", merge=_merge(lambda ma, mb, m: (_one(m), _factor(mb, m)) * 2)
)
wrong_upside_down = _softmax("upside-down", merge=_merge(lambda ma, mb, m: ((m - ma).exp(), (m - mb).exp()) * 2))
wrong_first_maximum = _softmax("the-first-maximum-stays", merge=_merge(top=lambda ma, mb: ma))
wrong_last_maximum = _softmax("the-last-maximum-counts", merge=_merge(top=lambda ma, mb: mb))
wrong_one_maximum = _softmax(
    "one-maximum-for-all", merge=_merge(top=lambda ma, mb: torch.maximum(ma, mb).max().expand_as(ma))
)
wrong_one_number = _softmax("one-maximum-for-all", merge=_merge(top=lambda ma, mb: torch.maximum(ma, mb).max()))
wrong_nan_where_masked = _softmax(
    "minus-infinity-is-a-number", merge=_merge(lambda ma, mb, m: ((ma - m).exp(), (mb - m).exp()) * 2)
)
wrong_zero_for_no_key = _softmax(
    "no-key-is-logit-zero",
    merge=_merge(top=lambda ma, mb: torch.maximum(ma.masked_fill(ma == -_INF, 0), mb.masked_fill(mb == -_INF, 0))),
)
wrong_zero_for_no_key_at_all = _softmax(
    "no-key-is-logit-zero", merge=_merge(top=lambda ma, mb: torch.maximum(ma, mb).nan_to_num(neginf=0.0))
)


def _without_maxima(m, first, second):
    (ma, la, oa), (mb, lb, ob) = first, second
    a, b = ma.exp(), mb.exp()
    return m, (a * la + b * lb) / m.exp(), (_col(a) * oa + _col(b) * ob) / _col(m.exp())


def _averaged(m, first, second):
    (ma, la, oa), (mb, lb, ob) = first, second
    norm = _factor(ma, m) * la + _factor(mb, m) * lb
    return m, norm, (oa / _col(la) + ob / _col(lb)) / 2


def _finished(m, first, second):
    (ma, la, oa), (mb, lb, ob) = first, second
    norm = _factor(ma, m) * la + _factor(mb, m) * lb
    return m, norm, (_col(_factor(ma, m)) * oa + _col(_factor(mb, m)) * ob) / _col(norm)


def _taken_for_outputs(m, first, second):
    (ma, la, oa), (mb, lb, ob) = first, second
    a, b = _factor(ma, m) * la, _factor(mb, m) * lb
    return m, a + b, (_col(a) * oa + _col(b) * ob) / _col(a + b)


wrong_taken_for_outputs = _softmax("finished-too-early", says="Has it been", merge=_merge(sums=_taken_for_outputs))
wrong_large_exponents = _softmax("exp-of-anything", merge=_merge(sums=_without_maxima))
wrong_mean_of_outputs = _softmax("outputs-are-averaged", merge=_merge(sums=_averaged))
wrong_finished_early = _softmax("finished-too-early", merge=_merge(sums=_finished))
wrong_never_divided = _softmax("weights-add-up-by-themselves", finish=lambda result: result[2])
wrong_divided_by_two = _softmax("divides-by-the-blocks", finish=lambda result: result[2] / 2)
wrong_sum_of_maxima = _softmax(
    says="a sum of two maxima", merge=_merge(sums=lambda m, a, b: (a[0] + b[0], *_merge()(a, b)[1:]))
)
wrong_two_tensors = _softmax(says="returns three tensors", merge=lambda a, b: _merge()(a, b)[1:])
wrong_no_merge = _softmax(says="nothing came back", merge=lambda a, b: None)
wrong_no_finish = _softmax(says="returns a tensor", finish=lambda result: None)
wrong_lowest_number = _softmax(
    says="the text has -inf there", merge=_merge(top=lambda ma, mb: torch.maximum(ma, mb).clamp(min=-1e9))
)


def _in_place(first, second):
    for old, new in zip(first, _merge()(first, second), strict=True):
        old.copy_(new)
    return first


def _divides_in_place(result):
    return result[2].div_(_col(result[1]))


def _mean_of_sums(m, first, second):
    _, norm, o = _merge()(first, second)
    return m, norm / 2, o / 2


wrong_mean_of_sums = _softmax("sums-are-averaged", merge=_merge(sums=_mean_of_sums))
wrong_divided_by_the_maximum = _softmax(says="divides by `m`", finish=lambda r: r[2] / _col(r[0]))
wrong_merges_in_place = _softmax(says="your code changed what it was given", merge=_in_place)
wrong_divides_in_place = _softmax(says="your code changed what it was given", finish=_divides_in_place)


@_softmax_of
def wrong_calls_ours(first, second):
    from course_lib.checks.ch10 import Blocks

    return Blocks().merge(first, second)


@_softmax_of
def wrong_calls_ours_by_its_room(first, second):
    import course_lib.checks.ch10_blocks as room

    return room.Blocks().merge(first, second)


wrong_functions_alone = wrong("online-softmax", says="two functions", answer=_finish)


def _by_logsumexp(first, second):
    (ma, la, oa), (mb, lb, _) = first, second
    whole = torch.logaddexp(ma + la.log(), mb + lb.log())
    m = torch.where(ma > mb, ma, mb)
    out = torch.zeros_like(oa)
    for top, norm, o in (first, second):
        some = norm > 0
        out[some] += o[some] * (top[some] - m[some]).exp()[:, None]
    return m, torch.where(torch.isneginf(whole), 0.0, (whole - m).exp()), out


right_by_logaddexp = right(
    "online-softmax", answer={"merge": _by_logsumexp, "finish": lambda r: r[2] / r[1][..., None]}
)
right_nan_to_num = right(
    "online-softmax",
    answer={
        "merge": lambda a, b: [
            torch.stack([a[0], b[0]]).amax(0),
            *(
                sum(
                    (r[0] - torch.stack([a[0], b[0]]).amax(0)).exp().nan_to_num(0.0).reshape(r[0].shape + (1,) * extra)
                    * r[1 + extra]
                    for r in (a, b)
                )
                for extra in (0, 1)
            ),
        ],
        "finish": lambda r: torch.einsum("htd,ht->htd", r[2], 1 / r[1]),
    },
)

# 10.5 a zig-zag split


def _positions(length, rank, ranks, first=None, second=None, count=None):
    count = count or 2 * ranks
    if length % (2 * ranks):
        raise ValueError(f"{length} positions are not {2 * ranks} equal chunks")
    size = length // count
    chunk = lambda number: list(range(number * size, (number + 1) * size))
    return [
        *chunk(first(rank, ranks) if first else rank),
        *chunk(second(rank, ranks) if second else 2 * ranks - 1 - rank),
    ]


def _restore(parts):
    whole = torch.empty(len(parts) * len(parts[0]), *parts[0].shape[1:])
    for rank, part in enumerate(parts):
        whole[_positions(len(whole), rank, len(parts))] = part
    return whole


def _zigzag(misconception=None, says="", positions=_positions, restore=_restore):
    return wrong("zig-zag", misconception, says=says, answer={"positions": positions, "restore": restore})


def _pairs(**changes):
    return lambda length, rank, ranks: _positions(length, rank, ranks, **changes)


def _checked(deal):
    """Refuses what it should, and deals otherwise."""
    return lambda length, rank, ranks: _positions(length, rank, ranks) and deal(length, rank, ranks)


wrong_contiguous = _zigzag("contiguous", positions=_checked(lambda t, r, n: range(r * t // n, (r + 1) * t // n)))
wrong_neighbours = _zigzag("contiguous", positions=_pairs(first=lambda r, n: 2 * r, second=lambda r, n: 2 * r + 1))
wrong_striped = _zigzag("striped", positions=_checked(lambda t, r, n: range(r, t, n)))
wrong_second_round = _zigzag("second-round-in-order", positions=_pairs(second=lambda r, n: r + n))
wrong_one_chunk_off = _zigzag("one-chunk-off", positions=_pairs(second=lambda r, n: 2 * n - r))
wrong_one_chunk_off_round = _zigzag("one-chunk-off", positions=_pairs(second=lambda r, n: -r % (2 * n)))
wrong_n_chunks = _zigzag(
    "n-chunks", positions=lambda t, r, n: _positions(t, r, n, second=lambda r, n: n - 1 - r, count=n)
)
wrong_backwards = _zigzag(
    "late-chunk-backwards",
    positions=_checked(
        lambda t, r, n: [
            *range(r * t // (2 * n), (r + 1) * t // (2 * n)),
            *range(t - 1 - r * t // (2 * n), t - 1 - (r + 1) * t // (2 * n), -1),
        ]
    ),
)
wrong_single_positions = _zigzag(
    "back-and-forth", positions=_checked(lambda t, r, n: [p for p in range(t) if p % (2 * n) in (r, 2 * n - 1 - r)])
)
wrong_late_first = _zigzag(
    says="in increasing order", positions=_pairs(first=lambda r, n: 2 * n - 1 - r, second=lambda r, n: r)
)
wrong_early_alone = _zigzag(
    says="half of the positions", positions=_checked(lambda t, r, n: range(r * t // (2 * n), (r + 1) * t // (2 * n)))
)
wrong_divided_by_ranks = _zigzag(
    "ranks-divide-the-length",
    positions=lambda t, r, n: _positions(t if t % n else t // n * n // (2 * n) * (2 * n), r, n),
)
wrong_any_length = _zigzag("ranks-divide-the-length", positions=lambda t, r, n: _positions(t // (2 * n) * 2 * n, r, n))
wrong_a_set = _zigzag(
    says="a set came back", positions=lambda t, r, n: set(_positions(t, r, n)), restore=lambda parts: parts[9]
)
wrong_past_the_end = _zigzag(
    "one-chunk-off", positions=_pairs(second=lambda r, n: 2 * n - r), restore=lambda parts: parts[9]
)
wrong_odd_refused_alone = _zigzag(
    "any-length-will-do",
    positions=lambda t, r, n: _positions(t if t % n == 0 else t // (2 * n) * 2 * n, r, n),
)
wrong_odd_alone_refused = _zigzag(
    "ranks-divide-the-length", positions=lambda t, r, n: _positions(t + (t % 2 == 0) * (-t % (2 * n)), r, n)
)
wrong_odd_or_not_divided = _zigzag(
    "ranks-divide-the-length",
    positions=lambda t, r, n: _positions(t if t % 2 or t % n else t // (2 * n) * 2 * n, r, n),
)
wrong_says_nothing = _zigzag(says="says nothing", positions=lambda t, r, n: _refusing(t, r, n))
wrong_says_bad = _zigzag(says="wants the length in it", positions=lambda t, r, n: _refusing(t, r, n, "bad"))
wrong_floats = _zigzag(
    says="something else than whole numbers",
    positions=lambda t, r, n: [float(p) for p in _positions(t, r, n)],
    restore=lambda parts: _by_halves(parts),
)
wrong_turns_the_list = _zigzag(says="your code changed what it was given", restore=lambda parts: _turning(parts))
wrong_adds_to_the_rows = _zigzag(
    says="your code changed what it was given",
    restore=lambda parts: _by_halves([part.mul_(1.5) for part in parts]) / 1.5,
)
wrong_refuses_more = _zigzag(
    says="are possible", positions=lambda t, r, n: _positions(t if t % (4 * n) == 0 else t + 1, r, n)
)
wrong_pairs_of_numbers = _zigzag(says="whole numbers are wanted", positions=_checked(lambda t, r, n: [(0, t), (1, 2)]))
wrong_no_positions = _zigzag(says="nothing came back", positions=_checked(lambda t, r, n: None))
wrong_joined = _zigzag("joining-restores", restore=torch.cat)
wrong_split_again = _zigzag(
    "twice-is-back",
    restore=lambda parts: torch.cat(parts)[
        [p for r in range(len(parts)) for p in _positions(len(parts) * len(parts[0]), r, len(parts))]
    ],
)
wrong_late_in_order = _zigzag(
    "late-chunks-in-order",
    restore=lambda parts: torch.cat([p.chunk(2)[0] for p in parts] + [p.chunk(2)[-1] for p in parts]),
)
wrong_a_list_back = _zigzag(says="`restore` returns a tensor", restore=list)
wrong_backwards_back = _zigzag(says="where it came from", restore=lambda parts: _restore(parts).flip(0))


def _refusing(length, rank, ranks, *text):
    if length % (2 * ranks):
        raise ValueError(*text)
    return _positions(length, rank, ranks)


def _by_halves(parts):
    early, late = zip(*(part.chunk(2) for part in parts), strict=True)
    return torch.cat([*early, *reversed(late)])


def _turning(parts):
    early = [part.chunk(2)[0] for part in parts]
    parts.reverse()
    return torch.cat([*early, *(part.chunk(2)[1] for part in parts)])


def _by_tensor(length, rank, ranks):
    chunks = torch.arange(length).view(2 * ranks, -1) if length % (2 * ranks) == 0 else None
    if chunks is None:
        raise ValueError(f"no equal chunks in {length}")
    return torch.cat([chunks[rank], chunks[-1 - rank]])


def _by_sorting(parts):
    n = len(parts)
    at = torch.cat([_by_tensor(n * len(parts[0]), rank, n) for rank in range(n)])
    return torch.cat(parts)[at.argsort()]


right_by_sorting = right("zig-zag", answer={"positions": _by_tensor, "restore": _by_sorting})
right_as_a_filter = right(
    "zig-zag",
    answer={
        "positions": _checked(lambda t, r, n: [p for p in range(t) if p * 2 * n // t in (r, 2 * n - 1 - r)]),
        "restore": _restore,
    },
)

# 10.6 ring attention


def _ring(
    allowed=lambda mine, theirs, rank, source, ranks: theirs <= mine[:, None],
    *,
    steps=0,
    start=0,
    again=False,
    own=False,
    skip=True,
    useful=None,
    leave=False,
    average=False,
):
    """The reference with one thing changed."""

    def attention(q, k, v, positions, group, blocks):
        result, held, outs = None, (k, v, positions), []
        for step in range(group.size + steps):
            if step:
                held = group.rotate(*((k, v, positions) if own else held))
            source = (group.rank - step) % group.size
            keys, values, places = held
            seen = allowed(positions, places, group.rank, source, group.size)
            if step < start or (useful and not useful(group.rank, source)):
                continue
            if skip and not seen.any():
                if leave:
                    break
                continue
            part = blocks.attend(q, keys, values, seen)
            outs.append(blocks.finish(part))
            result = part if result is None else blocks.merge(result, part)
        if again:
            group.rotate(*held)
        if average:
            return sum(outs) / len(outs)
        return torch.full_like(q, torch.nan) if result is None else blocks.finish(result)

    return attention


def _ringed(misconception=None, says="", **changes):
    return wrong("ring-attention", misconception, says=says, answer=_ring(**changes))


def _local(mine, theirs, rank, source, ranks):
    return torch.ones(len(mine), len(theirs)).tril().bool()


def _in_a_row(mine, theirs, rank, source, ranks):
    return torch.arange(len(theirs)) + source * len(theirs) <= mine[:, None]


def _both_in_a_row(mine, theirs, rank, source, ranks):
    place = torch.arange(len(theirs))
    return place + source * len(theirs) <= (place + rank * len(theirs))[:, None]


def _on_its_side(mine, theirs, rank, source, ranks):
    return mine[None] >= theirs[:, None]


def _own_by_place(mine, theirs, rank, source, ranks):
    return _local(mine, theirs, rank, source, ranks) if rank == source else theirs <= mine[:, None]


def _in_order(mine, theirs, rank, source, ranks):
    return theirs.sort().values <= mine.sort().values[:, None]


wrong_on_its_side = _ringed("rows-are-keys", allowed=_on_its_side)
wrong_triangle_on_the_own = _ringed("places-in-the-block", says="own block", allowed=_own_by_place)
wrong_takes_them_in_order = _ringed("positions-are-in-order", allowed=_in_order)
wrong_no_mask = _ringed("every-key-is-seen", allowed=lambda mine, theirs, *_: (theirs >= 0).expand(len(mine), -1))
wrong_local_places = _ringed("places-in-the-block", allowed=_local)
wrong_own_positions = _ringed("places-in-the-block", allowed=lambda mine, theirs, *_: mine <= mine[:, None])
wrong_turned = _ringed("the-mask-is-turned", allowed=lambda mine, theirs, *_: theirs >= mine[:, None])
wrong_not_itself = _ringed("nobody-sees-itself", allowed=lambda mine, theirs, *_: theirs < mine[:, None])
wrong_rows_in_a_row = _ringed("pieces-in-a-row", allowed=_in_a_row)
wrong_all_in_a_row = _ringed("pieces-in-a-row", allowed=_both_in_a_row)
wrong_skips_by_rank = _ringed("later-ranks-are-later", useful=lambda rank, source: source <= rank)
wrong_own_block_missing = _ringed("the-own-block-is-left-out", start=1)
wrong_own_block_alone = wrong(
    "ring-attention",
    "my-keys-are-enough",
    answer=lambda q, k, v, at, group, blocks: blocks.finish(blocks.attend(q, k, v, at <= at[:, None])),
)
wrong_stops_early = _ringed("one-step-too-few", steps=-1)
wrong_sends_its_own = _ringed("only-the-own-is-passed", own=True)
wrong_mean_of_blocks = _ringed("outputs-are-averaged", average=True)
wrong_leaves_the_ring = _ringed("a-skipped-block-stays", leave=True)
wrong_computes_all = _ringed("what-is-masked-costs-nothing", skip=False)
wrong_closes_the_ring = _ringed("the-ring-is-closed", again=True)


def _from_the_next(mine, theirs, rank, source, ranks):
    return torch.arange(len(theirs)) + (2 * rank - source) % ranks * len(theirs) <= mine[:, None]


wrong_counts_the_other_way = _ringed("comes-from-the-next", allowed=_from_the_next)


@wrong("ring-attention", says="a rank sends 144 numbers")
def wrong_positions_first(q, k, v, positions, group, blocks):
    everyone = [positions]
    for _ in range(group.size - 1):
        everyone.append(group.rotate(everyone[-1])[0])
    return _ring()(q, k, v, positions, group, blocks)


@wrong("ring-attention", "all-at-once")
def wrong_gathers(q, k, v, positions, group, blocks):
    k, v, places = group.all_gather(k, 1), group.all_gather(v, 1), group.all_gather(positions)
    return blocks.finish(blocks.attend(q, k, v, places <= positions[:, None]))


@wrong("ring-attention", "all-at-once", says="more than one block")
def wrong_collects(q, k, v, positions, group, blocks):
    held = [(k, v, positions)]
    while len(held) < group.size:
        held.append(group.rotate(*held[-1]))
    k, v, places = (torch.cat(parts, dim) for parts, dim in zip(zip(*held, strict=True), (1, 1, 0), strict=True))
    return blocks.finish(blocks.attend(q, k, v, places <= positions[:, None]))


@wrong("ring-attention", "all-at-once", says="of other ranks' blocks at once")
def wrong_stores_all_blocks_first(q, k, v, positions, group, blocks):
    held = [(k, v, positions)]
    while len(held) < group.size:
        held.append(group.rotate(*held[-1]))
    result = None
    for keys, values, places in held:
        seen = places <= positions[:, None]
        if seen.any():
            part = blocks.attend(q, keys, values, seen)
            result = part if result is None else blocks.merge(result, part)
    return blocks.finish(result)


@wrong("ring-attention", says="your code changed what it was given")
def wrong_scales_the_queries(q, k, v, positions, group, blocks):
    out = _ring()(q, k, v, positions, group, blocks)
    q.mul_(0.5)
    return out


@wrong("ring-attention", "queries-travel-too")
def wrong_sends_queries(q, k, v, positions, group, blocks):
    class Fuller:
        rank, size = group.rank, group.size

        def rotate(self, *held):
            return group.rotate(*held, q)[:3]

    return _ring()(q, k, v, positions, Fuller(), blocks)


@wrong("ring-attention", says="computes something twice")
def wrong_computes_twice(q, k, v, positions, group, blocks):
    blocks.attend(q, k, v, positions <= positions[:, None])
    return _ring()(q, k, v, positions, group, blocks)


@wrong("ring-attention", says="without `attend`")
def wrong_attends_by_hand(q, k, v, positions, group, blocks):
    held = [(k, v, positions)]
    while len(held) < group.size:
        held.append(group.rotate(*held[-1]))
    k, v, places = (torch.cat(parts, dim) for parts, dim in zip(zip(*held, strict=True), (1, 1, 0), strict=True))
    logits = (q @ k.mT / q.shape[-1] ** 0.5).masked_fill(places > positions[:, None], -_INF)
    return logits.softmax(-1) @ v


@wrong("ring-attention", "queries-travel-too", says="numbers in a step")
def wrong_queries_go_round(q, k, v, positions, group, blocks):
    result, where = None, positions
    for step in range(group.size):
        if step:
            q, k, v, where = group.rotate(q, k, v, where)
        seen = where <= positions[:, None]
        if seen.any():
            part = blocks.attend(q, k, v, seen)
            result = part if result is None else blocks.merge(result, part)
    return blocks.finish(result)


@wrong("ring-attention", says="What has to come to a rank")
def wrong_queries_go_alone(q, k, v, positions, group, blocks):
    result, where = None, positions
    for step in range(group.size):
        if step:
            q, where = group.rotate(q, where)
        seen = positions <= where[:, None]
        if seen.any():
            part = blocks.attend(q, k, v, seen)
            result = part if result is None else blocks.merge(result, part)
    return blocks.finish(result)


@wrong("ring-attention", "outputs-are-added", says="calls `finish` 2 times")
def wrong_adds_outputs(q, k, v, positions, group, blocks):
    held, total = (k, v, positions), torch.zeros_like(q)
    for step in range(group.size):
        if step:
            held = group.rotate(*held)
        seen = held[2] <= positions[:, None]
        if seen.any():
            total += blocks.finish(blocks.attend(q, *held[:2], seen))
    return total


@wrong("ring-attention", "counts-its-own-twice")
def wrong_own_block_twice(q, k, v, positions, group, blocks):
    result, held = blocks.attend(q, k, v, positions <= positions[:, None]), (k, v, positions)
    for step in range(group.size):
        if step:
            held = group.rotate(*held)
        seen = held[2] <= positions[:, None]
        if seen.any():
            result = blocks.merge(result, blocks.attend(q, *held[:2], seen))
    return blocks.finish(result)


@wrong("ring-attention", says="a partial result")
def wrong_never_finishes(q, k, v, positions, group, blocks):
    return blocks.attend(q, k, v, positions <= positions[:, None])


@wrong("ring-attention", says="nothing came back. Is there a `return`")
def wrong_returns_nothing(q, k, v, positions, group, blocks):
    _ring()(q, k, v, positions, group, blocks)


@wrong("ring-attention", says="write it yourself")
def wrong_calls_torch(q, k, v, positions, group, blocks):
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)


@right("ring-attention")
def right_passes_on_at_the_end(q, k, v, positions, group, blocks):
    """Counts the steps down, merges the other way round, and gives every tensor a call of its own shape."""
    outcome, left = [], group.size
    places = positions.float()
    while True:
        seen = positions.unsqueeze(1).float() >= places
        if bool(seen.any()):
            outcome.append(blocks.attend(q, k, v, seen))
        left -= 1
        if left == 0:
            break
        k, v, places = group.rotate(k, v, places)
    total = outcome.pop()
    while outcome:
        total = blocks.merge(outcome.pop(), total)
    return blocks.finish(total)


@right("ring-attention")
def right_one_tensor_at_a_time(q, k, v, positions, group, blocks):
    result, own = None, positions.clone()
    for left in reversed(range(group.size)):
        if (allowed := own[:, None] >= positions).any():
            part = blocks.attend(q, k, v, allowed)
            result = blocks.merge(part, result) if result else part
        if left:
            (k,), (v,), (positions,) = group.rotate(k), group.rotate(v), group.rotate(positions)
    return blocks.finish(result)


@wrong("ring-attention", "a-skipped-block-stays", says="who waits for it")
def wrong_goes_on_without_passing(q, k, v, positions, group, blocks):
    result, held = None, (k, v, positions)
    for step in range(group.size):
        allowed = held[2] <= positions[:, None]
        if not allowed.any():
            continue
        part = blocks.attend(q, *held[:2], allowed)
        result = blocks.merge(part, result) if result else part
        if step < group.size - 1:
            held = group.rotate(*held)
    return blocks.finish(result)


@right("ring-attention")
def right_sends_before_it_computes(q, k, v, positions, group, blocks):
    held, coming, result = (k, v, positions), None, None
    for left in reversed(range(group.size)):
        coming = group.rotate(*held) if left else None
        keys, values, places = held
        seen = places <= positions[:, None]
        if seen.any():
            part = blocks.attend(q, keys, values, seen)
            result = part if result is None else blocks.merge(result, part)
        held = coming
    return blocks.finish(result)


@right("ring-attention")
def right_halves(q, k, v, positions, group, blocks):
    """Leaves out each half of a block that it does not need."""
    total, both, places = None, torch.cat([k, v], -1), positions
    for step in range(group.size):
        if step:
            both, places = group.rotate(both, places)
        for half in torch.arange(len(positions)).tensor_split(2):
            seen = places[half] <= positions[:, None]
            if seen.any():
                k, v = both[:, half].split(q.shape[-1], -1)
                part = blocks.attend(q, k, v, seen)
                total = blocks.merge(total, part) if total is not None else part
    return blocks.finish(total)
