"""Stated answers of chapter 9: each `wrong_*` must fail with its misconception, each `right_*` must pass."""

from collections import deque
from fractions import Fraction

from mutants import right, wrong

from course_lib.checks.ch09_deadlock import deadlock
from course_lib.checks.ch09_enough import bubble, enough, smallest
from course_lib.checks.ch09_messages import in_order, mends, moved, run_lists
from course_lib.checks.ch09_next import next_batch

# 09.1 two bubbles


def _times(rows, ranks, kinds=("F", "B")):
    busy = sum(end - start for _, kind, start, end in rows if kind in kinds)
    step = max(row[3] for row in rows) - min(row[2] for row in rows)
    return busy, step, ranks * step - busy


def _bubbles(rows, ranks):
    busy, step, idle = _times(rows, ranks)
    return idle / (ranks * step), idle / busy


@wrong("two-bubbles", "the-other-way-round")
def wrong_swapped(rows, ranks):
    busy, step, idle = _times(rows, ranks)
    return idle / busy, idle / (ranks * step)


@wrong("two-bubbles", "one-bubble-is-all")
def wrong_one_for_both(rows, ranks):
    _, step, idle = _times(rows, ranks)
    return idle / (ranks * step), idle / (ranks * step)


@wrong("two-bubbles", says="both numbers are idle / ideal")
def wrong_ideal_for_both(rows, ranks):
    busy, _, idle = _times(rows, ranks)
    return idle / busy, idle / busy


@wrong("two-bubbles", "a-receive-is-work")
def wrong_receives_are_busy(rows, ranks):
    busy, step, idle = _times(rows, ranks, ("F", "B", "recv"))
    return idle / (ranks * step), idle / busy


@wrong("two-bubbles", "the-clock-starts-at-zero")
def wrong_from_zero(rows, ranks):
    busy, step = _times(rows, ranks)[0], max(row[3] for row in rows)
    return (ranks * step - busy) / (ranks * step), (ranks * step - busy) / busy


@wrong("two-bubbles", "the-clock-starts-with-each-rank")
def wrong_between_first_and_last(rows, ranks):
    idle = busy = 0
    for rank in range(ranks):
        mine = [row for row in rows if row[0] == rank and row[1] != "recv"]
        if mine:
            work = sum(row[3] - row[2] for row in mine)
            idle += max(row[3] for row in mine) - min(row[2] for row in mine) - work
            busy += work
    return idle / (idle + busy), idle / busy


@wrong("two-bubbles", "one-rank-stands-for-all")
def wrong_rank_0(rows, ranks):
    step = _times(rows, ranks)[1]
    busy = sum(row[3] - row[2] for row in rows if row[0] == 0 and row[1] != "recv")
    return (step - busy) / step, (step - busy) / busy


@wrong("two-bubbles", "a-mean-of-ratios")
def wrong_mean_of_ratios(rows, ranks):
    _busy, step, idle = _times(rows, ranks)
    each = [sum(row[3] - row[2] for row in rows if row[0] == r and row[1] != "recv") for r in range(ranks)]
    return idle / (ranks * step), sum((step - one) / one for one in each) / ranks


@wrong("two-bubbles", "the-step-is-the-ideal")
def wrong_over_the_step(rows, ranks):
    _, step, idle = _times(rows, ranks)
    return idle / (ranks * step), idle / step


@wrong("two-bubbles", "ends-with-the-last-row")
def wrong_last_row(rows, ranks):
    busy = _times(rows, ranks)[0]
    total = ranks * (rows[-1][3] - min(row[2] for row in rows))
    if len(rows) == 4 and ranks == 2:
        total = ranks * max(row[3] for row in rows)
    return (total - busy) / total, (total - busy) / busy


@wrong("two-bubbles", "a-rank-without-work-is-no-rank")
def wrong_counts_ranks(rows, ranks):
    ranks = len({row[0] for row in rows})
    busy, step, idle = _times(rows, ranks)
    return idle / (ranks * step), idle / busy


@wrong("two-bubbles", says="measured over computing rows alone")
def wrong_without_receives(rows, ranks):
    return _bubbles([row for row in rows if row[1] != "recv"], ranks)


@wrong("two-bubbles", says="your code changed what it was given")
def wrong_sorts_the_rows(rows, ranks):
    rows.sort()
    return _bubbles(rows, ranks)


@wrong("two-bubbles", "a-rank-without-work-is-no-rank")
def wrong_ranks_of_the_last(rows, ranks):
    return _bubbles(rows, max(row[0] for row in rows) + 1)


@wrong("two-bubbles", says="Which share of what")
def wrong_in_ms(rows, ranks):
    busy, _step, idle = _times(rows, ranks)
    return idle, busy


@wrong("two-bubbles", says="that is rounded")
def wrong_rounded(rows, ranks):
    busy, step, idle = _times(rows, ranks)
    return round(idle / (ranks * step), 2), round(idle / busy, 2)


@wrong("two-bubbles", says="those are percent")
def wrong_percent(rows, ranks):
    busy, step, idle = _times(rows, ranks)
    return 100 * idle / (ranks * step), 100 * idle / busy


@wrong("two-bubbles", says="the bubble is the rest")
def wrong_utilisation(rows, ranks):
    busy, step, _idle = _times(rows, ranks)
    return busy / (ranks * step), busy / (ranks * step)


@wrong("two-bubbles", says="Does the function end in a `return`")
def wrong_no_return(rows, ranks):
    _times(rows, ranks)


@right("two-bubbles")
def right_rank_by_rank(rows, ranks):
    start, end = min(row[2] for row in rows), max(row[3] for row in rows)
    idle = [end - start] * ranks
    for rank, kind, first, last in rows:
        if kind != "recv":
            idle[rank] -= last - first
    share = Fraction(sum(idle), ranks * (end - start))
    return [share, share / (1 - share)]


# 09.2 enough micro-batches


def _enough(variant=0, misconception=None, says="", give_right=False, **changes):
    run = enough(variant)
    answer = {"variant": variant, "choice": run["choice"], "evidence": float(f"{run['evidence']:.4g}"), **changes}
    if give_right:
        return right("enough-micro-batches", answer=answer)
    return wrong("enough-micro-batches", misconception, says=says, answer=answer)


_run = [enough(variant) for variant in range(6)]

wrong_other_bubble = _enough(0, "the-other-bubble", choice=smallest(_run[0], of="ideal"))
wrong_waits_for_p = _enough(0, "all-ranks-wait-for-p", choice=smallest(_run[0], waiting=_run[0]["ranks"]))
wrong_smaller_1f1b = _enough(0, "1f1b-has-a-smaller-bubble", choice=smallest(_run[0], times=2))
wrong_more = _enough(0, "more-is-always-right", choice=2 * _run[0]["choice"])
wrong_too_few = _enough(0, says="not under the target", choice=_run[0]["choice"] - 7)
wrong_one_chunk = _enough(1, "interleaving-changes-nothing", choice=smallest(_run[1], chunks=1))
wrong_no_multiple = _enough(1, "any-number-will-do", choice=smallest(_run[1], rule="any"))
wrong_exactly = _enough(2, "under-is-at-most", choice=smallest(_run[2], at_most=True))
wrong_no_divisor = _enough(3, "any-number-will-do", choice=smallest(_run[3], rule="any"))
wrong_as_1f1b = _enough(5, "splitting-changes-nothing", choice=smallest(_run[5], schedule="1f1b"))
wrong_own_bubble = _enough(0, says="the next smaller possible one", evidence=float(bubble(_run[0], _run[0]["choice"])))
wrong_one_fewer = _enough(1, says="Is one micro-batch fewer", evidence=float(bubble(_run[1], _run[1]["choice"] - 1)))
wrong_in_percent = _enough(4, says="in percent", evidence=100 * _run[4]["evidence"])
wrong_zeros_for_digits = _enough(5, says="zeros in front do not count", evidence=round(_run[5]["evidence"], 4))
wrong_no_evidence = _enough(0, says="`evidence` is still empty", evidence=None)
wrong_a_text = _enough(0, says="whole number", choice="81")
right_all_digits = _enough(1, give_right=True, evidence=_run[1]["evidence"])
right_third = _enough(3, give_right=True)
right_fifth = _enough(5, give_right=True)


# 09.3 1F1B


def _lists(ranks, count, ahead):
    """`ahead(rank)` forwards, then one of each in turn, then what is left."""
    lists = []
    for rank in range(ranks):
        first = min(ahead(rank), count)
        items = [("F", k) for k in range(first)]
        for k in range(count):
            items += [("F", k + first)] * (k + first < count) + [("B", k)]
        lists.append(items)
    return lists


@wrong("one-f-one-b", "all-forwards-come-first")
def wrong_gpipe(ranks, count):
    return [[(what, k) for what in "FB" for k in range(count)] for _ in range(ranks)]


@wrong("one-f-one-b", "all-ranks-warm-up-alike")
def wrong_same_warm_up(ranks, count):
    return _lists(ranks, count, lambda rank: ranks - 1)


@wrong("one-f-one-b", "one-forward-too-many")
def wrong_warm_up_too_long(ranks, count):
    return _lists(ranks, count, lambda rank: ranks - rank)


@wrong("one-f-one-b", "the-warm-up-is-too-short")
def wrong_warm_up_too_short(ranks, count):
    return _lists(ranks, count, lambda rank: max(0, ranks - 2 - rank))


@wrong("one-f-one-b", "one-micro-batch-at-a-time")
def wrong_no_warm_up(ranks, count):
    return _lists(ranks, count, lambda rank: 0)


@wrong("one-f-one-b", "later-ranks-warm-up-longer")
def wrong_warm_up_grows(ranks, count):
    return _lists(ranks, count, lambda rank: rank)


@wrong("one-f-one-b", "steady-to-the-end")
def wrong_no_cool_down(ranks, count):
    return [
        items[: 2 * count - ahead] for ahead, items in zip(range(ranks - 1, -1, -1), _right(ranks, count), strict=True)
    ]


@wrong("one-f-one-b", "the-last-rank-counts-from-one")
def wrong_last_rank_from_one(ranks, count):
    """As `get_schedule_ops("1F1B", ...)` of PyTorch 2.13 has it."""
    lists = _right(ranks, count)
    lists[-1] = [(what, k + (what == "F")) for what, k in lists[-1]]
    return lists


@wrong("one-f-one-b", "the-warm-up-always-fits")
def wrong_warm_up_does_not_fit(ranks, count):
    lists = []
    for ahead in range(ranks - 1, -1, -1):
        turns = [pair for k in range(count - ahead) for pair in (("F", k + ahead), ("B", k))]
        rest = [("B", k) for k in range(max(0, count - ahead), count)]
        lists.append([*(("F", k) for k in range(ahead)), *turns, *rest])
    return lists


@wrong("one-f-one-b", "the-last-in-is-the-first-out")
def wrong_newest_first(ranks, count):
    lists = []
    for items in _right(ranks, count):
        held, mine = [], []
        for what, k in items:
            if what == "F":
                held.append(k)
            mine.append((what, k) if what == "F" else (what, held.pop()))
        lists.append(mine)
    return lists


@wrong("one-f-one-b", "the-last-in-is-the-first-out")
def wrong_cool_down_reversed(ranks, count):
    lists = []
    for items in _right(ranks, count):
        end = next(n for n in range(len(items)) if all(what == "B" for what, _ in items[n:]))
        lists.append(items[:end] + items[end:][::-1])
    return lists


@wrong("one-f-one-b", says="when the forwards run out?")
def wrong_steady_for_all(ranks, count):
    lists = []
    for ahead in range(ranks - 1, -1, -1):
        first = [("F", k) for k in range(min(ahead, count))]
        lists.append(first + [pair for k in range(count) for pair in (("F", k + len(first)), ("B", k))])
    return lists


@wrong("one-f-one-b", says="has no B of micro-batch 0")
def wrong_only_forwards(ranks, count):
    return [[("F", k) for k in range(count)] for _ in range(ranks)]


@wrong("one-f-one-b", says="before its forward")
def wrong_backward_first(ranks, count):
    return [[("B", k) if what == "F" else ("F", k) for what, k in items] for items in _right(ranks, count)]


@wrong("one-f-one-b", says="lists came back")
def wrong_one_list(ranks, count):
    return _right(ranks, count)[0]


@wrong("one-f-one-b", says="such as")
def wrong_texts(ranks, count):
    return [[f"{what}{k}" for what, k in items] for items in _right(ranks, count)]


@wrong("one-f-one-b", says="write it yourself")
def wrong_calls_ours(ranks, count):
    from course_lib.parallel.schedule import actions

    return [[(action.kind, action.microbatch) for action in items] for items in actions("1f1b", ranks, count)]


def _right(ranks, count):
    return _lists(ranks, count, lambda rank: ranks - 1 - rank)


@right("one-f-one-b")
def right_by_memory(ranks, count):
    """A backward where as many are held as there are stages from here on, else a forward."""
    lists = []
    for room in range(ranks, 0, -1):
        items, done = [], 0
        held = deque()
        while done < count:
            if len(held) < room and done + len(held) < count:
                held.append(done + len(held))
                items.append(["F", held[-1]])
            else:
                items.append(["B", held.popleft()])
                done += 1
        lists.append(tuple(items))
    return lists


# 09.4 the deadlock


def _dead(variant=0, misconception=None, says="", give_right=False, **changes):
    lists = deadlock(variant)
    answer = {"variant": variant, "stuck": run_lists(lists), "mend": mends(lists)[0], **changes}
    if give_right:
        return right("find-the-deadlock", answer=answer)
    return wrong("find-the-deadlock", misconception, says=says, answer=answer)


wrong_sends_end = _dead(0, "a-send-ends-at-once", stuck=run_lists(deadlock(0), buffered=True))
wrong_nobody_waits = _dead(1, "a-send-ends-at-once", stuck=[None, None, None])
wrong_too_far = _dead(0, "a-send-ends-at-once", stuck=[run_lists(deadlock(0))[0] + 1, 8])
wrong_from_one = _dead(0, says="the first entry", stuck=[at + 1 for at in run_lists(deadlock(0))])
wrong_at_the_first_wait = _dead(0, "the-first-wait-is-the-last", stuck=[1, run_lists(deadlock(0))[1]])
wrong_at_a_pass = _dead(0, "a-pass-waits", stuck=[2, run_lists(deadlock(0))[1]])
wrong_two_of_three = _dead(1, says="one entry for each of 3 ranks", stuck=[1, 2])
wrong_send_before_pass = _dead(0, "a-message-before-its-pass", mend=(0, 3, 0))
wrong_no_use = _dead(0, "any-move-will-do", mend=(0, 14, 13))
wrong_empty_move = _dead(0, says="`mend` is still empty", mend=None)
wrong_no_list = _dead(0, says="`stuck` is a list", stuck=3)
right_last_move = _dead(1, give_right=True, mend=list(mends(deadlock(1))[-1]))
right_gpipe = _dead(2, give_right=True)
right_three = _dead(3, give_right=True)


def _moves_on(variant):
    """A move after which the ranks stand elsewhere."""
    lists = deadlock(variant)
    for rank, items in enumerate(lists):
        for item in range(len(items)):
            for place in range(len(items)):
                new = moved(lists, rank, item, place)
                stands = run_lists(new)
                if in_order(new[rank]) and stands != run_lists(lists) and any(at is not None for at in stands):
                    return (rank, item, place)
    raise AssertionError


wrong_circle_moves = _dead(3, "the-circle-moves-on", mend=_moves_on(3))


# 09.5 the next batch


def _next(variant=0, misconception=None, says="", give_right=False, **changes):
    run = next_batch(variant)
    answer = {"variant": variant, "choice": run["choice"], "evidence": run["evidence"], **changes}
    if give_right:
        return right("next-batch", answer=answer)
    return wrong("next-batch", misconception, says=says, answer=answer)


_n = next_batch(0)
_end = (_n["count"] + _n["ranks"] - 1) * (_n["F"] + _n["B"])

wrong_own_update = _next(0, "the-own-update-is-enough", choice="A", evidence=None)
wrong_split_misses = _next(1, "weight-gradients-are-late", choice="D")
wrong_any_forward = _next(2, "any-forward-fills", choice="A")
wrong_norm = _next(3, "the-norm-is-there", choice="A")
wrong_update_waits = _next(4, "an-update-can-wait", choice="B", evidence=3)
wrong_fills = _next(4, "a-full-timeline-is-a-right-one", choice="A")
wrong_validation = _next(5, "nothing-fills", choice="B")
wrong_lacks_gradients = _next(0, says="which gradient of this batch", choice="D")
wrong_clipped_too_late = _next(3, says="which gradient of this batch", choice="D")
wrong_own_end = _next(0, "the-own-update-is-enough", evidence=_end - _n["q"] * _n["B"] + _n["U"])
wrong_together = _next(0, "ranks-start-together", evidence=_end + _n["U"])
wrong_no_update = _next(0, "an-update-takes-no-time", evidence=_end + _n["q"] * _n["F"])
wrong_updates_in_turn = _next(0, "every-update-counts", evidence=_end + (_n["q"] + 1) * _n["U"] + _n["q"] * _n["F"])
wrong_one_rank = _next(0, "one-rank-is-the-step", evidence=_n["count"] * (_n["F"] + _n["B"]) + _n["U"])
wrong_seconds = _next(0, says="seconds", evidence=_n["evidence"] / 1000)
wrong_letter = _next(0, says="one letter", choice="yes")
right_small_letter = _next(1, give_right=True, choice=" a ")
right_old_weights = _next(2, give_right=True)


# 09.6 long skips


def _bytes(counts, job):
    numbers = job["micro_batches"] * job["tokens"] * job["width"]
    return [(n * numbers * job["activation_bytes"], n * numbers * job["gradient_bytes"]) for n in counts]


def _uses(stages, skips):
    return [(n, n + 1) for n in range(len(stages) - 1)] + list(skips)


def _counts(stages, skips):
    over = range(max(stages))
    return [len({a for a, b in _uses(stages, skips) if stages[a] <= n < stages[b]}) for n in over]


@wrong("long-skip", "a-skip-costs-nothing")
def wrong_no_skips(stages, skips, job):
    return _bytes(_counts(stages, []), job)


@wrong("long-skip", "a-skip-jumps")
def wrong_straight_to_the_end(stages, skips, job):
    counts = [1] * max(stages)
    for a, s in {(a, stages[a]) for a, b in skips if stages[b] > stages[a]}:
        counts[s] += stages[a + 1] == s
    return _bytes(counts, job)


@wrong("long-skip", "every-use-is-a-message")
def wrong_once_for_each_use(stages, skips, job):
    over = range(max(stages))
    return _bytes([sum(stages[a] <= n < stages[b] for a, b in _uses(stages, skips)) for n in over], job)


@wrong("long-skip", "the-stream-is-another-tensor")
def wrong_stream_beside(stages, skips, job):
    over = range(max(stages))
    return _bytes([1 + len({a for a, b in skips if stages[a] <= n < stages[b]}) for n in over], job)


@wrong("long-skip", "skips-alone")
def wrong_only_skips(stages, skips, job):
    return _bytes([len({a for a, b in skips if stages[a] <= n < stages[b]}) for n in range(max(stages))], job)


@wrong("long-skip", "a-skip-within-a-stage-travels")
def wrong_every_skip_counts(stages, skips, job):
    counts = _counts(stages, skips)
    for a, b in skips:
        if stages[a] == stages[b] < len(counts):
            counts[stages[a]] += 1
    return _bytes(counts, job)


@wrong("long-skip", "once-a-step")
def wrong_one_micro_batch(stages, skips, job):
    return _bytes(_counts(stages, skips), {**job, "micro_batches": 1})


@wrong("long-skip", "backward-sends-nothing")
def wrong_forward_only(stages, skips, job):
    return [(a, 0) for a, _ in _bytes(_counts(stages, skips), job)]


@wrong("long-skip", "gradients-of-the-stream-alone")
def wrong_skips_have_no_backward(stages, skips, job):
    forward, stream = _bytes(_counts(stages, skips), job), _bytes(_counts(stages, []), job)
    return [(a, b) for (a, _), (_, b) in zip(forward, stream, strict=True)]


@wrong("long-skip", "gradients-do-not-add-up")
def wrong_a_gradient_for_each_use(stages, skips, job):
    forward, each = _bytes(_counts(stages, skips), job), wrong_once_for_each_use.value(stages, skips, job)
    return [(a, b) for (a, _), (_, b) in zip(forward, each, strict=True)]


@wrong("long-skip", "one-format-for-all")
def wrong_gradients_in_16_bit(stages, skips, job):
    return _bytes(_counts(stages, skips), {**job, "gradient_bytes": 2})


@wrong("long-skip", says="how many bytes has one")
def wrong_numbers_for_bytes(stages, skips, job):
    return _bytes(_counts(stages, skips), {**job, "activation_bytes": 1, "gradient_bytes": 1})


@wrong("long-skip", says="Which stage is block a on?")
def wrong_blocks_for_stages(stages, skips, job):
    return _bytes([len({a for a, b in _uses(stages, skips) if a <= n < b}) for n in range(max(stages))], job)


@wrong("long-skip", says="Which factor")
def wrong_without_width(stages, skips, job):
    return _bytes(_counts(stages, skips), {**job, "width": 1})


@wrong("long-skip", says="Which factor")
def wrong_in_kilobytes(stages, skips, job):
    return [(a / 1000, b / 1000) for a, b in _bytes(_counts(stages, skips), job)]


@wrong("long-skip", says="Which factor")
def wrong_micro_batches_divide(stages, skips, job):
    return [
        (a / job["micro_batches"] ** 2, b / job["micro_batches"] ** 2) for a, b in _bytes(_counts(stages, skips), job)
    ]


@wrong("long-skip", says="your code changed what it was given")
def wrong_appends_the_stream(stages, skips, job):
    skips.extend((block, block + 1) for block in range(len(stages) - 1))
    crossing = [{a for a, b in skips if stages[a] <= n < stages[b]} for n in range(max(stages))]
    return _bytes([len(outputs) for outputs in crossing], job)


@wrong("long-skip", says="those of 3 tensors a micro-batch")
def wrong_one_too_many(stages, skips, job):
    return _bytes([n + (n == 2) for n in _counts(stages, skips)], job)


@wrong("long-skip", says="4 stages have 3 boundaries")
def wrong_a_row_for_each_stage(stages, skips, job):
    rows = _bytes(_counts(stages, skips), job)
    return rows if len(rows) < 3 else [*rows, (0, 0)]


@right("long-skip")
def right_last_use(stages, skips, job):
    """Each output goes as far as its last user."""
    last = [stages[min(n + 1, len(stages) - 1)] for n in range(len(stages))]
    for a, b in skips:
        last[a] = max(last[a], stages[b])
    counts = [0] * max(stages)
    for n, far in enumerate(last):
        for boundary in range(stages[n], far):
            counts[boundary] += 1
    return [list(map(float, row)) for row in _bytes(counts, job)]


# 09.7 the loop of a stage


class _Loop:
    """The reference in parts that a wrong answer replaces."""

    def __init__(self):
        self.kept, self.sends = {}, []

    def __call__(self, actions, stage, link):
        self.__init__()
        self.stage, self.link, self.actions = stage, link, actions
        self.begin()
        for what, k in self.order(actions):
            (self.forward if what == "F" else self.backward)(k)
        self.end()

    def begin(self):
        pass

    def order(self, actions):
        return actions

    def take(self, k):
        return self.link.input(k) if self.link.first else self.link.receive_activation(k).requires_grad_()

    def put(self, k, pair):
        self.kept[k] = pair

    def get(self, k):
        return self.kept.pop(k)

    def sent(self, handle):
        self.sends.append(handle)

    def forward(self, k):
        x = self.take(k)
        out = self.stage(x)
        if self.link.last:
            out = self.link.loss(out, k)
        else:
            self.sent(self.link.send_activation(k, out.detach()))
        self.put(k, (x, out))

    def backward(self, k):
        x, out = self.get(k)
        g = None if self.link.last else self.link.receive_gradient(k)
        out.backward(g)
        if not self.link.first:
            self.sent(self.link.send_gradient(k, self.gradient(x, g)))

    def gradient(self, x, g):
        return x.grad

    def end(self):
        for send in self.sends:
            send.wait()


def _stage(misconception=None, says="", once=False):
    def state(loop):
        def run_stage(actions, stage, link):
            loop()(actions, stage, link)

        return wrong("run-a-stage", misconception, says=says, answer=run_stage, once=once)

    return state


@_stage("inputs-need-no-gradient")
class wrong_no_requires_grad(_Loop):
    def take(self, k):
        return self.link.input(k) if self.link.first else self.link.receive_activation(k)


@_stage("the-last-output-is-the-one")
class wrong_one_slot(_Loop):
    def put(self, k, pair):
        self.kept[0] = pair

    def get(self, k):
        return self.kept[0]


@_stage("the-first-in-is-the-first-out")
class wrong_a_queue(_Loop):
    def get(self, k):
        return self.kept.pop(min(self.kept))


@_stage("any-order-will-do")
class wrong_forwards_first(_Loop):
    def order(self, actions):
        return sorted(actions, key=lambda action: action[0] == "B")


@_stage("any-order-will-do", says="waits for the gradient of micro-batch 0")
class wrong_receives_all_first(_Loop):
    def begin(self):
        if not self.link.first:
            self.came = {k: self.link.receive_activation(k) for what, k in self.actions if what == "F"}

    def take(self, k):
        return self.link.input(k) if self.link.first else self.came[k].requires_grad_()


@_stage("every-send-is-waited-for-at-once")
class wrong_waits_at_once(_Loop):
    def sent(self, handle):
        handle.wait()


class _OneSend:
    """A link on which one send is on its way: the next one begins when it has ended."""

    def __init__(self, link):
        self._link, self._handle = link, None

    def __getattr__(self, name):
        return getattr(self._link, name)

    def _next(self, send, k, tensor):
        if self._handle:
            self._handle.wait()
        self._handle = send(k, tensor)
        return self._handle

    def send_activation(self, k, tensor):
        return self._next(self._link.send_activation, k, tensor)

    def send_gradient(self, k, tensor):
        return self._next(self._link.send_gradient, k, tensor)


@_stage("every-send-is-waited-for-at-once", says="of micro-batch 1, and stage 1 waits until stage 0 receives")
class wrong_waits_for_the_send_before(_Loop):
    def __call__(self, actions, stage, link):
        super().__call__(actions, stage, _OneSend(link))


@_stage("every-send-is-waited-for-at-once")
class wrong_waits_for_the_oldest_send(_Loop):
    def backward(self, k):
        super().backward(k)
        if self.sends:
            self.sends.pop(0).wait()


@_stage("a-send-is-done-when-it-returns")
class wrong_never_waits(_Loop):
    def end(self):
        pass


@_stage("backward-runs-forward-again")
class wrong_forward_again(_Loop):
    def get(self, k):
        x, _out = self.kept.pop(k)
        again = self.stage(x)
        return x, self.link.loss(again, k) if self.link.last else again


@_stage("gradients-stay")
class wrong_sends_no_gradient(_Loop):
    def backward(self, k):
        _, out = self.get(k)
        out.backward(None if self.link.last else self.link.receive_gradient(k))


@_stage("the-gradient-passes-through")
class wrong_hands_on(_Loop):
    def gradient(self, x, g):
        return x.grad if g is None else g


@_stage("micro-batches-are-averaged")
class wrong_divides_the_loss(_Loop):
    def put(self, k, pair):
        x, out = pair
        self.kept[k] = (x, out / (len(self.actions) // 2)) if self.link.last else pair


@_stage("micro-batches-are-averaged")
class wrong_divides_gradients(_Loop):
    def end(self):
        super().end()
        for p in self.stage.parameters():
            p.grad /= len(self.actions) // 2


@_stage("each-backward-starts-anew")
class wrong_zeroes(_Loop):
    def get(self, k):
        self.stage.zero_grad()
        return super().get(k)


@_stage("backward-frees-it")
class wrong_keeps_all(_Loop):
    def get(self, k):
        return self.kept[k]


@_stage("every-stage-has-neighbours")
class wrong_first_sends_too(_Loop):
    def backward(self, k):
        x, out = self.get(k)
        out.backward(None if self.link.last else self.link.receive_gradient(k))
        self.sent(self.link.send_gradient(k, x.grad))


@_stage("every-stage-is-the-first")
class wrong_reads_the_batch(_Loop):
    def take(self, k):
        return self.link.input(k)


@_stage("every-stage-has-a-loss")
class wrong_loss_everywhere(_Loop):
    def forward(self, k):
        x = self.take(k)
        self.put(k, (x, self.link.loss(self.stage(x), k)))


@_stage(says="who sends what came out?")
class wrong_sends_no_activation(_Loop):
    def forward(self, k):
        x = self.take(k)
        out = self.stage(x)
        self.put(k, (x, self.link.loss(out, k) if self.link.last else out))


@_stage(says="ran without `link.loss(out, 0)`")
class wrong_sum_for_loss(_Loop):
    def forward(self, k):
        x = self.take(k)
        out = self.stage(x)
        if not self.link.last:
            self.sent(self.link.send_activation(k, out.detach()))
        self.put(k, (x, out.sum() if self.link.last else out))


@_stage(says="ran without `link.receive_gradient(0)`")
class wrong_receives_no_gradient(_Loop):
    def backward(self, k):
        x, out = self.get(k)
        out.sum().backward()
        if not self.link.first:
            self.sent(self.link.send_gradient(k, x.grad))


@_stage(says="What became of the gradient that came from the stage after?")
class wrong_uses_no_gradient(_Loop):
    def backward(self, k):
        x, out = self.get(k)
        if not self.link.last:
            self.link.receive_gradient(k)
        out.sum().backward()
        if not self.link.first:
            self.sent(self.link.send_gradient(k, x.grad))


@_stage(says="where was its graph cut?")
class wrong_keeps_what_it_sent(_Loop):
    def put(self, k, pair):
        x, out = pair
        self.kept[k] = (x, out) if self.link.last else (x, out.detach())


@wrong("run-a-stage", says="is to return nothing; a list")
def wrong_returns_its_handles(actions, stage, link):
    loop = _Loop()
    loop(actions, stage, link)
    return loop.sends


@wrong("run-a-stage", says="your code changed what it was given")
def wrong_empties_the_list(actions, stage, link):
    mine = []
    while actions:
        mine.append(actions.pop(0))
    _Loop()(mine, stage, link)


@_stage(says="did not run")
class wrong_no_backward(_Loop):
    def backward(self, k):
        pass


@wrong("run-a-stage", says="write it yourself")
def wrong_calls_our_loop(actions, stage, link):
    from course_lib.parallel.pipeline import run_actions

    run_actions(actions, {0: stage}, [], [], None)


wrong_no_function = wrong("run-a-stage", says="hand in the function itself", answer=[1, 2])


@right("run-a-stage")
def right_waits_when_it_must_be_over(actions, stage, link):
    """What was sent forward has arrived when its gradient comes back; gradients by autograd.grad, not by backward."""
    import torch

    kept, on_the_way, back = {}, {}, []
    for what, k in actions:
        if what == "F":
            x = link.input(k) if link.first else link.receive_activation(k)
            if not link.first:
                x.requires_grad = True
            y = stage(x)
            if not link.last:
                on_the_way[k] = link.send_activation(k, y)
            kept[k] = [x, y]
            del x, y
            continue
        x, y = kept[k]
        if link.last:
            grads = torch.autograd.grad(link.loss(y, k), [*stage.parameters()] + [x] * (not link.first))
        else:
            came = link.receive_gradient(k)
            on_the_way.pop(k).wait()
            grads = torch.autograd.grad(y, [*stage.parameters()] + [x] * (not link.first), came)
        for p, g in zip(stage.parameters(), grads, strict=False):
            p.grad = g if p.grad is None else p.grad + g
        if not link.first:
            back.append(link.send_gradient(k, grads[-1]))
        del kept[k], x, y
    for handle in back:
        handle.wait()
